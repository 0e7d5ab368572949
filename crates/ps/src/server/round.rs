//! Synchronous steps: pushes of all workers are collected, applied as one, and answered together.

use std::sync::MutexGuard;

use super::apply::Contribution;
use super::core::{Core, State};
use super::exchange::send;
use super::request::Exchange;
use crate::Error;
use crate::message::reply::{defer, refuse};
use crate::rounds::Offer;

impl Core {
    pub(super) fn push_in_round(
        &self,
        mut state: MutexGuard<'_, State>,
        worker: usize,
        step: u64,
        exchange: Exchange,
    ) {
        let State { sync, training, .. } = &mut *state;
        match sync.offer(worker, step.saturating_add(1), exchange, training) {
            Offer::Waiting => {}
            Offer::Complete(parts) => self.finish_round(state, parts),
            Offer::Past(exchange) | Offer::Ahead(exchange) => {
                let reason = format!(
                    "worker {worker} is at step {step}, but the job is at step {}",
                    sync.round() - 1
                );
                drop(state);
                refuse(exchange.responder, &reason);
            }
        }
    }

    /// Applies a synchronous step: the gradients of all workers, weighted by their examples, in the
    /// order of the workers.
    pub(super) fn finish_round(
        &self,
        mut state: MutexGuard<'_, State>,
        parts: Vec<(usize, Exchange)>,
    ) {
        let bytes = parts.iter().map(|(_, exchange)| exchange.payload.len()).sum();
        let threads = self.threads.threads_for(bytes);
        let outcome = weighted(&parts).and_then(|pushes| match pushes.is_empty() {
            true => Ok(()),
            false => self.apply(&pushes, threads),
        });
        if let Err(e) = outcome {
            drop(state);
            return parts.into_iter().for_each(|(_, part)| self.break_down(part.responder, &e));
        }
        for (worker, exchange) in &parts {
            if let Some(push) = &exchange.push {
                state.applied(*worker, push.sequence, push.mark.as_ref());
            }
        }
        let is_deferred =
            |e: &Exchange| e.training_step().is_some_and(|step| state.snapshot.defers(step));
        let (deferred, due): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|(_, exchange)| exchange).partition(is_deferred);
        drop(state);
        deferred.into_iter().for_each(|exchange| defer(exchange.responder));
        // All replies are there before the first is sent: a reply wakes a worker, which may preempt
        // the thread that collects the next one.
        let collect = |exchange: Exchange| (self.collect(&exchange), exchange.responder);
        let replies = self.threads.run(threads, due, collect);
        self.threads.run(threads, replies, |(reply, responder)| match reply {
            Ok(values) => send(responder, values),
            Err(e) => refuse(responder, &e.to_string()),
        });
    }
}

/// The pushes of a step, each with its part of the examples.
fn weighted(parts: &[(usize, Exchange)]) -> Result<Vec<Contribution<'_>>, Error> {
    let pushes = parts.iter().map(|(worker, exchange)| Contribution::of(*worker, exchange, 1.0));
    let mut pushes = pushes.collect::<Result<Vec<_>, Error>>()?;
    // Another worker has pushed these before it was lost.
    pushes.retain(|part| !part.push.is_applied);
    let total: f64 = pushes.iter().map(|p| p.push.examples as f64).sum();
    let n = pushes.len();
    for part in &mut pushes {
        part.weight = match total {
            0.0 => 1.0 / n as f32,
            _ => (part.push.examples as f64 / total) as f32,
        };
    }
    Ok(pushes)
}
