//! Rows out of a table and back: a [`SaveMode`] goes in, [`ShardRows`] come out.
//!
//! What is written to disk, and how, is not decided here.

use std::sync::RwLockReadGuard;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::ctr::{CLICK, Ctr, DELTA_SCORE, SHOW};
use crate::error::check_len;
use crate::hash::{hash_of, key_of, shard_of};
use crate::index::{DAY_MASK, Place};
use crate::row::Kind;
use crate::shard::Shard;
use crate::sparse::SparseTable;

/// Which rows are saved. Paddle's numbers for these modes differ between its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SaveMode {
    /// Everything, candidates for admission included: what a checkpoint needs.
    All,
    /// All rows worth serving. CTR: score and days without a push within the configured bounds.
    Base,
    /// Rows worth serving that changed since the last base or delta save. CTR: whose score grew by
    /// `delta_threshold`.
    Delta,
    /// As [`All`](SaveMode::All), at the end of a day: once all shards are saved, call
    /// [`end_day`](SparseTable::end_day).
    EndOfDay,
    /// Rows that were pushed since the last patch. For plain rows the same as a delta.
    Patch,
}

/// One row or candidate as it stands in a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    /// Its id.
    pub key: u64,
    /// Days that ended since its last push.
    pub unseen_days: u32,
    /// Whether it was pushed since it was last saved as base, delta or patch.
    pub changed: bool,
    /// Its contents.
    pub body: RowBody<'a>,
}

/// The contents of a row, in the order of [`SparseTable::row_parts`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowBody<'a> {
    /// Not admitted yet.
    Candidate {
        /// How often it appeared.
        appearances: u32,
    },
    /// A row: all parts of a plain row, or the parts before `embedx` of a CTR row.
    Base(&'a [f32]),
    /// A CTR row with all its parts.
    Extended(&'a [f32]),
}

/// Exported rows of one shard, in order of their ids.
#[derive(Debug, Clone)]
pub struct ShardRows {
    mode: SaveMode,
    shard: usize,
    day: u32,
    entries: Vec<Entry>,
    words: Vec<f32>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    place: Place,
    /// Where its words are.
    start: usize,
    len: usize,
}

impl ShardRows {
    /// The mode they were chosen by.
    pub fn mode(&self) -> SaveMode {
        self.mode
    }

    /// The shard they come from.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// How many rows and candidates there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The rows, in order of their ids.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row<'_>> {
        self.entries.iter().map(|entry| {
            let words = &self.words[entry.start..entry.start + entry.len];
            let body = match entry.place.appearances() {
                Some(appearances) => RowBody::Candidate { appearances },
                None if entry.place.has(Place::EXTENDED) => RowBody::Extended(words),
                None => RowBody::Base(words),
            };
            let changed = entry.place.has(Place::CHANGED);
            Row { key: entry.key, unseen_days: entry.place.unseen_days(self.day), changed, body }
        })
    }
}

/// A table in which no row changes. See [`SparseTable::freeze`].
#[derive(Debug)]
pub struct Frozen<'a> {
    table: &'a SparseTable,
    guards: Vec<RwLockReadGuard<'a, Shard>>,
}

impl Frozen<'_> {
    /// As [`SparseTable::export`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn export(&self, shard: usize, mode: SaveMode) -> ShardRows {
        self.table.collect(&self.guards[shard], shard, mode).sorted()
    }
}

impl SparseTable {
    /// Number of shards, for [`export`](Self::export).
    pub fn n_shards(&self) -> usize {
        self.shards.len()
    }

    /// Names and lengths of the parts of a full row in storage order, such as `weight` and `moment`.
    /// Two tables with the same parts can exchange rows.
    pub fn row_parts(&self) -> Vec<(String, usize)> {
        self.kind.parts()
    }

    /// Copies the rows of one shard that `mode` asks for. Pushes to this shard wait for the copy
    /// (some ten nanoseconds per row), pulls and other shards go on: a table can be saved shard by
    /// shard while it is trained. Each row is whole; rows of different shards may stem from
    /// different moments. For one moment use [`freeze`](Self::freeze).
    ///
    /// # Errors
    /// [`Error::NoSuch`] shard, [`Error::Poisoned`].
    pub fn export(&self, shard: usize, mode: SaveMode) -> Result<ShardRows, Error> {
        let (table, len) = (self.config.table, self.shards.len());
        if shard >= len {
            return Err(Error::NoSuch { table, what: "shard", index: shard, len });
        }
        let rows = self.collect(&*self.read(shard)?, shard, mode);
        Ok(rows.sorted())
    }

    /// Stops all pushes, and pulls that create rows, until the value is dropped; other pulls go on.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn freeze(&self) -> Result<Frozen<'_>, Error> {
        let guards = (0..self.shards.len()).map(|shard| self.read(shard)).collect::<Result<_, _>>();
        Ok(Frozen { table: self, guards: guards? })
    }

    fn collect(&self, shard: &Shard, shard_idx: usize, mode: SaveMode) -> ShardRows {
        let day = self.day();
        let mut rows = ShardRows { mode, shard: shard_idx, day, entries: vec![], words: vec![] };
        if matches!(mode, SaveMode::All | SaveMode::EndOfDay) {
            rows.entries.reserve(shard.index.len());
            rows.words.reserve(
                (shard.n_rows - shard.n_extended) * shard.base.stride()
                    + shard.n_extended * shard.extended.stride(),
            );
        }
        for (hash, place) in shard.index.iter() {
            let words = shard.row(place);
            if self.selects(mode, place.unseen_days(day), place, words) {
                let (start, words) = (rows.words.len(), words.unwrap_or(&[]));
                rows.entries.push(Entry { key: key_of(hash), place, start, len: words.len() });
                rows.words.extend_from_slice(words);
            }
        }
        rows
    }

    fn selects(&self, mode: SaveMode, unseen: u32, place: Place, words: Option<&[f32]>) -> bool {
        let changed = place.has(Place::CHANGED);
        let Some(words) = words else {
            return matches!(mode, SaveMode::All | SaveMode::EndOfDay);
        };
        match (mode, &self.kind) {
            (SaveMode::All | SaveMode::EndOfDay, _) => true,
            (SaveMode::Patch, _) | (SaveMode::Delta, Kind::Plain(_)) => changed,
            (SaveMode::Base, Kind::Plain(_)) => true,
            (SaveMode::Base, Kind::Ctr(ctr)) => ctr.serves(words, unseen),
            (SaveMode::Delta, Kind::Ctr(ctr)) => {
                ctr.serves(words, unseen) && words[DELTA_SCORE] >= ctr.config.delta_threshold
            }
        }
    }

    /// Tells the table that exported rows are safely stored: what a delta or a patch counts begins
    /// anew for them. What was pushed since the export still counts. After a save that failed, do
    /// not call this; the next export gives the same rows again.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn saved(&self, rows: &ShardRows) -> Result<(), Error> {
        if matches!(rows.mode, SaveMode::All | SaveMode::EndOfDay) {
            return Ok(());
        }
        let shard = &mut *self.write(rows.shard)?;
        for entry in &rows.entries {
            let hash = hash_of(entry.key);
            let place = shard.index.find(hash);
            let Some(words) = shard.row_mut(place) else { continue };
            let stored = &rows.words[entry.start..entry.start + entry.len];
            let same = words.len() == stored.len()
                && words.iter().zip(stored).all(|(a, b)| a.to_bits() == b.to_bits());
            let by_score = matches!(self.kind, Kind::Ctr(_)) && rows.mode != SaveMode::Patch;
            if by_score {
                words[DELTA_SCORE] -= stored[DELTA_SCORE];
            } else if same {
                shard.index.set(hash, place.without(Place::CHANGED))?;
            }
        }
        Ok(())
    }

    /// Puts rows into the table as they were exported, over rows that are there; from any number of
    /// shards or servers, in any order. Gives how many were taken; the padding id is left out.
    ///
    /// # Errors
    /// [`Error::Length`] for a row of another layout, [`Error::Memory`], [`Error::ShardFull`],
    /// [`Error::Poisoned`]; rows before the one that failed stay.
    pub fn import<'a>(&self, rows: impl IntoIterator<Item = Row<'a>>) -> Result<usize, Error> {
        let mut n = 0;
        let mut held = None;
        for row in rows {
            self.check_row(&row)?;
            if Some(row.key) == self.config.padding_idx {
                continue;
            }
            let hash = hash_of(row.key);
            let shard_idx = shard_of(hash, self.shards.len());
            // Exports are by shard: most rows find the lock taken already.
            let mut guard = match held.take() {
                Some((idx, guard)) if idx == shard_idx => guard,
                other => {
                    drop(other);
                    self.write(shard_idx)?
                }
            };
            self.restore(&mut guard, hash, &row)?;
            held = Some((shard_idx, guard));
            n += 1;
        }
        Ok(n)
    }

    fn restore(&self, shard: &mut Shard, hash: u64, row: &Row<'_>) -> Result<(), Error> {
        let day = self.day().wrapping_sub(row.unseen_days) & DAY_MASK;
        let flags = if row.changed { Place::CHANGED } else { 0 };
        match row.body {
            RowBody::Candidate { appearances } => {
                shard.restore(hash, Place::candidate(appearances, day), None)
            }
            // The slot is filled in with the real one.
            RowBody::Base(words) => {
                shard.restore(hash, Place::row(1, day, flags), Some((false, words)))
            }
            RowBody::Extended(words) => {
                shard.restore(hash, Place::row(1, day, flags), Some((true, words)))
            }
        }
    }

    fn check_row(&self, row: &Row<'_>) -> Result<(), Error> {
        let (what, actual, expected) = match row.body {
            RowBody::Candidate { .. } => return Ok(()),
            RowBody::Base(words) => ("an imported row", words.len(), self.kind.base_len()),
            RowBody::Extended(words) => {
                ("an imported extended row", words.len(), self.kind.extended_len())
            }
        };
        check_len(self.config.table, what, actual, expected)
    }
}

impl ShardRows {
    /// In order of ids; done without holding a lock.
    fn sorted(mut self) -> Self {
        self.entries.sort_unstable_by_key(|entry| entry.key);
        self
    }
}

impl Ctr {
    /// Whether a row is worth serving.
    fn serves(&self, row: &[f32], unseen_days: u32) -> bool {
        self.score(row[SHOW], row[CLICK]) >= self.config.base_threshold
            && unseen_days <= self.config.delta_keep_days
    }
}
