//! Working memory of tables, handed to those who have use for what it remembers.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use regatta_table::{Scratch, SparseTable};

use crate::Mode;

/// Pulls remembered at most. Where more are under way, remembering costs more than it saves.
const MOST_KEPT: u64 = 64;

/// Spare working memory: in front what is of no further use, then what pulls left, the oldest first.
///
/// A scratch knows where the rows of its last pull are, and a push of the same keys is faster with it.
pub(super) struct Scratches {
    /// So many pulls may be waiting for their pushes.
    keep: usize,
    spare: Mutex<VecDeque<Scratch>>,
}

impl Scratches {
    /// For so many workers that all use so many tables.
    pub(super) fn new(mode: &Mode, workers: usize, tables: usize) -> Scratches {
        let per_worker = match mode {
            Mode::Async(config) if config.max_merge_var_num == 1 => config.pull_ahead + 1,
            Mode::HalfAsync | Mode::Bounded { .. } => 1,
            Mode::Sync if workers == 1 => 1,
            // Keys of several batches or workers are put together, and differences have other keys.
            Mode::Async(_) | Mode::Sync | Mode::Geo { .. } => 0,
        };
        let keep = per_worker.saturating_mul((workers * tables) as u64);
        let keep = if keep <= MOST_KEPT { keep as usize } else { 0 };
        Scratches { keep, spare: Mutex::default() }
    }

    /// Does a pull that a push of the same keys may follow.
    pub(super) fn pull<T>(&self, pull: impl FnOnce(&mut Scratch) -> T) -> T {
        let mut spare = self.spare();
        let scratch = if spare.len() < self.keep { None } else { spare.pop_front() };
        drop(spare);
        let mut scratch = scratch.unwrap_or_default();
        let result = pull(&mut scratch);
        self.spare().push_back(scratch);
        result
    }

    /// Does a push, if possible with what the pull of its keys left.
    pub(super) fn push<T>(
        &self,
        table: &SparseTable,
        keys: &[u64],
        push: impl FnOnce(&mut Scratch) -> T,
    ) -> T {
        let mut spare = self.spare();
        let pulled = spare.iter().position(|scratch| table.was_likely_asked(keys, scratch));
        let scratch = spare.remove(pulled.unwrap_or(0));
        drop(spare);
        let mut scratch = scratch.unwrap_or_default();
        let result = push(&mut scratch);
        self.spare().push_front(scratch);
        result
    }

    /// Does something that leaves nothing of use.
    pub(super) fn any<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let mut scratch = self.spare().pop_front().unwrap_or_default();
        let result = work(&mut scratch);
        self.spare().push_front(scratch);
        result
    }

    fn spare(&self) -> MutexGuard<'_, VecDeque<Scratch>> {
        self.spare.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use regatta_optim::{Rule, Sgd};
    use regatta_table::{Accessor, PlainConfig, PullMode, SparseConfig, TableId};

    use super::*;
    use crate::AsyncConfig;

    /// How many of ten batches are pushed with the working memory of their pulls.
    fn pushed_with_their_pulls(mode: &Mode, workers: u64) -> usize {
        let plain = PlainConfig::new(1, Rule::Sgd(Sgd {}));
        let config = SparseConfig::new(TableId(0), 1, Accessor::Plain(plain));
        let table = SparseTable::new(config).unwrap();
        let scratches = Scratches::new(mode, workers as usize, 1);
        let keys = |worker: u64, batch: u64| [worker, batch + 100, worker + 1000];
        let mut hits = 0;
        for batch in 0..11 {
            for worker in 0..workers {
                let pull = |scratch: &mut Scratch| {
                    table.pull(&keys(worker, batch), &mut [0.0; 3], PullMode::Train, scratch)
                };
                scratches.pull(pull).unwrap();
            }
            for worker in 0..workers * batch.min(1) {
                // The pull of the next batch came before.
                let keys = keys(worker, batch - 1);
                hits += scratches.push(&table, &keys, |scratch| {
                    table.push_unique(&keys, &[0.0; 3], 1.0, scratch).unwrap();
                    usize::from(table.was_likely_asked(&keys, scratch))
                });
            }
        }
        let spare = scratches.spare().len();
        assert!(spare <= scratches.keep.max(1), "{spare} are spare");
        hits
    }

    #[test]
    fn pushes_get_the_working_memory_of_their_pulls() {
        let ahead = Mode::Async(AsyncConfig { pull_ahead: 1, ..AsyncConfig::default() });
        assert_eq!(pushed_with_their_pulls(&ahead, 1), 10);
        assert_eq!(pushed_with_their_pulls(&ahead, 3), 30);
        assert_eq!(pushed_with_their_pulls(&ahead, 100), 0, "too many to be remembered");
        assert_eq!(pushed_with_their_pulls(&Mode::Sync, 2), 0, "workers push together");
    }
}
