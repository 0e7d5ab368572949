//! One independently locked part of a sparse table: its index and its rows.

use crate::Error;
use crate::admission::Admitter;
use crate::hash::key_of;
use crate::index::{Index, Place};
use crate::row::Kind;
use crate::slab::Slab;
use crate::snapshot::{Removed, SnapshotState};
use crate::tier::{Arrival, ShardTier};

/// Rows and candidates of the keys whose hashes fall into this shard.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) index: Index,
    /// Rows, or the short form of rows with two stages.
    pub(crate) base: Slab,
    /// Rows that have reached their second stage.
    pub(crate) extended: Slab,
    /// What it takes to have rows elsewhere, too; all counts below are of rows in memory.
    pub(crate) tier: Option<Box<ShardTier>>,
    /// How many entries of the index are rows.
    pub(crate) n_rows: usize,
    /// How many of the rows are extended.
    pub(crate) n_extended: usize,
    /// How far a save of one moment is.
    pub(crate) snapshot: SnapshotState,
    /// What went since the last checkpoint.
    pub(crate) removed: Removed,
}

/// What became of a key that was not a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// Another thread made it a row in the meantime.
    Before,
    /// It is a row now, and was unknown.
    New,
    /// It is a row now, and was a candidate.
    Candidate,
    /// It is a candidate.
    Not,
}

impl Shard {
    pub(crate) fn new(
        kind: &Kind,
        n_shards: usize,
        huge: bool,
        tier: Option<Box<ShardTier>>,
    ) -> Result<Self, Error> {
        Ok(Shard {
            index: Index::new(n_shards, huge)?,
            base: Slab::new(kind.base_len(), huge),
            extended: Slab::new(kind.extended_len(), huge),
            tier,
            n_rows: 0,
            n_extended: 0,
            snapshot: SnapshotState::None,
            removed: Removed::default(),
        })
    }

    /// How many ids wait for admission.
    pub(crate) fn n_candidates(&self) -> usize {
        self.index.len() - self.n_rows
    }

    /// Bytes of memory taken.
    pub(crate) fn bytes(&self) -> usize {
        let tier = self.tier.as_ref().map_or(0, |tier| tier.bytes());
        self.index.bytes() + self.base.bytes() + self.extended.bytes() + tier
    }

    /// The floats of a row; none for what is no row.
    #[inline(always)]
    pub(crate) fn row(&self, place: Place) -> Option<&[f32]> {
        let slot = place.slot()?;
        Some(self.slab(place).row(slot))
    }

    /// The floats of a row, to be changed; none for what is no row.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, place: Place) -> Option<&mut [f32]> {
        let slot = place.slot()?;
        let slab = if place.has(Place::EXTENDED) { &mut self.extended } else { &mut self.base };
        Some(slab.row_mut(slot))
    }

    #[inline(always)]
    pub(crate) fn slab(&self, place: Place) -> &Slab {
        if place.has(Place::EXTENDED) { &self.extended } else { &self.base }
    }

    /// Counts appearances of a key that is not a row, and makes it one if that suffices.
    pub(crate) fn admit(
        &mut self,
        kind: &Kind,
        admitter: &Admitter,
        hash: u64,
        appearances: u32,
        day: u32,
    ) -> Result<Admitted, Error> {
        let place = self.index.find(hash);
        if place.slot().is_some() {
            return Ok(Admitted::Before);
        }
        self.remember(hash);
        let before = place.appearances().unwrap_or(0);
        let key = key_of(hash);
        if !admitter.admits(key, before, appearances) {
            let place = Place::candidate(before.saturating_add(appearances), day);
            self.index.set(hash, place)?;
            return Ok(Admitted::Not);
        }
        let slot = self.base.alloc()?;
        kind.init_base(key, self.base.row_mut(slot));
        let new = Place::row(slot, day, Place::CHANGED);
        self.index.set(hash, new)?;
        self.took(hash, new, Arrival::Used);
        self.n_rows += 1;
        Ok(if place == Place::EMPTY { Admitted::New } else { Admitted::Candidate })
    }

    /// Moves a row to its second stage.
    pub(crate) fn extend(&mut self, kind: &Kind, hash: u64, place: Place) -> Result<(), Error> {
        let Some(old) = place.slot() else { return Ok(()) };
        let new = self.extended.alloc()?;
        let row = self.extended.row_mut(new);
        let (base, rest) = row.split_at_mut(self.base.stride());
        base.copy_from_slice(self.base.row(old));
        kind.init_extension(key_of(hash), rest);
        self.base.free(old);
        self.left(place);
        self.n_extended += 1;
        let place = place.moved(new, Place::EXTENDED);
        self.took(hash, place, Arrival::Used);
        self.index.set(hash, place)
    }

    /// Writes a row or a candidate as it was exported, over whatever is there.
    pub(crate) fn restore(
        &mut self,
        hash: u64,
        place: Place,
        words: Option<(bool, &[f32])>,
    ) -> Result<(), Error> {
        self.remember(hash);
        self.release(self.index.find(hash));
        let Some((extended, words)) = words else { return self.index.set(hash, place) };
        let (slab, flag) =
            if extended { (&mut self.extended, Place::EXTENDED) } else { (&mut self.base, 0) };
        let slot = slab.alloc()?;
        slab.row_mut(slot).copy_from_slice(words);
        self.n_rows += 1;
        self.n_extended += usize::from(extended);
        let place = place.moved(slot, flag);
        self.took(hash, place, Arrival::Loaded);
        self.index.set(hash, place)
    }

    /// Gives the slot of a row back; the index is the caller's business.
    fn release(&mut self, place: Place) {
        let Some(slot) = place.slot() else { return };
        self.left(place);
        self.n_rows -= 1;
        if place.has(Place::EXTENDED) {
            self.n_extended -= 1;
            self.extended.free(slot);
        } else {
            self.base.free(slot);
        }
    }

    /// Keeps the rows and candidates (which have no floats) that `keep` wants, which may change all
    /// rows if `changes` says so.
    pub(crate) fn retain(
        &mut self,
        changes: bool,
        mut keep: impl FnMut(Place, Option<&mut [f32]>) -> bool,
    ) -> Result<(), Error> {
        self.remember_all();
        let Shard { index, base, extended, n_rows, n_extended, removed, tier, .. } = self;
        let mark = if changes { index.dirty } else { 0 };
        index.retain(|hash, place| {
            let is_extended = place.has(Place::EXTENDED);
            let slab = if is_extended { &mut *extended } else { &mut *base };
            let slot = place.slot();
            if keep(place, slot.map(|slot| slab.row_mut(slot))) {
                return Some(place.with(mark));
            }
            removed.note(hash);
            if let Some(slot) = slot {
                slab.free(slot);
                if let Some(tier) = tier {
                    tier.slots[usize::from(is_extended)].freed(slot);
                }
                *n_rows -= 1;
                *n_extended -= usize::from(is_extended);
            }
            None
        })?;
        self.retain_cold(changes, keep)?;
        self.settle()
    }

    /// Forgets everything and gives the memory back.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.remember_all();
        self.clear_cold()?;
        let Shard { index, removed, .. } = self;
        index.iter().for_each(|(hash, _)| removed.note(hash));
        self.index.clear()?;
        self.base.clear();
        self.extended.clear();
        (self.n_rows, self.n_extended) = (0, 0);
        Ok(())
    }
}
