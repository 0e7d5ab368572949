//! What a server does with each request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use regatta_net::{Buf, Responder};
use regatta_table::{Scratch, SparseTable};

use super::dense::Dense;
use super::geo::Changed;
use super::{ServerConfig, TableSetup};
use crate::message::{Control, ControlReply, Hello, Kind, Push, ReduceOp, ServerStats, TableStats};
use crate::rounds::{Clocks, Collector, Members, Offer};
use crate::{Error, Mode, STATUS_OK, STATUS_REFUSED};

/// A table with its name and learning-rate factor.
pub(super) struct Table {
    pub(super) setup: TableSetup,
    pub(super) rows: SparseTable,
}

/// Everything a server holds and remembers.
pub(super) struct Core {
    pub(super) config: ServerConfig,
    pub(super) tables: Vec<Table>,
    pub(super) dense: Mutex<Dense>,
    /// Updates so far, which the learning rate follows.
    pub(super) steps: AtomicU64,
    pub(super) state: Mutex<State>,
    /// Something that `watch` waits for has changed.
    pub(super) changed: Condvar,
    pub(super) scratch: Mutex<Vec<Scratch>>,
    /// For geo mode.
    pub(super) changed_rows: Mutex<Changed>,
    pub(super) busy_nanos: AtomicU64,
}

/// Who is where.
pub(super) struct State {
    /// Workers that are there.
    pub(super) members: Members,
    /// Those of them that have batches: the ones that steps wait for.
    pub(super) training: Members,
    pub(super) sync: Collector<Waiting>,
    pub(super) reduce: Collector<Reduction>,
    last_reduction: (u64, Vec<f64>),
    clocks: Clocks,
    /// Pulls that are too far ahead of the slowest worker, with their step.
    pub(super) early: Vec<(u64, Waiting)>,
    /// The last push of each worker that was applied.
    sequences: Vec<u64>,
    repeated: u64,
    /// Session of each worker that has come.
    pub(super) sessions: Vec<Option<u64>>,
    /// Since when a worker is away, and why.
    pub(super) away: Vec<Option<(Instant, String)>>,
    /// Why the job cannot go on.
    pub(super) failed: Option<String>,
}

/// A request that has not been answered.
pub(super) struct Waiting {
    pub(super) kind: Kind,
    pub(super) payload: Buf,
    pub(super) responder: Responder,
}

/// A worker's part of a reduction.
pub(super) struct Reduction {
    what: String,
    op: ReduceOp,
    values: Vec<f64>,
    pub(super) responder: Responder,
}

impl Core {
    pub(super) fn new(config: ServerConfig) -> Result<Core, Error> {
        let table = |setup: &TableSetup| {
            let rows = SparseTable::new(setup.config.clone())
                .map_err(|e| Error::Job(format!("table '{}': {e}", setup.name)))?;
            Ok(Table { setup: setup.clone(), rows })
        };
        let tables = config.tables.iter().map(table).collect::<Result<Vec<_>, Error>>()?;
        let workers = config.workers;
        let changed = Changed::new(workers, tables.len());
        let state = State {
            members: Members::new(workers),
            training: Members::new(workers),
            sync: Collector::new(workers),
            reduce: Collector::new(workers),
            last_reduction: (0, vec![]),
            clocks: Clocks::new(workers),
            early: Vec::new(),
            sequences: vec![0; workers],
            repeated: 0,
            sessions: vec![None; workers],
            away: vec![None; workers],
            failed: None,
        };
        Ok(Core {
            dense: Mutex::new(Dense::new(&config.dense)?),
            config,
            tables,
            steps: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            scratch: Mutex::new(Vec::new()),
            changed_rows: Mutex::new(changed),
            busy_nanos: AtomicU64::new(0),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a handler becomes an error reply; the bookkeeping is consistent at any time.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Handles one request. Requests of one worker come one at a time and in order.
    pub(super) fn handle(
        &self,
        worker: Option<usize>,
        kind: u16,
        payload: Buf,
        responder: Responder,
    ) {
        let kind = match Kind::try_from(kind) {
            Ok(kind) => kind,
            Err(e) => return refuse(responder, &e.to_string()),
        };
        let waiting = Waiting { kind, payload, responder };
        match (kind, worker) {
            (Kind::Control, worker) => self.control(worker, waiting),
            (Kind::Pull, None) => self.answer(waiting),
            (_, None) => refuse(waiting.responder, "only workers may do that"),
            (_, Some(w)) if w >= self.config.workers => {
                refuse(waiting.responder, &format!("this job has no worker {w}"));
            }
            (_, Some(w)) => self.exchange(w, waiting),
        }
    }

    fn exchange(&self, worker: usize, waiting: Waiting) {
        if let Some(reason) = self.lock().failed.clone() {
            return refuse(waiting.responder, &reason);
        }
        match waiting.kind {
            Kind::Pull => self.pull_in_turn(waiting),
            Kind::Push | Kind::PushPull => self.push(worker, waiting),
            Kind::Geo => self.geo(worker, waiting),
            Kind::SetDense => self.set_dense(waiting),
            Kind::Control => unreachable!("handled before"),
        }
    }

    /// Answers a pull unless it is too far ahead; then it waits for the slowest worker.
    fn pull_in_turn(&self, waiting: Waiting) {
        let (Mode::Bounded { staleness }, Ok(pull)) = (self.config.mode, waiting.pull()) else {
            return self.answer(waiting);
        };
        let step = pull.step;
        let mut state = self.lock();
        let State { clocks, training, early, .. } = &mut *state;
        if !pull.test && !clocks.may_begin(step, staleness, training) {
            early.push((step, waiting));
            return;
        }
        drop(state);
        self.answer(waiting);
    }

    fn push(&self, worker: usize, waiting: Waiting) {
        let (sequence, step) = match waiting.push() {
            Ok(push) => (push.sequence, push.step),
            Err(e) => return refuse(waiting.responder, &e.to_string()),
        };
        let mut state = self.lock();
        if sequence <= state.sequences[worker] {
            // It came again because its answer was lost.
            state.repeated += 1;
            drop(state);
            return self.pull_in_turn(waiting);
        }
        if self.config.mode.is_sync() {
            let State { sync, training, .. } = &mut *state;
            match sync.offer(worker, step + 1, waiting, training) {
                Offer::Waiting => {}
                Offer::Complete(parts) => self.finish_round(state, parts),
                Offer::Past(w) | Offer::Ahead(w) => {
                    let reason = format!(
                        "worker {worker} is at step {step}, but the job is at step {}",
                        sync.round() - 1
                    );
                    drop(state);
                    refuse(w.responder, &reason);
                }
            }
            return;
        }
        drop(state);
        let outcome = waiting.push().and_then(|push| self.apply(&[(1.0, push)]));
        if let Err(e) = outcome {
            return refuse(waiting.responder, &e.to_string());
        }
        let mut state = self.lock();
        state.sequences[worker] = sequence;
        state.clocks.tick(worker, step);
        let released = self.release(&mut state);
        drop(state);
        released.into_iter().for_each(|w| self.answer(w));
        self.pull_in_turn(waiting);
    }

    /// Applies a synchronous step: the gradients of all workers, weighted by their examples, in the
    /// order of the workers.
    pub(super) fn finish_round(&self, mut state: MutexGuard<'_, State>, parts: Vec<(usize, Waiting)>) {
        let pushes: Result<Vec<Push<'_>>, Error> = parts.iter().map(|(_, w)| w.push()).collect();
        let outcome = pushes.and_then(|pushes| {
            let total: u64 = pushes.iter().map(|p| p.examples).sum();
            let weight = |p: &Push<'_>| match total {
                0 => 1.0 / pushes.len() as f32,
                _ => (p.examples as f64 / total as f64) as f32,
            };
            let sequences: Vec<u64> = pushes.iter().map(|p| p.sequence).collect();
            let weighted: Vec<_> = pushes.iter().map(|p| (weight(p), p.clone())).collect();
            self.apply(&weighted)?;
            Ok(sequences)
        });
        if let Ok(sequences) = &outcome {
            for ((worker, _), sequence) in parts.iter().zip(sequences) {
                state.sequences[*worker] = *sequence;
            }
        }
        drop(state);
        for (_, waiting) in parts {
            match &outcome {
                Ok(_) => self.answer(waiting),
                Err(e) => refuse(waiting.responder, &e.to_string()),
            }
        }
    }

    /// Pulls that need not wait any more.
    pub(super) fn release(&self, state: &mut State) -> Vec<Waiting> {
        let Mode::Bounded { staleness } = self.config.mode else { return vec![] };
        let State { clocks, training, early, .. } = state;
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(early)
            .into_iter()
            .partition(|(step, _)| clocks.may_begin(*step, staleness, training));
        *early = later;
        now.into_iter().map(|(_, w)| w).collect()
    }

    /// Sends what a request asks for: values for a pull, nothing but the fact for a push.
    pub(super) fn answer(&self, waiting: Waiting) {
        if waiting.kind == Kind::Push {
            return reply(waiting.responder, &[]);
        }
        let outcome = waiting.pull().and_then(|pull| self.gather(&pull, &waiting.responder));
        match outcome {
            Ok(buf) => reply(waiting.responder, &buf),
            Err(e) => refuse(waiting.responder, &e.to_string()),
        }
    }

    fn control(&self, worker: Option<usize>, waiting: Waiting) {
        let outcome = Control::decode(&waiting.payload).and_then(|request| match request {
            Control::Reduce { round, what, op, values } => {
                let worker = worker.filter(|w| *w < self.config.workers);
                let Some(worker) = worker else {
                    return Err(Error::Job("only workers may reduce".into()));
                };
                Ok(Err((worker, round, what, op, values)))
            }
            other => self.control_now(worker, other).map(Ok),
        });
        match outcome {
            Ok(Ok(answer)) => reply(waiting.responder, &answer.encode()),
            Ok(Err((worker, round, what, op, values))) => {
                let part = Reduction { what, op, values, responder: waiting.responder };
                self.reduce(worker, round, part);
            }
            Err(e) => refuse(waiting.responder, &e.to_string()),
        }
    }

    fn control_now(&self, worker: Option<usize>, request: Control) -> Result<ControlReply, Error> {
        match request {
            Control::Hello(hello) => self.hello(&hello).map(|()| ControlReply::Done),
            Control::Leave => {
                let worker = worker.ok_or_else(|| Error::Job("only workers can leave".into()))?;
                self.leave(worker);
                Ok(ControlReply::Done)
            }
            Control::Rest => {
                let worker = worker.ok_or_else(|| Error::Job("only workers can rest".into()))?;
                self.rest(worker);
                Ok(ControlReply::Done)
            }
            Control::Resume { step } => {
                let worker = worker.ok_or_else(|| Error::Job("only workers can resume".into()))?;
                let mut state = self.lock();
                if worker < self.config.workers && state.members.contains(worker) {
                    state.training.join(worker);
                    state.clocks.set(worker, step);
                    state.sync.set_round(step + 1);
                }
                Ok(ControlReply::Done)
            }
            Control::Stats => Ok(ControlReply::Stats(self.stats())),
            Control::Shrink { max_unseen_days } => self.shrink(max_unseen_days),
            Control::Inspect { table, id } => self.inspect(&table, id),
            Control::Save { dir } => self.save(&dir).map(|()| ControlReply::Done),
            Control::Load { dir, names } => self.load(&dir, &names).map(|()| ControlReply::Done),
            Control::Reduce { .. } => unreachable!("handled before"),
        }
    }

    fn hello(&self, hello: &Hello) -> Result<(), Error> {
        let c = &self.config;
        if hello.job != c.job {
            return Err(Error::Job(format!(
                "this server serves another model or configuration (server: {}, worker: {})",
                c.job, hello.job
            )));
        }
        if (hello.workers, hello.servers) != (c.workers, c.servers) {
            return Err(Error::Job(format!(
                "the worker counts {} workers and {} servers, this server {} and {}",
                hello.workers, hello.servers, c.workers, c.servers
            )));
        }
        Ok(())
    }

    fn reduce(&self, worker: usize, round: u64, part: Reduction) {
        let mut state = self.lock();
        if let Some(reason) = state.failed.clone() {
            return refuse(part.responder, &reason);
        }
        let State { reduce, members, last_reduction, .. } = &mut *state;
        let (last_round, current) = (last_reduction.0, reduce.round());
        match reduce.offer(worker, round, part, members) {
            Offer::Waiting => {}
            Offer::Complete(parts) => self.finish_reduction(state, parts),
            Offer::Past(part) if round == last_round => {
                let values = state.last_reduction.1.clone();
                drop(state);
                reply(part.responder, &ControlReply::Values(values).encode());
            }
            Offer::Past(part) | Offer::Ahead(part) => {
                let reason = format!(
                    "worker {worker} is at reduction {round} ('{}'), the job at {}",
                    part.what, current
                );
                refuse(part.responder, &reason);
            }
        }
    }

    pub(super) fn finish_reduction(
        &self,
        mut state: MutexGuard<'_, State>,
        parts: Vec<(usize, Reduction)>,
    ) {
        let outcome = combine(&parts);
        if let Ok(values) = &outcome {
            state.last_reduction = (state.reduce.round() - 1, values.clone());
        }
        drop(state);
        for (_, part) in parts {
            match &outcome {
                Ok(values) => {
                    reply(part.responder, &ControlReply::Values(values.clone()).encode());
                }
                Err(reason) => refuse(part.responder, reason),
            }
        }
    }

    pub(super) fn stats(&self) -> ServerStats {
        let state = self.lock();
        let tables = self.tables.iter().map(|t| {
            let s = t.rows.stats().unwrap_or_default();
            let stats =
                TableStats { rows: s.rows, bytes: s.bytes, pulled: s.pulls, pushed: s.updated };
            (t.setup.name.clone(), stats)
        });
        ServerStats {
            server: self.config.index,
            steps: self.steps.load(Ordering::Relaxed),
            repeated: state.repeated,
            largest_staleness: state.clocks.largest(),
            tables: tables.collect(),
            peak_rss_bytes: peak_rss_bytes(),
            busy_seconds: self.busy_nanos.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }

    /// Remembers a push or exchange that was applied; true if it was applied before.
    pub(super) fn is_repeated(&self, worker: usize, sequence: u64) -> bool {
        let mut state = self.lock();
        let repeated = sequence <= state.sequences[worker];
        if repeated {
            state.repeated += 1;
        }
        repeated
    }

    pub(super) fn applied(&self, worker: usize, sequence: u64) {
        self.lock().sequences[worker] = sequence;
    }
}

impl Waiting {
    fn push(&self) -> Result<Push<'_>, Error> {
        match self.kind {
            Kind::PushPull => Push::decode_with_pull(&self.payload).map(|(push, _)| push),
            _ => Push::decode(&self.payload),
        }
    }

    fn pull(&self) -> Result<crate::message::Pull<'_>, Error> {
        match self.kind {
            Kind::PushPull => Push::decode_with_pull(&self.payload).map(|(_, pull)| pull),
            _ => crate::message::Pull::decode(&self.payload),
        }
    }
}

/// Sum, largest, smallest or all values, worker by worker.
fn combine(parts: &[(usize, Reduction)]) -> Result<Vec<f64>, String> {
    let (first_worker, first) = &parts[0];
    if let Some((worker, other)) = parts.iter().find(|(_, p)| p.what != first.what) {
        return Err(format!(
            "worker {first_worker} reduces '{}' while worker {worker} reduces '{}'",
            first.what, other.what
        ));
    }
    if first.op == ReduceOp::Gather {
        return Ok(parts.iter().flat_map(|(_, p)| p.values.clone()).collect());
    }
    let mut all = first.values.clone();
    for (worker, part) in &parts[1..] {
        if part.values.len() != all.len() {
            return Err(format!(
                "'{}': worker {first_worker} has {} values, worker {worker} {}",
                first.what,
                all.len(),
                part.values.len()
            ));
        }
        for (a, b) in all.iter_mut().zip(&part.values) {
            *a = match first.op {
                ReduceOp::Max => a.max(*b),
                ReduceOp::Min => a.min(*b),
                ReduceOp::Sum | ReduceOp::Gather => *a + b,
            };
        }
    }
    Ok(all)
}

/// Answers; a worker that is gone will ask again or be missed, so a failure to send is not an error
/// here.
fn reply(responder: Responder, payload: &[u8]) {
    let _ = responder.reply(STATUS_OK, &[payload]);
}

pub(super) fn refuse(responder: Responder, reason: &str) {
    let _ = responder.reply(STATUS_REFUSED, &[reason.as_bytes()]);
}

/// The largest resident memory of this process so far, or 0 where the system does not say.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kb = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}
