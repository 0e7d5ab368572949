//! Who is there, who is late, who is lost; and the end.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use regatta_net::{Disconnect, Peer, Role};

use super::Notice;
use super::core::{Core, State};
use crate::message::reply::refuse;
use crate::{Error, Mode};

/// How often absent workers are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The first worker is missed this many times as long as any other before it counts as lost. Others
/// can take over the data of a worker that is only slow, but not what the first one does.
const FIRST_WORKER_PATIENCE: u32 = 10;
/// How long a server whose job has failed waits for workers to come by and hear why.
const TELL_FOR: Duration = Duration::from_secs(10);
/// How long a server that is done waits for workers to close their connections: one whose last
/// answer was lost on the way comes again.
const FAREWELL: Duration = Duration::from_secs(1);

impl Core {
    /// A process says that it is a worker of this job, and takes its place unless another has it.
    pub(super) fn adopt(&self, peer: &Peer) -> Result<(), Error> {
        let worker = peer.identity.index as usize;
        let mut state = self.lock();
        if let Some(reason) = &state.failed {
            return Err(Error::Peer(reason.clone()));
        }
        let Some(known) = state.workers.get_mut(worker) else {
            return Err(Error::Peer(self.no_such(worker)));
        };
        if let Some(reason) = &known.gone {
            return Err(Error::Peer(reason.clone()));
        }
        match known.session {
            Some(session) if session == peer.session => Ok(()),
            None => {
                known.session = Some(peer.session);
                self.changed.notify_all();
                Ok(())
            }
            Some(_) if known.away.is_none() => {
                let reason = "two processes have its number";
                Err(Error::Peer(format!("there is a worker {worker} already: {reason}")))
            }
            Some(_) => {
                // A new process has taken the number of one that is gone, with none of its state.
                let reason = format!("worker {worker} was restarted while the job was running");
                self.lose(state, worker, &reason);
                Err(Error::Peer(reason))
            }
        }
    }

    pub(super) fn connected(&self, peer: &Peer) {
        let mut state = self.lock();
        if let Some(worker) = state.number_of(peer) {
            state.workers[worker].away = None;
        }
        self.changed.notify_all();
    }

    pub(super) fn disconnected(&self, peer: &Peer, how: &Disconnect) {
        let mut state = self.lock();
        // What waited there cannot be answered; it comes again if somebody still wants it.
        let gone = |p: &Peer| p.connection == peer.connection;
        let (dead, alive) = std::mem::take(&mut state.early)
            .into_iter()
            .partition(|(_, w)| gone(w.responder.peer()));
        state.early = alive;
        let number = state.number_of(peer).filter(|_| *how != Disconnect::Replaced);
        if let Some(worker) = number {
            let reason = match how {
                Disconnect::Lost(problem) => problem.clone(),
                Disconnect::Goodbye => "it closed the connection".to_string(),
                _ => "this server stops".to_string(),
            };
            state.workers[worker].away = Some((Instant::now(), reason));
            state.workers[worker].said_goodbye = *how == Disconnect::Goodbye;
            if *how == Disconnect::Goodbye && state.members.contains(worker) {
                let reason = format!("worker {worker} is lost: it ended without leaving the job");
                self.lose(state, worker, &reason);
            } else {
                drop(state);
            }
        } else {
            drop(state);
        }
        drop::<Vec<_>>(dead);
        self.changed.notify_all();
    }

    /// Whether this process has left; it may say so again if it did not hear the answer.
    pub(super) fn has_left(&self, peer: &Peer) -> bool {
        let state = self.lock();
        state.number_of(peer).is_some_and(|worker| state.workers[worker].has_left)
    }

    /// A worker is done: those that wait for it need not any more.
    pub(super) fn leave(&self, worker: usize) {
        let mut state = self.lock();
        if state.members.leave(worker) {
            state.training.leave(worker);
            state.workers[worker].has_left = true;
            state.workers[worker].gone = Some(format!("worker {worker} has left the job"));
            self.complete_without(state);
        }
        self.changed.notify_all();
    }

    /// A worker has no more batches for now: steps need not wait for it.
    pub(super) fn rest(&self, worker: usize) {
        let mut state = self.lock();
        state.shards.finish(worker);
        if state.training.leave(worker) {
            self.complete_without(state);
        }
    }

    /// Waits until all workers have left, or `stop` is set.
    pub(super) fn watch(&self, stop: &AtomicBool) -> Result<(), Error> {
        let started = Instant::now();
        let mut state = self.lock();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Usage("the server was stopped".to_string()));
            }
            if let Some(reason) = state.failed.clone() {
                self.wait_until(state, TELL_FOR, |w| {
                    w.told || w.away.is_some() || w.gone.is_some()
                });
                let state = self.lock();
                if state.workers.iter().any(|w| w.said_goodbye && !w.has_left) {
                    // As below: the process that closed its connection is about to end.
                    self.wait_until(state, FAREWELL, |_| false);
                }
                return Err(Error::Peer(reason));
            }
            if state.members.is_empty() {
                if !state.workers.iter().any(|w| w.has_left) {
                    let lost = state.lost().join("; ");
                    // Their own processes know why; whoever ends first is believed to be the cause.
                    self.wait_until(state, FAREWELL, |_| false);
                    return Err(Error::Peer(format!("all workers are lost: {lost}")));
                }
                self.wait_until(state, FAREWELL, |w| w.said_goodbye || !w.has_left);
                return Ok(());
            }
            state = match self.missing(&state, started) {
                Some((worker, reason)) => {
                    self.lose(state, worker, &reason);
                    self.lock()
                }
                None => self.wait(state, LOOK_EVERY),
            };
        }
    }

    /// Waits until something is so of every worker that has come, but not for ever.
    fn wait_until(
        &self,
        mut state: MutexGuard<'_, State>,
        limit: Duration,
        is_so: impl Fn(&super::core::Worker) -> bool,
    ) {
        let until = Instant::now() + limit;
        while state.workers.iter().any(|w| w.session.is_some() && !is_so(w)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait(state, left.min(LOOK_EVERY));
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let (state, _) = self.changed.wait_timeout(state, limit).unwrap_or_else(|e| e.into_inner());
        state
    }

    /// A member that never came or has been away too long.
    fn missing(&self, state: &State, started: Instant) -> Option<(usize, String)> {
        let late = started.elapsed() > self.config.start_timeout;
        state.members.iter().find_map(|w| {
            if state.workers[w].session.is_none() {
                let limit = self.config.start_timeout.as_secs_f32();
                return late.then(|| (w, format!("worker {w} did not come within {limit} s")));
            }
            let (since, how) = state.workers[w].away.as_ref()?;
            let limit = match w == 0 && self.needs_first(state) {
                true => self.config.worker_timeout * FIRST_WORKER_PATIENCE,
                false => self.config.worker_timeout,
            };
            (since.elapsed() > limit).then(|| (w, format!("worker {w} is lost: {how}")))
        })
    }

    /// A worker will not come back. Where others wait for it, or if it never came, the job fails,
    /// unless it may continue without lost workers.
    ///
    /// A step that it has contributed to on some servers but not on others then counts its
    /// gradients on those servers only.
    pub(super) fn lose(&self, mut state: MutexGuard<'_, State>, worker: usize, reason: &str) {
        if !state.members.leave(worker) {
            return;
        }
        state.training.leave(worker);
        let never_came = state.workers[worker].session.is_none();
        let has_ended = state.workers[worker].said_goodbye;
        state.workers[worker].gone = Some(reason.to_string());
        let waits = matches!(self.config.mode, Mode::Sync | Mode::Bounded { .. });
        if (waits || never_came) && !self.config.allow_worker_loss {
            let reason = self.cause(&state, reason);
            self.fail(state, &reason);
        } else if worker == 0 && self.needs_first(&state) {
            let why = "it saves the model and makes the checkpoints of the job";
            self.fail(state, &format!("{reason}; no job continues without worker 0: {why}"));
        } else {
            self.complete_without(state);
        }
        self.lose_own_part(worker);
        self.changed.notify_all();
        (self.config.notices)(&Notice::Lost { worker, reason: reason.to_string(), has_ended });
    }

    /// Whether the job is one of data passes, which only the first worker can end.
    fn needs_first(&self, state: &State) -> bool {
        state.shards.pass().is_some()
    }

    /// Why the job fails when a worker is lost. One that went away or has not come before it is the
    /// more likely cause: this one has probably ended because another server told it so.
    fn cause(&self, state: &State, reason: &str) -> String {
        let absent = |w: usize| Some((state.workers[w].away.as_ref()?, w));
        let first = state.members.iter().filter_map(absent).min_by_key(|((since, _), _)| *since);
        if let Some(((_, how), w)) = first {
            return format!("worker {w} is lost: {how}");
        }
        match state.members.iter().find(|w| state.workers[*w].session.is_none()) {
            Some(w) => format!("{reason} (worker {w} has not come yet)"),
            None => reason.to_string(),
        }
    }

    /// The job cannot continue: whoever waits hears why, and so does everybody who asks from now
    /// on.
    pub(super) fn fail(&self, mut state: MutexGuard<'_, State>, reason: &str) {
        state.failed.get_or_insert_with(|| reason.to_string());
        let State { sync, reduce, early, idle, snapshot, .. } = &mut *state;
        let mut waiting: Vec<_> = sync.abort().into_iter().map(|(_, w)| w.responder).collect();
        waiting.extend(reduce.abort().into_iter().map(|(_, part)| part.responder));
        waiting.extend(std::mem::take(early).into_iter().map(|(_, w)| w.responder));
        waiting.extend(std::mem::take(idle).into_iter().map(|(_, responder)| responder));
        let ready_worker = snapshot.give_up().map(|(_, workers)| workers).unwrap_or_default();
        waiting.extend(ready_worker.into_iter().map(|(_, at)| at.responder));
        for responder in &waiting {
            if let Some(worker) = state.number_of(responder.peer()) {
                state.workers[worker].told = true;
            }
        }
        drop(state);
        waiting.into_iter().for_each(|responder| refuse(responder, reason));
        self.changed.notify_all();
    }

    /// Finishes whatever waited for a worker that is no longer there.
    fn complete_without<'a>(&'a self, mut state: MutexGuard<'a, State>) {
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
        let State { snapshot, members, .. } = &mut *state;
        if !members.contains(0) && members.started_with() > 0 {
            self.give_up_snapshot(state);
            state = self.lock();
        } else if let Some((id, workers)) = snapshot.complete(members) {
            drop(state);
            self.take(id, workers);
            state = self.lock();
        }
        let released = self.release(&mut state);
        drop(state);
        released.into_iter().for_each(|w| self.answer(w));
        self.end_pass(self.lock());
    }
}

impl State {
    /// The worker whose process this is.
    fn number_of(&self, peer: &Peer) -> Option<usize> {
        let worker = peer.identity.index as usize;
        let known = self.workers.get(worker).filter(|_| peer.identity.role == Role::Worker)?;
        (known.session == Some(peer.session)).then_some(worker)
    }
}
