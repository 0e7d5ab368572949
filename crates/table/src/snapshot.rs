//! One moment of a table, saved while the table continues: [`SparseTable::snapshot`] goes in, the
//! rows of that moment come out some thousand at a time ([`SparseTable::export_snapshot`]).
//!
//! A snapshot costs the moment in which all shards are locked, and nothing else at once. Each shard
//! is divided into slices by the hashes of its rows. Until a slice is exported, whoever changes one
//! of its rows first copies the old row (`Undo`) and marks the entry of the index
//! ([`Place::KEPT`]); entries that are made after the snapshot get the mark, too. So a slice as it
//! was is what has no mark, and what was copied. A checkpoint is thus as consistent as if the table
//! had stood still, and the memory it takes is that of the rows that change meanwhile.
//!
//! **Changes.** From the first stored checkpoint on, entries of the index carry a mark when they
//! differ from the last checkpoint, and shards list what they removed. There are two marks: a
//! snapshot changes which of them new changes get, so that what was changed before the snapshot can
//! be told from what was changed after it. When the checkpoint is stored, the older mark is cleared
//! everywhere; when it failed, the older mark becomes the newer one, and the next snapshot gives
//! those rows again.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Error;
use crate::export::{Receipt, Row, SaveMode, Selected, ShardRows, row_of, row_order};
use crate::group::Item;
use crate::hash::key_of;
use crate::index::{Place, slice_of};
use crate::shard::Shard;
use crate::sparse::SparseTable;
use crate::tier::{ColdEntry, ColdReads};

/// At most about so many rows are copied at a time, while pushes to their shard wait: a fraction of
/// a millisecond.
const SLICE: usize = 4096;
/// At most about so many cold rows are read at a time: more, since only their numbers are looked up
/// while pushes wait.
const COLD_SLICE: usize = 16384;
/// How far ahead entries are asked for that are to be copied.
const AHEAD: usize = 12;

/// Which rows a snapshot gives.
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

/// A moment of a table. It must come back to [`SparseTable::end_snapshot`].
#[derive(Debug)]
#[must_use = "a snapshot goes on costing memory until end_snapshot"]
pub struct Snapshot {
    pub(crate) scope: Scope,
    pub(crate) day: u32,
}

impl Snapshot {
    /// Which rows it gives.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The day of the table at that moment.
    pub fn day(&self) -> u32 {
        self.day
    }
}

/// How far a shard is with the open snapshot.
#[derive(Debug, Default)]
pub(crate) enum SnapshotState {
    #[default]
    None,
    /// Not exported yet: changed rows are copied on write.
    Pending(Undo),
    Exported,
}

/// Rows as they were at the snapshot, of those that changed since.
#[derive(Debug)]
pub(crate) struct Undo {
    /// The rows of each slice.
    slices: Vec<Kept>,
    /// How many slices are exported. It changes while the shard is locked for reading, and matters
    /// to those who lock it for writing.
    exported: AtomicUsize,
}

/// The copies of one slice, in no order.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Hash, place at the snapshot, and where the words begin.
    pub(crate) entries: Vec<(u64, Place, usize)>,
    pub(crate) words: Vec<f32>,
    /// Cold rows that changed or went: their records stay until this is exported.
    pub(crate) cold: Vec<ColdEntry>,
}

impl Undo {
    /// For a shard with so many entries and cold rows.
    fn new(n_entries: usize, n_cold: usize) -> Undo {
        let n_slices = n_entries.div_ceil(SLICE).max(n_cold.div_ceil(COLD_SLICE));
        let n_slices = n_slices.next_power_of_two();
        let slices = (0..n_slices).map(|_| Kept::default()).collect();
        Undo { slices, exported: AtomicUsize::new(0) }
    }
}

/// What a shard knows about changes since the last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Whether there is a last checkpoint.
    pub(crate) tracked: bool,
    /// Whether there is one, or one is being saved.
    noting: bool,
    /// Hashes removed since the last snapshot, and before it but after the last stored checkpoint.
    since: Vec<u64>,
    before: Vec<u64>,
}

impl Removed {
    pub(crate) fn note(&mut self, hash: u64) {
        if self.noting {
            self.since.push(hash);
        }
    }

    pub(crate) fn is_noting(&self) -> bool {
        self.noting
    }

    /// What was removed before the snapshot, in order.
    pub(crate) fn before_snapshot(&self) -> Vec<u64> {
        let mut hashes = self.before.clone();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }
}

impl Shard {
    /// Copies an entry before it changes, if a snapshot needs it.
    #[inline]
    pub(crate) fn remember(&mut self, hash: u64) {
        if matches!(self.snapshot, SnapshotState::Pending(_)) {
            self.remember_now(hash);
        }
    }

    /// Copies the entries of a request before they change.
    #[inline]
    pub(crate) fn remember_items(&mut self, items: &[Item]) {
        if matches!(self.snapshot, SnapshotState::Pending(_)) {
            self.remember_many(items.len(), |i| items[i].hash);
        }
    }

    /// Copies everything.
    pub(crate) fn remember_all(&mut self) {
        if matches!(self.snapshot, SnapshotState::Pending(_)) {
            let hashes: Vec<u64> = self.index.iter().map(|(hash, _)| hash).collect();
            self.remember_many(hashes.len(), |i| hashes[i]);
        }
    }

    /// Copies `n` entries; their memory is asked for some entries ahead.
    #[cold]
    fn remember_many(&mut self, n: usize, hash: impl Fn(usize) -> u64) {
        for i in 0..n + AHEAD {
            if i + AHEAD < n {
                self.index.prefetch(hash(i + AHEAD));
            }
            if i < n {
                self.prefetch_row(hash(i));
            }
            if i >= AHEAD {
                self.remember_now(hash(i - AHEAD));
            }
        }
    }

    fn prefetch_row(&self, hash: u64) {
        let place = self.index.find(hash);
        if let Some(slot) = place.slot() {
            let slab = self.slab(place);
            slab.prefetch(slot, slab.stride());
        }
    }

    fn remember_now(&mut self, hash: u64) {
        let Shard { snapshot, index, base, extended, .. } = self;
        let SnapshotState::Pending(undo) = snapshot else { return };
        let slice = index.slice_of(hash, undo.slices.len());
        if slice < *undo.exported.get_mut() {
            return;
        }
        let Some(place) = index.keep(hash) else { return };
        let slab = if place.has(Place::EXTENDED) { extended } else { base };
        let words = place.slot().map_or(&[][..], |slot| slab.row(slot));
        let kept = &mut undo.slices[slice];
        kept.entries.push((hash, place, kept.words.len()));
        kept.words.extend_from_slice(words);
    }

    /// Keeps the record of a cold row that changes or goes, if a snapshot needs it. Whether it
    /// does.
    pub(crate) fn remember_cold(&mut self, entry: ColdEntry) -> bool {
        let SnapshotState::Pending(undo) = &mut self.snapshot else { return false };
        let slice = entry.slice(undo.slices.len());
        let needed = slice >= *undo.exported.get_mut() && entry.marks() & Place::KEPT == 0;
        if needed {
            undo.slices[slice].cold.push(entry);
        }
        needed
    }

    fn begin_snapshot(&mut self, scope: Scope) {
        let n_cold = self.all_rows() - self.n_rows;
        self.snapshot = SnapshotState::Pending(Undo::new(self.index.len(), n_cold));
        self.index.born = Place::KEPT;
        if scope.is_checkpoint() {
            let [first, second] = Place::DIRTY;
            self.index.dirty = if self.index.dirty == first { second } else { first };
            self.removed.before = std::mem::take(&mut self.removed.since);
            self.removed.noting = true;
        }
    }

    /// All of it is exported: changes need not be remembered any more. Gives what was.
    fn exported(&mut self) -> Result<SnapshotState, Error> {
        self.index.born = 0;
        let before = std::mem::replace(&mut self.snapshot, SnapshotState::Exported);
        if let (SnapshotState::Pending(undo), Some(tier)) = (&before, &mut self.tier) {
            let cold = undo.slices.iter().flat_map(|slice| &slice.cold);
            cold.for_each(|entry| tier.give_up(entry.record()));
            tier.release()?;
        }
        Ok(before)
    }

    /// Changes the marks of all rows and candidates.
    fn remark(&mut self, change: impl Fn(u64) -> u64) {
        self.index.reflag(|place| place.without(Place::MARKS).with(change(place.marks())));
        if let Some(tier) = &mut self.tier {
            tier.cold.reflag(change);
        }
    }

    fn end_snapshot(&mut self, scope: Scope, stored: bool) -> Result<(), Error> {
        self.exported()?;
        self.snapshot = SnapshotState::None;
        if !scope.is_checkpoint() {
            self.remark(|marks| marks & !Place::KEPT);
            return Ok(());
        }
        let newer = self.index.dirty;
        let older = Place::DIRTY[0] ^ Place::DIRTY[1] ^ newer;
        if stored {
            self.removed.before.clear();
            self.removed.tracked = true;
            self.remark(|marks| marks & !(older | Place::KEPT));
            return Ok(());
        }
        let before = std::mem::take(&mut self.removed.before);
        self.removed.since.extend(before);
        if !self.removed.tracked {
            self.removed = Removed::default();
        }
        self.remark(|marks| {
            let newer = if marks & older != 0 { newer } else { 0 };
            marks & !(older | Place::KEPT) | newer
        });
        Ok(())
    }

    /// From now on changes are counted from what is here.
    fn track(&mut self) {
        self.index.dirty = Place::DIRTY[0];
        self.remark(|marks| marks & Place::KEPT);
        self.removed = Removed { tracked: true, noting: true, ..Removed::default() };
    }
}

impl SparseTable {
    /// Begins to save this moment. All shards are locked together once, for microseconds; requests
    /// that span shards are not split if no request is in flight, which is the caller's business.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if another snapshot is open, or if changes are asked for and there is no
    /// checkpoint to count them from; [`Error::Poisoned`].
    pub fn snapshot(&self, scope: Scope) -> Result<Snapshot, Error> {
        let locked = (0..self.shards.len()).map(|shard| self.write(shard));
        let mut shards = locked.collect::<Result<Vec<_>, Error>>()?;
        let refuse = |what| Err(Error::Snapshot { table: self.config.table, what });
        if shards.iter().any(|shard| !matches!(shard.snapshot, SnapshotState::None)) {
            return refuse("another snapshot is open");
        }
        if scope == Scope::Changes && !shards.iter().all(|shard| shard.removed.tracked) {
            return refuse("there is no checkpoint from which changes could be counted");
        }
        shards.iter_mut().for_each(|shard| shard.begin_snapshot(scope));
        Ok(Snapshot { scope, day: self.day() })
    }

    /// The rows as they were at the snapshot, once per snapshot.
    pub fn export_snapshot<'t>(&'t self, snapshot: &'t Snapshot) -> SnapshotRows<'t> {
        let (removed, gone, room) = (Vec::new(), Vec::new(), Vec::new());
        SnapshotRows { table: self, snapshot, shard: 0, slice: 0, removed, gone, room }
    }

    /// Ends a snapshot. `stored` says whether its rows are safely stored, all of them; if not, the
    /// next snapshot gives them again.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn end_snapshot(&self, snapshot: Snapshot, stored: bool) -> Result<(), Error> {
        for shard in 0..self.shards.len() {
            self.settled(self.write(shard)?.end_snapshot(snapshot.scope, stored))?;
        }
        Ok(())
    }

    /// Tells the table that it is what a checkpoint holds, as after loading one: changes are
    /// counted from here.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if a snapshot is open, [`Error::Poisoned`].
    pub fn begin_changes(&self) -> Result<(), Error> {
        for shard in 0..self.shards.len() {
            let shard = &mut *self.write(shard)?;
            if !matches!(shard.snapshot, SnapshotState::None) {
                return Err(Error::Snapshot {
                    table: self.config.table,
                    what: "a snapshot is open",
                });
            }
            shard.track();
        }
        Ok(())
    }
}

/// The rows of a snapshot, some thousand at a time, in the order of
/// [`row_order`](crate::row_order).
#[derive(Debug)]
#[must_use = "rows come out of next"]
pub struct SnapshotRows<'t> {
    table: &'t SparseTable,
    snapshot: &'t Snapshot,
    /// Where the next ones come from.
    shard: usize,
    slice: usize,
    /// Hashes that this shard has removed since the last checkpoint, in order; only for
    /// [`Scope::Changes`].
    removed: Vec<u64>,
    /// Those of them that belong to the slice and are not there again, as ids.
    gone: Vec<u64>,
    /// Used again for every slice.
    room: Vec<(u64, Place)>,
}

/// What there is to know of a slice beside its rows.
#[derive(Debug)]
pub struct SnapshotSlice<'a> {
    /// Ids that are gone since the last checkpoint, in the order of
    /// [`row_order`](crate::row_order); only for [`Scope::Changes`].
    pub removed: &'a [u64],
    /// For [`SparseTable::saved`]; empty for checkpoints, of which [`SparseTable::end_snapshot`]
    /// tells.
    pub receipt: Receipt,
}

impl SnapshotRows<'_> {
    /// Visits the next rows, which may be none; gives nothing at the end. Pushes to the shard that
    /// they come from wait meanwhile, so `visit` should only put the row somewhere; between two
    /// calls they continue.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if they were exported before, [`Error::Poisoned`].
    pub fn next(&mut self, visit: impl FnMut(Row<'_>)) -> Result<Option<SnapshotSlice<'_>>, Error> {
        if self.shard == self.table.n_shards() {
            return Ok(None);
        }
        let (more, receipt) = self.visit_slice(visit)?;
        if more {
            self.slice += 1;
        } else {
            let done = self.table.settled(self.table.write(self.shard)?.exported())?;
            // Copies are dropped when the shard is no longer locked.
            drop(done);
            (self.shard, self.slice) = (self.shard + 1, 0);
        }
        Ok(Some(SnapshotSlice { removed: &self.gone, receipt }))
    }

    /// Visits a slice; whether there are more of them in this shard.
    fn visit_slice(&mut self, mut visit: impl FnMut(Row<'_>)) -> Result<(bool, Receipt), Error> {
        let &mut SnapshotRows { table, snapshot: &Snapshot { scope, day }, slice, .. } = self;
        let guard = table.read(self.shard)?;
        let shard = &*guard;
        let SnapshotState::Pending(undo) = &shard.snapshot else {
            let what = "this shard has been exported, or the snapshot is another table's";
            return Err(Error::Snapshot { table: table.config.table, what });
        };
        let n_slices = undo.slices.len();
        self.room.clear();
        shard.index.slice(n_slices, slice, &mut self.room);
        let mut kept = undo.slices[slice].entries.clone();
        kept.sort_unstable_by_key(|entry| entry.0);
        if slice == 0 {
            let changes = scope == Scope::Changes;
            self.removed = if changes { shard.removed.before_snapshot() } else { Vec::new() };
        }
        let cold = table.settled(shard.begin_slice(undo, slice, scope))?;
        let mut receipt = Receipt::new(scope, self.shard);
        let words = &undo.slices[slice].words[..];
        if cold.is_empty() {
            self.find_gone(n_slices, &kept, &[]);
            let kept = (&kept[..], words);
            table.select(shard, &self.room, kept, scope, day, |Selected { hash, place, words }| {
                receipt.note(hash, place, words);
                visit(row_of(hash, place, words, day));
            });
            undo.exported.store(slice + 1, Ordering::Relaxed);
            return Ok((slice + 1 < n_slices, receipt));
        }
        let mut rows = ShardRows::new(scope, self.shard, day);
        let found = (&kept[..], words);
        table.select(shard, &self.room, found, scope, day, |Selected { hash, place, words }| {
            rows.push(hash, place, words);
        });
        undo.exported.store(slice + 1, Ordering::Relaxed);
        // The rows of this slice are safe: the shard continues while the cold ones arrive.
        drop(guard);
        table.add_cold(&mut rows, cold, scope, day)?;
        let there: Vec<u64> = rows.rows().map(|row| row_order(row.key)).collect();
        self.find_gone(n_slices, &kept, &there);
        for row in rows.rows() {
            visit(row);
        }
        Ok((slice + 1 < n_slices, rows.receipt()))
    }

    /// Which of the removed hashes of this shard belong to the slice and are not there: neither in
    /// memory, nor copied, nor among the cold rows that were read, which are all that are new.
    fn find_gone(&mut self, n_slices: usize, kept: &[(u64, Place, usize)], there: &[u64]) {
        let n_shards = self.table.n_shards();
        let slice_of = |hash: &u64| slice_of(*hash, n_shards.ilog2(), n_slices);
        let from = self.removed.partition_point(|hash| slice_of(hash) < self.slice);
        let removed = self.removed[from..].iter().take_while(|hash| slice_of(hash) == self.slice);
        let gone = removed.filter(|hash| {
            self.room.binary_search_by_key(*hash, |entry| entry.0).is_err()
                && kept.binary_search_by_key(*hash, |entry| entry.0).is_err()
                && there.binary_search(hash).is_err()
        });
        self.gone.clear();
        self.gone.extend(gone.map(|hash| key_of(*hash)));
    }
}

impl Shard {
    /// Begins to read the cold rows of a slice as they were at the snapshot; of changes, only those
    /// that changed.
    fn begin_slice(
        &self,
        undo: &Undo,
        slice: usize,
        scope: Scope,
    ) -> Result<Vec<ColdReads>, Error> {
        let Some(tier) = &self.tier else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        tier.cold.slice(undo.slices.len(), slice, Place::KEPT, &mut entries);
        entries.extend_from_slice(&undo.slices[slice].cold);
        if scope == Scope::Changes {
            entries.retain(|entry| entry.marks() & (Place::DIRTY[0] | Place::DIRTY[1]) != 0);
        }
        self.begin_cold(&entries)
    }
}
