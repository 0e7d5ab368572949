//! Which dense values every worker has, counted in updates.

use std::sync::atomic::{AtomicU64, Ordering};

/// The updates of the dense values so far, and how many of them workers have seen.
pub(super) struct Given {
    updates: AtomicU64,
    workers: Vec<Seen>,
}

/// Updates that a worker's values had. Only the thread of its connection counts here.
#[derive(Default)]
struct Seen {
    /// When it got them for its batch.
    at_begin: AtomicU64,
    /// When it got them last.
    last: AtomicU64,
}

impl Given {
    pub(super) fn new(workers: usize) -> Given {
        let workers = (0..workers).map(|_| Seen::default()).collect();
        Given { updates: AtomicU64::new(0), workers }
    }

    /// An update is done.
    pub(super) fn updated(&self) {
        self.updates.fetch_add(1, Ordering::Release);
    }

    /// A worker is about to be given values for a batch.
    pub(super) fn begin(&self, worker: usize) {
        let Some(seen) = self.workers.get(worker) else { return };
        let now = self.updates.load(Ordering::Acquire);
        seen.at_begin.store(now, Ordering::Relaxed);
        seen.last.store(now, Ordering::Relaxed);
    }

    /// A worker is about to be given newer values for the same batch, if there are any: the number of
    /// updates since the batch began.
    pub(super) fn again(&self, worker: usize) -> Option<u64> {
        let seen = self.workers.get(worker)?;
        // Read before the values are: an update that comes in between is given again.
        let now = self.updates.load(Ordering::Acquire);
        let before = seen.last.swap(now, Ordering::Relaxed);
        (now > before).then(|| now - seen.at_begin.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_are_told_once() {
        let given = Given::new(2);
        given.begin(0);
        assert_eq!(given.again(0), None);
        given.updated();
        given.updated();
        assert_eq!(given.again(0), Some(2));
        assert_eq!(given.again(0), None);
        given.updated();
        assert_eq!(given.again(0), Some(3));
        given.updated();
        given.begin(0);
        assert_eq!(given.again(0), None);
        // Another worker has its own count, and nobody else has one.
        assert_eq!(given.again(1), Some(4));
        assert_eq!(given.again(2), None);
        given.begin(2);
    }
}
