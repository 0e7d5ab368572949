//! The sparse table: keys go in and rows come out ([`SparseTable::pull`]), keys and gradients go in
//! and rows change ([`SparseTable::push`]).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use regatta_cold::EngineChoice;
use regatta_optim::SharedState;

use crate::admission::Admitter;
use crate::config::{Create, SparseConfig};
use crate::error::check_len;
use crate::group::{Columns, Groups, Item, Scratch, Work};
use crate::hash::{hash_of, shard_of};
use crate::index::{DAY_MASK, Place};
use crate::pull_slots::PullSlots;
use crate::row::Kind;
use crate::shard::{Admitted, Shard};
use crate::stats::Counters;
use crate::tier::{self, Tier};
use crate::{Error, TableId};

/// Rows by id, in shards that several threads use at the same time.
///
/// Each method locks a shard once and for its own part of the request only: two requests never see
/// half of each other's change of a row, but may interleave between shards.
#[derive(Debug)]
pub struct SparseTable {
    pub(crate) config: SparseConfig,
    pub(crate) kind: Kind,
    pub(crate) admitter: Admitter,
    pub(crate) day: AtomicU32,
    // Its threads end before the shards.
    pub(crate) tier: Option<Tier>,
    pub(crate) shards: Arc<[Cell]>,
    /// Tells this table from all others.
    pub(crate) identity: Arc<()>,
}

/// A shard, its lock, and counters that need no lock. Cells do not share cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Cell {
    pub(crate) lock: RwLock<Shard>,
    pub(crate) counters: Counters,
}

/// Why rows are pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullMode<'a> {
    /// To train on them: absent ids are created, or counted towards admission once per appearance.
    Train,
    /// As [`Train`](PullMode::Train) for keys without duplicates, with how often each one appeared.
    TrainCounted(&'a [u32]),
    /// To look at them: nothing is created or counted, absent ids give zeros.
    Test,
}

/// What one of several senders adds to a step.
#[derive(Debug, Clone, Copy)]
pub struct Contribution<'a> {
    /// Its gradients count so many times; labels and statistics of CTR rows are not weighted.
    pub weight: f32,
    /// Distinct keys.
    pub keys: &'a [u64],
    /// [`push_width`](SparseTable::push_width) values per key.
    pub values: &'a [f32],
}

/// A step that was counted and whose rows are still to be updated.
#[derive(Debug, Clone, Copy)]
pub struct Step(SharedState);

/// What a pull found, in keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullCounts {
    /// Rows that were there.
    pub hits: usize,
    /// Rows that were created.
    pub created: usize,
    /// Keys that got zeros: padding, absent or not admitted. The second and later appearances of a
    /// key that was created count as hits.
    pub zeros: usize,
}

/// What a push did, in distinct keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PushCounts {
    /// Rows that were updated, those created included.
    pub updated: usize,
    /// Rows that were created.
    pub created: usize,
    /// Keys that changed nothing: padding, absent or not admitted.
    pub ignored: usize,
}

impl SparseTable {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Rule`] for what cannot be honoured, [`Error::Memory`].
    pub fn new(config: SparseConfig) -> Result<Self, Error> {
        Self::with_engine(config, EngineChoice::Auto)
    }

    /// An empty table whose cold rows, if it has any, are read in this way.
    pub(crate) fn with_engine(config: SparseConfig, engine: EngineChoice) -> Result<Self, Error> {
        config.validate()?;
        let kind = Kind::new(&config);
        let store = tier::open(&config, &kind, engine)?;
        let cell = |_| {
            let tier = tier::of_shard(&config, store.as_ref())?;
            let shard = Shard::new(&kind, config.n_shards, config.huge_pages, tier)?;
            Ok(Cell { lock: RwLock::new(shard), counters: Counters::default() })
        };
        let shards = (0..config.n_shards).map(cell).collect::<Result<Arc<[Cell]>, Error>>()?;
        let start = |store| Tier::start(&config, &kind, store, shards.clone());
        let tier = store.map(start).transpose()?;
        let admitter = Admitter::new(config.admission.clone(), config.seed, config.table);
        let identity = Arc::new(());
        let day = AtomicU32::new(0);
        Ok(SparseTable { admitter, day, tier, shards, kind, config, identity })
    }

    /// What the table was made from.
    pub fn config(&self) -> &SparseConfig {
        &self.config
    }

    /// Values per key in a pull.
    pub fn pull_width(&self) -> usize {
        self.kind.pull_width()
    }

    /// Values per key in a push.
    pub fn push_width(&self) -> usize {
        self.kind.push_columns().width
    }

    /// Makes the next push count as the one after so many steps, as after loading rows that have
    /// been trained: some rules, such as Adam, take the number of steps into account. Every push is
    /// a step, also one without keys.
    pub fn set_steps(&self, steps: u64) {
        if let Kind::Plain(plain) = &self.kind {
            plain.set_steps(steps);
        }
    }

    /// Pushes so far, those before the rows were loaded included; 0 for tables whose rows share
    /// nothing.
    pub fn steps(&self) -> u64 {
        match &self.kind {
            Kind::Plain(plain) => plain.steps(),
            Kind::Ctr(_) => 0,
        }
    }

    /// Reads the rows of `keys`, duplicates allowed, into `out`: [`pull_width`](Self::pull_width)
    /// values per key.
    ///
    /// All appearances of an id in one request are counted before any of them is answered.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Memory`] and [`Error::ShardFull`] when a row cannot be created
    /// (rows of shards already visited stay created); [`Error::Poisoned`].
    pub fn pull(
        &self,
        keys: &[u64],
        out: &mut [f32],
        mode: PullMode<'_>,
        scratch: &mut Scratch,
    ) -> Result<PullCounts, Error> {
        self.check_pull(keys, out, mode, &scratch.work)?;
        if let Some(tier) = &self.tier {
            return self.pull_tiered(&tier.core, keys, out, mode, scratch);
        }
        let Scratch { pull, found, work, .. } = scratch;
        self.arrange_pull(keys, out, pull, self.width_of(work));
        found.start(&self.identity, self.shards.len(), keys.len());
        let mut counts = PullCounts::default();
        for shard_idx in pull.visit_order(self.shards.len()) {
            let items = pull.shard(shard_idx);
            if items.is_empty() {
                continue;
            }
            let shard = self.read(shard_idx)?;
            self.pull_rows(&shard, items, out, work);
            let version = shard.index.version();
            drop(shard);
            let cell = &self.shards[shard_idx];
            let mut created = 0;
            if self.creates(mode) && !work.missing.is_empty() {
                let shard = &mut *self.write(shard_idx)?;
                created = self.create_missing(shard, cell, items, mode, work)?;
                self.pull_missing(shard, items, out, work);
            }
            found.note(shard_idx, version, pull.range(shard_idx), &work.places);
            counts.note(&cell.counters, items, created, work);
        }
        counts.zeros = keys.len() - counts.hits - counts.created;
        Ok(counts)
    }

    /// Applies one step of the update rule to the row of each key, with its gradient in `values`:
    /// [`push_width`](Self::push_width) values per key. The keys are distinct; should they not be,
    /// each appearance is a step of its own.
    ///
    /// `lr` is the learning rate of plain rows, and a factor of the configured learning rates of
    /// CTR rows.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn push(
        &self,
        keys: &[u64],
        values: &[f32],
        lr: f32,
        scratch: &mut Scratch,
    ) -> Result<PushCounts, Error> {
        self.check_push(keys, values)?;
        let step = (lr, &self.kind.next_step());
        self.push_distinct(keys, values, step, scratch, |_| true)
    }

    /// Whether the last pull with a scratch was one of this table and of these keys: a push of them
    /// then reuses the slots that it found.
    pub fn reuses_slots(&self, keys: &[u64], scratch: &Scratch) -> bool {
        scratch.found.is_of(&self.identity) && scratch.pull.are_of(keys)
    }

    /// Counts a step; its rows are then updated by [`push_partition`](Self::push_partition).
    pub fn begin_step(&self) -> Step {
        Step(self.kind.next_step())
    }

    /// One of `partitions` parts of a step with the sum of several contributions, in their order:
    /// each row belongs to one of the parts, which may be done at the same time by several threads.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn push_partition(
        &self,
        step: &Step,
        contributions: &[Contribution<'_>],
        lr: f32,
        (partition, partitions): (usize, usize),
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let n_shards = self.shards.len();
        let is_mine = |shard: usize| shard * partitions / n_shards == partition;
        let step = (lr, &step.0);
        if let [Contribution { weight: 1.0, keys, values }] = contributions {
            self.check_push(keys, values)?;
            return self.push_distinct(keys, values, step, scratch, is_mine).map(|_| ());
        }
        let Scratch { push, merge, work, .. } = scratch;
        merge.start(contributions.iter().map(|c| c.keys.len()).sum());
        for c in contributions {
            let columns = self.check_push(c.keys, c.values)?;
            let is_mine = |key: u64| is_mine(shard_of(hash_of(key), n_shards));
            merge.add(c.keys, c.values, columns, c.weight, is_mine);
        }
        push.arrange(&merge.keys, n_shards, self.config.padding_idx);
        self.push_arranged(&merge.values, step, (push, None), work, |_| true).map(|_| ())
    }

    /// A push of distinct keys, as far as they are in shards that are `wanted`. If they are those
    /// of the last pull, its work is used.
    fn push_distinct(
        &self,
        keys: &[u64],
        values: &[f32],
        step: (f32, &SharedState),
        scratch: &mut Scratch,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<PushCounts, Error> {
        let reuses_slots = self.reuses_slots(keys, scratch);
        let Scratch { push, pull, found, work, .. } = scratch;
        if reuses_slots {
            return self.push_arranged(values, step, (pull, Some(found)), work, wanted);
        }
        push.arrange(keys, self.shards.len(), self.config.padding_idx);
        self.push_arranged(values, step, (push, None), work, wanted)
    }

    /// The rest of a push, whose keys are arranged and perhaps found.
    fn push_arranged(
        &self,
        values: &[f32],
        step: (f32, &SharedState),
        (groups, found): (&Groups, Option<&PullSlots>),
        work: &mut Work,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<PushCounts, Error> {
        let mut counts = PushCounts::default();
        for shard_idx in groups.visit_order(self.shards.len()) {
            let items = groups.shard(shard_idx);
            if wanted(shard_idx) && !items.is_empty() {
                let shard = &mut *self.write(shard_idx)?;
                let cell = &self.shards[shard_idx];
                let version = shard.index.version();
                let places = found
                    .and_then(|found| found.places(shard_idx, version, groups.range(shard_idx)));
                self.push_rows(shard, cell, (items, places), values, step, work, &mut counts)?;
            }
        }
        counts.ignored = groups.n_keys() - counts.updated;
        self.keep_up()?;
        Ok(counts)
    }

    /// The part of a push that concerns one shard. The places of the items may be known.
    fn push_rows(
        &self,
        shard: &mut Shard,
        cell: &Cell,
        (items, places): (&[Item], Option<&[Place]>),
        values: &[f32],
        (lr, shared): (f32, &SharedState),
        work: &mut Work,
        counts: &mut PushCounts,
    ) -> Result<(), Error> {
        if shard.tier.is_some() {
            let step = (lr, shared);
            let items = (items, places);
            return self.settled(self.push_tiered(shard, cell, items, values, step, work, counts));
        }
        shard.remember_items(items);
        if self.config.create == Create::OnPush {
            work.start(items.len());
            let absent = |i: &u32| shard.index.find(items[*i as usize].hash).slot().is_none();
            work.missing.extend((0..items.len() as u32).filter(absent));
            counts.created += self.create_missing(shard, cell, items, PullMode::Train, work)?;
        }
        let updated = self.update_rows(shard, (items, places), values, (lr, shared), work)?;
        cell.counters.pushed(items.len(), updated);
        counts.updated += updated;
        Ok(())
    }

    /// Updates the rows in memory among items, and gives how many there were.
    pub(crate) fn update_rows(
        &self,
        shard: &mut Shard,
        (items, places): (&[Item], Option<&[Place]>),
        values: &[f32],
        step: (f32, &SharedState),
        work: &mut Work,
    ) -> Result<usize, Error> {
        let day = self.day();
        match &self.kind {
            Kind::Plain(plain) => Ok(plain.push(shard, (items, places), values, step, day, work)),
            Kind::Ctr(ctr) => ctr.push(&self.kind, shard, items, values, step.0, day, work),
        }
    }

    /// The part of a pull that concerns one shard and existing rows.
    pub(crate) fn pull_rows(
        &self,
        shard: &Shard,
        items: &[Item],
        out: &mut [f32],
        work: &mut Work,
    ) {
        match &self.kind {
            Kind::Plain(plain) => plain.pull(shard, items, out, work),
            Kind::Ctr(ctr) => ctr.pull(shard, items, out, work),
        }
    }

    /// Creates or counts the missing items of one shard. Gives how many rows were created.
    pub(crate) fn create_missing(
        &self,
        shard: &mut Shard,
        cell: &Cell,
        items: &[Item],
        mode: PullMode<'_>,
        work: &Work,
    ) -> Result<usize, Error> {
        let (mut created, mut admitted) = (0, 0);
        for &i in &work.missing {
            let Item { hash, pos } = items[i as usize];
            let appearances = match mode {
                PullMode::TrainCounted(counts) => counts[pos as usize],
                _ => 1,
            };
            match shard.admit(&self.kind, &self.admitter, hash, appearances, self.day())? {
                Admitted::New => created += 1,
                Admitted::Candidate => (created, admitted) = (created + 1, admitted + 1),
                Admitted::Before | Admitted::Not => {}
            }
        }
        cell.counters.created(created, admitted);
        Ok(created)
    }

    /// Reads items that were missing before, and notes those that still are.
    pub(crate) fn pull_missing(
        &self,
        shard: &Shard,
        items: &[Item],
        out: &mut [f32],
        work: &mut Work,
    ) {
        let width = self.width_of(work);
        let Work { places, missing, .. } = work;
        missing.retain(|&i| {
            let Item { hash, pos } = items[i as usize];
            let place = &mut places[i as usize];
            *place = shard.index.find(hash);
            let Some(row) = shard.row(*place) else { return true };
            let at = pos as usize * width;
            self.kind.copy_out(row, &mut out[at..at + width]);
            false
        });
    }

    /// Arranges the keys of a pull. Padding is in no group and gets its zeros here.
    pub(crate) fn arrange_pull(
        &self,
        keys: &[u64],
        out: &mut [f32],
        groups: &mut Groups,
        width: usize,
    ) {
        groups.arrange(keys, self.shards.len(), self.config.padding_idx);
        if let Some(padding) = self.config.padding_idx {
            for (key, out) in keys.iter().zip(out.chunks_exact_mut(width)) {
                if *key == padding {
                    out.fill(0.0);
                }
            }
        }
    }

    pub(crate) fn creates(&self, mode: PullMode<'_>) -> bool {
        mode != PullMode::Test && self.config.create == Create::OnPull
    }

    fn check_pull(
        &self,
        keys: &[u64],
        out: &[f32],
        mode: PullMode<'_>,
        work: &Work,
    ) -> Result<(), Error> {
        let table = self.config.table;
        if let PullMode::TrainCounted(counts) = mode {
            check_len(table, "counts of a pull", counts.len(), keys.len())?;
        }
        check_len(table, "output of a pull", out.len(), keys.len() * self.width_of(work))
    }

    /// Floats of an item: those that are pulled, or the whole row.
    pub(crate) fn width_of(&self, work: &Work) -> usize {
        match &self.kind {
            Kind::Plain(plain) if work.whole => plain.row_len(),
            kind => kind.pull_width(),
        }
    }

    /// Writes whole rows over those of distinct keys; see `lease.rs`.
    pub(crate) fn overwrite(
        &self,
        keys: &[u64],
        rows: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let Scratch { push, work, .. } = scratch;
        push.arrange(keys, self.shards.len(), self.config.padding_idx);
        let shared = SharedState::default();
        self.push_arranged(rows, (0.0, &shared), (push, None), work, |_| true).map(|_| ())
    }

    pub(crate) fn check_push(&self, keys: &[u64], values: &[f32]) -> Result<Columns, Error> {
        let columns = self.kind.push_columns();
        let expected = keys.len() * columns.width;
        check_len(self.config.table, "values of a push", values.len(), expected)?;
        Ok(columns)
    }

    /// The current day; see [`end_day`](Self::end_day).
    pub fn day(&self) -> u32 {
        self.day.load(Ordering::Relaxed)
    }

    /// Sets the current day, which counts modulo 2^24. Rows remember the day of their last push.
    pub fn set_day(&self, day: u32) {
        self.day.store(day & DAY_MASK, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, shard: usize) -> Result<RwLockReadGuard<'_, Shard>, Error> {
        self.check_tier()?;
        self.shards[shard].lock.read().map_err(|_| poisoned(self.config.table, shard))
    }

    pub(crate) fn write(&self, shard: usize) -> Result<RwLockWriteGuard<'_, Shard>, Error> {
        self.check_tier()?;
        self.shards[shard].lock.write().map_err(|_| poisoned(self.config.table, shard))
    }
}

pub(crate) fn poisoned(table: TableId, shard: usize) -> Error {
    Error::Poisoned { table, shard }
}

impl PullCounts {
    pub(crate) fn note(
        &mut self,
        counters: &Counters,
        items: &[Item],
        created: usize,
        work: &mut Work,
    ) {
        // What is missing still got zeros; of the rest, `created` keys were new.
        let n = items.len();
        let hits = n - work.missing.len() - created;
        if work.whole {
            work.absent.extend(work.missing.iter().map(|&i| items[i as usize].pos));
        }
        self.hits += hits;
        self.created += created;
        counters.pulled(n, hits);
    }
}
