//! Which processor cores a process may use. In: how many processes. Out: a share of the cores for
//! each.
//!
//! Why: processes that often wait for each other are woken where their wakers run. On a busy
//! machine two ranks shared one core for whole runs: half the speed of one rank. Workers of a
//! synchronous job met the same for some milliseconds in every third step: 72.8 k examples/s
//! (67.9-77.3) without partitions of the cores, 78.2 k (77.6-78.7) with them (2 workers and a
//! server on 2 cores, batch 512, 5 interleaved runs, 2026-11-17;
//! `bench/compare/run --only sync-2-1`, and the same with `--no-bind`). Asynchronous workers gain
//! nothing, so the system places them.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Divides the cores that this process may use into `n` shares, as equal as possible. Nothing if
/// that leaves a share with fewer than `least` cores, or the system does not say which cores there
/// are.
///
/// Processes that often wait for each other are woken where their wakers run. On a busy machine two
/// of them may so end on one core and take turns, however much of the machine they are given; with
/// shares that cannot happen.
pub fn shares(n: usize, least: usize) -> Option<Vec<Vec<usize>>> {
    let allowed = sched_getaffinity(None).ok()?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    split(&cores, n, least)
}

fn split(cores: &[usize], n: usize, least: usize) -> Option<Vec<Vec<usize>>> {
    if n == 0 || cores.len() / n < least.max(1) {
        return None;
    }
    // Neighbours stay together: they share caches and memory.
    let start = |i: usize| i * cores.len() / n;
    Some((0..n).map(|i| cores[start(i)..start(i + 1)].to_vec()).collect())
}

/// Lets this thread, and what it starts, use only these cores until the guard is dropped.
pub(crate) fn only(cores: &[usize]) -> io::Result<OnlyHere> {
    let before = sched_getaffinity(None)?;
    let mut wanted = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| wanted.set(*core));
    sched_setaffinity(None, &wanted)?;
    Ok(OnlyHere { before })
}

/// See [`only`].
pub(crate) struct OnlyHere {
    before: CpuSet,
}

impl Drop for OnlyHere {
    fn drop(&mut self) {
        // What was allowed before is allowed again, unless somebody has taken cores away meanwhile:
        // then the system's choice stands.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_belongs_to_one_share() {
        assert_eq!(split(&[0, 1], 2, 1), Some(vec![vec![0], vec![1]]));
        assert_eq!(split(&[2, 3, 7, 8, 9], 2, 2), Some(vec![vec![2, 3], vec![7, 8, 9]]));
        assert_eq!(split(&[4], 1, 0), Some(vec![vec![4]]));
    }

    #[test]
    fn too_few_cores_are_not_cut() {
        assert_eq!(split(&[0, 1], 3, 1), None);
        assert_eq!(split(&[0, 1, 2], 2, 2), None);
        assert_eq!(split(&[], 1, 1), None);
        assert_eq!(split(&[0], 0, 1), None);
    }

    #[test]
    fn the_guard_gives_all_cores_back() {
        let before = sched_getaffinity(None).unwrap();
        let last = shares(1, 1).unwrap()[0].pop().unwrap();
        {
            let _only = only(&[last]).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
