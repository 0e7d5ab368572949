//! What all parts of a store share: whether it failed, and what was counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::Error;

/// Failure and counters of a store.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failure: OnceLock<Arc<Error>>,
    /// Set when the directory is gone: names in it may be of another store by then.
    pub(crate) closed: Mutex<bool>,
    pub(crate) counters: Counters,
}

impl Health {
    /// Refuses whatever a failed store is asked for.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.failure.get() {
            Some(error) => Err(Error::Poisoned(error.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Poisons the store if the error says that its contents cannot be trusted.
    pub(crate) fn note<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result
            && lasting(error)
        {
            // The first failure stays: later ones usually follow from it.
            let _ = self.failure.set(Arc::new(error.clone()));
        }
        result
    }

    /// Does something to files unless the directory is gone.
    pub(crate) fn unless_closed(&self, act: impl FnOnce()) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*closed {
            act();
        }
    }
}

fn lasting(error: &Error) -> bool {
    matches!(
        error,
        Error::Io { .. } | Error::ShortRead { .. } | Error::Checksum { .. } | Error::Header { .. }
    )
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) memory_hits: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) scans: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) wait_ns: AtomicU64,
    pub(crate) put_waits: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) disk_bytes: AtomicU64,
    pub(crate) most_disk_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_disk(&self, bytes: u64) {
        let now = self.disk_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most_disk_bytes.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            reads: get(&self.reads),
            memory_hits: get(&self.memory_hits),
            pages: get(&self.pages),
            bytes_read: get(&self.bytes_read),
            scans: get(&self.scans),
            waits: get(&self.waits),
            waited: Duration::from_nanos(get(&self.wait_ns)),
            put_waits: get(&self.put_waits),
            puts: get(&self.puts),
            written: get(&self.written),
            moved: get(&self.moved),
            disk_bytes: get(&self.disk_bytes),
            most_disk_bytes: get(&self.most_disk_bytes),
            ..Stats::default()
        }
    }
}

/// What a store has done and holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Records asked for.
    pub reads: u64,
    /// Those of them that were still in memory.
    pub memory_hits: u64,
    /// Pages read for batches.
    pub pages: u64,
    /// Bytes read for batches.
    pub bytes_read: u64,
    /// Times that a batch wanted so much of a segment that it was read in sequence.
    pub scans: u64,
    /// Batches that were not ready when they were waited for.
    pub waits: u64,
    /// How long, in total.
    pub waited: Duration,
    /// Times that a record waited for the disk before it could be put.
    pub put_waits: u64,
    /// Records put.
    pub puts: u64,
    /// Records written to files, by whatever way.
    pub written: u64,
    /// Those of them that compaction wrote again.
    pub moved: u64,
    /// Bytes of all files.
    pub disk_bytes: u64,
    /// The most that these ever were.
    pub most_disk_bytes: u64,
    /// Live records, in memory and in files.
    pub live: u64,
    /// Live records in files.
    pub live_on_disk: u64,
    /// Files.
    pub segments: u64,
    /// Bytes of memory for what is in files: a bit per record, and where it is.
    pub index_bytes: u64,
}

impl Stats {
    /// Records written for each one written for the first time.
    pub fn write_amplification(&self) -> f64 {
        let first = self.written - self.moved;
        if first == 0 { 1.0 } else { self.written as f64 / first as f64 }
    }
}
