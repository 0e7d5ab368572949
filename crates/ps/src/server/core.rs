//! What a server holds and remembers, and what it does with pulls and pushes.
//!
//! Locks: `state` may be held while tables and dense parameters are locked, never the other way
//! round; nothing is sent while `state` is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use regatta_net::{Buf, Peer, Responder, Role};
use regatta_optim::Rule;
use regatta_table::{Accessor, Admission, AnyRule, SparseTable};

use super::cut::{AtCut, Me, WritingCell, hold_back};
use super::dense::Dense;
use super::geo::Changed;
use super::scratches::Scratches;
use super::tasks::Crew;
use super::{ServerConfig, TableSetup};
use crate::cut::Cut;
use crate::message::{ControlReply, Kind, Pull, Push, ReduceOp, ServerStats, TableStats, Wire};
use crate::rounds::{Clocks, Collector, Members, Offer};
use crate::{Error, Mode, STATUS_OK, STATUS_REFUSED};

/// Pulls of a worker whose appearances were counted and that may still come again: more than
/// requests can be under way.
const MAX_COUNTED: usize = 256;

/// A table with its name and learning-rate factor.
pub(super) struct Table {
    pub(super) setup: TableSetup,
    pub(super) rows: SparseTable,
    /// Whether it matters how often an id appears.
    pub(super) counts: bool,
}

/// Everything a server holds and remembers.
pub(super) struct Core {
    pub(super) config: ServerConfig,
    pub(super) tables: Vec<Table>,
    pub(super) dense: Dense,
    /// Updates so far, which the learning rate follows.
    pub(super) steps: AtomicU64,
    state: Mutex<State>,
    /// Something that `watch` waits for has changed.
    pub(super) changed: Condvar,
    pub(super) scratches: Scratches,
    pub(super) crew: Crew,
    /// For geo mode.
    pub(super) changed_rows: Mutex<Changed>,
    pub(super) busy_nanos: AtomicU64,
    /// The last cut on its way to disk.
    pub(super) writing: WritingCell,
    pub(super) me: Me,
}

/// Who is where.
pub(super) struct State {
    pub(super) workers: Vec<Worker>,
    /// Workers that are there or still expected.
    pub(super) members: Members,
    /// Those of them that have batches: the ones that steps wait for.
    pub(super) training: Members,
    pub(super) sync: Collector<Waiting>,
    pub(super) reduce: Collector<Reduction>,
    /// The last reduction or gather and its answer, in case that is lost on the way.
    pub(super) last_reduction: (u64, Vec<u8>),
    pub(super) clocks: Clocks,
    /// Pulls that are too far ahead of the slowest worker, with their step.
    pub(super) early: Vec<(u64, Waiting)>,
    /// Workers that have nothing to do until the pass is over.
    pub(super) idle: Vec<(usize, Responder)>,
    pub(super) cut: Cut<AtCut>,
    /// Answers to requests that must not be done twice: session, request, answer.
    pub(super) done_once: VecDeque<(u64, u64, ControlReply)>,
    pub(super) repeated: u64,
    /// Workers that were lost, and how.
    pub(super) lost: Vec<String>,
    /// Why the job cannot go on.
    pub(super) failed: Option<String>,
}

/// What is known of a worker.
#[derive(Default)]
pub(super) struct Worker {
    /// Its process; none before it has said hello.
    pub(super) session: Option<u64>,
    /// Since when it has no connection, and why.
    pub(super) away: Option<(Instant, String)>,
    /// Why it takes no part any more.
    pub(super) gone: Option<String>,
    /// It said itself that it is done.
    pub(super) has_left: bool,
    /// It has closed its connection on purpose.
    pub(super) said_goodbye: bool,
    /// It has heard that the job failed.
    pub(super) told: bool,
    /// The last push that was applied.
    sequence: u64,
    /// Its latest pulls whose appearances were counted.
    counted: VecDeque<u64>,
}

/// A request that has not been answered.
pub(super) struct Waiting {
    pub(super) kind: Kind,
    /// How its answer travels.
    pub(super) wire: Wire,
    /// Its number within the session of the client; the same when it comes again.
    pub(super) id: u64,
    pub(super) payload: Buf,
    pub(super) responder: Responder,
}

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

/// Bytes of all requests of a synchronous step from which on threads are worth their start.
const LARGE_STEP: usize = 256 << 10;

impl Core {
    pub(super) fn new(config: ServerConfig) -> Result<Core, Error> {
        config.mode.check()?;
        let table = |setup: &TableSetup| {
            let rows = SparseTable::new(setup.config.clone())
                .map_err(|e| Error::Job(format!("table '{}': {e}", setup.name)))?;
            let counts = setup.config.admission.counts_appearances();
            Ok(Table { setup: setup.clone(), rows, counts })
        };
        let tables = config.tables.iter().map(table).collect::<Result<Vec<_>, Error>>()?;
        let dense = Dense::new(&config.dense)?;
        if matches!(config.mode, Mode::Geo { .. }) {
            check_geo(&tables, &dense)?;
        }
        let workers = config.workers;
        let changed = Changed::new(workers, tables.len());
        let scratches = Scratches::new(&config.mode, workers, tables.len());
        let state = State {
            workers: (0..workers).map(|_| Worker::default()).collect(),
            members: Members::new(workers),
            training: Members::new(workers),
            sync: Collector::new(workers),
            reduce: Collector::new(workers),
            last_reduction: (0, vec![]),
            clocks: Clocks::new(workers),
            early: Vec::new(),
            idle: Vec::new(),
            cut: Cut::default(),
            done_once: VecDeque::new(),
            repeated: 0,
            lost: Vec::new(),
            failed: None,
        };
        Ok(Core {
            config,
            tables,
            dense,
            steps: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            scratches,
            crew: Crew::new(),
            changed_rows: Mutex::new(changed),
            busy_nanos: AtomicU64::new(0),
            writing: WritingCell::default(),
            me: Me::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a handler becomes an error reply; the bookkeeping is consistent at any time.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Handles one request. Requests of one client come one at a time and in order.
    pub(super) fn handle(&self, kind: u16, id: u64, payload: Buf, responder: Responder) {
        let plain = Wire::of(kind).and_then(|(wire, kind)| {
            Ok((wire, kind, wire.unpack(kind, payload, |n| responder.buffer(n))?))
        });
        let (wire, kind, payload) = match plain {
            Ok(plain) => plain,
            Err(e) => return refuse(responder, &e.to_string()),
        };
        let waiting = Waiting { kind, wire, id, payload, responder };
        if kind == Kind::Control {
            return self.control(waiting);
        }
        let peer = waiting.responder.peer();
        if peer.identity.role != Role::Worker {
            return match (kind, waiting.pull()) {
                (Kind::Pull, Ok(pull)) if pull.test => self.answer(waiting),
                _ => refuse(waiting.responder, "only workers may do that"),
            };
        }
        match self.standing(peer) {
            Ok(worker) => self.exchange(worker, waiting),
            Err(reason) => refuse(waiting.responder, &reason),
        }
    }

    /// The number of the worker that asks, if it is one that takes part.
    pub(super) fn standing(&self, peer: &Peer) -> Result<usize, String> {
        let worker = peer.identity.index as usize;
        let mut state = self.lock();
        let State { workers, failed, .. } = &mut *state;
        let Some(known) = workers.get_mut(worker) else { return Err(self.no_such(worker)) };
        match known.session {
            None => return Err(format!("worker {worker} has not said what job it belongs to")),
            Some(session) if session != peer.session => {
                return Err(format!("another process is worker {worker} of this job"));
            }
            Some(_) => {}
        }
        if let Some(reason) = failed {
            known.told = true;
            self.changed.notify_all();
            return Err(reason.clone());
        }
        known.gone.clone().map_or(Ok(worker), Err)
    }

    pub(super) fn no_such(&self, worker: usize) -> String {
        format!("there is no worker {worker}, this job has {}", self.config.workers)
    }

    fn exchange(&self, worker: usize, waiting: Waiting) {
        let geo = matches!(self.config.mode, Mode::Geo { .. });
        match waiting.kind {
            Kind::Push | Kind::PushPull if geo => {
                refuse(waiting.responder, "servers of geo mode take differences, not gradients");
            }
            Kind::Geo if !geo => refuse(waiting.responder, "this job is not in geo mode"),
            Kind::Pull => self.pull_in_turn(waiting),
            Kind::Push | Kind::PushPull => self.push(worker, waiting),
            Kind::Geo => self.geo(worker, waiting),
            Kind::SetDense => self.set_dense(waiting),
            Kind::Gather => self.gather_bytes(worker, waiting),
            Kind::Control => self.control(waiting),
        }
    }

    /// Answers a pull unless it is too far ahead; then it waits for the slowest worker. While a cut
    /// is open, there are no values for what comes after it.
    fn pull_in_turn(&self, waiting: Waiting) {
        let Some(step) = waiting.training_step() else { return self.answer(waiting) };
        let mut state = self.lock();
        let State { clocks, training, early, cut, .. } = &mut *state;
        if cut.holds_back(step) {
            drop(state);
            return hold_back(waiting.responder);
        }
        if let Mode::Bounded { staleness } = self.config.mode
            && !clocks.may_begin(step, staleness, training)
        {
            early.push((step, waiting));
            return;
        }
        drop(state);
        self.answer(waiting);
    }

    fn push(&self, worker: usize, waiting: Waiting) {
        let (sequence, step) = match self.checked_push(&waiting) {
            Ok(push) => (push.sequence, push.step),
            Err(e) => return refuse(waiting.responder, &e.to_string()),
        };
        let mut state = self.lock();
        match state.arrived(worker, sequence) {
            Arrived::New => {}
            Arrived::Again => {
                drop(state);
                return self.pull_in_turn(waiting);
            }
            Arrived::TooEarly(reason) => {
                drop(state);
                return refuse(waiting.responder, &reason);
            }
        }
        if self.config.mode.is_sync() {
            return self.push_in_round(state, worker, step, waiting);
        }
        drop(state);
        if waiting.wants_dense_alone() {
            if self.push_and_answer_early(waiting) {
                self.applied(worker, sequence, step);
            }
            return;
        }
        let outcome = waiting.push().and_then(|push| self.apply(&[(1.0, push)]));
        if let Err(e) = outcome {
            return self.break_down(waiting.responder, &e);
        }
        self.applied(worker, sequence, step);
        self.pull_in_turn(waiting);
    }

    fn applied(&self, worker: usize, sequence: u64, step: u64) {
        let mut state = self.lock();
        state.applied(worker, sequence);
        state.clocks.tick(worker, step);
        let released = self.release(&mut state);
        drop(state);
        released.into_iter().for_each(|w| self.answer(w));
    }

    /// Applies a push whose sender goes on with the dense values after it: they do not wait for the
    /// rows, which take longer. Its next request does. Says whether everything was applied.
    fn push_and_answer_early(&self, waiting: Waiting) -> bool {
        let first_half = Push::decode_with_pull(&waiting.payload).and_then(|(push, pull)| {
            let lr = self.apply_dense(&[(1.0, push.clone())])?;
            Ok((push, lr, self.gather(&pull, &waiting)?))
        });
        let (push, lr, values) = match first_half {
            Ok(done) => done,
            Err(e) => {
                self.break_down(waiting.responder, &e);
                return false;
            }
        };
        give(waiting.responder, values);
        let rows = self.apply_rows(&[(1.0, push)], lr);
        if let Err(e) = &rows {
            self.fail(self.lock(), &self.failure(e));
        }
        rows.is_ok()
    }

    fn push_in_round(
        &self,
        mut state: MutexGuard<'_, State>,
        worker: usize,
        step: u64,
        waiting: Waiting,
    ) {
        let State { sync, training, .. } = &mut *state;
        match sync.offer(worker, step.saturating_add(1), waiting, training) {
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
    }

    /// Applies a synchronous step: the gradients of all workers, weighted by their examples, in the
    /// order of the workers.
    pub(super) fn finish_round(
        &self,
        mut state: MutexGuard<'_, State>,
        parts: Vec<(usize, Waiting)>,
    ) {
        let large = parts.iter().map(|(_, w)| w.payload.len()).sum::<usize>() >= LARGE_STEP;
        let pushes: Result<Vec<Push<'_>>, Error> = parts.iter().map(|(_, w)| w.push()).collect();
        let outcome = pushes.and_then(|pushes| {
            let total: f64 = pushes.iter().map(|p| p.examples as f64).sum();
            let weight = |p: &Push<'_>| match total {
                0.0 => 1.0 / pushes.len() as f32,
                _ => (p.examples as f64 / total) as f32,
            };
            let sequences: Vec<u64> = pushes.iter().map(|p| p.sequence).collect();
            let weighted: Vec<_> = pushes.iter().map(|p| (weight(p), p.clone())).collect();
            if large { self.apply_at_once(&weighted) } else { self.apply(&weighted) }?;
            Ok(sequences)
        });
        match outcome {
            Ok(sequences) => {
                for ((worker, _), sequence) in parts.iter().zip(sequences) {
                    state.applied(*worker, sequence);
                }
                let held_back =
                    |w: &Waiting| w.training_step().is_some_and(|step| state.cut.holds_back(step));
                let (held, due): (Vec<_>, Vec<_>) =
                    parts.into_iter().map(|(_, waiting)| waiting).partition(held_back);
                drop(state);
                held.into_iter().for_each(|w| hold_back(w.responder));
                if large {
                    self.answer_all(due);
                } else {
                    due.into_iter().for_each(|w| self.answer(w));
                }
            }
            Err(e) => {
                drop(state);
                parts.into_iter().for_each(|(_, w)| self.break_down(w.responder, &e));
            }
        }
    }

    /// Answers the requests of a synchronous step.
    ///
    /// A worker that goes on takes the processor from whoever answered it. So nobody is answered
    /// before the values for all are there, and all answer: otherwise the last worker would wait for
    /// its values until another one is done.
    fn answer_all(&self, waiting: Vec<Waiting>) {
        let answers = self.crew.share_out(waiting, |w| (self.collect(&w), w.responder));
        self.crew.share_out(answers, |(answer, responder)| answer.send(responder));
    }

    /// Something failed half done, so that what this server holds is not to be trusted: nobody gets
    /// anything more.
    pub(super) fn break_down(&self, responder: Responder, e: &Error) {
        let reason = self.failure(e);
        self.fail(self.lock(), &reason);
        refuse(responder, &reason);
    }

    fn failure(&self, e: &Error) -> String {
        format!("server {} failed: {e}", self.config.index)
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

    /// Sends what a request asks for.
    pub(super) fn answer(&self, waiting: Waiting) {
        self.collect(&waiting).send(waiting.responder);
    }

    /// What a request asks for: values for a pull, nothing but the fact for a push.
    fn collect(&self, waiting: &Waiting) -> Answer {
        if waiting.kind == Kind::Push {
            return Answer::Done;
        }
        match waiting.pull().and_then(|pull| self.gather(&pull, waiting)) {
            Ok(values) => Answer::Values(values),
            Err(e) => Answer::Refused(e.to_string()),
        }
    }

    /// Updates so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> ServerStats {
        let tables = self.tables.iter().map(|t| {
            let s = t.rows.stats().unwrap_or_default();
            let stats = TableStats {
                rows: s.rows,
                bytes: s.bytes,
                pulled: s.pulls,
                missed: s.pulls.saturating_sub(s.hits),
                pushed: s.updated,
            };
            (t.setup.name.clone(), stats)
        });
        let tables = tables.collect();
        let state = self.lock();
        ServerStats {
            server: self.config.index,
            steps: self.steps(),
            repeated: state.repeated,
            largest_staleness: state.clocks.largest(),
            lost: state.lost.clone(),
            tables,
            peak_rss_bytes: peak_rss_bytes(),
            busy_seconds: self.busy_nanos.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

/// What becomes of a request.
enum Answer {
    Done,
    Values(Buf),
    Refused(String),
}

impl Answer {
    fn send(self, responder: Responder) {
        match self {
            Answer::Done => reply(responder, &[]),
            Answer::Values(values) => give(responder, values),
            Answer::Refused(reason) => refuse(responder, &reason),
        }
    }
}

/// What a push or exchange is, by its number.
pub(super) enum Arrived {
    /// The next one.
    New,
    /// It was applied; its answer was lost on the way.
    Again,
    /// One before it is missing.
    TooEarly(String),
}

impl State {
    pub(super) fn arrived(&mut self, worker: usize, sequence: u64) -> Arrived {
        let last = self.workers[worker].sequence;
        if sequence <= last {
            self.repeated += 1;
            return Arrived::Again;
        }
        if sequence > last + 1 {
            return Arrived::TooEarly(format!(
                "push {sequence} of worker {worker} came after push {last}: one between is lost"
            ));
        }
        Arrived::New
    }

    pub(super) fn applied(&mut self, worker: usize, sequence: u64) {
        self.workers[worker].sequence = sequence;
    }

    /// Whether this is the first time that a pull is counted.
    pub(super) fn count_once(&mut self, peer: &Peer, id: u64) -> bool {
        let worker = peer.identity.index as usize;
        let Some(known) = self.workers.get_mut(worker) else { return false };
        if known.counted.contains(&id) {
            return false;
        }
        known.counted.push_back(id);
        if known.counted.len() > MAX_COUNTED {
            known.counted.pop_front();
        }
        true
    }
}

/// Servers of geo mode add differences to plain rows; anything else would make the copies of the
/// workers drift apart.
fn check_geo(tables: &[Table], dense: &Dense) -> Result<(), Error> {
    let sum = |rule: &Rule| matches!(rule, Rule::Sum(_));
    for table in tables {
        let rule = match &table.setup.config.accessor {
            Accessor::Plain(plain) => plain.rule,
            _ => return Err(not_geo(&table.setup.name, "rows are not plain")),
        };
        if !matches!(&rule, AnyRule::Optimizer(rule) if sum(rule)) {
            return Err(not_geo(
                &table.setup.name,
                "differences are added, but the rule is another",
            ));
        }
        if table.setup.config.admission != Admission::None {
            return Err(not_geo(
                &table.setup.name,
                "workers train all rows of their own copies, so ids cannot be admitted one by one",
            ));
        }
    }
    match dense.params().find(|(_, rule)| !sum(rule)) {
        Some((param, _)) => Err(not_geo(param, "differences are added, but the rule is another")),
        None => Ok(()),
    }
}

fn not_geo(name: &str, why: &str) -> Error {
    Error::Job(format!("'{name}' cannot be trained in geo mode: {why}"))
}

impl Waiting {
    pub(super) fn push(&self) -> Result<Push<'_>, Error> {
        match self.kind {
            Kind::PushPull => Push::decode_with_pull(&self.payload).map(|(push, _)| push),
            _ => Push::decode(&self.payload),
        }
    }

    pub(super) fn pull(&self) -> Result<Pull<'_>, Error> {
        match self.kind {
            Kind::PushPull => Push::decode_with_pull(&self.payload).map(|(_, pull)| pull),
            _ => Pull::decode(&self.payload),
        }
    }

    /// The step whose values it asks for, if it asks for values to train with.
    fn training_step(&self) -> Option<u64> {
        if self.kind == Kind::Push {
            return None;
        }
        self.pull().ok().filter(|pull| !pull.test).map(|pull| pull.step)
    }

    /// Whether this is a push that asks for dense values and no rows. As these are only looked at, a
    /// cut does not hold them back.
    fn wants_dense_alone(&self) -> bool {
        let alone = |p: Pull<'_>| p.dense && p.test && p.tables.iter().all(|t| t.keys.is_empty());
        self.kind == Kind::PushPull && self.pull().is_ok_and(alone)
    }
}

/// Answers; a worker that is gone will ask again or be missed, so a failure to send is not an error
/// here.
pub(super) fn reply(responder: Responder, payload: &[u8]) {
    let _ = responder.reply(STATUS_OK, &[payload]);
}

/// As [`reply`], with a buffer of the responder.
pub(super) fn give(responder: Responder, payload: Buf) {
    let _ = responder.reply_owned(STATUS_OK, payload);
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
