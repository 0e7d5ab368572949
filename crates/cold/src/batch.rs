//! A batch of reads: which pages it wants, and the records as their pages arrive.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::Error;
use crate::health::{Counters, Health};
use crate::layout::{HEAD, Layout, PAGE, hash_of};
use crate::segment::Segment;

/// A segment is read in sequence if more of its pages are wanted: 2 of 5. Reading a page at random
/// costs as much of a disk's time as 2 to 3 in sequence.
const SCAN_FROM: (u64, u64) = (2, 5);

/// Pages read at once in sequence.
pub(crate) const SCAN_PAGES: u32 = 64;

/// One read of a batch.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) segment: Arc<Segment>,
    pub(crate) page: u32,
    pub(crate) n_pages: u32,
    wanted: Range<usize>,
}

impl Read {
    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.page) * PAGE as u64
    }

    pub(crate) fn n_bytes(&self) -> usize {
        self.n_pages as usize * PAGE
    }
}

/// A position of a segment, and the record of the batch that it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    segment: u32,
    position: u32,
    at: u32,
}

/// Collects what a batch wants.
#[derive(Debug)]
pub(crate) struct Plan {
    layout: Layout,
    segments: Vec<Arc<Segment>>,
    lives: Vec<Arc<()>>,
    wanted: Vec<Wanted>,
    words: Vec<u32>,
    found: Vec<bool>,
}

impl Plan {
    pub(crate) fn new(layout: Layout, n: usize) -> Plan {
        let words = vec![0; n * layout.record_words()];
        let (segments, lives, wanted) = (Vec::new(), Vec::new(), Vec::with_capacity(n));
        Plan { layout, segments, lives, wanted, words, found: vec![false; n] }
    }

    /// Record `at` is in memory: here it is.
    pub(crate) fn copy(&mut self, at: usize, record: &[u32]) {
        let width = self.layout.record_words();
        self.words[at * width..(at + 1) * width].copy_from_slice(record);
        self.found[at] = true;
    }

    /// The number of a segment in this plan.
    pub(crate) fn segment(&mut self, segment: &Arc<Segment>) -> u32 {
        self.segments.push(segment.clone());
        self.hold(&segment.life);
        self.segments.len() as u32 - 1
    }

    /// Keeps the number of a segment from being given out again while the records are held.
    pub(crate) fn hold(&mut self, life: &Arc<()>) {
        self.lives.push(life.clone());
    }

    /// Record `at` is at a position of segment number `segment`.
    pub(crate) fn want(&mut self, at: usize, segment: u32, position: u32) {
        self.wanted.push(Wanted { segment, position, at: at as u32 });
        self.found[at] = true;
    }

    /// Sorts, and chooses one read per page or a scan for every segment.
    pub(crate) fn batch(mut self, counters: &Counters) -> Batch {
        self.wanted.sort_unstable();
        let mut reads = Vec::with_capacity(self.wanted.len());
        let mut at = 0;
        while at < self.wanted.len() {
            let segment = self.wanted[at].segment;
            let n = self.wanted[at..].partition_point(|w| w.segment == segment);
            let scanned = self.plan_segment(at..at + n, &mut reads);
            Counters::add(&counters.scans, usize::from(scanned));
            at += n;
        }
        Counters::add(&counters.pages, reads.iter().map(|r| r.n_pages as usize).sum());
        Counters::add(&counters.bytes_read, reads.iter().map(Read::n_bytes).sum());
        let records = Records { layout: self.layout, words: self.words, found: self.found };
        let state = State { n_left: reads.len(), records, error: None };
        Batch {
            reads,
            wanted: self.wanted,
            state: Mutex::new(state),
            done: Condvar::new(),
            lives: self.lives,
        }
    }

    fn plan_segment(&self, all: Range<usize>, reads: &mut Vec<Read>) -> bool {
        let segment = &self.segments[self.wanted[all.start].segment as usize];
        let first = reads.len();
        self.group(all.clone(), 1, segment, reads);
        let n_pages = u64::from(self.layout.data_pages(segment.header.n_records));
        let n_wanted = (reads.len() - first) as u64;
        let scan = n_wanted > 1 && n_wanted * SCAN_FROM.1 > n_pages * SCAN_FROM.0;
        if scan {
            reads.truncate(first);
            self.group(all, SCAN_PAGES, segment, reads);
        }
        scan
    }

    /// One read for all that is within the same `n_pages` pages.
    fn group(&self, all: Range<usize>, n_pages: u32, segment: &Arc<Segment>, to: &mut Vec<Read>) {
        let end = 1 + self.layout.data_pages(segment.header.n_records);
        let mut start = all.start;
        while start < all.end {
            let page = self.layout.page(self.wanted[start].position);
            let stop = page.saturating_add(n_pages).min(end);
            let within = |w: &Wanted| self.layout.page(w.position) < stop;
            let n = self.wanted[start..all.end].partition_point(within);
            let wanted = start..start + n;
            to.push(Read { segment: segment.clone(), page, n_pages: stop - page, wanted });
            start += n;
        }
    }
}

/// Reads under way.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) reads: Vec<Read>,
    wanted: Vec<Wanted>,
    state: Mutex<State>,
    done: Condvar,
    /// Held as long as the batch.
    lives: Vec<Arc<()>>,
}

#[derive(Debug)]
struct State {
    n_left: usize,
    records: Records,
    error: Option<Error>,
}

impl Batch {
    /// The bytes of a read have come, or will not come. Every read is completed once.
    pub(crate) fn complete(&self, read_idx: usize, bytes: Result<&[u8], Error>) {
        let read = &self.reads[read_idx];
        let checked = bytes.and_then(|bytes| {
            read.segment.check_length(read.page, read.n_bytes(), bytes.len())?;
            self.check(read, bytemuck::cast_slice(bytes))
        });
        let mut state = self.lock();
        match checked {
            Ok(pages) => self.copy(read, pages, &mut state.records),
            Err(error) => state.error = state.error.take().or(Some(error)),
        }
        state.n_left -= 1;
        if state.n_left == 0 {
            self.done.notify_all();
        }
    }

    fn check<'a>(&self, read: &Read, pages: &'a [u32]) -> Result<&'a [u32], Error> {
        for wanted in &self.wanted[read.wanted.clone()] {
            let record = read.segment.layout().record(pages, read.page, wanted.position);
            read.segment.check(record, wanted.position)?;
        }
        Ok(pages)
    }

    fn copy(&self, read: &Read, pages: &[u32], records: &mut Records) {
        let layout = read.segment.layout();
        let width = layout.record_words();
        for wanted in &self.wanted[read.wanted.clone()] {
            let to = wanted.at as usize * width;
            records.words[to..to + width].copy_from_slice(layout.record(
                pages,
                read.page,
                wanted.position,
            ));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads that were submitted. Dropping it abandons them.
#[derive(Debug)]
#[must_use = "wait for it"]
pub struct Ticket {
    pub(crate) batch: Arc<Batch>,
    pub(crate) health: Arc<Health>,
}

impl Ticket {
    /// Whether [`Ticket::wait`] would return at once.
    pub fn is_ready(&self) -> bool {
        self.batch.lock().n_left == 0
    }

    /// Waits for all records.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read, or is not what was written. The store is poisoned then.
    pub fn wait(self) -> Result<Held, Error> {
        let mut state = self.batch.lock();
        if state.n_left > 0 {
            let since = Instant::now();
            while state.n_left > 0 {
                state = self.batch.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let counters = &self.health.counters;
            Counters::add(&counters.waits, 1);
            Counters::add(&counters.wait_ns, since.elapsed().as_nanos() as usize);
        }
        if let Some(error) = state.error.take() {
            return self.health.note(Err(error));
        }
        let records = std::mem::take(&mut state.records);
        drop(state);
        Ok(Held { records, _lives: self.batch.lives.clone() })
    }
}

/// Records that were read, in the order in which their numbers were given.
///
/// As long as this is held, no number that was asked for becomes the number of a record of another
/// segment. So whoever finds that a row still has the number that it was read by, knows that this
/// is the row.
#[derive(Debug)]
pub struct Held {
    records: Records,
    _lives: Vec<Arc<()>>,
}

impl Held {
    /// How many numbers were asked for.
    pub fn len(&self) -> usize {
        self.records.found.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.records.found.is_empty()
    }

    /// Record `i`, or `None` if its number was not live when it was submitted: it was released, or
    /// moved by compaction.
    pub fn get(&self, i: usize) -> Option<Record<'_>> {
        let width = self.records.layout.record_words();
        self.records.found[i].then(|| Record::of(&self.records.words[i * width..(i + 1) * width]))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Option<Record<'_>>> {
        (0..self.len()).map(|i| self.get(i))
    }
}

#[derive(Debug)]
struct Records {
    layout: Layout,
    words: Vec<u32>,
    found: Vec<bool>,
}

impl Default for Records {
    fn default() -> Records {
        let layout = Layout { words: 0, per_page: 1, slots: 0 };
        Records { layout, words: Vec::new(), found: Vec::new() }
    }
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it is known by.
    pub hash: u64,
    /// The caller's flags.
    pub tag: u32,
    /// The caller's words.
    pub words: &'a [u32],
}

impl<'a> Record<'a> {
    pub(crate) fn of(record: &'a [u32]) -> Record<'a> {
        Record { hash: hash_of(record), tag: record[2], words: &record[HEAD..] }
    }
}
