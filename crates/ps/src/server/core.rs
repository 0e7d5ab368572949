//! What a server holds and remembers.
//!
//! Locks: `state` may be held while tables and dense parameters are locked, never the other way
//! round; nothing is sent while `state` is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use regatta_net::{Peer, Responder};
use regatta_table::SparseTable;

use super::dense::Dense;
use super::geo::{ChangedRows, check_geo};
use super::prefetch::Hints;
use super::reduce::Reduction;
use super::request::Exchange;
use super::slot_reuse::SlotReuse;
use super::snapshot::{Me, ReadyWorker, SnapshotWriterCell};
use super::thread_pool::ThreadPool;
use super::{ServerConfig, TableSetup};
use crate::message::reply::refuse;
use crate::message::{ControlReply, ServerStats, TableStats};
use crate::rounds::{Clocks, Collector, Members};
use crate::shards::{Mark, Shards};
use crate::snapshot::SnapshotRound;
use crate::{Error, Mode};

/// Pulls of a worker whose appearances were counted and that may still come again: more than
/// requests can be in flight.
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
    pub(super) tables: Arc<Vec<Table>>,
    /// What workers will pull soon.
    pub(super) hints: Hints,
    pub(super) dense: Dense,
    /// Updates so far, which the learning rate follows.
    pub(super) steps: AtomicU64,
    state: Mutex<State>,
    /// Something that `watch` waits for has changed.
    pub(super) changed: Condvar,
    pub(super) slots: SlotReuse,
    pub(super) threads: ThreadPool,
    /// For geo mode.
    pub(super) changed_rows: Mutex<ChangedRows>,
    pub(super) busy_nanos: AtomicU64,
    /// The last snapshot on its way to disk.
    pub(super) writing: SnapshotWriterCell,
    pub(super) me: Me,
}

/// Who is where.
pub(super) struct State {
    pub(super) workers: Vec<Worker>,
    /// Workers that are there or still expected.
    pub(super) members: Members,
    /// Those of them that have batches: the ones that steps wait for.
    pub(super) training: Members,
    pub(super) sync: Collector<Exchange>,
    pub(super) reduce: Collector<Reduction>,
    /// The last reduction or gather and its answer, in case that is lost on the way.
    pub(super) last_reduction: (u64, Vec<u8>),
    pub(super) clocks: Clocks,
    /// Pulls that are too far ahead of the slowest worker, with their step.
    pub(super) early: Vec<(u64, Exchange)>,
    /// Workers that have nothing to do until the pass is over.
    pub(super) idle: Vec<(usize, Responder)>,
    pub(super) snapshot: SnapshotRound<ReadyWorker>,
    /// Answers to requests that must not be done twice: session, request, answer.
    pub(super) done_once: VecDeque<(u64, u64, ControlReply)>,
    pub(super) repeated: u64,
    /// Who trains which data.
    pub(super) shards: Shards,
    /// All workers are in a data pass; known on server 0.
    pub(super) in_pass: bool,
    /// Why the job cannot continue.
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

impl Core {
    pub(super) fn new(config: ServerConfig) -> Result<Core, Error> {
        config.mode.check()?;
        let table = |setup: &TableSetup| {
            let rows =
                SparseTable::new(setup.config.clone()).map_err(|e| Error::table(&setup.name, e))?;
            let counts = setup.config.admission.counts_appearances();
            Ok(Table { setup: setup.clone(), rows, counts })
        };
        let tables = config.tables.iter().map(table).collect::<Result<Vec<_>, Error>>()?;
        let dense = Dense::new(&config.dense)?;
        if matches!(config.mode, Mode::Geo { .. }) {
            check_geo(&tables, &dense)?;
        }
        let tables = Arc::new(tables);
        let workers = config.workers;
        let hints = Hints::new(&tables, workers)?;
        let changed = ChangedRows::new(workers, tables.len());
        let slots = SlotReuse::new(&config.mode, workers, tables.len());
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
            snapshot: SnapshotRound::default(),
            done_once: VecDeque::new(),
            repeated: 0,
            shards: Shards::new(workers),
            in_pass: false,
            failed: None,
        };
        Ok(Core {
            config,
            tables,
            hints,
            dense,
            steps: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            slots,
            threads: ThreadPool::new(),
            changed_rows: Mutex::new(changed),
            busy_nanos: AtomicU64::new(0),
            writing: SnapshotWriterCell::default(),
            me: Me::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a handler becomes an error reply; the bookkeeping is consistent at any time.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The number of the worker that asks, if it is one that takes part.
    pub(super) fn standing(&self, peer: &Peer) -> Result<usize, Error> {
        let worker = peer.identity.index as usize;
        let mut state = self.lock();
        let State { workers, failed, .. } = &mut *state;
        let Some(known) = workers.get_mut(worker) else {
            return Err(Error::Peer(self.no_such(worker)));
        };
        match known.session {
            None => {
                let reason = format!("worker {worker} has not said what job it belongs to");
                return Err(Error::Peer(reason));
            }
            Some(session) if session != peer.session => {
                return Err(Error::Peer(format!("another process is worker {worker} of this job")));
            }
            Some(_) => {}
        }
        if let Some(reason) = failed {
            known.told = true;
            self.changed.notify_all();
            return Err(Error::Peer(reason.clone()));
        }
        match &known.gone {
            None => Ok(worker),
            Some(reason) if known.has_left => Err(Error::Peer(reason.clone())),
            Some(reason) => Err(self.dropped(reason)),
        }
    }

    /// What a worker hears that was lost.
    pub(super) fn dropped(&self, reason: &str) -> Error {
        let (server, endpoint) = (self.config.index, self.config.endpoint.clone());
        Error::Dropped { server, endpoint, reason: reason.to_string() }
    }

    pub(super) fn no_such(&self, worker: usize) -> String {
        format!("there is no worker {worker}, this job has {}", self.config.workers)
    }

    /// Something failed half done, so that what this server holds is not to be trusted: nobody gets
    /// anything more.
    pub(super) fn break_down(&self, responder: Responder, e: &Error) {
        let reason = self.failure(e);
        self.fail(self.lock(), &reason);
        refuse(responder, &reason);
    }

    pub(super) fn failure(&self, e: &Error) -> String {
        format!("server {} failed: {e}", self.config.index)
    }

    /// Updates so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> ServerStats {
        let tables = self.tables.iter().map(|t| {
            let s = t.rows.stats().unwrap_or_default();
            let stats = TableStats::new(&s, t.setup.config.tier.as_ref());
            (t.setup.name.clone(), stats)
        });
        let tables = tables.collect();
        let state = self.lock();
        ServerStats {
            server: self.config.index,
            steps: self.steps(),
            repeated: state.repeated,
            largest_staleness: state.clocks.largest(),
            lost: state.lost(),
            tables,
            peak_rss_bytes: peak_rss_bytes(),
            busy_seconds: self.busy_nanos.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

/// What a push or exchange is, by its number.
pub(super) enum Arrival {
    /// The next one.
    New,
    /// It was applied; its answer was lost on the way.
    Again,
    /// One before it is missing.
    TooEarly(String),
}

impl Worker {
    /// A process that has done nothing yet.
    pub(super) fn of(peer: &Peer) -> Worker {
        Worker { session: Some(peer.session), ..Worker::default() }
    }

    /// How it was lost, if it was and has not come back.
    pub(super) fn loss(&self) -> Option<&String> {
        self.gone.as_ref().filter(|_| !self.has_left)
    }
}

impl State {
    /// Workers that were lost and have not come back, and how.
    pub(super) fn lost(&self) -> Vec<String> {
        self.workers.iter().filter_map(Worker::loss).cloned().collect()
    }

    pub(super) fn arrived(&mut self, worker: usize, sequence: u64) -> Arrival {
        let last = self.workers[worker].sequence;
        if sequence <= last {
            self.repeated += 1;
            return Arrival::Again;
        }
        if sequence > last + 1 {
            return Arrival::TooEarly(format!(
                "push {sequence} of worker {worker} came after push {last}: one between is lost"
            ));
        }
        Arrival::New
    }

    pub(super) fn applied(&mut self, worker: usize, sequence: u64, mark: Option<&Mark>) {
        self.workers[worker].sequence = sequence;
        if let Some(mark) = mark {
            self.shards.add(worker, mark);
        }
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

/// The largest resident memory of this process so far, or 0 where the system does not say.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kb = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}
