//! One moment of a table, saved while the table goes on: [`SparseTable::cut`] goes in, the rows of
//! that moment come out shard by shard ([`SparseTable::export_cut`]).
//!
//! A cut costs the moment in which all shards are locked, and nothing else at once. Until a shard is
//! exported, whoever changes one of its rows first puts the old row aside (`Undo`). A checkpoint is
//! thus as consistent as if the table had stood still, and the memory it takes is that of the rows
//! that change meanwhile.
//!
//! **Changes.** From the first stored checkpoint on, entries of the index carry a mark when they
//! differ from the last checkpoint, and shards list what they removed. There are two marks: a cut
//! changes which of them new changes get, so that what was changed before the cut can be told from
//! what was changed after it. When the checkpoint is stored, the older mark is cleared everywhere;
//! when it failed, the older mark becomes the newer one, and the next cut gives those rows again.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Error;
use crate::export::{SaveMode, ShardRows, entries};
use crate::group::Item;
use crate::hash::key_of;
use crate::index::Place;
use crate::shard::Shard;
use crate::sparse::SparseTable;

/// Rows that are copied at a time, while pushes to their shard wait: a fraction of a millisecond.
const SLICE: usize = 4096;

/// Which rows a cut gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that a mode selects.
    Rows(SaveMode),
    /// Those rows and candidates that differ from the last checkpoint, and the ids that are gone.
    Changes,
}

impl Scope {
    /// Whether a save with this scope is what later changes are counted from.
    fn is_checkpoint(self) -> bool {
        matches!(self, Scope::Changes | Scope::Rows(SaveMode::All | SaveMode::Day))
    }
}

/// A moment of a table. It must come back to [`SparseTable::end_cut`].
#[derive(Debug)]
#[must_use = "a cut goes on costing memory until end_cut"]
pub struct Cut {
    pub(crate) scope: Scope,
    pub(crate) day: u32,
}

impl Cut {
    /// Which rows it gives.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The day of the table at that moment.
    pub fn day(&self) -> u32 {
        self.day
    }
}

/// How far a shard is with the cut under way.
#[derive(Debug, Default)]
pub(crate) enum CutState {
    #[default]
    None,
    /// Not exported yet: changed rows are put aside.
    Pending(Undo),
    Exported,
}

/// Rows as they were at the cut, of those that changed since.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    rows: HashMap<u64, Old, BuildHasherDefault<AlreadyHashed>>,
    words: Vec<f32>,
}

#[derive(Debug, Clone, Copy)]
struct Old {
    place: Place,
    start: usize,
    len: usize,
}

impl Undo {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn has(&self, hash: u64) -> bool {
        self.rows.contains_key(&hash)
    }

    /// The place that a hash had at the cut, if it changed since.
    pub(crate) fn place(&self, hash: u64) -> Option<Place> {
        self.rows.get(&hash).map(|old| old.place)
    }

    /// The words that a hash had at the cut; none for what was no row.
    pub(crate) fn words(&self, hash: u64) -> &[f32] {
        self.rows.get(&hash).map_or(&[], |old| &self.words[old.start..old.start + old.len])
    }

    /// Hashes that were there at the cut, in order.
    pub(crate) fn sorted(&self) -> Vec<(u64, Place)> {
        let there = self.rows.iter().filter(|(_, old)| old.place != Place::EMPTY);
        let mut entries: Vec<_> = there.map(|(hash, old)| (*hash, old.place)).collect();
        entries.sort_unstable_by_key(|entry| entry.0);
        entries
    }
}

/// Keys of the map are hashes already.
#[derive(Debug, Default)]
pub(crate) struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        // The map uses the low bits and the highest seven; shards share the highest.
        self.0 = hash.rotate_left(20);
    }
}

/// What a shard knows about changes since the last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Whether there is a last checkpoint.
    pub(crate) tracked: bool,
    /// Whether there is one, or one is being saved.
    noting: bool,
    /// Hashes removed since the last cut, and before it but after the last stored checkpoint.
    since: Vec<u64>,
    before: Vec<u64>,
}

impl Removed {
    pub(crate) fn note(&mut self, hash: u64) {
        if self.noting {
            self.since.push(hash);
        }
    }

    /// What was removed before the cut, in order.
    pub(crate) fn before_cut(&self) -> Vec<u64> {
        let mut hashes = self.before.clone();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }
}

impl Shard {
    /// Puts an entry aside before it changes, if a cut needs it.
    #[inline]
    pub(crate) fn remember(&mut self, hash: u64) {
        if matches!(self.cut, CutState::Pending(_)) {
            self.remember_now(hash);
        }
    }

    /// Puts the entries of a request aside before they change.
    #[inline]
    pub(crate) fn remember_items(&mut self, items: &[Item]) {
        if matches!(self.cut, CutState::Pending(_)) {
            items.iter().for_each(|item| self.remember_now(item.hash));
        }
    }

    /// Puts everything aside.
    pub(crate) fn remember_all(&mut self) {
        if matches!(self.cut, CutState::Pending(_)) {
            let hashes: Vec<u64> = self.index.iter().map(|(hash, _)| hash).collect();
            hashes.into_iter().for_each(|hash| self.remember_now(hash));
        }
    }

    #[cold]
    fn remember_now(&mut self, hash: u64) {
        let place = self.index.find(hash);
        let Shard { cut, base, extended, .. } = self;
        let CutState::Pending(undo) = cut else { return };
        if undo.has(hash) {
            return;
        }
        let slab = if place.has(Place::EXTENDED) { extended } else { base };
        let words = place.slot().map_or(&[][..], |slot| slab.row(slot));
        let old = Old { place, start: undo.words.len(), len: words.len() };
        undo.words.extend_from_slice(words);
        undo.rows.insert(hash, old);
    }

    fn begin_cut(&mut self, scope: Scope) {
        self.cut = CutState::Pending(Undo::default());
        if scope.is_checkpoint() {
            let [first, second] = Place::DIRTY;
            self.index.dirty = if self.index.dirty == first { second } else { first };
            self.removed.before = std::mem::take(&mut self.removed.since);
            self.removed.noting = true;
        }
    }

    fn end_cut(&mut self, scope: Scope, stored: bool) {
        self.cut = CutState::None;
        if !scope.is_checkpoint() {
            return;
        }
        let newer = self.index.dirty;
        let older = Place::DIRTY[0] ^ Place::DIRTY[1] ^ newer;
        if stored {
            self.removed.before.clear();
            self.removed.tracked = true;
            self.index.reflag(|place| place.without(older));
        } else {
            let before = std::mem::take(&mut self.removed.before);
            self.removed.since.extend(before);
            if !self.removed.tracked {
                self.removed = Removed::default();
            }
            self.index.reflag(|p| if p.has(older) { p.without(older).with(newer) } else { p });
        }
    }

    /// From now on changes are counted from what is here.
    fn track(&mut self) {
        self.index.dirty = Place::DIRTY[0];
        self.index.reflag(|place| place.without(Place::DIRTY[0] | Place::DIRTY[1]));
        self.removed = Removed { tracked: true, noting: true, ..Removed::default() };
    }
}

impl SparseTable {
    /// Begins to save this moment. All shards are locked together once, for microseconds; requests
    /// that span shards are not split if no request is under way, which is the caller's business.
    ///
    /// # Errors
    /// [`Error::Cut`] if another cut is under way, or if changes are asked for and there is no
    /// checkpoint to count them from; [`Error::Poisoned`].
    pub fn cut(&self, scope: Scope) -> Result<Cut, Error> {
        let locked = (0..self.shards.len()).map(|shard| self.write(shard));
        let mut shards = locked.collect::<Result<Vec<_>, Error>>()?;
        let refuse = |what| Err(Error::Cut { table: self.config.table, what });
        if shards.iter().any(|shard| !matches!(shard.cut, CutState::None)) {
            return refuse("another cut is under way");
        }
        if scope == Scope::Changes && !shards.iter().all(|shard| shard.removed.tracked) {
            return refuse("there is no checkpoint from which changes could be counted");
        }
        shards.iter_mut().for_each(|shard| shard.begin_cut(scope));
        Ok(Cut { scope, day: self.day() })
    }

    /// The rows of a shard as they were at the cut, once per shard. Rows are copied some thousand at
    /// a time; pushes to this shard go on in between.
    ///
    /// # Errors
    /// [`Error::NoSuch`] shard, [`Error::Cut`] if it was exported before, [`Error::Poisoned`].
    pub fn export_cut(&self, cut: &Cut, shard: usize) -> Result<ShardRows, Error> {
        self.check_shard(shard)?;
        let mut rows = ShardRows::new(cut.scope, shard, cut.day);
        let there = {
            let guard = self.read(shard)?;
            let there = entries(&guard, Some(self.undo(&guard)?));
            rows.reserve(&guard, there.len());
            if cut.scope == Scope::Changes {
                rows.set_removed(gone(guard.removed.before_cut(), &there));
            }
            there
        };
        // What changes between two slices is put aside, and found there by the later one.
        for slice in there.chunks(SLICE) {
            let guard = self.read(shard)?;
            self.copy(&guard, Some(self.undo(&guard)?), slice, &mut rows);
        }
        // Whatever was put aside since the copy belongs to rows that are in it.
        self.write(shard)?.cut = CutState::Exported;
        Ok(rows)
    }

    fn undo<'s>(&self, shard: &'s Shard) -> Result<&'s Undo, Error> {
        match &shard.cut {
            CutState::Pending(undo) => Ok(undo),
            _ => {
                let what = "this shard has been exported, or the cut is another table's";
                Err(Error::Cut { table: self.config.table, what })
            }
        }
    }

    /// Ends a cut. `stored` says whether its rows are safely stored, all of them; if not, the next
    /// cut gives them again.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn end_cut(&self, cut: Cut, stored: bool) -> Result<(), Error> {
        for shard in 0..self.shards.len() {
            self.write(shard)?.end_cut(cut.scope, stored);
        }
        Ok(())
    }

    /// Tells the table that it is what a checkpoint holds, as after loading one: changes are counted
    /// from here.
    ///
    /// # Errors
    /// [`Error::Cut`] if a cut is under way, [`Error::Poisoned`].
    pub fn begin_changes(&self) -> Result<(), Error> {
        for shard in 0..self.shards.len() {
            let shard = &mut *self.write(shard)?;
            if !matches!(shard.cut, CutState::None) {
                return Err(Error::Cut { table: self.config.table, what: "a cut is under way" });
            }
            shard.track();
        }
        Ok(())
    }
}

/// Ids of removed hashes that are not there in sorted entries.
pub(crate) fn gone(removed: Vec<u64>, there: &[(u64, Place)]) -> Vec<u64> {
    let is_there = |hash: &u64| there.binary_search_by_key(hash, |entry| entry.0).is_ok();
    removed.into_iter().filter(|hash| !is_there(hash)).map(key_of).collect()
}
