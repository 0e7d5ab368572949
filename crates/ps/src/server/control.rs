//! Rare requests: who takes part, waiting for each other, and errands to tables and files.

use std::path::Path;

use regatta_checkpoint::try_dir;
use regatta_net::{Peer, Responder, Role};

use super::core::Core;
use super::reduce::{Part, Reduction};
use super::snapshot::ReadyWorker;
use crate::Error;
use crate::message::reply::{refuse, refuse_for, reply};
use crate::message::{Control, ControlReply, Hello};
use crate::shards::DataStart;

/// Answers that are remembered in case their request comes again.
const MAX_REMEMBERED: usize = 64;

impl Core {
    /// A request of a worker with this number, or of a tool, which may make it.
    pub(super) fn control(
        &self,
        worker: Option<usize>,
        request: Control,
        id: u64,
        responder: Responder,
    ) {
        if let Some(worker) = worker
            && is_answered_later(&request)
        {
            return self.control_later(worker, responder, request);
        }
        match self.control_now(responder.peer(), id, request) {
            Ok(answer) => reply(responder, &answer.encode()),
            Err(e) => refuse_for(responder, &e),
        }
    }

    /// Requests of a worker whose answers depend on others.
    fn control_later(&self, worker: usize, responder: Responder, request: Control) {
        match request {
            Control::Reduce { round, what, op, values } => {
                let part = Part::Values(op, values);
                self.reduce(worker, round, Reduction { what, part, responder });
            }
            Control::Idle => self.idle(worker, responder),
            Control::Ready { id, state, own_part } => {
                self.ready(worker, id, ReadyWorker { state, own_part, responder });
            }
            Control::Written { id } => self.written(id, responder),
            _ => refuse(responder, "a request out of place"),
        }
    }

    /// The worker that asks; nobody else may.
    pub(super) fn worker(&self, peer: &Peer) -> Result<usize, Error> {
        if peer.identity.role != Role::Worker {
            let who = peer.identity;
            return Err(Error::usage(format!("only workers may do that, and this is {who}")));
        }
        self.standing(peer)
    }

    fn control_now(&self, peer: &Peer, id: u64, request: Control) -> Result<ControlReply, Error> {
        match request {
            Control::Hello(hello) => self.hello(peer, &hello)?,
            Control::Leave => {
                if !self.has_left(peer) {
                    self.leave(self.worker(peer)?);
                }
                return Ok(ControlReply::Left(self.lock().lost()));
            }
            Control::Rest => self.rest(self.worker(peer)?),
            Control::Resume { step, data } => self.resume(self.worker(peer)?, step, data),
            Control::TakeOver { shard, step } => {
                let worker = self.worker(peer)?;
                return Ok(ControlReply::Progress(self.take_over(worker, shard, step)));
            }
            Control::Rejoin { hello, after } => {
                self.check_hello(&hello)?;
                return self.rejoin(peer, after).map(ControlReply::Rejoin);
            }
            Control::Load { dir, names, over } => self.load(&dir, &names, over)?,
            Control::Restore { dir, count_changes } => self.restore(&dir, count_changes)?,
            Control::Save { dir, id: save, mode } => {
                return self.once(peer, id, || self.save(&dir, save, mode));
            }
            Control::TrySave { dir } => try_dir(Path::new(&dir))?,
            Control::Stored { id, stored } => self.stored(id, stored)?,
            Control::Snapshot { id, dir, scope } => self.open_snapshot(id, &dir, scope)?,
            Control::Stats => return Ok(ControlReply::Stats(self.stats())),
            Control::Inspect { table, id } => return self.inspect(&table, id),
            Control::OwnPart { id, part } => self.own_part(self.worker(peer)?, id, part),
            Control::Shrink { max_unseen_days } => {
                return self.once(peer, id, || self.shrink(max_unseen_days));
            }
            Control::EndDay => {
                return self.once(peer, id, || {
                    self.tables.iter().for_each(|t| t.rows.end_day());
                    Ok(ControlReply::Done)
                });
            }
            Control::Reduce { .. }
            | Control::Idle
            | Control::Ready { .. }
            | Control::Written { .. } => return Err(Error::malformed("a request out of place")),
        }
        Ok(ControlReply::Done)
    }

    /// Does something that must not be done again when its answer was lost on the way. Requests of
    /// one client come one at a time.
    fn once(
        &self,
        peer: &Peer,
        id: u64,
        work: impl FnOnce() -> Result<ControlReply, Error>,
    ) -> Result<ControlReply, Error> {
        let known = |(session, request, _): &&(u64, u64, ControlReply)| {
            (*session, *request) == (peer.session, id)
        };
        if let Some((_, _, answer)) = self.lock().done_once.iter().find(known) {
            return Ok(answer.clone());
        }
        let answer = work()?;
        let mut state = self.lock();
        state.done_once.push_back((peer.session, id, answer.clone()));
        if state.done_once.len() > MAX_REMEMBERED {
            state.done_once.pop_front();
        }
        Ok(answer)
    }

    fn hello(&self, peer: &Peer, hello: &Hello) -> Result<(), Error> {
        self.check_hello(hello)?;
        match peer.identity.role {
            Role::Worker => self.adopt(peer),
            _ => Ok(()),
        }
    }

    fn check_hello(&self, hello: &Hello) -> Result<(), Error> {
        let c = &self.config;
        if hello.job != c.job {
            return Err(Error::usage(format!(
                "this server serves another model or configuration (server: {}, worker: {})",
                c.job, hello.job
            )));
        }
        if (hello.workers, hello.servers) != (c.workers, c.servers) {
            return Err(Error::usage(format!(
                "the worker counts {} workers and {} servers, this server {} and {}",
                hello.workers, hello.servers, c.workers, c.servers
            )));
        }
        Ok(())
    }

    /// A worker begins a pass at this step.
    fn resume(&self, worker: usize, step: u64, data: Option<DataStart>) {
        let mut state = self.lock();
        if state.members.contains(worker) {
            match &data {
                Some(start) => state.shards.begin(worker, start),
                None => state.shards.begin_unknown(),
            }
            state.training.join(worker);
            state.clocks.set(worker, step);
            state.sync.set_round(step.saturating_add(1));
        }
    }
}

fn is_answered_later(request: &Control) -> bool {
    use Control::{Idle, Ready, Reduce, Written};
    matches!(request, Reduce { .. } | Idle | Ready { .. } | Written { .. })
}
