//! All records in the order of their hashes, as they were when they were pinned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::batch::Record;
use crate::bits::Copied;
use crate::health::Health;
use crate::layout::{PAGE, hash_of};
use crate::memory::Memory;
use crate::segment::{Segment, SegmentReader};
use crate::{Error, Store};

/// Bytes that all sources of a scan buffer together, and the least and most of one.
const BUFFERS: usize = 64 << 20;
const LEAST_PAGES: usize = 4;
const MOST_PAGES: usize = 64;

/// The live records of a moment. Segments stay where they are as long as this is held, whatever is
/// released, compacted or written meanwhile.
#[derive(Debug, Clone)]
pub struct Pins {
    sources: Vec<Pinned>,
    health: Arc<Health>,
}

#[derive(Debug, Clone)]
pub(crate) enum Pinned {
    /// With the live positions.
    File(Arc<Segment>, Copied),
    /// With the live slots.
    Memory(Memory, Copied),
}

impl Pins {
    /// How many records lived.
    pub fn n_records(&self) -> u64 {
        let count = |pinned: &Pinned| match pinned {
            Pinned::File(_, live) | Pinned::Memory(_, live) => live.count(),
        };
        self.sources.iter().map(count).sum()
    }
}

impl Store {
    /// Pins the records that live now. Takes a copy of a bit per record, not of records.
    ///
    /// # Errors
    ///
    /// If the store has failed.
    pub fn pin(&self) -> Result<Pins, Error> {
        self.shared.health.check()?;
        // The lock for writing: nothing is released, put or moved meanwhile.
        let state = self.shared.write();
        let files = state.files().map(|s| Pinned::File(s.clone(), s.live.copy()));
        let memories = state.memories().map(|m| Pinned::Memory(m.clone(), m.live.copy()));
        let mut sources: Vec<Pinned> = files.chain(memories).collect();
        self.shared.compaction.settle(&mut sources);
        drop(state);
        Ok(Pins { sources, health: self.shared.health.clone() })
    }

    /// Merges pinned segments: every record once, in the order of the hashes.
    ///
    /// # Errors
    ///
    /// If a segment cannot be read. The store is poisoned then.
    pub fn scan_sorted(&self, pins: &Pins) -> Result<Scan, Error> {
        let health = pins.health.clone();
        health.check()?;
        let merge = health.note(Merge::new(&pins.sources))?;
        Ok(Scan { merge, health })
    }
}

/// Records in the order of their hashes.
#[derive(Debug)]
pub struct Scan {
    merge: Merge,
    health: Arc<Health>,
}

impl Scan {
    /// The next one.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not what was written. The store is poisoned then.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, Error> {
        self.health.check()?;
        let advanced = self.health.note(self.merge.advance())?;
        Ok(advanced.map(|source| Record::of(self.merge.record(source))))
    }
}

/// The merge of sources, each in order.
#[derive(Debug)]
pub(crate) struct Merge {
    sources: Vec<Source>,
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    current: Option<usize>,
}

impl Merge {
    pub(crate) fn new(pinned: &[Pinned]) -> Result<Merge, Error> {
        let n_pages = (BUFFERS / PAGE / pinned.len().max(1)).clamp(LEAST_PAGES, MOST_PAGES);
        let sources = pinned.iter().map(|pinned| Source::open(pinned, n_pages));
        let sources: Vec<Source> = sources.collect::<Result<_, _>>()?;
        let n = sources.len();
        let mut merge = Merge { sources, heap: BinaryHeap::with_capacity(n), current: None };
        (0..n).try_for_each(|source| merge.step(source))?;
        Ok(merge)
    }

    /// Goes to the next record and says which source it is of.
    pub(crate) fn advance(&mut self) -> Result<Option<usize>, Error> {
        if let Some(source) = self.current.take() {
            self.step(source)?;
        }
        self.current = self.heap.pop().map(|Reverse((_, source))| source);
        Ok(self.current)
    }

    /// The record that a source is at.
    pub(crate) fn record(&self, source: usize) -> &[u32] {
        match &self.sources[source] {
            Source::File { reader, .. } => reader.record(),
            Source::Memory { memory, slots, next } => memory.record(slots[*next - 1]),
        }
    }

    fn step(&mut self, source: usize) -> Result<(), Error> {
        if let Some(hash) = self.sources[source].advance()? {
            self.heap.push(Reverse((hash, source)));
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Source {
    File { reader: SegmentReader, live: Copied, next: u32 },
    Memory { memory: Memory, slots: Vec<u32>, next: usize },
}

impl Source {
    fn open(pinned: &Pinned, n_pages: usize) -> Result<Source, Error> {
        Ok(match pinned {
            Pinned::File(segment, live) => {
                let reader = SegmentReader::open(segment.clone(), n_pages)?;
                Source::File { reader, live: live.clone(), next: 0 }
            }
            Pinned::Memory(memory, live) => {
                let slots = memory.sorted(live.iter());
                Source::Memory { memory: memory.clone(), slots, next: 0 }
            }
        })
    }

    /// The hash of the next record.
    fn advance(&mut self) -> Result<Option<u64>, Error> {
        match self {
            Source::File { reader, live, next } => {
                let Some(position) = live.next(*next) else { return Ok(None) };
                *next = position + 1;
                reader.seek(position).map(Some)
            }
            Source::Memory { memory, slots, next } => {
                let Some(&slot) = slots.get(*next) else { return Ok(None) };
                *next += 1;
                Ok(Some(hash_of(memory.record(slot))))
            }
        }
    }
}
