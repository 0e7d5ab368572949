//! Work that several processors share.

use std::sync::{Mutex, OnceLock};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Everybody looks at all keys of a step for those of a share, so there is a limit to how many
/// threads are useful.
const MOST_THREADS: usize = 8;

/// Threads that help whoever has work for several processors. They wait for it rather than being
/// started for it, which takes longer than a good part of a synchronous step.
pub(super) struct Crew {
    size: usize,
    helpers: OnceLock<Option<ThreadPool>>,
}

impl Crew {
    /// For this machine. No thread is started before there is work for it.
    pub(super) fn new() -> Crew {
        let processors = thread::available_parallelism().map_or(1, |n| n.get());
        Crew { size: processors.min(MOST_THREADS), helpers: OnceLock::new() }
    }

    /// How many threads work at the same time, the calling one among them.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Does a task with every item and gives the results in order. Whoever is free takes the next.
    pub(super) fn share_out<I: Send, T: Send>(
        &self,
        items: Vec<I>,
        task: impl Fn(I) -> T + Sync,
    ) -> Vec<T> {
        let n = items.len();
        let left = Mutex::new(items.into_iter().enumerate());
        let done = Mutex::new(Vec::with_capacity(n));
        let work = || {
            loop {
                // The lock is not held while the task is done.
                let next = locked(&left).next();
                let Some((number, item)) = next else { return };
                let result = task(item);
                locked(&done).push((number, result));
            }
        };
        let others = n.min(self.size).saturating_sub(1);
        match if others > 0 { self.helpers() } else { None } {
            Some(helpers) => helpers.in_place_scope(|scope| {
                (0..others).for_each(|_| scope.spawn(|_| work()));
                work();
            }),
            None => work(),
        }
        let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
        done.sort_unstable_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// The helpers; none if the system does not let them start, which costs speed only.
    fn helpers(&self) -> Option<&ThreadPool> {
        let start = || {
            let name = |i| format!("helper-{i}");
            ThreadPoolBuilder::new().num_threads(self.size - 1).thread_name(name).build().ok()
        };
        self.helpers.get_or_init(start).as_ref()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_and_results_keep_their_order() {
        for size in [1, 2, 7] {
            let crew = Crew { size, helpers: OnceLock::new() };
            for n in [0, 1, 5, 100] {
                let done = crew.share_out((0..n).collect(), |number: usize| number * number);
                assert_eq!(done, (0..n).map(|i| i * i).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "task 3")]
    fn a_panic_of_a_helper_is_one_of_the_caller() {
        let crew = Crew { size: 2, helpers: OnceLock::new() };
        crew.share_out((0..10).collect(), |number: usize| assert!(number != 3, "task {number}"));
    }
}
