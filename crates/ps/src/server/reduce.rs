//! Reductions and gathers: every worker brings something, and all of them get the same answer when
//! the last one has come.

use std::sync::MutexGuard;

use regatta_net::Responder;

use super::core::{Core, State};
use crate::message::control::RESUME;
use crate::message::reply::{refuse, reply};
use crate::message::{ControlReply, Gather, GatherReply, MAX_GATHER_REPLY_BYTES, ReduceOp};
use crate::rounds::Offer;

/// A worker's part of a reduction or gather; both are counted together, as all workers must come to
/// them in the same order.
pub(super) struct Reduction {
    pub(super) what: String,
    pub(super) part: Part,
    pub(super) responder: Responder,
}

/// What a worker brings to a reduction.
pub(super) enum Part {
    /// To be combined.
    Values(ReduceOp, Vec<f64>),
    /// To be gathered.
    Bytes(Vec<u8>),
}

impl Core {
    pub(super) fn gather(
        &self,
        worker: usize,
        gather: Gather,
        payload: &[u8],
        responder: Responder,
    ) {
        let Gather { round, name, bytes } = gather;
        let part = Part::Bytes(bytes.of(payload).to_vec());
        self.reduce(worker, round, Reduction { what: name, part, responder });
    }

    pub(super) fn reduce(&self, worker: usize, round: u64, part: Reduction) {
        let mut state = self.lock();
        let State { reduce, members, last_reduction, .. } = &mut *state;
        let (last_round, current) = (last_reduction.0, reduce.round());
        match reduce.offer(worker, round, part, members) {
            Offer::Waiting => {}
            Offer::Complete(parts) => self.finish_reduction(state, parts),
            Offer::Past(part) if round == last_round => {
                let answer = state.last_reduction.1.clone();
                drop(state);
                reply(part.responder, &answer);
            }
            Offer::Past(part) | Offer::Ahead(part) => {
                let reason = format!(
                    "worker {worker} is at reduction {round} ('{}'), the job at {current}",
                    part.what
                );
                drop(state);
                refuse(part.responder, &reason);
            }
        }
    }

    pub(super) fn finish_reduction(
        &self,
        mut state: MutexGuard<'_, State>,
        parts: Vec<(usize, Reduction)>,
    ) {
        let answer = combine(&parts, self.config.workers);
        if parts.first().is_some_and(|(_, part)| part.what == RESUME) {
            state.in_pass = true;
        }
        if let Ok(answer) = &answer {
            state.last_reduction = (state.reduce.round() - 1, answer.clone());
        }
        drop(state);
        for (_, part) in parts {
            match &answer {
                Ok(answer) => reply(part.responder, answer),
                Err(reason) => refuse(part.responder, reason),
            }
        }
    }
}

/// The answer for everybody, of a job with so many workers.
fn combine(parts: &[(usize, Reduction)], workers: usize) -> Result<Vec<u8>, String> {
    let Some((first_worker, first)) = parts.first() else {
        return Ok(ControlReply::Values(vec![]).encode());
    };
    let differs = |p: &Reduction| p.what != first.what || p.part.does() != first.part.does();
    if let Some((worker, other)) = parts.iter().find(|(_, p)| differs(p)) {
        return Err(format!(
            "worker {first_worker} {} '{}' while worker {worker} {} '{}'",
            first.part.does(),
            first.what,
            other.part.does(),
            other.what
        ));
    }
    match &first.part {
        Part::Bytes(_) => gather(parts, workers),
        Part::Values(op, _) => {
            combine_values(parts, *op).map(|values| ControlReply::Values(values).encode())
        }
    }
}

/// Bytes of every worker, in order.
fn gather(parts: &[(usize, Reduction)], workers: usize) -> Result<Vec<u8>, String> {
    let mut all: Vec<&[u8]> = vec![&[]; workers];
    for (worker, part) in parts {
        if let Part::Bytes(bytes) = &part.part {
            all[*worker] = bytes;
        }
    }
    let payload = GatherReply { parts: all }.encode();
    if payload.len() > MAX_GATHER_REPLY_BYTES {
        let what = parts.first().map_or("", |(_, part)| &part.what);
        return Err(format!(
            "'{what}': {} bytes of {} workers together, more than {MAX_GATHER_REPLY_BYTES}",
            payload.len(),
            parts.len()
        ));
    }
    Ok(payload)
}

/// Sum, largest, smallest or all values, worker by worker.
fn combine_values(parts: &[(usize, Reduction)], op: ReduceOp) -> Result<Vec<f64>, String> {
    let values = parts.iter().filter_map(|(worker, part)| match &part.part {
        Part::Values(_, values) => Some((*worker, part.what.as_str(), values)),
        Part::Bytes(_) => None,
    });
    let values: Vec<(usize, &str, &Vec<f64>)> = values.collect();
    if op == ReduceOp::Gather {
        return Ok(values.into_iter().flat_map(|(_, _, v)| v.iter().copied()).collect());
    }
    let Some(((first_worker, _, first), others)) = values.split_first() else { return Ok(vec![]) };
    let mut all = first.to_vec();
    for (worker, what, values) in others {
        if values.len() != all.len() {
            return Err(format!(
                "'{what}': worker {first_worker} has {} values, worker {worker} {}",
                all.len(),
                values.len()
            ));
        }
        for (a, b) in all.iter_mut().zip(values.iter()) {
            *a = match op {
                ReduceOp::Max => a.max(*b),
                ReduceOp::Min => a.min(*b),
                ReduceOp::Sum | ReduceOp::Gather => *a + b,
            };
        }
    }
    Ok(all)
}

impl Part {
    /// What a worker does with it, for messages.
    fn does(&self) -> &'static str {
        match self {
            Part::Bytes(_) => "gathers",
            Part::Values(ReduceOp::Sum, _) => "sums",
            Part::Values(ReduceOp::Max, _) => "takes the largest of",
            Part::Values(ReduceOp::Min, _) => "takes the smallest of",
            Part::Values(ReduceOp::Gather, _) => "lists",
        }
    }
}
