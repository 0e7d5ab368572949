//! Keys of one request, arranged: keys go in, one run of items per shard comes out.

use std::ops::Range;

use regatta_tensor::RowIndex;

use crate::hash::{hash_of, shard_of};
use crate::index::Place;
use crate::pull_slots::PullSlots;

/// One key of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Item {
    /// The hash of the key.
    pub(crate) hash: u64,
    /// Its position in the request.
    pub(crate) pos: u32,
}

/// The keys of a request by shard, within a shard in the order of the request.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    hashes: Vec<u64>,
    items: Vec<Item>,
    /// `ends[s]` is where the items of shard `s` end.
    ends: Vec<u32>,
}

impl Groups {
    /// Arranges `keys`, leaving out `padding`.
    ///
    /// # Panics
    /// If there are 2^32 keys or more.
    pub(crate) fn arrange(&mut self, keys: &[u64], n_shards: usize, padding: Option<u64>) {
        assert!(u32::try_from(keys.len()).is_ok(), "keys of one request are numbered in 32 bits");
        self.ends.clear();
        self.ends.resize(n_shards + 1, 0);
        self.hashes.clear();
        // First the number of items per shard, one place further on.
        self.hashes.extend(keys.iter().map(|key| {
            let hash = hash_of(*key);
            self.ends[shard_of(hash, n_shards) + 1] += 1;
            hash
        }));
        if let Some(padding) = padding.map(hash_of) {
            let n = self.hashes.iter().filter(|hash| **hash == padding).count() as u32;
            self.ends[shard_of(padding, n_shards) + 1] -= n;
        }
        // Then where each shard starts; placing its items moves that to where it ends.
        let mut sum = 0;
        for end in &mut self.ends {
            sum += *end;
            *end = sum;
        }
        if self.items.len() < keys.len() {
            self.items.resize(keys.len(), Item::default());
        }
        let padding = padding.map(hash_of);
        for (pos, &hash) in self.hashes.iter().enumerate() {
            if Some(hash) != padding {
                let at = &mut self.ends[shard_of(hash, n_shards)];
                self.items[*at as usize] = Item { hash, pos: pos as u32 };
                *at += 1;
            }
        }
    }

    /// The items of one shard.
    pub(crate) fn shard(&self, shard: usize) -> &[Item] {
        &self.items[self.range(shard)]
    }

    /// Where the items of one shard are.
    pub(crate) fn range(&self, shard: usize) -> Range<usize> {
        let start = if shard == 0 { 0 } else { self.ends[shard - 1] };
        start as usize..self.ends[shard] as usize
    }

    /// How many keys were arranged, padding included.
    pub(crate) fn n_keys(&self) -> usize {
        self.hashes.len()
    }

    /// Whether these keys were arranged last.
    pub(crate) fn are_of(&self, keys: &[u64]) -> bool {
        self.hashes.len() == keys.len()
            && keys.iter().zip(&self.hashes).all(|(key, hash)| hash_of(*key) == *hash)
    }

    /// Shards in the order to visit them. Requests begin at the shard of their first key, so that
    /// threads do not follow each other from lock to lock.
    pub(crate) fn visit_order(&self, n_shards: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.hashes.first().map_or(0, |hash| shard_of(*hash, n_shards));
        (first..n_shards).chain(0..first)
    }
}

/// Sums the values of equal keys in order of appearance.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    index: RowIndex,
    pub(crate) keys: Vec<u64>,
    pub(crate) values: Vec<f32>,
    /// Positions of the keys that are wanted.
    wanted: Vec<u32>,
}

impl Merge {
    /// Begins a sum over up to `expected` keys.
    pub(crate) fn start(&mut self, expected: usize) {
        self.index.clear(expected);
        self.keys.clear();
        self.values.clear();
    }

    /// Adds values of those keys that are `wanted`: labels stay as they came first, statistics are
    /// added, and gradients are added times `weight`.
    pub(crate) fn add(
        &mut self,
        keys: &[u64],
        values: &[f32],
        columns: Columns,
        weight: f32,
        wanted: impl Fn(u64) -> bool,
    ) {
        let width = columns.width;
        self.choose(keys, wanted);
        for &pos in &self.wanted {
            let (key, values) = (keys[pos as usize], &values[pos as usize * width..][..width]);
            let (at, new) = self.index.insert(key);
            if new {
                self.keys.push(key);
                self.values.extend_from_slice(values);
                if weight != 1.0 {
                    let weighted = &mut self.values[at * width + columns.unweighted..];
                    weighted.iter_mut().for_each(|value| *value *= weight);
                }
                continue;
            }
            let sums = &mut self.values[at * width..(at + 1) * width];
            for (i, (sum, value)) in sums.iter_mut().zip(values).enumerate().skip(columns.labels) {
                *sum += if i < columns.unweighted { *value } else { *value * weight };
            }
        }
    }
}

impl Merge {
    /// Finds the keys that are wanted.
    ///
    /// Key selection is branch-free: each partition owns about a quarter of the keys in random
    /// order, so a branch would mispredict. Part of the 4 % measured at `Executor::run_copying` (2
    /// workers, batch 512, 2026-11-17).
    fn choose(&mut self, keys: &[u64], wanted: impl Fn(u64) -> bool) {
        self.wanted.resize(keys.len(), 0);
        let mut n = 0;
        for (pos, key) in keys.iter().enumerate() {
            self.wanted[n] = pos as u32;
            n += usize::from(wanted(*key));
        }
        self.wanted.truncate(n);
    }
}

/// What the values of a push mean, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    /// How many there are in all.
    pub(crate) width: usize,
    /// How many of them are labels: of equal keys, the first value stays.
    pub(crate) labels: usize,
    /// How many are not gradients: labels, and statistics that are added without a weight.
    pub(crate) unweighted: usize,
}

/// Working memory of requests. Keep one per thread: after the first requests of a size, pulls and
/// pushes allocate nothing.
///
/// It remembers where the rows of its last pull are: a push of the same keys in the same order,
/// which is how training goes, then need not look for them.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) pull: Groups,
    pub(crate) found: PullSlots,
    pub(crate) push: Groups,
    pub(crate) merge: Merge,
    pub(crate) work: Work,
}

/// Working memory of one shard's part of a request.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// What the index said of each item.
    pub(crate) places: Vec<Place>,
    /// Items that are not rows yet.
    pub(crate) missing: Vec<u32>,
    /// The values of items are whole rows, weights and state.
    pub(crate) whole: bool,
    /// Then the positions of keys that are no rows.
    pub(crate) absent: Vec<u32>,
}

impl Work {
    pub(crate) fn start(&mut self, n: usize) {
        self.places.clear();
        self.places.resize(n, Place::EMPTY);
        self.missing.clear();
    }

    /// Continues with what was found before.
    pub(crate) fn resume(&mut self, places: &[Place], missing: &[u32]) {
        self.places.clear();
        self.places.extend_from_slice(places);
        self.missing.clear();
        self.missing.extend_from_slice(missing);
    }
}

/// How far ahead memory is asked for, in items. Measured; more gains nothing.
const AHEAD: usize = 32;

/// The four things done to every item, each some items after the one before, so that memory asked
/// for in one has arrived in the next.
pub(crate) trait Stages {
    /// Asks for the line of the index.
    fn fetch_index(&mut self, i: usize);
    /// Reads the line and asks for the row, or for the next line if that must be read too.
    fn locate(&mut self, i: usize);
    /// Reads the next line if there was one to wait for, and asks for the row.
    fn locate_further(&mut self, i: usize);
    /// Works on the row.
    fn visit(&mut self, i: usize);
}

/// Takes `n` items through the stages.
#[inline(always)]
pub(crate) fn pipeline(n: usize, stages: &mut impl Stages) {
    let [first, second, third] = [3, 2, 1].map(|stage| (stage * AHEAD).min(n));
    (0..first).for_each(|i| stages.fetch_index(i));
    (0..second).for_each(|i| stages.locate(i));
    (0..third).for_each(|i| stages.locate_further(i));
    for i in 0..n - first {
        stages.fetch_index(i + first);
        stages.locate(i + second);
        stages.locate_further(i + third);
        stages.visit(i);
    }
    for i in n - first..n {
        if i + second < n {
            stages.locate(i + second);
        }
        if i + third < n {
            stages.locate_further(i + third);
        }
        stages.visit(i);
    }
}

regatta_kernels::simd! {
    /// As [`pipeline`], compiled for the widest instruction set of this CPU.
    pub(crate) fn wide_pipeline(n: usize, stages: &mut impl Stages) {
        pipeline(n, stages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::key_of;

    #[test]
    fn every_key_is_in_the_group_of_its_shard_once() {
        let keys: Vec<u64> = (0..1000).map(|i| i * i % 97).collect();
        let mut groups = Groups::default();
        for n_shards in [1, 2, 16] {
            for padding in [None, Some(1), Some(12345)] {
                groups.arrange(&keys, n_shards, padding);
                let mut seen = vec![false; keys.len()];
                for shard in 0..n_shards {
                    let mut last = None;
                    for item in groups.shard(shard) {
                        let pos = item.pos as usize;
                        assert!(Some(pos) > last && !seen[pos]);
                        assert_eq!(key_of(item.hash), keys[pos]);
                        assert_eq!(shard_of(item.hash, n_shards), shard);
                        (seen[pos], last) = (true, Some(pos));
                    }
                }
                assert!((0..1000).all(|i| seen[i] != (Some(keys[i]) == padding)));
            }
        }
        assert_eq!(groups.visit_order(16).count(), 16);
    }

    #[test]
    fn equal_keys_are_summed_in_order() {
        let mut merge = Merge::default();
        merge.start(5);
        let columns = Columns { width: 3, labels: 1, unweighted: 2 };
        let values = [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 9.0, 1.0, 10.0];
        merge.add(&[7, 3, 7], &values, columns, 0.5, |_| true);
        merge.add(&[3, 8], &[9.0, 1.0, 100.0, 0.0, 1.0, 1.0], columns, 0.25, |key| key != 8);
        assert_eq!(merge.keys, [7, 3]);
        assert_eq!(merge.values, [1.0, 2.0, 5.5, 2.0, 2.0, 25.5]);
    }

    #[test]
    fn stages_follow_each_other_for_every_item() {
        struct Trace(Vec<u8>);
        impl Trace {
            fn step(&mut self, i: usize, from: u8) {
                assert_eq!(self.0[i], from);
                self.0[i] += 1;
            }
        }
        impl Stages for Trace {
            fn fetch_index(&mut self, i: usize) {
                self.step(i, 0);
            }
            fn locate(&mut self, i: usize) {
                self.step(i, 1);
            }
            fn locate_further(&mut self, i: usize) {
                self.step(i, 2);
            }
            fn visit(&mut self, i: usize) {
                self.step(i, 3);
            }
        }
        for n in 0..100 {
            let mut trace = Trace(vec![0; n]);
            pipeline(n, &mut trace);
            assert!(trace.0.iter().all(|count| *count == 4));
        }
    }
}
