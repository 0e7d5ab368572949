//! Threads that make a large synchronous step together: [`ThreadPool::run`].
//!
//! Nobody computes while a server makes a synchronous step, so its processors are idle. Pieces of
//! dense parameters and partitions of the rows are updated at the same time, each row by one thread
//! and in the order of the workers; then the replies are collected, and only then sent, by all
//! threads. Replying wakes a worker, which may preempt the thread that replied: in a trace a single
//! thread was put off by some 3 ms, and the other worker waited as long for its values. The threads
//! wait for work; started for every step, they came 0.2 ms late.
//!
//! Measured (`bench/compare`, batch 512, 2 workers and a server on 2 cores, medians of interleaved
//! runs): workers wait 0.88-1.20 s of a data pass instead of 1.38-1.53 s. Asynchronous requests
//! stay with the thread of their connection: two processors for pushes of 52,000 rows gained
//! nothing in three attempts, because the worker needs the other one.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

use rayon::ThreadPoolBuilder;

/// Every thread looks at all keys of a step for those of its partition, so there is a limit to how
/// many threads are useful.
const MAX_THREADS: usize = 8;
/// Bytes of all requests of a step from which on other threads are worth waking.
const LARGE_STEP: usize = 256 << 10;

/// The threads of a server. None is started before there is work for it.
pub(super) struct ThreadPool {
    size: usize,
    others: OnceLock<Option<rayon::ThreadPool>>,
}

impl ThreadPool {
    /// For this machine.
    pub(super) fn new() -> ThreadPool {
        let processors = thread::available_parallelism().map_or(1, |n| n.get());
        ThreadPool { size: processors.min(MAX_THREADS), others: OnceLock::new() }
    }

    /// How many threads make a step with that many bytes, the calling one among them.
    pub(super) fn threads_for(&self, bytes: usize) -> usize {
        if bytes >= LARGE_STEP { self.size } else { 1 }
    }

    /// Does a task with every item, by so many threads, and gives the results in order. A thread
    /// that is free takes the next item.
    pub(super) fn run<I: Send, T: Send>(
        &self,
        threads: usize,
        items: Vec<I>,
        task: impl Fn(I) -> T + Sync,
    ) -> Vec<T> {
        let others = items.len().min(threads).saturating_sub(1);
        let Some(pool) = (if others > 0 { self.others() } else { None }) else {
            return items.into_iter().map(task).collect();
        };
        let done = Mutex::new(Vec::with_capacity(items.len()));
        let left = Mutex::new(items.into_iter().enumerate());
        let work = || {
            loop {
                // The lock is not held while the task is done.
                let next = locked(&left).next();
                let Some((number, item)) = next else { return };
                let result = task(item);
                locked(&done).push((number, result));
            }
        };
        pool.in_place_scope(|scope| {
            (0..others).for_each(|_| scope.spawn(|_| work()));
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
        done.sort_unstable_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// The other threads; none if the system does not let them start, which costs speed only.
    fn others(&self) -> Option<&rayon::ThreadPool> {
        let start = || {
            let name = |i| format!("step-{i}");
            ThreadPoolBuilder::new().num_threads(self.size - 1).thread_name(name).build().ok()
        };
        self.others.get_or_init(start).as_ref()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_and_results_keep_their_order() {
        for size in [1, 2, 7] {
            let pool = ThreadPool { size, others: OnceLock::new() };
            for n in [0, 1, 5, 100] {
                let done = pool.run(size, (0..n).collect(), |number: usize| number * number);
                assert_eq!(done, (0..n).map(|i| i * i).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "task 3")]
    fn a_panic_of_another_thread_is_one_of_the_caller() {
        let pool = ThreadPool { size: 2, others: OnceLock::new() };
        pool.run(2, (0..10).collect(), |number: usize| assert!(number != 3, "task {number}"));
    }
}
