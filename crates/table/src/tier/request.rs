//! Pulls and pushes of tables with a tier: as those of any table, and then the rows that memory did
//! not have.

use regatta_optim::SharedState;

use crate::Error;
use crate::config::Create;
use crate::group::{Item, Scratch, Work};
use crate::index::Place;
use crate::shard::Shard;
use crate::sparse::{Cell, PullCounts, PullMode, PushCounts, SparseTable};
use crate::tier::Core;
use crate::tier::read::{Found, Reads};

impl SparseTable {
    /// As [`pull`](Self::pull).
    pub(crate) fn pull_tiered(
        &self,
        core: &Core,
        keys: &[u64],
        out: &mut [f32],
        mode: PullMode<'_>,
        scratch: &mut Scratch,
    ) -> Result<PullCounts, Error> {
        let Scratch { pull, found, work, .. } = scratch;
        self.arrange_pull(keys, out, pull, self.width_of(work));
        found.start(&self.identity, self.shards.len(), keys.len());
        let mut counts = PullCounts::default();
        let mut reads = Reads::default();
        for shard_idx in pull.visit_order(self.shards.len()) {
            let items = pull.shard(shard_idx);
            if items.is_empty() {
                continue;
            }
            let shard = self.read(shard_idx)?;
            self.pull_rows(&shard, items, out, work);
            shard.warm(&work.places, mode != PullMode::Test);
            let version = shard.index.version();
            let waits = !work.missing.is_empty() && reads.want(shard_idx, &shard, items, work);
            drop(shard);
            let mut created = 0;
            if !waits && self.creates(mode) {
                let rest = (shard_idx, items, Found::NOTHING);
                created = core.settled(self.pull_rest(rest, out, mode, work))?;
            }
            found.note(shard_idx, version, pull.range(shard_idx), &work.places);
            if !waits {
                counts.note(&self.shards[shard_idx].counters, items, created, work);
            }
        }
        if !reads.later.is_empty() {
            reads.wait(core)?;
        }
        for later in &reads.later {
            let (items, at) = (pull.shard(later.shard), pull.range(later.shard));
            work.resume(found.noted(at.clone()), reads.missing(later));
            let rest = (later.shard, items, reads.found(later));
            let created = core.settled(self.pull_rest(rest, out, mode, work))?;
            found.note(later.shard, later.version, at, &work.places);
            counts.note(&self.shards[later.shard].counters, items, created, work);
        }
        core.keep_up()?;
        counts.zeros = keys.len() - counts.hits - counts.created;
        Ok(counts)
    }

    /// What a pull does about the missing items of a shard. Gives how many rows were created.
    fn pull_rest(
        &self,
        (shard_idx, items, found): (usize, &[Item], Found<'_>),
        out: &mut [f32],
        mode: PullMode<'_>,
        work: &mut Work,
    ) -> Result<usize, Error> {
        if work.missing.is_empty() {
            return Ok(0);
        }
        let cell = &self.shards[shard_idx];
        if mode == PullMode::Test {
            let n = self.look_at_cold(shard_idx, items, out, work, found)?;
            cell.counters.cold_hits(n);
            return Ok(0);
        }
        let shard = &mut *self.write(shard_idx)?;
        let n = shard.bring(items, work.missing.iter().copied(), found)?;
        cell.counters.cold_hits(n);
        let created = match self.creates(mode) {
            true => self.create_missing(shard, cell, items, mode, work)?,
            false => 0,
        };
        self.pull_missing(shard, items, out, work);
        shard.settle()?;
        Ok(created)
    }

    /// The part of a push that concerns one shard: rows in memory first, then the others.
    pub(crate) fn push_tiered(
        &self,
        shard: &mut Shard,
        cell: &Cell,
        (items, places): (&[Item], Option<&[Place]>),
        values: &[f32],
        step: (f32, &SharedState),
        work: &mut Work,
        counts: &mut PushCounts,
    ) -> Result<(), Error> {
        shard.remember_items(items);
        let mut updated = self.update_rows(shard, (items, places), values, step, work)?;
        shard.unpin(&work.places);
        if updated < items.len() {
            let is_absent = |(_, place): &(&Item, &Place)| place.slot().is_none();
            let rest = items.iter().zip(&work.places).filter(is_absent);
            let rest: Vec<Item> = rest.map(|(item, _)| *item).collect();
            let all = 0..rest.len() as u32;
            let brought = shard.bring(&rest, all.clone(), Found::NOTHING)?;
            cell.counters.cold_hits(brought);
            let mut created = 0;
            if self.config.create == Create::OnPush {
                work.start(rest.len());
                let absent = |i: &u32| shard.index.find(rest[*i as usize].hash).slot().is_none();
                work.missing.extend(all.filter(absent));
                created = self.create_missing(shard, cell, &rest, PullMode::Train, work)?;
            }
            if brought + created > 0 {
                shard.remember_items(&rest);
                updated += self.update_rows(shard, (&rest, None), values, step, work)?;
                shard.unpin(&work.places);
            }
            counts.created += created;
        }
        shard.settle()?;
        cell.counters.pushed(items.len(), updated);
        counts.updated += updated;
        Ok(())
    }

    /// Refuses everything once the tier has failed.
    #[inline]
    pub(crate) fn check_tier(&self) -> Result<(), Error> {
        self.tier.as_ref().map_or(Ok(()), |tier| tier.core.check())
    }

    /// Notes a failure of the tier.
    pub(crate) fn settled<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match &self.tier {
            Some(tier) => tier.core.settled(result),
            None => result,
        }
    }

    /// Lets the tier compact its files if it must. No lock may be held.
    pub(crate) fn keep_up(&self) -> Result<(), Error> {
        self.tier.as_ref().map_or(Ok(()), |tier| tier.core.keep_up())
    }
}
