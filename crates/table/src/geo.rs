//! The geo table: deltas of trainers go in, the rows that changed since a trainer last asked come
//! out.
//!
//! Values are plain vectors and an update is an addition. Every row has one bit per trainer, set
//! when its id stands in the list of changes for that trainer, so no list is longer than the table.

use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use crate::error::check_len;
use crate::group::{Item, Scratch};
use crate::hash::key_of;
use crate::index::{Index, Place};
use crate::init::{Initializer, RowInit, Stream};
use crate::slab::Slab;
use crate::sparse::poisoned;
use crate::{Error, TableId};

/// All that makes a geo table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeoConfig {
    /// Its number.
    pub table: TableId,
    /// Seed of first values.
    pub seed: u64,
    /// The random sequence of first values: trainers with the same one need not send theirs.
    pub stream: Stream,
    /// Values per row.
    pub dim: usize,
    /// What a row is before the first delta.
    pub initializer: Initializer,
    /// How many trainers push and pull.
    pub n_trainers: usize,
    /// An id that always pulls zeros and is never created.
    pub padding_idx: Option<u64>,
    /// Number of independently locked parts, a power of two.
    pub n_shards: usize,
    /// Whether to ask the system for huge pages.
    pub huge_pages: bool,
}

impl GeoConfig {
    /// Rows that start as zeros.
    pub fn new(table: TableId, dim: usize, n_trainers: usize) -> Self {
        GeoConfig {
            table,
            seed: 0,
            stream: Stream::Table,
            dim,
            initializer: Initializer::Constant(0.0),
            n_trainers,
            padding_idx: None,
            n_shards: 16,
            huge_pages: true,
        }
    }

    fn problem(&self) -> Option<String> {
        if self.dim == 0 || self.n_trainers == 0 {
            let (dim, n_trainers) = (self.dim, self.n_trainers);
            return Some(format!(
                "`dim` is {dim} and `n_trainers` {n_trainers}, expected 1 or more"
            ));
        }
        if !self.n_shards.is_power_of_two() {
            return Some(format!("`n_shards` is {}, expected a power of two", self.n_shards));
        }
        self.initializer.problem()
    }
}

/// Ids and values that changed, in order of ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// The ids.
    pub keys: Vec<u64>,
    /// Their values, `dim` each.
    pub values: Vec<f32>,
}

/// Rows that are changed by adding, with a list of changes per trainer.
#[derive(Debug)]
pub struct GeoTable {
    config: GeoConfig,
    init: RowInit,
    shards: Vec<Mutex<GeoShard>>,
}

#[derive(Debug)]
struct GeoShard {
    index: Index,
    /// `[bits of trainers | values]`
    rows: Slab,
    /// Hashes of changed rows, per trainer.
    changed: Vec<Vec<u64>>,
    n_mask: usize,
}

/// Trainers per float of a row's bits. With 24 of them no pattern is a NaN, which a processor might
/// change when it is moved.
const PER_WORD: usize = 24;

impl GeoTable {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Memory`].
    pub fn new(config: GeoConfig) -> Result<Self, Error> {
        if let Some(what) = config.problem() {
            return Err(Error::Config { table: config.table, what });
        }
        let n_mask = config.n_trainers.div_ceil(PER_WORD);
        let shard = |_| {
            Ok(Mutex::new(GeoShard {
                index: Index::new(config.n_shards, config.huge_pages)?,
                rows: Slab::new(n_mask + config.dim, config.huge_pages),
                changed: vec![Vec::new(); config.n_trainers],
                n_mask,
            }))
        };
        let shards = (0..config.n_shards).map(shard).collect::<Result<_, Error>>()?;
        let init = RowInit::new(config.seed, config.table, &config.stream, config.initializer);
        Ok(GeoTable { config, init, shards })
    }

    /// What the table was made from.
    pub fn config(&self) -> &GeoConfig {
        &self.config
    }

    /// How many rows there are.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn n_rows(&self) -> Result<usize, Error> {
        (0..self.shards.len()).try_fold(0, |sum, shard| Ok(sum + self.lock(shard)?.index.len()))
    }

    /// Adds deltas of a trainer, `dim` values per key; a key may appear more than once. Rows that
    /// are not there yet begin with their first values. All trainers, this one included, will see
    /// the change.
    ///
    /// # Errors
    /// [`Error::NoSuch`] trainer, [`Error::Length`], [`Error::Memory`], [`Error::Poisoned`].
    pub fn push_delta(
        &self,
        trainer: usize,
        keys: &[u64],
        deltas: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        self.check_trainer(trainer)?;
        self.write(keys, deltas, scratch, |values, deltas| {
            values.iter_mut().zip(deltas).for_each(|(value, delta)| *value += delta);
        })
    }

    /// Overwrites rows, as the first trainer does at the start and a checkpoint when it is loaded.
    /// All trainers will see the change.
    ///
    /// # Errors
    /// As [`push_delta`](Self::push_delta).
    pub fn set(&self, keys: &[u64], values: &[f32], scratch: &mut Scratch) -> Result<(), Error> {
        self.write(keys, values, scratch, |values, new| values.copy_from_slice(new))
    }

    fn write(
        &self,
        keys: &[u64],
        values: &[f32],
        scratch: &mut Scratch,
        change: impl Fn(&mut [f32], &[f32]),
    ) -> Result<(), Error> {
        let dim = self.config.dim;
        check_len(self.config.table, "values of a push", values.len(), keys.len() * dim)?;
        let groups = &mut scratch.push;
        groups.arrange(keys, self.shards.len(), self.config.padding_idx);
        for shard_idx in groups.visit_order(self.shards.len()) {
            let items = groups.shard(shard_idx);
            if items.is_empty() {
                continue;
            }
            let shard = &mut *self.lock(shard_idx)?;
            items.iter().for_each(|item| shard.index.prefetch(item.hash));
            for &Item { hash, pos } in items {
                let at = pos as usize * dim;
                let slot = shard.find_or_create(hash, &self.init)?;
                change(&mut shard.rows.row_mut(slot)[shard.n_mask..], &values[at..at + dim]);
                shard.mark(slot, hash);
            }
        }
        Ok(())
    }

    /// Gives the rows that changed since this trainer's last call, and begins anew.
    ///
    /// # Errors
    /// [`Error::NoSuch`] trainer, [`Error::Poisoned`].
    pub fn pull_changed(&self, trainer: usize, changes: &mut Changes) -> Result<(), Error> {
        self.check_trainer(trainer)?;
        self.collect(changes, |shard, each| {
            let mut hashes = std::mem::take(&mut shard.changed[trainer]);
            for hash in hashes.drain(..) {
                let Some(slot) = shard.index.find(hash).slot() else { continue };
                let (mask, values) = shard.rows.row_mut(slot).split_at_mut(shard.n_mask);
                let word = &mut mask[trainer / PER_WORD];
                *word = f32::from_bits(word.to_bits() & !(1 << (trainer % PER_WORD)));
                each(hash, values);
            }
            shard.changed[trainer] = hashes;
        })
    }

    /// Gives all rows.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn export(&self, changes: &mut Changes) -> Result<(), Error> {
        self.collect(changes, |shard, each| {
            for (hash, place) in shard.index.iter() {
                let Some(slot) = place.slot() else { continue };
                each(hash, &shard.rows.row(slot)[shard.n_mask..]);
            }
        })
    }

    /// Reads rows; those that are not there give their first values and are not created.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Poisoned`].
    pub fn pull(&self, keys: &[u64], out: &mut [f32], scratch: &mut Scratch) -> Result<(), Error> {
        let dim = self.config.dim;
        check_len(self.config.table, "output of a pull", out.len(), keys.len() * dim)?;
        out.fill(0.0);
        scratch.pull.arrange(keys, self.shards.len(), self.config.padding_idx);
        for shard_idx in 0..self.shards.len() {
            let items = scratch.pull.shard(shard_idx);
            if items.is_empty() {
                continue;
            }
            let shard = &*self.lock(shard_idx)?;
            items.iter().for_each(|item| shard.index.prefetch(item.hash));
            for &Item { hash, pos } in items {
                let out = &mut out[pos as usize * dim..][..dim];
                match shard.index.find(hash).slot() {
                    Some(slot) => out.copy_from_slice(&shard.rows.row(slot)[shard.n_mask..]),
                    None => self.init.fill(key_of(hash), dim, 0, out),
                }
            }
        }
        Ok(())
    }

    /// Whatever `visit` hands over of each shard, in order of ids.
    fn collect(
        &self,
        changes: &mut Changes,
        visit: impl Fn(&mut GeoShard, &mut dyn FnMut(u64, &[f32])),
    ) -> Result<(), Error> {
        let dim = self.config.dim;
        let (mut found, mut values) = (Vec::new(), Vec::new());
        for shard_idx in 0..self.shards.len() {
            visit(&mut *self.lock(shard_idx)?, &mut |hash, row| {
                found.push((key_of(hash), values.len()));
                values.extend_from_slice(row);
            });
        }
        found.sort_unstable();
        changes.keys.clear();
        changes.values.clear();
        for (key, at) in found {
            changes.keys.push(key);
            changes.values.extend_from_slice(&values[at..at + dim]);
        }
        Ok(())
    }

    fn check_trainer(&self, trainer: usize) -> Result<(), Error> {
        let (table, len) = (self.config.table, self.config.n_trainers);
        if trainer < len {
            Ok(())
        } else {
            Err(Error::NoSuch { table, what: "trainer", index: trainer, len })
        }
    }

    fn lock(&self, shard: usize) -> Result<MutexGuard<'_, GeoShard>, Error> {
        self.shards[shard].lock().map_err(|_| poisoned(self.config.table, shard))
    }

    #[cfg(test)]
    fn longest_list(&self) -> usize {
        let longest = |shard: &Mutex<GeoShard>| {
            shard.lock().unwrap().changed.iter().map(Vec::len).max().unwrap_or(0)
        };
        self.shards.iter().map(longest).sum()
    }
}

impl GeoShard {
    fn find_or_create(&mut self, hash: u64, init: &RowInit) -> Result<u32, Error> {
        if let Some(slot) = self.index.find(hash).slot() {
            return Ok(slot);
        }
        let slot = self.rows.alloc()?;
        let (mask, values) = self.rows.row_mut(slot).split_at_mut(self.n_mask);
        mask.fill(0.0);
        init.fill(key_of(hash), values.len(), 0, values);
        self.index.set(hash, Place::row(slot, 0, 0))?;
        Ok(slot)
    }

    /// Puts a row on the list of every trainer on whose list it is not.
    fn mark(&mut self, slot: u32, hash: u64) {
        let mask = &mut self.rows.row_mut(slot)[..self.n_mask];
        for (trainers, word) in self.changed.chunks_mut(PER_WORD).zip(mask) {
            let all = u32::MAX >> (u32::BITS as usize - trainers.len());
            let mut absent = all & !word.to_bits();
            *word = f32::from_bits(all);
            while absent != 0 {
                trainers[absent.trailing_zeros() as usize].push(hash);
                absent &= absent - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_no_longer_than_the_table() {
        let table = GeoTable::new(GeoConfig::new(TableId(0), 2, 70)).unwrap();
        let mut scratch = Scratch::default();
        for _ in 0..20 {
            let keys: Vec<u64> = (0..50).collect();
            table.push_delta(69, &keys, &[1.0; 100], &mut scratch).unwrap();
        }
        assert_eq!(table.longest_list(), 50);
        let mut changes = Changes::default();
        table.pull_changed(69, &mut changes).unwrap();
        assert_eq!(changes.keys, (0..50).collect::<Vec<_>>());
        assert_eq!(changes.values, vec![20.0; 100]);
        table.pull_changed(69, &mut changes).unwrap();
        assert!(changes.keys.is_empty());
        table.pull_changed(0, &mut changes).unwrap();
        assert_eq!(changes.keys.len(), 50);
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let error = GeoTable::new(GeoConfig::new(TableId(3), 0, 1)).unwrap_err();
        assert!(error.to_string().starts_with("table 3: `dim` is 0"), "{error}");
        let table = GeoTable::new(GeoConfig::new(TableId(3), 2, 2)).unwrap();
        let error = table.pull_changed(2, &mut Changes::default()).unwrap_err();
        assert_eq!(error.to_string(), "table 3: trainer 2, but there are 2");
    }
}
