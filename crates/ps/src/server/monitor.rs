//! Who is there, who is late, who is lost; and the end.

use std::time::{Duration, Instant};

use super::core::{Core, State, refuse};
use crate::{Error, Mode};

/// How often absent workers are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Core {
    pub(super) fn connected(&self, worker: usize, session: u64) {
        let mut state = self.lock();
        let Some(known) = state.sessions.get_mut(worker) else { return };
        let restarted = known.is_some_and(|old| old != session);
        *known = Some(session);
        state.away[worker] = None;
        if restarted && state.members.contains(worker) {
            // A new process has taken the number of one that is gone, with none of its state.
            let reason = format!("worker {worker} was restarted while the job was running");
            self.lose(&mut state, worker, &reason);
        }
        self.changed.notify_all();
    }

    pub(super) fn disconnected(&self, worker: usize, how: String) {
        let mut state = self.lock();
        if state.away.get(worker).is_some() {
            state.away[worker] = Some((Instant::now(), how));
        }
        self.changed.notify_all();
    }

    /// A worker is done: those that wait for it need not any more.
    pub(super) fn leave(&self, worker: usize) {
        let mut state = self.lock();
        if worker < self.config.workers && state.members.leave(worker) {
            state.training.leave(worker);
            self.complete_without(state);
        }
        self.changed.notify_all();
    }

    /// A worker has no more batches for now: steps need not wait for it.
    pub(super) fn rest(&self, worker: usize) {
        let mut state = self.lock();
        if worker < self.config.workers && state.training.leave(worker) {
            self.complete_without(state);
        }
    }

    /// Waits until all workers have left.
    pub(super) fn watch(&self) -> Result<(), Error> {
        let started = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(reason) = state.failed.clone() {
                // Give workers a moment to hear why.
                let until = Instant::now() + Duration::from_secs(1);
                while Instant::now() < until && state.away.iter().any(Option::is_none) {
                    state = self.wait(state);
                }
                return Err(Error::Job(reason));
            }
            if state.members.is_empty() {
                return Ok(());
            }
            if let Some((worker, reason)) = self.missing(&state, started) {
                self.lose(&mut state, worker, &reason);
                if state.failed.is_none() {
                    self.complete_without(state);
                    state = self.lock();
                }
                continue;
            }
            state = self.wait(state);
        }
    }

    fn wait<'a>(
        &self,
        state: std::sync::MutexGuard<'a, State>,
    ) -> std::sync::MutexGuard<'a, State> {
        let (state, _) =
            self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(|e| e.into_inner());
        state
    }

    /// A member that never came or has been away too long.
    fn missing(&self, state: &State, started: Instant) -> Option<(usize, String)> {
        let late = started.elapsed() > self.config.start_timeout;
        state.members.iter().find_map(|w| {
            if state.sessions[w].is_none() {
                let limit = self.config.start_timeout.as_secs();
                return late.then(|| (w, format!("worker {w} did not come within {limit} s")));
            }
            let (since, how) = state.away[w].as_ref()?;
            let gone = since.elapsed() > self.config.worker_timeout;
            gone.then(|| (w, format!("worker {w} is lost ({how})")))
        })
    }

    /// A worker will not come back. Where others wait for it the job fails, unless it may go on
    /// without lost workers.
    fn lose(&self, state: &mut State, worker: usize, reason: &str) {
        let waits = matches!(self.config.mode, Mode::Sync | Mode::Bounded { .. });
        state.members.leave(worker);
        state.training.leave(worker);
        if !waits || self.config.allow_worker_loss {
            return;
        }
        state.failed = Some(reason.to_string());
        for (_, waiting) in state.sync.abort() {
            refuse(waiting.responder, reason);
        }
        for (_, part) in state.reduce.abort() {
            refuse(part.responder, reason);
        }
        for (_, waiting) in std::mem::take(&mut state.early) {
            refuse(waiting.responder, reason);
        }
    }

    /// Finishes whatever waited for a worker that is no longer there.
    fn complete_without<'a>(&'a self, mut state: std::sync::MutexGuard<'a, State>) {
        let State { sync, training, .. } = &mut *state;
        if let Some(parts) = sync.complete(training) {
            self.finish_round(state, parts);
            state = self.lock();
        }
        let State { reduce, members, .. } = &mut *state;
        if let Some(parts) = reduce.complete(members) {
            self.finish_reduction(state, parts);
            state = self.lock();
        }
        let released = self.release(&mut state);
        drop(state);
        released.into_iter().for_each(|w| self.answer(w));
    }
}
