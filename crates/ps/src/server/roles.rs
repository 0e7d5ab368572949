//! Who may ask a server for what: one table for all requests. In: a request and its sender. Out:
//! the number of the worker that asks, or why it may not.
//!
//! Knowing the secret of the job makes a process a member, not the first one: only worker 0 names
//! directories, so a server reads and writes files for nobody else. A number belongs to the process
//! that said hello first with it, for as long as that is there.

use regatta_net::{Peer, Role};

use super::core::Core;
use super::request::Request;
use crate::Error;
use crate::message::Control;

/// Who may make a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Worker 0, which speaks for the job.
    FirstWorker,
    /// Workers that take part.
    Workers,
    /// They, and tools, which look at a job and change nothing.
    Readers,
    /// Workers and tools that have not said yet what job they belong to.
    Newcomers,
}

/// What a request does, and who may ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    /// As in "only workers may push".
    pub(super) verb: &'static str,
    pub(super) who: Who,
}

impl Request {
    pub(super) fn rule(&self) -> Rule {
        let (verb, who) = match self {
            Request::Pull(pull) if pull.test => ("look at values", Who::Readers),
            Request::Pull(_) => ("pull", Who::Workers),
            Request::Push(_) => ("push", Who::Workers),
            Request::PushPull(_) => ("push", Who::Workers),
            Request::Geo(_) => ("push", Who::Workers),
            Request::SetDense(_) => ("set dense parameters", Who::FirstWorker),
            Request::Gather(_) => ("gather", Who::Workers),
            Request::Prefetch(_) => ("prefetch rows", Who::Workers),
            Request::LeaseRows(_) | Request::LeaseDense => ("lease rows", Who::Workers),
            Request::ReturnRows(_) => ("return rows", Who::Workers),
            Request::ReturnDense(_) => ("return dense parameters", Who::FirstWorker),
            Request::Control(control) => return control.rule(),
        };
        Rule { verb, who }
    }
}

impl Control {
    pub(super) fn rule(&self) -> Rule {
        let (verb, who) = match self {
            Control::Hello(_) => ("say hello", Who::Newcomers),
            Control::Reduce { .. } => ("reduce", Who::Workers),
            Control::Rest => ("rest", Who::Workers),
            Control::Resume { .. } => ("resume", Who::Workers),
            Control::Idle => ("wait for the end of a pass", Who::Workers),
            Control::TakeOver { .. } => ("take over a shard", Who::Workers),
            Control::Rejoin { .. } => ("rejoin", Who::Newcomers),
            Control::Snapshot { .. } => ("open a snapshot", Who::FirstWorker),
            Control::Stored { .. } => ("conclude a snapshot", Who::FirstWorker),
            Control::Ready { .. } => ("come to a snapshot", Who::Workers),
            Control::OwnPart { .. } => ("write parts of a snapshot", Who::Workers),
            Control::Written { .. } => ("wait for a snapshot", Who::Workers),
            Control::Leave => ("leave", Who::Workers),
            Control::TrySave { .. } => ("try a directory", Who::FirstWorker),
            Control::Save { .. } => ("save", Who::FirstWorker),
            Control::Load { .. } => ("load", Who::FirstWorker),
            Control::Restore { .. } => ("restore a checkpoint", Who::FirstWorker),
            Control::Shrink { .. } => ("shrink tables", Who::FirstWorker),
            Control::EndDay => ("end a day", Who::FirstWorker),
            Control::Stats => ("read statistics", Who::Readers),
            Control::Inspect { .. } => ("look at an id", Who::Readers),
        };
        Rule { verb, who }
    }
}

impl Core {
    /// The number of the worker that asks; `None` for a tool.
    pub(super) fn permit(&self, peer: &Peer, rule: Rule) -> Result<Option<usize>, Error> {
        let Rule { verb, who } = rule;
        match (peer.identity.role, who) {
            (Role::Worker | Role::Tool, Who::Newcomers) | (Role::Tool, Who::Readers) => Ok(None),
            (Role::Worker, _) => match (self.worker(peer)?, who) {
                (worker @ 1.., Who::FirstWorker) => Err(Error::usage(format!(
                    "only worker 0 may {verb}, and this is worker {worker}"
                ))),
                (worker, _) => Ok(Some(worker)),
            },
            (_, Who::FirstWorker) => Err(Error::usage(format!(
                "only worker 0 may {verb}, and this is {}",
                peer.identity
            ))),
            (_, Who::Workers | Who::Readers | Who::Newcomers) => {
                Err(Error::usage(format!("only workers may {verb}, and this is {}", peer.identity)))
            }
        }
    }
}
