//! The store: who has which number, what is open, and where everything else is.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::JoinHandle;

use crate::batch::{Held, Plan, Ticket};
use crate::compact::Compaction;
use crate::descriptors::raise_limit;
use crate::directory::Directory;
use crate::engine::{self, Engine};
use crate::health::{Counters, Health};
use crate::layout::Layout;
use crate::memory::Memory;
use crate::seal::{self, Queue};
use crate::segment::Segment;
use crate::state::{Entry, State};
use crate::{EngineChoice, Error, Stats};

/// What a store is made with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Words of a record.
    pub words: usize,
    /// Bytes of a full segment, in memory and as a file.
    pub segment_bytes: usize,
    /// Full segments that wait to be written. Whoever puts more waits.
    pub n_waiting: usize,
    /// How to read.
    pub engine: EngineChoice,
    /// Threads that read, without io_uring.
    pub n_threads: usize,
    /// Record numbers are smaller than this.
    pub max_records: u32,
}

impl Options {
    /// Segments of 64 MB, two of them waiting, 32 threads, numbers of 31 bits.
    pub fn new(words: usize) -> Options {
        Options {
            words,
            segment_bytes: 64 << 20,
            n_waiting: 2,
            engine: EngineChoice::Auto,
            n_threads: 32,
            max_records: 1 << 31,
        }
    }
}

/// The number of a record: segment and slot. It is the record's until the record is released or
/// compaction moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordNo(pub(crate) u32);

impl RecordNo {
    /// The number as a number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// What [`RecordNo::get`] gave.
    pub fn from_u32(number: u32) -> RecordNo {
        RecordNo(number)
    }
}

/// What was chosen when a store started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Where the files are.
    pub dir: PathBuf,
    /// `io_uring` or `threads`.
    pub engine: &'static str,
    /// Why it is not io_uring, if that was possible.
    pub why_not_ring: Option<String>,
    /// Whether reads go around the page cache.
    pub direct: bool,
    /// Records of a full segment.
    pub records_per_segment: u32,
    /// Records of a page, which is what a read of one record reads.
    pub records_per_page: usize,
}

/// Records by number, in memory until a segment is full, then in files.
pub struct Store {
    // Threads end before what they use.
    sealer: Option<JoinHandle<()>>,
    engine: Box<dyn Engine>,
    pub(crate) shared: Arc<Shared>,
    info: Info,
}

/// What the threads of a store share.
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    max_segments: u32,
    state: RwLock<State>,
    pub(crate) queue: Queue,
    pub(crate) health: Arc<Health>,
    pub(crate) serials: AtomicU64,
    pub(crate) compaction: Compaction,
    // Last: it removes what files the others have left.
    pub(crate) dir: Directory,
}

impl Store {
    /// Makes an empty store in a directory of its own, which need not exist. What a process that
    /// was killed has left there is removed.
    ///
    /// # Errors
    ///
    /// If a live process uses the directory, if it holds other files or cannot be written, or if an
    /// option cannot be honoured.
    pub fn open(dir: &Path, options: &Options) -> Result<Store, Error> {
        let layout = Layout::new(options.words, options.segment_bytes)?;
        let max_segments = options.max_records / layout.slots;
        if max_segments < 2 || options.n_waiting == 0 {
            let why = "two segments and a place in the queue are the least that works";
            return Err(Error::Options(why.into()));
        }
        raise_limit();
        let health = Arc::new(Health::default());
        let dir = Directory::claim(dir, health.clone())?;
        let (engine, why_not) = engine::start(options.engine, options.n_threads)?;
        let info = Info {
            dir: dir.path().into(),
            engine: engine.name(),
            why_not_ring: why_not.map(|e| e.to_string()),
            direct: dir.direct(),
            records_per_segment: layout.slots,
            records_per_page: layout.per_page,
        };
        let shared = Arc::new(Shared {
            layout,
            max_segments,
            state: RwLock::new(State::new(layout)),
            queue: Queue::new(options.n_waiting),
            health,
            serials: AtomicU64::new(0),
            compaction: Compaction::default(),
            dir,
        });
        let sealer = Some(seal::start(shared.clone())?);
        Ok(Store { sealer, engine, shared, info })
    }

    /// What was chosen at the start.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Takes a record. It can be read at once. Waits if the disk is behind.
    ///
    /// The caller sees to it that a hash has one live record: nothing here compares.
    ///
    /// # Errors
    ///
    /// If the store has failed, all numbers are taken, or the record has another size.
    pub fn put(&self, hash: u64, tag: u32, words: &[u32]) -> Result<RecordNo, Error> {
        let mut numbers = Vec::with_capacity(1);
        self.put_all([(hash, tag, words)], &mut numbers)?;
        Ok(numbers[0])
    }

    /// Takes records and appends their numbers to `numbers`, with one lock for as many as fit.
    ///
    /// # Errors
    ///
    /// As [`Store::put`]; the records whose numbers were appended are in the store.
    pub fn put_all<'a>(
        &self,
        records: impl IntoIterator<Item = (u64, u32, &'a [u32])>,
        numbers: &mut Vec<RecordNo>,
    ) -> Result<(), Error> {
        self.shared.health.check()?;
        let (layout, before) = (self.shared.layout, numbers.len());
        let mut state = self.shared.write();
        for (hash, tag, words) in records {
            if words.len() != layout.words {
                return Err(Error::Words { expected: layout.words, actual: words.len() });
            }
            while state.open.is_full() {
                state = self.shared.roll(state)?;
            }
            let slot = state.open.push(hash, tag, words);
            numbers.push(layout.number(state.open.id, slot));
        }
        Counters::add(&self.shared.health.counters.puts, numbers.len() - before);
        Ok(())
    }

    /// Begins to read records, in any order. Several batches may be under way.
    ///
    /// Numbers are looked up now: what is released or moved afterwards is still read.
    ///
    /// # Errors
    ///
    /// If the store has failed.
    pub fn submit(&self, numbers: &[RecordNo]) -> Result<Ticket, Error> {
        self.shared.health.check()?;
        let counters = &self.shared.health.counters;
        let mut plan = Plan::new(self.shared.layout, numbers.len());
        let n_in_memory = self.shared.read().resolve(numbers, &self.shared.layout, &mut plan);
        let batch = Arc::new(plan.batch(counters));
        Counters::add(&counters.reads, numbers.len());
        Counters::add(&counters.memory_hits, n_in_memory);
        if !batch.reads.is_empty() {
            self.engine.start(batch.clone());
        }
        Ok(Ticket { batch, health: self.shared.health.clone() })
    }

    /// Waits for a batch; the same as [`Ticket::wait`].
    ///
    /// # Errors
    ///
    /// If a record cannot be read. The store is poisoned then.
    pub fn wait(&self, ticket: Ticket) -> Result<Held, Error> {
        ticket.wait()
    }

    /// Reads records and waits for them.
    ///
    /// # Errors
    ///
    /// As [`Store::submit`] and [`Store::wait`].
    pub fn read(&self, numbers: &[RecordNo]) -> Result<Held, Error> {
        self.submit(numbers)?.wait()
    }

    /// Gives up records: their numbers are not to be used again by the caller.
    ///
    /// # Errors
    ///
    /// If one of them is not live; those before it are released.
    pub fn release(&self, numbers: &[RecordNo]) -> Result<(), Error> {
        let mut dead = Vec::new();
        let mut sparse = false;
        let mut result = Ok(());
        {
            let state = self.shared.read();
            for &number in numbers {
                if !state.release(number, &self.shared.layout, &mut dead, &mut sparse) {
                    result = Err(Error::NotLive(number));
                    break;
                }
            }
        }
        dead.iter().for_each(|segment| self.shared.remove_if_dead(segment));
        if sparse {
            self.shared.compaction.notify();
        }
        result
    }

    /// Writes the open segment, full or not, and waits until every record is in a file.
    ///
    /// # Errors
    ///
    /// If the store has failed, or cannot write.
    pub fn flush(&self) -> Result<(), Error> {
        let mut state = self.shared.write();
        if state.open.len() > 0 {
            let id = state.open.id;
            while state.open.id == id {
                state = self.shared.roll(state)?;
            }
        }
        drop(state);
        self.shared.queue.wait_until_empty(&self.shared.health)
    }

    /// Records put so far.
    pub fn n_put(&self) -> u64 {
        self.shared.health.counters.puts.load(Ordering::Relaxed)
    }

    /// What it has done and holds.
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.health.counters.stats();
        let state = self.shared.read();
        stats.live = u64::from(state.open.live.count());
        for entry in &state.entries {
            match entry {
                Entry::Waiting(memory) => stats.live += u64::from(memory.live.count()),
                Entry::File(segment) => {
                    stats.live_on_disk += u64::from(segment.live.count());
                    stats.segments += 1;
                    stats.index_bytes += segment.index_bytes() as u64;
                }
                Entry::Free(_) | Entry::Taken => {}
            }
        }
        stats.live += stats.live_on_disk;
        stats
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.queue.stop();
        if let Some(sealer) = self.sealer.take() {
            sealer.join().expect("the thread that writes does not panic");
        }
    }
}

impl Shared {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the open segment to the writer and begins another one; or waits, with the lock given
    /// back, until there may be room for that.
    fn roll<'a>(
        &'a self,
        mut state: RwLockWriteGuard<'a, State>,
    ) -> Result<RwLockWriteGuard<'a, State>, Error> {
        self.health.check()?;
        if !self.queue.has_room() {
            drop(state);
            Counters::add(&self.health.counters.put_waits, 1);
            self.queue.wait_for_room(&self.health)?;
            return Ok(self.write());
        }
        let id = state.take_number(self.max_segments, &self.layout)?;
        let full = std::mem::replace(&mut state.open, Memory::new(id, self.layout));
        let full = Arc::new(full);
        state.entries[full.id as usize] = Entry::Waiting(full.clone());
        self.queue.push(full);
        Ok(state)
    }

    /// A segment number for something that is not readable yet.
    pub(crate) fn take_number(&self) -> Result<u32, Error> {
        self.write().take_number(self.max_segments, &self.layout)
    }

    pub(crate) fn give_back(&self, id: u32) {
        self.write().entries[id as usize] = Entry::Free(Weak::new());
    }

    /// Makes the records of a file readable.
    pub(crate) fn add(&self, segment: Segment) -> Arc<Segment> {
        let segment = Arc::new(segment);
        self.write().entries[segment.id as usize] = Entry::File(segment.clone());
        segment
    }

    pub(crate) fn remove_if_dead(&self, segment: &Arc<Segment>) {
        let mut state = self.write();
        let removed = state.remove_if_dead(segment);
        drop(state);
        // Files are removed without the lock.
        drop(removed);
    }
}
