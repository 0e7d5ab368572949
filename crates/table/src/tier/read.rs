//! Rows that a request needs and memory does not have: what to read, and where it goes.
//!
//! A pull looks into all shards first, reads everything it misses as one batch with no lock held,
//! and then moves the rows into memory. Between the two, rows may have come, gone or moved:
//! whoever holds the lock compares numbers, and reads again under the lock what does not fit, which
//! is rare.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use regatta_cold::{Held, Record, RecordNo};

use crate::Error;
use crate::group::{Item, Work};
use crate::index::Place;
use crate::shard::Shard;
use crate::sparse::SparseTable;
use crate::tier::Core;
use crate::tier::cold_index::ColdEntry;
use crate::tier::prefetch::Load;
use crate::tier::shard::cold_error;
use crate::tier::slots::Arrival;

/// A record that may be the row of an item.
#[derive(Debug, Clone, Copy)]
struct Want {
    item: u32,
    record: u32,
}

/// The records that a request reads, shard by shard and in the order of its items.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    wants: Vec<Want>,
    held: Option<Held>,
    /// Reads of others to wait for.
    loads: Vec<Arc<Load>>,
    /// The missing items of all shards that wait for reads.
    missing: Vec<u32>,
    pub(crate) later: Vec<Later>,
}

/// A shard that waits for reads.
#[derive(Debug, Clone)]
pub(crate) struct Later {
    pub(crate) shard: usize,
    pub(crate) version: u64,
    missing: Range<usize>,
    wants: Range<usize>,
}

/// What was read for a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found<'a> {
    wants: &'a [Want],
    held: Option<&'a Held>,
    /// Where the first of them is in what was read.
    start: usize,
}

impl Found<'_> {
    /// Nothing was read.
    pub(crate) const NOTHING: Found<'static> = Found { wants: &[], held: None, start: 0 };

    /// The records of an item, with their numbers; `from` is where to look, and moves on.
    fn of(&self, item: u32, from: &mut usize) -> impl Iterator<Item = (u32, Record<'_>)> {
        while self.wants.get(*from).is_some_and(|want| want.item < item) {
            *from += 1;
        }
        let first = *from;
        let own = self.wants[first..].iter().take_while(move |want| want.item == item);
        own.enumerate().filter_map(move |(i, want)| {
            Some((want.record, self.held?.get(self.start + first + i)?))
        })
    }
}

impl Reads {
    /// Notes what the missing items of a shard may be. Whether there is anything to wait for.
    pub(crate) fn want(
        &mut self,
        shard_idx: usize,
        shard: &Shard,
        items: &[Item],
        w: &Work,
    ) -> bool {
        let Some(tier) = shard.tier.as_ref().filter(|tier| tier.cold.len() > 0) else {
            return false;
        };
        let (wants, missing, n_loads) = (self.wants.len(), self.missing.len(), self.loads.len());
        let loading = tier.loading();
        for &item in w.missing.iter().filter(|item| w.places[**item as usize] == Place::EMPTY) {
            for entry in tier.cold.candidates(items[item as usize].hash) {
                match loading.get(&entry.record()) {
                    Some(load) => self.loads.push(load.clone()),
                    None => self.wants.push(Want { item, record: entry.record() }),
                }
            }
        }
        if self.wants.len() == wants && self.loads.len() == n_loads {
            return false;
        }
        self.missing.extend_from_slice(&w.missing);
        self.later.push(Later {
            shard: shard_idx,
            version: shard.index.version(),
            missing: missing..self.missing.len(),
            wants: wants..self.wants.len(),
        });
        true
    }

    /// Reads everything, and waits for it and for what others read.
    pub(crate) fn wait(&mut self, core: &Core) -> Result<(), Error> {
        let numbers: Vec<_> = self.wants.iter().map(|w| RecordNo::from_u32(w.record)).collect();
        let since = Instant::now();
        let ticket = core.cold(core.store.submit(&numbers))?;
        let ready = ticket.is_ready() && self.loads.iter().all(|load| load.is_done());
        for load in self.loads.drain(..) {
            load.wait();
        }
        self.held = Some(core.cold(ticket.wait())?);
        if !ready {
            core.counters.waited(since.elapsed());
        }
        Ok(())
    }

    /// What was read for a shard.
    pub(crate) fn found(&self, later: &Later) -> Found<'_> {
        let (wants, start) = (&self.wants[later.wants.clone()], later.wants.start);
        Found { wants, held: self.held.as_ref(), start }
    }

    /// The items that a shard missed.
    pub(crate) fn missing(&self, later: &Later) -> &[u32] {
        &self.missing[later.missing.clone()]
    }
}

impl Shard {
    /// The record of a cold row among candidates, if it was read; the others are added to `unread`.
    fn match_record<'r>(
        &self,
        hash: u64,
        mut read: impl Iterator<Item = (u32, Record<'r>)> + Clone,
        unread: &mut Vec<(u64, ColdEntry)>,
    ) -> Option<(ColdEntry, Record<'r>)> {
        let tier = self.tier.as_ref()?;
        for entry in tier.cold.candidates(hash) {
            match read.clone().find(|(number, _)| *number == entry.record()) {
                Some((_, record)) if record.hash == hash => return Some((entry, record)),
                // A record of somebody else.
                Some(_) => {}
                None => unread.push((hash, entry)),
            }
        }
        let _ = read.next();
        None
    }

    /// Reads candidates while the lock is held. Those that are of their hash are visited.
    pub(crate) fn read_now(
        &self,
        unread: &[(u64, ColdEntry)],
        mut visit: impl FnMut(ColdEntry, Record<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(tier) = self.tier.as_ref().filter(|_| !unread.is_empty()) else { return Ok(()) };
        let numbers: Vec<_> = unread.iter().map(|(_, e)| RecordNo::from_u32(e.record())).collect();
        let held = tier.store.read(&numbers).map_err(|e| cold_error(tier.table, &e))?;
        for (i, (hash, entry)) in unread.iter().enumerate() {
            match held.get(i) {
                Some(record) if record.hash == *hash => visit(*entry, record)?,
                Some(_) => {}
                None => {
                    let what = format!("record {} is lost", entry.record());
                    return Err(Error::Cold { table: tier.table, what });
                }
            }
        }
        Ok(())
    }

    /// Moves the cold rows among missing items into memory, and gives how many there were.
    pub(crate) fn bring(
        &mut self,
        items: &[Item],
        missing: impl Iterator<Item = u32>,
        found: Found<'_>,
    ) -> Result<usize, Error> {
        if self.tier.as_ref().is_none_or(|tier| tier.cold.len() == 0) {
            return Ok(0);
        }
        let (mut from, mut n, mut unread) = (0, 0, Vec::new());
        for item in missing {
            let hash = items[item as usize].hash;
            // Another thread or an equal item may have brought it; candidates are never cold.
            if self.index.find(hash) != Place::EMPTY {
                continue;
            }
            let read: Vec<_> = found.of(item, &mut from).collect();
            if let Some((entry, record)) = self.match_record(hash, read.into_iter(), &mut unread) {
                self.promote(entry, &record, Arrival::Used)?;
                n += 1;
            }
        }
        unread.sort_unstable();
        unread.dedup();
        let mut late = Vec::new();
        self.read_now(&unread, |entry, record| {
            late.push((entry, record.hash, record.tag, record.words.to_vec()));
            Ok(())
        })?;
        for (entry, hash, tag, words) in &late {
            let record = Record { hash: *hash, tag: *tag, words };
            self.promote(*entry, &record, Arrival::Used)?;
        }
        Ok(n + late.len())
    }
}

impl SparseTable {
    /// The floats of a cold row.
    pub(crate) fn cold_row<'r>(&self, record: &Record<'r>) -> &'r [f32] {
        let extended = Place::from_tag(1, record.tag, 0).has(Place::EXTENDED);
        let len = if extended { self.kind.extended_len() } else { self.kind.base_len() };
        bytemuck::cast_slice(&record.words[..len])
    }

    /// Reads missing items that are cold without moving them, and notes those that still miss.
    pub(crate) fn look_at_cold(
        &self,
        shard_idx: usize,
        items: &[Item],
        out: &mut [f32],
        work: &mut Work,
        found: Found<'_>,
    ) -> Result<usize, Error> {
        let (n, width) = (work.missing.len(), self.width_of(work));
        let mut copy = |item: u32, row: &[f32]| {
            let at = items[item as usize].pos as usize * width;
            self.kind.copy_out(row, &mut out[at..at + width]);
        };
        let mut from = 0;
        work.missing.retain(|&item| {
            let hash = items[item as usize].hash;
            let own = found.of(item, &mut from).find(|(_, record)| record.hash == hash);
            let Some((_, record)) = own else { return true };
            copy(item, self.cold_row(&record));
            false
        });
        let n_read = n - work.missing.len();
        if work.missing.is_empty() {
            return Ok(n_read);
        }
        let shard = self.read(shard_idx)?;
        let mut still = Vec::new();
        for &item in &work.missing {
            let hash = items[item as usize].hash;
            let mut found = false;
            if let Some(row) = shard.row(shard.index.find(hash)) {
                copy(item, row);
                found = true;
            } else if let Some(tier) = &shard.tier {
                let unread: Vec<_> = tier.cold.candidates(hash).map(|e| (hash, e)).collect();
                shard.read_now(&unread, |_, record| {
                    copy(item, self.cold_row(&record));
                    found = true;
                    Ok(())
                })?;
            }
            if !found {
                still.push(item);
            }
        }
        work.missing = still;
        Ok(n - work.missing.len())
    }
}
