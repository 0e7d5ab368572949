//! The cold rows of one shard, and rows on their way between memory and files.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regatta_cold::{Record, RecordNo, Store};

use crate::index::Place;
use crate::shard::Shard;
use crate::slab::Slab;
use crate::tier::cold_index::{ColdEntry, ColdIndex};
use crate::tier::prefetch::Load;
use crate::tier::slots::{Arrival, Hand, Slots};
use crate::{Error, TableId};

/// At most so many rows leave memory at a time. Slots that a pull has found are good for a push
/// until rows leave, so they leave seldom and many at once.
const MOST_AT_ONCE: usize = 512;

/// How far ahead memory is asked for.
const AHEAD: usize = 8;

/// What a shard of a table with a tier has beside its index and slabs.
pub(crate) struct ShardTier {
    pub(crate) table: TableId,
    pub(crate) store: Arc<Store>,
    pub(crate) cold: ColdIndex,
    /// How many of the cold rows are extended.
    pub(crate) n_cold_extended: usize,
    pub(crate) slots: [Slots; 2],
    hand: Hand,
    /// Bytes of rows in memory.
    budget: usize,
    /// Reads that were begun ahead, by record.
    loading: Mutex<HashMap<u32, Arc<Load>>>,
    /// Rows moved out of memory so far.
    pub(crate) demoted: u64,
    /// Records that rows no longer have.
    released: Vec<RecordNo>,
}

impl fmt::Debug for ShardTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardTier").field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl ShardTier {
    pub(crate) fn new(
        table: TableId,
        store: Arc<Store>,
        n_shards: usize,
        budget: usize,
    ) -> Result<ShardTier, Error> {
        Ok(ShardTier {
            table,
            store,
            cold: ColdIndex::new(n_shards)?,
            n_cold_extended: 0,
            slots: Default::default(),
            hand: Hand::default(),
            budget,
            loading: Mutex::default(),
            demoted: 0,
            released: Vec::new(),
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.cold.bytes() + self.slots.iter().map(Slots::bytes).sum::<usize>()
    }

    pub(crate) fn loading(&self) -> MutexGuard<'_, HashMap<u32, Arc<Load>>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&mut self, place: Place) -> &mut Slots {
        &mut self.slots[usize::from(place.has(Place::EXTENDED))]
    }

    /// Gives up the record of a row when this section of the lock ends.
    pub(crate) fn give_up(&mut self, record: u32) {
        self.released.push(RecordNo::from_u32(record));
    }

    /// Gives up what rows no longer have.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        if self.released.is_empty() {
            return Ok(());
        }
        let released = std::mem::take(&mut self.released);
        self.store.release(&released).map_err(|e| cold_error(self.table, &e))
    }
}

/// What happened in the store, as an error of the table.
pub(crate) fn cold_error(table: TableId, error: &regatta_cold::Error) -> Error {
    Error::Cold { table, what: error.to_string() }
}

impl Slab {
    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.stride() * size_of::<f32>()
    }
}

impl Shard {
    /// How many rows there are, in memory and not.
    pub(crate) fn all_rows(&self) -> usize {
        self.n_rows + self.tier.as_ref().map_or(0, |tier| tier.cold.len())
    }

    /// Bytes of the rows in memory.
    fn used(&self) -> usize {
        let extended = self.n_extended * self.extended.row_bytes();
        (self.n_rows - self.n_extended) * self.base.row_bytes() + extended
    }

    /// Makes room for so many rows: for those beyond the budget in the index of the cold ones.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), Error> {
        let row = self.base.row_bytes();
        let used = self.used();
        let Some(tier) = &mut self.tier else { return self.index.reserve(more) };
        let hot = more.min(tier.budget.saturating_sub(used) / row + 1);
        self.index.reserve(hot)?;
        tier.cold.reserve(more - hot)
    }

    /// Whether one more row of any kind fits into the budget.
    pub(crate) fn has_room(&self) -> bool {
        let row = self.base.row_bytes().max(self.extended.row_bytes());
        self.tier.as_ref().is_none_or(|tier| self.used() + row <= tier.budget)
    }

    /// Whether it matters which rows are used: more than three quarters of the budget are.
    fn tracks_heat(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| self.used() > tier.budget / 4 * 3)
    }

    /// Rows were pulled, and will be pushed if they are pulled to train.
    pub(crate) fn warm(&self, places: &[Place], pin: bool) {
        let Some(tier) = self.tier.as_ref().filter(|_| self.tracks_heat()) else { return };
        for place in places {
            if let Some(slot) = place.slot() {
                tier.slots[usize::from(place.has(Place::EXTENDED))].warm(slot, pin);
            }
        }
    }

    /// Rows were pushed. Places may be those of before the push: what has moved since has no pin.
    pub(crate) fn unpin(&mut self, places: &[Place]) {
        if !self.tracks_heat() {
            return;
        }
        let Some(tier) = &mut self.tier else { return };
        for place in places {
            if let Some(slot) = place.slot()
                && !tier.slots(*place).is_free(slot)
            {
                tier.slots(*place).unpin(slot);
            }
        }
    }

    /// A row has come to a slot.
    pub(crate) fn took(&mut self, hash: u64, place: Place, arrival: Arrival) {
        if let (Some(tier), Some(slot)) = (&mut self.tier, place.slot()) {
            tier.slots(place).took(slot, hash, arrival);
        }
    }

    /// The row of a slot is gone.
    pub(crate) fn left(&mut self, place: Place) {
        if let (Some(tier), Some(slot)) = (&mut self.tier, place.slot()) {
            tier.slots(place).freed(slot);
        }
    }

    /// Asks for the lines of the indices where a row is looked for.
    pub(crate) fn expect(&self, hashes: impl Iterator<Item = u64>) {
        let Some(tier) = &self.tier else { return };
        hashes.for_each(|hash| {
            self.index.prefetch(hash);
            tier.cold.prefetch(hash);
        });
    }

    /// Moves a cold row into memory, whose entry and record these are.
    pub(crate) fn promote(
        &mut self,
        entry: ColdEntry,
        record: &Record<'_>,
        arrival: Arrival,
    ) -> Result<(), Error> {
        let Some(tier) = &mut self.tier else { return Ok(()) };
        let place = Place::from_tag(1, record.tag, entry.marks());
        let extended = place.has(Place::EXTENDED);
        let slab = if extended { &mut self.extended } else { &mut self.base };
        self.index.reserve(1)?;
        let slot = slab.alloc()?;
        let row = slab.row_mut(slot);
        row.copy_from_slice(bytemuck::cast_slice(&record.words[..row.len()]));
        self.index.insert(record.hash, place.moved(slot, 0))?;
        tier.cold.remove(record.hash, entry.record());
        tier.give_up(entry.record());
        tier.slots(place).took(slot, record.hash, arrival);
        tier.n_cold_extended -= usize::from(extended);
        self.n_rows += 1;
        self.n_extended += usize::from(extended);
        Ok(())
    }

    /// Ends a section of the lock that has brought rows into memory: if there are more than the
    /// budget allows, the coldest leave.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        let used = self.used();
        let Some(tier) = &mut self.tier else { return Ok(()) };
        tier.release()?;
        if used <= tier.budget {
            return Ok(());
        }
        let rows = [self.base.row_bytes(), self.extended.row_bytes()];
        let spare = (tier.budget / 32).min(MOST_AT_ONCE * rows[0]);
        let mut left = used - (tier.budget - spare);
        let mut victims = Vec::new();
        tier.hand.sweep(&mut tier.slots, |slab, slot, hash| {
            victims.push((slab, slot, hash));
            left = left.saturating_sub(rows[slab]);
            left == 0
        });
        self.demote(&victims)
    }

    /// Moves rows out of memory: slab, slot and hash of each.
    fn demote(&mut self, victims: &[(usize, u32, u64)]) -> Result<(), Error> {
        let Some(tier) = &mut self.tier else { return Ok(()) };
        tier.cold.reserve(victims.len())?;
        let mut batch = PutBatch::new(self.base.stride().max(self.extended.stride()));
        for (i, &(slab, slot, hash)) in victims.iter().enumerate() {
            if let Some(&(slab, slot, hash)) = victims.get(i + AHEAD) {
                self.index.prefetch(hash);
                let rows = if slab == 1 { &self.extended } else { &self.base };
                rows.prefetch(slot, rows.stride());
            }
            let rows = if slab == 1 { &self.extended } else { &self.base };
            batch.push(hash, self.index.find(hash).to_tag(), rows.row(slot));
        }
        let (numbers, result) = batch.put(tier);
        for (i, (&(slab, slot, hash), number)) in victims.iter().zip(&numbers).enumerate() {
            if let Some((.., hash)) = victims.get(i + AHEAD) {
                self.index.prefetch(*hash);
                tier.cold.prefetch(*hash);
            }
            let place = self.index.remove(hash);
            tier.cold.insert(hash, number.get(), place.marks())?;
            [&mut self.base, &mut self.extended][slab].free(slot);
            tier.n_cold_extended += slab;
            self.n_extended -= slab;
        }
        self.n_rows -= numbers.len();
        tier.demoted += numbers.len() as u64;
        result
    }
}

/// Records that are put together.
pub(crate) struct PutBatch {
    width: usize,
    heads: Vec<(u64, u32)>,
    words: Vec<u32>,
}

impl PutBatch {
    /// For records of so many words.
    pub(crate) fn new(width: usize) -> PutBatch {
        PutBatch { width, heads: Vec::new(), words: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Adds a record; a row of the first stage is shorter than the others.
    pub(crate) fn push(&mut self, hash: u64, tag: u32, row: &[f32]) {
        self.heads.push((hash, tag));
        self.words.extend_from_slice(bytemuck::cast_slice(row));
        self.words.resize(self.heads.len() * self.width, 0);
    }

    /// Puts them all. The numbers of those that are in the store, also if not all are.
    pub(crate) fn put(&self, tier: &ShardTier) -> (Vec<RecordNo>, Result<(), Error>) {
        let mut numbers = Vec::with_capacity(self.heads.len());
        let words = self.words.chunks_exact(self.width);
        let records = self.heads.iter().zip(words).map(|(&(hash, tag), words)| (hash, tag, words));
        let result = tier.store.put_all(records, &mut numbers);
        (numbers, result.map_err(|e| cold_error(tier.table, &e)))
    }

    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.heads.iter().map(|(hash, _)| *hash)
    }

    /// Hash and tag of each.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.heads.iter().copied()
    }
}
