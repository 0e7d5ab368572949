//! Pulls and pushes as the mode wants them: who waits, what is applied when, who is answered.
//! Synchronous pushes are collected in `round.rs`; what happens to tables is in `apply.rs`.

use regatta_net::Buf;

use super::apply::Contribution;
use super::core::{Arrival, Core, State};
use super::request::Exchange;
use crate::message::Push;
use crate::message::reply::{defer, refuse, reply, reply_owned};
use crate::shards::Mark;
use crate::{Error, Mode};

impl Core {
    /// Answers a pull unless it is too far ahead; then it waits for the slowest worker. While a
    /// snapshot is open, there are no values for what comes after it.
    pub(super) fn pull(&self, exchange: Exchange) {
        let Some(step) = exchange.training_step() else { return self.answer(exchange) };
        let mut state = self.lock();
        let State { clocks, training, early, snapshot, .. } = &mut *state;
        if snapshot.defers(step) {
            drop(state);
            return defer(exchange.responder);
        }
        if let Mode::Bounded { staleness } = self.config.mode
            && !clocks.may_begin(step, staleness, training)
        {
            early.push((step, exchange));
            return;
        }
        drop(state);
        self.answer(exchange);
    }

    pub(super) fn push(&self, worker: usize, exchange: Exchange) {
        if matches!(self.config.mode, Mode::Geo { .. }) {
            let reason = "servers of geo mode take differences, not gradients";
            return refuse(exchange.responder, reason);
        }
        let (sequence, step, is_applied) = match self.check_exchange(&exchange) {
            Ok(push) => (push.sequence, push.step, push.is_applied),
            Err(e) => return refuse(exchange.responder, &e.to_string()),
        };
        let mut state = self.lock();
        match state.arrived(worker, sequence) {
            Arrival::New => {}
            Arrival::Again => {
                drop(state);
                return self.pull(exchange);
            }
            Arrival::TooEarly(reason) => {
                drop(state);
                return refuse(exchange.responder, &reason);
            }
        }
        if self.config.mode.is_sync() {
            return self.push_in_round(state, worker, step, exchange);
        }
        drop(state);
        let mark = exchange.push.as_ref().and_then(|push| push.mark.clone());
        if is_applied {
            // Another worker has pushed it before it was lost.
            self.applied(worker, sequence, step, mark.as_ref());
            return self.pull(exchange);
        }
        if exchange.wants_dense_alone() {
            if self.push_and_answer_early(worker, exchange) {
                self.applied(worker, sequence, step, mark.as_ref());
            }
            return;
        }
        let outcome = Contribution::of(worker, &exchange, 1.0);
        if let Err(e) = outcome.and_then(|push| self.apply(&[push], 1)) {
            return self.break_down(exchange.responder, &e);
        }
        self.applied(worker, sequence, step, mark.as_ref());
        self.pull(exchange);
    }

    fn applied(&self, worker: usize, sequence: u64, step: u64, mark: Option<&Mark>) {
        let mut state = self.lock();
        state.applied(worker, sequence, mark);
        state.clocks.tick(worker, step);
        let released = self.release(&mut state);
        drop(state);
        released.into_iter().for_each(|exchange| self.answer(exchange));
    }

    /// Applies a push whose sender continues with the dense parameters after it: they do not wait
    /// for the rows, which take longer. Its next request does. Says whether everything was applied.
    fn push_and_answer_early(&self, worker: usize, exchange: Exchange) -> bool {
        let first_half = Contribution::of(worker, &exchange, 1.0).and_then(|push| {
            let lr = self.apply_dense(&[push])?;
            Ok((lr, self.collect(&exchange)?))
        });
        let (lr, values) = match first_half {
            Ok(done) => done,
            Err(e) => {
                self.break_down(exchange.responder, &e);
                return false;
            }
        };
        let Exchange { push, payload, responder, .. } = exchange;
        send(responder, values);
        let rows = match &push {
            Some(push) => {
                let push = Contribution { worker, weight: 1.0, push, payload: &payload };
                self.apply_rows(&[push], lr)
            }
            None => Ok(()),
        };
        if let Err(e) = &rows {
            self.fail(self.lock(), &self.failure(e));
        }
        rows.is_ok()
    }

    /// Checks everything about a push, and about the pull with it: what is wrong must be found
    /// before anything is changed.
    fn check_exchange<'a>(&self, exchange: &'a Exchange) -> Result<&'a Push, Error> {
        if let Some(pull) = &exchange.pull {
            self.check_pull(pull)?;
        }
        let push = exchange.push.as_ref().ok_or_else(|| Error::internal("a push without one"))?;
        self.check_gradients(push.dense, &push.tables)?;
        Ok(push)
    }

    /// Pulls that need not wait any more.
    pub(super) fn release(&self, state: &mut State) -> Vec<Exchange> {
        let Mode::Bounded { staleness } = self.config.mode else { return vec![] };
        let State { clocks, training, early, .. } = state;
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(early)
            .into_iter()
            .partition(|(step, _)| clocks.may_begin(*step, staleness, training));
        *early = later;
        now.into_iter().map(|(_, exchange)| exchange).collect()
    }

    /// Sends what a request asks for.
    pub(super) fn answer(&self, exchange: Exchange) {
        match self.collect(&exchange) {
            Ok(values) => send(exchange.responder, values),
            Err(e) => refuse(exchange.responder, &e.to_string()),
        }
    }

    /// What a request asks for: values for a pull, nothing but the fact for a push.
    pub(super) fn collect(&self, exchange: &Exchange) -> Result<Option<Buf>, Error> {
        exchange.pull.as_ref().map(|pull| self.read_values(pull, exchange)).transpose()
    }
}

/// Sends values, or that a push is applied.
pub(super) fn send(responder: regatta_net::Responder, values: Option<Buf>) {
    match values {
        Some(values) => reply_owned(responder, values),
        None => reply(responder, &[]),
    }
}
