//! Work that several processors share.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How many processors this process may use.
pub(super) fn processors() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Does `n` tasks with up to so many threads, the calling one among them, and gives their results in
/// order. Whoever is free takes the next task.
pub(super) fn share_out<T: Send>(
    threads: usize,
    n: usize,
    task: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= n {
                return done;
            }
            done.push((number, task(number)));
        }
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(n)).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_and_results_keep_their_order() {
        for threads in [1, 2, 7] {
            for n in [0, 1, 5, 100] {
                let done = share_out(threads, n, |number| number * number);
                assert_eq!(done, (0..n).map(|i| i * i).collect::<Vec<_>>());
            }
        }
    }
}
