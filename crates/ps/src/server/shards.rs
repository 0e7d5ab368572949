//! What becomes of the data of lost workers: others take them over, and who was lost may come back.

use regatta_net::{Peer, Responder, Role};

use super::Notice;
use super::core::{Core, State, Worker};
use crate::message::{Idle, Rejoin};
use crate::shards::Progress;
use crate::snapshot::SnapshotId;
use crate::{Error, Mode};

impl Core {
    /// Gives shards of lost workers to workers that have nothing to do. In modes whose workers wait
    /// for each other, only when nobody else trains: who joins them late would not be at their
    /// step.
    pub(super) fn give_orphans(&self, state: &mut State) -> Vec<(Responder, Idle)> {
        let waits = matches!(self.config.mode, Mode::Sync | Mode::Bounded { .. });
        let mut given = Vec::new();
        while !waits || state.training.is_empty() {
            let Some(shard) = state.shards.next_orphan(&state.members) else { break };
            let Some((worker, responder)) = state.idle.pop() else { break };
            state.shards.take_over(shard, worker);
            state.training.join(worker);
            let step = state.latest_step(&self.config.mode);
            given.push((responder, Idle::TakeOver { shard, step }));
        }
        given
    }

    /// A worker trains the shard of a lost one from now on. This server may not have noticed the
    /// loss.
    pub(super) fn take_over(&self, worker: usize, shard: usize, step: u64) -> Progress {
        let mut state = self.lock();
        let taken = state.shards.take_over(shard, worker);
        let (before, progress) = taken.unwrap_or_default();
        state.training.join(worker);
        state.clocks.set(worker, step);
        state.sync.set_round(step.saturating_add(1));
        let other = before.filter(|before| *before != worker && state.members.contains(*before));
        if let Some(before) = other {
            let reason = format!("worker {before} is lost: another server has lost it");
            self.lose(state, before, &reason);
        }
        progress
    }

    /// A worker that was lost takes part again, with nothing to do at first. Not while a snapshot
    /// is open, which would wait for it; and on server 0, only in a data pass: elsewhere workers
    /// wait for each other, and this one is not where they are.
    pub(super) fn rejoin(&self, peer: &Peer, after: Option<SnapshotId>) -> Result<Rejoin, Error> {
        let worker = peer.identity.index as usize;
        let mut state = self.lock();
        if let Some(reason) = &state.failed {
            return Err(Error::Peer(reason.clone()));
        }
        let known = state.workers.get(worker).filter(|_| peer.identity.role == Role::Worker);
        let Some(known) = known else { return Err(Error::Peer(self.no_such(worker))) };
        if known.has_left {
            return Err(Error::Peer(format!("worker {worker} has left the job")));
        }
        if known.session == Some(peer.session) {
            // The answer was lost on the way.
            return Ok(state.joined(&self.config.mode));
        }
        if state.shards.pass().is_none() {
            let reason = "the job does not know where its workers are in their data";
            return Err(Error::usage(format!("worker {worker} cannot rejoin: {reason}")));
        }
        if state.workers[worker].gone.is_none() {
            let reason = format!("worker {worker} is lost: another server has lost it");
            self.lose(state, worker, &reason);
            state = self.lock();
        }
        if let Some(reason) = state.must_wait(after) {
            return Ok(Rejoin::Later(reason.to_string()));
        }
        if matches!(self.config.mode, Mode::Geo { .. }) {
            self.note_all_changed(worker)?;
        }
        state.workers[worker] = Worker::of(peer);
        state.shards.release(worker);
        state.members.join(worker);
        state.training.join(worker);
        let step = state.latest_step(&self.config.mode);
        state.clocks.set(worker, step);
        let joined = state.joined(&self.config.mode);
        drop(state);
        (self.config.notices)(&Notice::Rejoined { worker });
        Ok(joined)
    }
}

impl State {
    /// Shards of lost workers, and how far they are.
    pub(super) fn orphans(&self) -> Vec<(usize, Vec<Progress>)> {
        let orphans = self.shards.unheld(&self.members);
        orphans.map(|shard| (shard, vec![self.shards.progress(shard)])).collect()
    }

    /// What a worker must wait for before it can rejoin.
    fn must_wait(&self, after: Option<SnapshotId>) -> Option<&'static str> {
        match after {
            _ if self.snapshot.current().is_some() => Some("a snapshot is being taken"),
            Some(last) if self.snapshot.last() < last => Some("a snapshot is about to be taken"),
            None if !self.in_pass => Some("the next data pass has not begun"),
            _ => None,
        }
    }

    /// The step of the job, where workers must be at the same.
    fn latest_step(&self, mode: &Mode) -> u64 {
        match mode {
            Mode::Sync => self.sync.round().saturating_sub(1),
            _ => self.clocks.latest(),
        }
    }

    fn joined(&self, mode: &Mode) -> Rejoin {
        Rejoin::Joined {
            pass: self.shards.pass().unwrap_or_default(),
            plan: self.shards.plan().map(str::to_string),
            step: self.latest_step(mode),
            round: self.reduce.round(),
            snapshot: self.snapshot.last(),
        }
    }
}
