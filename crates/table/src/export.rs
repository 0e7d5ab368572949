//! Rows out of a table and back: a [`SaveMode`] goes in, [`ShardRows`] come out.
//!
//! What is written to disk, and how, is not decided here.

use std::fmt;
use std::str::FromStr;

use regatta_tensor::rng::mix;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::ctr::{CLICK, Ctr, DELTA_SCORE, SHOW};
use crate::error::check_len;
use crate::group::Item;
use crate::hash::{hash_of, key_of, shard_of};
use crate::index::{DAY_MASK, Place};
use crate::row::Kind;
use crate::shard::Shard;
use crate::snapshot::Scope;
use crate::sparse::SparseTable;
use crate::tier::Found;

/// Rows of a table with a tier that are brought into memory or imported together.
const SAVED_AT_ONCE: usize = 1024;
/// How far ahead rows are asked for.
const AHEAD: usize = 12;

/// Which rows are saved. Paddle's numbers for these modes differ between its generations; see
/// [`from_number`](SaveMode::from_number).
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
    Day,
    /// Rows that were pushed since the last patch. For plain rows the same as a delta.
    Patch,
}

/// Whose numbers of save modes are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// The parameter server of Paddle 1.x and early 2.x: 0 all, 1 base, 2 delta.
    Second,
    /// The parameter server of Paddle 2.x: 0 all, 1 delta, 2 base, 3 day, 5 patch.
    Third,
}

impl SaveMode {
    /// All modes.
    pub const ALL: [SaveMode; 5] =
        [SaveMode::All, SaveMode::Base, SaveMode::Delta, SaveMode::Day, SaveMode::Patch];

    /// The mode that a generation of Paddle writes as a number.
    ///
    /// # Errors
    /// For numbers that mean nothing there, with those that do.
    pub fn from_number(generation: Generation, number: u32) -> Result<SaveMode, String> {
        let found = SaveMode::ALL.into_iter().find(|mode| mode.number(generation) == Some(number));
        found.ok_or_else(|| {
            let modes = SaveMode::ALL.into_iter();
            let known = modes.filter_map(|m| m.number(generation).map(|n| format!("{n} ({m})")));
            let mut known: Vec<String> = known.collect();
            known.sort();
            format!("{number} is no save mode of this generation; known: {}", known.join(", "))
        })
    }

    /// The number of the mode, if that generation has it.
    pub fn number(self, generation: Generation) -> Option<u32> {
        match (self, generation) {
            (SaveMode::All, _) => Some(0),
            (SaveMode::Base, Generation::Second) | (SaveMode::Delta, Generation::Third) => Some(1),
            (SaveMode::Base, Generation::Third) | (SaveMode::Delta, Generation::Second) => Some(2),
            (SaveMode::Day, Generation::Third) => Some(3),
            (SaveMode::Patch, Generation::Third) => Some(5),
            (SaveMode::Day | SaveMode::Patch, Generation::Second) => None,
        }
    }
}

impl fmt::Display for SaveMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SaveMode::All => "all",
            SaveMode::Base => "base",
            SaveMode::Delta => "delta",
            SaveMode::Day => "day",
            SaveMode::Patch => "patch",
        })
    }
}

impl FromStr for SaveMode {
    type Err = String;

    fn from_str(text: &str) -> Result<SaveMode, String> {
        let found = SaveMode::ALL.into_iter().find(|mode| mode.to_string() == text);
        found.ok_or_else(|| {
            format!("`{text}` is no save mode: expected all, base, delta, day or patch")
        })
    }
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

/// Exported rows of one shard, in the order of [`row_order`].
#[derive(Debug, Clone)]
pub struct ShardRows {
    scope: Scope,
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

/// Which rows of a shard an export gave, and how they were: much smaller than the rows.
#[derive(Debug, Clone)]
pub struct Receipt {
    mode: SaveMode,
    shard: usize,
    /// Key, fingerprint of the words, and the score that a delta counts (CTR).
    rows: Vec<(u64, u64, f32)>,
}

/// The place of an id in exports and in files: rows come in rising order of this number, which is a
/// bijection of the id. It spreads ids evenly, and rows in this order are quick to put into a
/// table.
pub fn row_order(key: u64) -> u64 {
    hash_of(key)
}

impl ShardRows {
    pub(crate) fn new(scope: Scope, shard: usize, day: u32) -> ShardRows {
        ShardRows { scope, shard, day, entries: Vec::new(), words: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, hash: u64, place: Place, words: &[f32]) {
        let (start, len) = (self.words.len(), words.len());
        self.entries.push(Entry { key: key_of(hash), place, start, len });
        self.words.extend_from_slice(words);
    }

    /// Puts the rows into their order.
    pub(crate) fn sort(&mut self) {
        self.entries.sort_unstable_by_key(|entry| hash_of(entry.key));
    }

    /// Makes room for the rows of a shard that are chosen from so many entries.
    pub(crate) fn reserve(&mut self, shard: &Shard, n: usize) {
        self.entries.reserve(n);
        if matches!(self.scope, Scope::Rows(SaveMode::All | SaveMode::Day)) {
            let base = (shard.n_rows - shard.n_extended) * shard.base.stride();
            self.words.reserve(base + shard.n_extended * shard.extended.stride());
        }
    }

    /// What they were chosen by.
    pub fn scope(&self) -> Scope {
        self.scope
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

    /// The rows, in the order of [`row_order`].
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row<'_>> {
        self.entries
            .iter()
            .map(|entry| row_of(hash_of(entry.key), entry.place, self.words_of(entry), self.day))
    }

    fn words_of(&self, entry: &Entry) -> &[f32] {
        &self.words[entry.start..entry.start + entry.len]
    }

    /// What [`SparseTable::saved`] needs to know of them.
    pub fn receipt(&self) -> Receipt {
        let mut receipt = Receipt::new(self.scope, self.shard);
        for entry in &self.entries {
            receipt.note(hash_of(entry.key), entry.place, self.words_of(entry));
        }
        receipt
    }
}

impl Receipt {
    pub(crate) fn new(scope: Scope, shard: usize) -> Receipt {
        let mode = match scope {
            Scope::Rows(mode) => mode,
            Scope::Changes => SaveMode::All,
        };
        Receipt { mode, shard, rows: Vec::new() }
    }

    /// Notes a row. Checkpoints are acknowledged by the end of their snapshot.
    #[inline]
    pub(crate) fn note(&mut self, hash: u64, place: Place, words: &[f32]) {
        let checkpoint = matches!(self.mode, SaveMode::All | SaveMode::Day);
        if !checkpoint && place.slot().is_some() {
            let score = words.get(DELTA_SCORE).copied().unwrap_or(0.0);
            self.rows.push((key_of(hash), fingerprint(words), score));
        }
    }
}

/// An entry that a save wants, with its words; none for what is no row.
pub(crate) struct Selected<'a> {
    pub(crate) hash: u64,
    pub(crate) place: Place,
    pub(crate) words: &'a [f32],
}

/// An entry as others see it.
#[inline]
pub(crate) fn row_of(hash: u64, place: Place, words: &[f32], day: u32) -> Row<'_> {
    let body = match place.appearances() {
        Some(appearances) => RowBody::Candidate { appearances },
        None if place.has(Place::EXTENDED) => RowBody::Extended(words),
        None => RowBody::Base(words),
    };
    let changed = place.has(Place::CHANGED);
    Row { key: key_of(hash), unseen_days: place.unseen_days(day), changed, body }
}

/// A number that tells rows apart for all practical purposes.
fn fingerprint(words: &[f32]) -> u64 {
    words.iter().fold(0, |h, word| mix(h ^ u64::from(word.to_bits())))
}

impl SparseTable {
    /// Number of shards, for [`export`](Self::export).
    pub fn n_shards(&self) -> usize {
        self.shards.len()
    }

    /// Names and lengths of the parts of a full row in storage order, such as `weight` and
    /// `moment`. Two tables with the same parts can exchange rows.
    pub fn row_parts(&self) -> Vec<(String, usize)> {
        self.kind.parts()
    }

    /// How many of the words of [`row_parts`](Self::row_parts) a [`RowBody::Base`] has.
    pub fn base_len(&self) -> usize {
        self.kind.base_len()
    }

    /// Copies the rows of one shard that `mode` asks for. Pushes to this shard wait for the copy
    /// (some ten nanoseconds per row), pulls and other shards continue: a table can be saved shard
    /// by shard while it is trained. Each row is whole; rows of different shards may stem from
    /// different moments. For one moment use [`snapshot`](Self::snapshot).
    ///
    /// # Errors
    /// [`Error::NoSuch`] shard, [`Error::Poisoned`].
    pub fn export(&self, shard: usize, mode: SaveMode) -> Result<ShardRows, Error> {
        self.check_shard(shard)?;
        let guard = self.read(shard)?;
        let there = guard.index.sorted();
        let mut rows = ShardRows::new(Scope::Rows(mode), shard, self.day());
        rows.reserve(&guard, there.len());
        let (scope, day) = (rows.scope, rows.day);
        self.select(&guard, &there, (&[], &[]), scope, day, |Selected { hash, place, words }| {
            rows.push(hash, place, words);
        });
        if let Some(tier) = &guard.tier {
            let cold: Vec<_> = tier.cold.iter().collect();
            let reads = self.settled(guard.begin_cold(&cold))?;
            drop(guard);
            self.add_cold(&mut rows, reads, scope, day)?;
        }
        Ok(rows)
    }

    pub(crate) fn check_shard(&self, shard: usize) -> Result<(), Error> {
        let (table, len) = (self.config.table, self.shards.len());
        if shard < len {
            return Ok(());
        }
        Err(Error::NoSuch { table, what: "shard", index: shard, len })
    }

    /// Visits those of the entries that the scope asks for: of the shard, and of those that were
    /// put aside with their words; both in order and all different.
    pub(crate) fn select(
        &self,
        shard: &Shard,
        there: &[(u64, Place)],
        (kept, kept_words): (&[(u64, Place, usize)], &[f32]),
        scope: Scope,
        day: u32,
        mut visit: impl FnMut(Selected<'_>),
    ) {
        let mut take = |hash: u64, place: Place, words: Option<&[f32]>| {
            if self.selects(scope, place.unseen_days(day), place, words) {
                visit(Selected { hash, place, words: words.unwrap_or(&[]) });
            }
        };
        let mut kept = kept.iter().peekable();
        for (i, (hash, place)) in there.iter().enumerate() {
            if let Some((_, ahead)) = there.get(i + AHEAD)
                && let Some(slot) = ahead.slot()
            {
                let slab = shard.slab(*ahead);
                slab.prefetch(slot, slab.stride());
            }
            while let Some(&(hash, place, start)) = kept.next_if(|entry| entry.0 < *hash) {
                take(hash, place, self.kept_words(place, &kept_words[start..]));
            }
            take(*hash, *place, shard.row(*place));
        }
        for &(hash, place, start) in kept {
            take(hash, place, self.kept_words(place, &kept_words[start..]));
        }
    }

    /// The words of a row that was copied; none for what is no row.
    fn kept_words<'w>(&self, place: Place, words: &'w [f32]) -> Option<&'w [f32]> {
        let extended = place.has(Place::EXTENDED);
        let len = if extended { self.kind.extended_len() } else { self.kind.base_len() };
        place.slot().map(|_| &words[..len])
    }

    pub(crate) fn selects(
        &self,
        scope: Scope,
        unseen: u32,
        place: Place,
        words: Option<&[f32]>,
    ) -> bool {
        let mode = match scope {
            Scope::Changes => return place.has(Place::DIRTY[0] | Place::DIRTY[1]),
            Scope::Rows(mode) => mode,
        };
        let changed = place.has(Place::CHANGED);
        let Some(words) = words else {
            return matches!(mode, SaveMode::All | SaveMode::Day);
        };
        match (mode, &self.kind) {
            (SaveMode::All | SaveMode::Day, _) => true,
            (SaveMode::Patch, _) | (SaveMode::Delta, Kind::Plain(_)) => changed,
            (SaveMode::Base, Kind::Plain(_)) => true,
            (SaveMode::Base, Kind::Ctr(ctr)) => ctr.serves(words, unseen),
            (SaveMode::Delta, Kind::Ctr(ctr)) => {
                ctr.serves(words, unseen) && words[DELTA_SCORE] >= ctr.config.delta_threshold
            }
        }
    }

    /// Tells the table that rows exported as base, delta or patch are safely stored: what a delta
    /// or a patch counts begins again for them. What was pushed since the export still counts.
    /// After a save that failed, do not call this; the next export gives the same rows again.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn saved(&self, receipt: &Receipt) -> Result<(), Error> {
        if receipt.rows.is_empty() {
            return Ok(());
        }
        let by_score = matches!(self.kind, Kind::Ctr(_)) && receipt.mode != SaveMode::Patch;
        for rows in receipt.rows.chunks(SAVED_AT_ONCE) {
            self.settled(self.saved_rows(receipt.shard, rows, by_score))?;
        }
        Ok(())
    }

    /// Rows are brought into memory for this: what a record says cannot be changed.
    fn saved_rows(
        &self,
        shard: usize,
        rows: &[(u64, u64, f32)],
        by_score: bool,
    ) -> Result<(), Error> {
        let shard = &mut *self.write(shard)?;
        let item = |(key, ..): &(u64, u64, f32)| Item { hash: hash_of(*key), pos: 0 };
        let items: Vec<Item> = rows.iter().map(item).collect();
        shard.bring(&items, 0..items.len() as u32, Found::NOTHING)?;
        for &(key, stored, score) in rows {
            let hash = hash_of(key);
            let place = shard.index.find(hash);
            shard.remember(hash);
            let Some(words) = shard.row_mut(place) else { continue };
            if by_score {
                words[DELTA_SCORE] -= score;
                // Setting what is there marks the row as changed for the next checkpoint.
                shard.index.set(hash, place)?;
            } else if fingerprint(words) == stored {
                shard.index.set(hash, place.without(Place::CHANGED))?;
            }
        }
        shard.settle()
    }

    /// Makes room for this many further rows and candidates, spread evenly over the shards.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Poisoned`].
    pub fn reserve(&self, more: usize) -> Result<(), Error> {
        let per_shard = more.div_ceil(self.shards.len());
        (0..self.shards.len()).try_for_each(|shard| self.write(shard)?.reserve(per_shard))
    }

    /// Puts rows into the table as they were exported, over rows that are there; from any number of
    /// shards or servers, in any order. Gives how many were taken; the padding id is left out.
    ///
    /// # Errors
    /// [`Error::Length`] for a row of another layout, [`Error::Memory`], [`Error::ShardFull`],
    /// [`Error::Poisoned`]; rows before the one that failed stay.
    pub fn import<'a>(&self, rows: impl IntoIterator<Item = Row<'a>>) -> Result<usize, Error> {
        if self.tier.is_some() {
            return self.import_tiered(rows.into_iter());
        }
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

    /// Puts rows of weights into the table, over rows that are there; the rest of each is that of a
    /// new row. Gives how many were taken; the padding id is left out.
    ///
    /// # Errors
    /// As [`SparseTable::import`]; [`Error::Length`] also for a table whose rows do not begin with
    /// their weights.
    pub fn import_weights<'a>(
        &self,
        rows: impl IntoIterator<Item = (u64, &'a [f32])>,
    ) -> Result<usize, Error> {
        let weights = match self.row_parts().first() {
            Some((part, n)) if part == "weight" => *n,
            _ => 0,
        };
        let mut words = vec![0.0; self.kind.base_len()];
        let mut n = 0;
        for (key, row) in rows {
            check_len(self.config.table, "an imported row of weights", row.len(), weights)?;
            self.kind.init_base(key, &mut words);
            words[..weights].copy_from_slice(row);
            let body = RowBody::Base(&words);
            n += self.import([Row { key, unseen_days: 0, changed: true, body }])?;
        }
        Ok(n)
    }

    /// As [`import`](Self::import), a run of rows of one shard at a time.
    fn import_tiered<'a>(&self, rows: impl Iterator<Item = Row<'a>>) -> Result<usize, Error> {
        let padding = self.config.padding_idx;
        let mut rows = rows.filter(|row| Some(row.key) != padding).peekable();
        let (mut n, mut run) = (0, Vec::with_capacity(SAVED_AT_ONCE));
        let shard_of = |row: &Row<'_>| shard_of(hash_of(row.key), self.shards.len());
        while let Some(first) = rows.peek() {
            let shard_idx = shard_of(first);
            run.clear();
            while run.len() < SAVED_AT_ONCE
                && let Some(row) = rows.next_if(|row| shard_of(row) == shard_idx)
            {
                self.check_row(&row)?;
                run.push(row);
            }
            self.settled(self.import_run(&mut *self.write(shard_idx)?, &run))?;
            n += run.len();
            self.keep_up()?;
        }
        Ok(n)
    }

    /// Where a row stands, but for its slot.
    pub(crate) fn restored_place(&self, row: &Row<'_>) -> Place {
        let day = self.day().wrapping_sub(row.unseen_days) & DAY_MASK;
        let flags = if row.changed { Place::CHANGED } else { 0 };
        match row.body {
            RowBody::Candidate { appearances } => Place::candidate(appearances, day),
            RowBody::Base(_) | RowBody::Extended(_) => Place::row(1, day, flags),
        }
    }

    pub(crate) fn restore(&self, shard: &mut Shard, hash: u64, row: &Row<'_>) -> Result<(), Error> {
        let words = match row.body {
            RowBody::Candidate { .. } => None,
            RowBody::Base(words) => Some((false, words)),
            RowBody::Extended(words) => Some((true, words)),
        };
        shard.restore(hash, self.restored_place(row), words)
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

impl Ctr {
    /// Whether a row is worth serving.
    fn serves(&self, row: &[f32], unseen_days: u32) -> bool {
        self.score(row[SHOW], row[CLICK]) >= self.config.base_threshold
            && unseen_days <= self.config.delta_keep_days
    }
}
