//! What happens to all cold rows of a shard: saving, shrinking, clearing. They are read in slices
//! by hash, which are runs of pages in every file, so memory stays small and the disk is read
//! nearly in sequence.

use regatta_cold::{Record, RecordNo, Ticket};

use crate::Error;
use crate::export::{Row, RowBody, ShardRows};
use crate::hash::hash_of;
use crate::index::Place;
use crate::shard::Shard;
use crate::snapshot::Scope;
use crate::sparse::SparseTable;
use crate::tier::Core;
use crate::tier::cold_index::ColdEntry;
use crate::tier::shard::{PutBatch, cold_error};

/// Cold rows read at a time.
pub(crate) const SLICE: usize = 16384;

/// Reads of cold rows that were begun while the shard was locked: they give the rows of that
/// moment, whatever happens to them since.
pub(crate) struct ColdReads {
    entries: Vec<ColdEntry>,
    ticket: Ticket,
}

impl ColdReads {
    /// Waits for the rows and visits them.
    fn finish(
        self,
        core: &Core,
        mut visit: impl FnMut(ColdEntry, Record<'_>),
    ) -> Result<(), Error> {
        let held = core.cold(self.ticket.wait())?;
        for (i, entry) in self.entries.iter().enumerate() {
            match held.get(i) {
                Some(record) => visit(*entry, record),
                None => return core.settled(Err(lost(core.table, *entry))),
            }
        }
        Ok(())
    }
}

fn lost(table: crate::TableId, entry: ColdEntry) -> Error {
    Error::Cold { table, what: format!("record {} is lost", entry.record()) }
}

impl Shard {
    /// Begins to read cold rows.
    pub(crate) fn begin_cold(&self, entries: &[ColdEntry]) -> Result<Vec<ColdReads>, Error> {
        let Some(tier) = &self.tier else { return Ok(Vec::new()) };
        let read = |entries: &[ColdEntry]| {
            let numbers: Vec<_> = entries.iter().map(|e| RecordNo::from_u32(e.record())).collect();
            let ticket = tier.store.submit(&numbers).map_err(|e| cold_error(tier.table, &e))?;
            Ok(ColdReads { entries: entries.to_vec(), ticket })
        };
        entries.chunks(SLICE).map(read).collect()
    }

    /// Visits all cold rows while the shard is locked.
    pub(crate) fn visit_cold(
        &self,
        mut visit: impl FnMut(ColdEntry, Record<'_>),
    ) -> Result<(), Error> {
        let n_slices = self.n_cold_slices();
        (0..n_slices).try_for_each(|slice| self.read_cold(n_slices, slice, &mut visit))
    }

    fn n_cold_slices(&self) -> usize {
        self.tier.as_ref().map_or(0, |t| t.cold.len().div_ceil(SLICE).next_power_of_two())
    }

    /// Reads a slice of the cold rows while the shard is locked.
    fn read_cold(
        &self,
        n_slices: usize,
        slice: usize,
        mut visit: impl FnMut(ColdEntry, Record<'_>),
    ) -> Result<(), Error> {
        let Some(tier) = &self.tier else { return Ok(()) };
        let mut entries = Vec::new();
        tier.cold.slice(n_slices, slice, 0, &mut entries);
        let numbers: Vec<_> = entries.iter().map(|e| RecordNo::from_u32(e.record())).collect();
        let held = tier.store.read(&numbers).map_err(|e| cold_error(tier.table, &e))?;
        for (i, entry) in entries.iter().enumerate() {
            let record = held.get(i).ok_or_else(|| lost(tier.table, *entry))?;
            visit(*entry, record);
        }
        Ok(())
    }

    /// Takes a cold row out of the index.
    fn forget_cold(&mut self, hash: u64, entry: ColdEntry, tag: u32) {
        self.remember_or_release(entry);
        let Some(tier) = &mut self.tier else { return };
        tier.cold.remove(hash, entry.record());
        let extended = Place::from_tag(1, tag, 0).has(Place::EXTENDED);
        tier.n_cold_extended -= usize::from(extended);
    }

    /// The record of a row that changes or goes: a snapshot may need it longer than the table.
    fn remember_or_release(&mut self, entry: ColdEntry) {
        if !self.remember_cold(entry)
            && let Some(tier) = &mut self.tier
        {
            tier.give_up(entry.record());
        }
    }

    /// Keeps the cold rows that `keep` wants, which may change all of them if `changes` says so.
    pub(crate) fn retain_cold(
        &mut self,
        changes: bool,
        mut keep: impl FnMut(Place, Option<&mut [f32]>) -> bool,
    ) -> Result<(), Error> {
        let n_slices = self.n_cold_slices();
        let (base, extended) = (self.base.stride(), self.extended.stride());
        for slice in 0..n_slices {
            let mut batch = PutBatch::new(base.max(extended));
            let (mut kept, mut gone, mut row) = (Vec::new(), Vec::new(), Vec::new());
            self.read_cold(n_slices, slice, |entry, record| {
                let place = Place::from_tag(1, record.tag, entry.marks());
                let len = if place.has(Place::EXTENDED) { extended } else { base };
                row.clear();
                row.extend_from_slice(bytemuck::cast_slice::<u32, f32>(&record.words[..len]));
                if !keep(place, Some(&mut row)) {
                    gone.push((record.hash, entry, record.tag));
                } else if changes {
                    batch.push(record.hash, record.tag, &row);
                    kept.push(entry);
                }
            })?;
            for (hash, entry, tag) in gone {
                self.forget_cold(hash, entry, tag);
                self.removed.note(hash);
            }
            self.rewrite(&kept, &batch)?;
        }
        Ok(())
    }

    /// Gives cold rows new records.
    fn rewrite(&mut self, entries: &[ColdEntry], batch: &PutBatch) -> Result<(), Error> {
        let Some(tier) = &self.tier else { return Ok(()) };
        let (numbers, result) = batch.put(tier);
        let (dirty, born) = (self.index.dirty, self.index.born);
        for ((entry, hash), number) in entries.iter().zip(batch.hashes()).zip(numbers) {
            // Without a snapshot there is no such mark to set.
            let marks = dirty | if self.remember_cold(*entry) { born } else { 0 };
            let Some(tier) = &mut self.tier else { continue };
            tier.cold.replace(hash, entry.record(), number.get(), marks);
            if marks & Place::KEPT == 0 {
                tier.give_up(entry.record());
            }
        }
        result
    }

    /// Forgets all cold rows.
    pub(crate) fn clear_cold(&mut self) -> Result<(), Error> {
        if self.removed.is_noting() {
            let mut hashes = Vec::new();
            self.visit_cold(|_, record| hashes.push(record.hash))?;
            hashes.into_iter().for_each(|hash| self.removed.note(hash));
        }
        let Some(tier) = &self.tier else { return Ok(()) };
        let entries: Vec<ColdEntry> = tier.cold.iter().collect();
        entries.into_iter().for_each(|entry| self.remember_or_release(entry));
        let Some(tier) = &mut self.tier else { return Ok(()) };
        tier.slots.iter_mut().for_each(|slots| slots.clear());
        tier.n_cold_extended = 0;
        tier.cold.clear()?;
        tier.release()
    }

    /// Forgets those cold rows that have one of these hashes.
    fn forget_all(&mut self, hashes: impl Iterator<Item = u64>) -> Result<(), Error> {
        let Some(tier) = self.tier.as_ref().filter(|tier| tier.cold.len() > 0) else {
            return Ok(());
        };
        let absent = hashes.filter(|hash| self.index.find(*hash) == Place::EMPTY);
        let candidates = |hash: u64| tier.cold.candidates(hash).map(move |entry| (hash, entry));
        let mut unread: Vec<(u64, ColdEntry)> = absent.flat_map(candidates).collect();
        unread.sort_unstable();
        unread.dedup();
        let mut there = Vec::new();
        self.read_now(&unread, |entry, record| {
            there.push((record.hash, entry, record.tag));
            Ok(())
        })?;
        there.into_iter().for_each(|(hash, entry, tag)| self.forget_cold(hash, entry, tag));
        Ok(())
    }
}

impl SparseTable {
    /// Adds the cold rows that a scope asks for to those of the memory, in order.
    pub(crate) fn add_cold(
        &self,
        rows: &mut ShardRows,
        reads: Vec<ColdReads>,
        scope: Scope,
        day: u32,
    ) -> Result<(), Error> {
        let Some(tier) = self.tier.as_ref().filter(|_| !reads.is_empty()) else { return Ok(()) };
        for read in reads {
            read.finish(&tier.core, |entry, record| {
                let place = Place::from_tag(1, record.tag, entry.marks());
                let words = self.cold_row(&record);
                if self.selects(scope, place.unseen_days(day), place, Some(words)) {
                    rows.push(record.hash, place, words);
                }
            })?;
        }
        rows.sort();
        Ok(())
    }

    /// Puts rows of one shard into the table: into memory as long as they fit, and into files.
    pub(crate) fn import_run(&self, shard: &mut Shard, rows: &[Row<'_>]) -> Result<(), Error> {
        shard.forget_all(rows.iter().map(|row| hash_of(row.key)))?;
        let mut batch = PutBatch::new(self.kind.base_len().max(self.kind.extended_len()));
        let mut waiting = std::collections::HashSet::new();
        for row in rows {
            let hash = hash_of(row.key);
            if waiting.contains(&hash) {
                // The same id again: the row before it must be there first.
                self.store_run(shard, &mut batch)?;
                waiting.clear();
                shard.forget_all([hash].into_iter())?;
            }
            let words = match row.body {
                RowBody::Candidate { .. } => None,
                RowBody::Base(words) | RowBody::Extended(words) => Some(words),
            };
            let straight =
                words.filter(|_| !shard.has_room() && shard.index.find(hash) == Place::EMPTY);
            let Some(words) = straight else {
                self.restore(shard, hash, row)?;
                continue;
            };
            let extended = matches!(row.body, RowBody::Extended(_));
            let flag = if extended { Place::EXTENDED } else { 0 };
            batch.push(hash, self.restored_place(row).with(flag).to_tag(), words);
            waiting.insert(hash);
        }
        self.store_run(shard, &mut batch)?;
        shard.settle()
    }

    fn store_run(&self, shard: &mut Shard, batch: &mut PutBatch) -> Result<(), Error> {
        let marks = shard.index.dirty | shard.index.born;
        let Some(tier) = shard.tier.as_mut().filter(|_| batch.len() > 0) else { return Ok(()) };
        tier.cold.reserve(batch.len())?;
        let (numbers, result) = batch.put(tier);
        for ((hash, tag), number) in batch.heads().zip(numbers) {
            tier.cold.insert(hash, number.get(), marks)?;
            let extended = Place::from_tag(1, tag, 0).has(Place::EXTENDED);
            tier.n_cold_extended += usize::from(extended);
        }
        *batch = PutBatch::new(self.kind.base_len().max(self.kind.extended_len()));
        result
    }
}
