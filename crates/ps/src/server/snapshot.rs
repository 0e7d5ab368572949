//! A server's part of a snapshot: values are held back until every worker is ready, then the
//! snapshot is kept and written by a thread of its own while training continues.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use regatta_checkpoint::Part;
use regatta_checkpoint::server_parts::ServerSnapshot;
use regatta_net::Responder;
use regatta_table::{SaveMode, Scope, SparseTable};

use super::core::{Core, State};
use crate::Error;
use crate::message::reply::{defer, refuse, reply};
use crate::message::{ControlReply, Idle, SnapshotTaken};
use crate::snapshot::{Ready, SnapshotId, SnapshotScope};

/// A worker that is ready for a snapshot.
pub(super) struct ReadyWorker {
    pub(super) state: String,
    pub(super) own_part: bool,
    pub(super) responder: Responder,
}

/// The copy of a snapshot on its way to disk; one at a time.
#[derive(Default)]
pub(super) struct SnapshotWriter {
    /// Number of the last snapshot that was taken.
    id: SnapshotId,
    /// What worker 0 was answered.
    taken: SnapshotTaken,
    /// Where the next one goes, and what it gives.
    dir: String,
    scope: SnapshotScope,
    /// What was written, until worker 0 says whether it is stored.
    kept: Option<ServerSnapshot>,
    outcome: Option<Result<Vec<Part>, String>>,
    /// Workers that write parts of their own, and what they have reported.
    expected: BTreeSet<usize>,
    own_parts: BTreeMap<usize, Result<Part, String>>,
    /// Who waits for it.
    waiting: Option<Responder>,
    thread: Option<JoinHandle<()>>,
}

/// The server itself, for the thread that writes.
pub(super) type Me = std::sync::OnceLock<Weak<Core>>;

impl Core {
    fn writing(&self) -> MutexGuard<'_, SnapshotWriter> {
        self.writing.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Worker 0 opens a snapshot. In sync mode the step that is being collected comes before it, in
    /// other modes whatever arrives before the workers are ready.
    pub(super) fn open_snapshot(
        &self,
        id: SnapshotId,
        dir: &str,
        scope: SnapshotScope,
    ) -> Result<(), Error> {
        let mut state = self.lock();
        let from_step = if self.config.mode.is_sync() { state.sync.round() } else { 0 };
        state.snapshot.open(id, from_step).map_err(Error::Usage)?;
        {
            let mut writing = self.writing();
            (writing.dir, writing.scope) = (dir.to_string(), scope);
        }
        let early = std::mem::take(&mut state.early);
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        early.into_iter().for_each(|(_, waiting)| defer(waiting.responder));
        idle.into_iter().for_each(|(_, responder)| say_idle(responder, Idle::Snapshot));
        Ok(())
    }

    /// A worker has nothing to do until the pass is over, but takes part in snapshots.
    pub(super) fn idle(&self, worker: usize, responder: Responder) {
        let mut state = self.lock();
        if state.snapshot.current().is_some() {
            drop(state);
            return say_idle(responder, Idle::Snapshot);
        }
        state.idle.retain(|(other, _)| *other != worker);
        state.idle.push((worker, responder));
        self.end_pass(state);
    }

    /// Gives shards of lost workers to those that wait for the end of the pass, or lets them go if
    /// it is over.
    pub(super) fn end_pass(&self, mut state: MutexGuard<'_, State>) {
        if state.snapshot.current().is_some() {
            return;
        }
        let mut answers = self.give_orphans(&mut state);
        let State { training, shards, members, idle, .. } = &mut *state;
        if training.is_empty() && shards.next_orphan(members).is_none() {
            let untrained: Vec<usize> = shards.orphans(members).collect();
            let over = Idle::PassOver { untrained };
            answers.extend(idle.drain(..).map(|(_, responder)| (responder, over.clone())));
            state.in_pass = false;
        }
        drop(state);
        answers.into_iter().for_each(|(responder, idle)| say_idle(responder, idle));
    }

    /// A worker has nothing in flight; the last one to come completes the snapshot.
    pub(super) fn ready(&self, worker: usize, id: SnapshotId, ready_worker: ReadyWorker) {
        let mut state = self.lock();
        let State { snapshot, members, .. } = &mut *state;
        match snapshot.ready(worker, id, ready_worker, members) {
            Ready::Waiting => {}
            Ready::Complete(id, workers) => {
                drop(state);
                self.take(id, workers);
            }
            Ready::Past(again) => {
                drop(state);
                let taken = self.taken(worker, id);
                reply(again.responder, &ControlReply::Taken(taken).encode());
            }
        }
    }

    /// The answer to a worker that was ready; an empty one if the snapshot was given up.
    fn taken(&self, worker: usize, id: SnapshotId) -> SnapshotTaken {
        let writing = self.writing();
        let taken = if writing.id == id { writing.taken.clone() } else { SnapshotTaken::default() };
        match worker {
            0 => taken,
            _ => SnapshotTaken { states: vec![], orphans: vec![], ..taken },
        }
    }

    /// Everybody waits and nothing is in flight: keeps this snapshot and lets everybody continue.
    pub(super) fn take(&self, id: SnapshotId, workers: Vec<(usize, ReadyWorker)>) {
        let start = Instant::now();
        let own_parts = workers.iter().filter(|(_, at)| at.own_part).map(|(w, _)| *w).collect();
        let states = workers.iter().map(|(w, at)| (*w, at.state.clone())).collect();
        let orphans = self.lock().orphans();
        let taken = self.take_snapshot().and_then(|snapshot| {
            let (dir, copy_seconds) = (self.writing().dir.clone(), start.elapsed().as_secs_f64());
            let taken = SnapshotTaken { states, dir, copy_seconds, orphans };
            self.begin_to_write(id, taken, snapshot, own_parts)
        });
        if let Err(e) = taken {
            workers.into_iter().for_each(|(_, at)| self.break_down(at.responder, &e));
            return;
        }
        for (worker, ready_worker) in workers {
            let taken = self.taken(worker, id);
            reply(ready_worker.responder, &ControlReply::Taken(taken).encode());
        }
    }

    fn take_snapshot(&self) -> Result<ServerSnapshot, Error> {
        let (dir, scope, last) = {
            let mut writing = self.writing();
            (writing.dir.clone(), writing.scope, writing.kept.take())
        };
        // Nobody has said that the last one is stored, so it counts as lost.
        if let Some(last) = last {
            last.end(&self.named_tables(), false)?;
        }
        let scope = match scope {
            SnapshotScope::Whole | SnapshotScope::Base => Scope::Rows(SaveMode::All),
            SnapshotScope::Changes => Scope::Changes,
        };
        let (dir, tables) = (Path::new(&dir), self.named_tables().into_iter());
        let dense = self.dense.export()?;
        Ok(ServerSnapshot::take(dir, tables, scope, dense, self.steps())?)
    }

    fn named_tables(&self) -> Vec<(&str, &SparseTable)> {
        self.tables.iter().map(|t| (t.setup.name.as_str(), &t.rows)).collect()
    }

    /// Worker 0 says whether the checkpoint of a snapshot is stored. Saying it again changes
    /// nothing.
    pub(super) fn stored(&self, id: SnapshotId, stored: bool) -> Result<(), Error> {
        let kept = {
            let mut writing = self.writing();
            let is_it = writing.id == id;
            writing.kept.take_if(|_| is_it)
        };
        if let Some(snapshot) = kept {
            snapshot.end(&self.named_tables(), stored)?;
        }
        Ok(())
    }

    fn begin_to_write(
        &self,
        id: SnapshotId,
        taken: SnapshotTaken,
        snapshot: ServerSnapshot,
        expected: BTreeSet<usize>,
    ) -> Result<(), Error> {
        let me = self.me.get().and_then(Weak::upgrade);
        let core = me.ok_or_else(|| Error::peer("this server is ending"))?;
        let mut writing = self.writing();
        if let Some(thread) = writing.thread.take() {
            // Its outcome is known: worker 0 opens no snapshot before.
            let _ = thread.join();
        }
        let scope = writing.scope;
        (writing.id, writing.taken, writing.outcome) = (id, taken, None);
        (writing.expected, writing.own_parts) = (expected, BTreeMap::new());
        let work = move || core.write(scope, snapshot);
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(work);
        writing.thread =
            Some(thread.map_err(|e| Error::internal(format!("cannot start a thread: {e}")))?);
        Ok(())
    }

    /// Writes a snapshot and tells who waits for it.
    fn write(self: Arc<Core>, scope: SnapshotScope, mut snapshot: ServerSnapshot) {
        let tables = self.named_tables();
        let part = (self.config.index, self.config.servers);
        let mut outcome = snapshot.write(part, &tables);
        let mut kept = Some(snapshot);
        if scope == SnapshotScope::Whole {
            let ended = kept.take().map_or(Ok(()), |snapshot| snapshot.end(&tables, false));
            outcome = outcome.and_then(|parts| ended.map(|()| parts));
        }
        let mut writing = self.writing();
        writing.kept = kept;
        writing.outcome = Some(outcome.map_err(|e| e.to_string()));
        tell(&mut writing);
    }

    /// Worker 0 wants to know when a snapshot is written.
    pub(super) fn written(&self, id: SnapshotId, responder: Responder) {
        let mut writing = self.writing();
        if writing.id != id {
            let reason = format!("snapshot {id} is not being written");
            drop(writing);
            return refuse(responder, &reason);
        }
        writing.waiting = Some(responder);
        tell(&mut writing);
    }

    /// A worker reports its own part.
    pub(super) fn own_part(&self, worker: usize, id: SnapshotId, part: Result<Part, String>) {
        let mut writing = self.writing();
        if writing.id == id {
            writing.own_parts.insert(worker, part);
            tell(&mut writing);
        }
    }

    /// A worker is lost, and so is the part of it that is not written yet.
    pub(super) fn lose_own_part(&self, worker: usize) {
        let mut writing = self.writing();
        let reason = format!("worker {worker} is lost, and its part with it");
        writing.own_parts.entry(worker).or_insert(Err(reason));
        tell(&mut writing);
    }

    /// Worker 0 is lost: nobody will publish what the snapshot gives, and nobody need wait for it.
    pub(super) fn give_up_snapshot(&self, mut state: MutexGuard<'_, State>) {
        let given_up = state.snapshot.give_up();
        drop(state);
        for (_, ready_worker) in given_up.into_iter().flat_map(|(_, workers)| workers) {
            reply(ready_worker.responder, &ControlReply::Taken(SnapshotTaken::default()).encode());
        }
    }

    /// Waits for the thread that writes, if there is one.
    pub(super) fn finish_writing(&self) {
        let thread = self.writing().thread.take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Answers who waits for the outcome, if all of it is there.
fn tell(writing: &mut SnapshotWriter) {
    let SnapshotWriter { outcome: Some(outcome), expected, own_parts, waiting, .. } = writing
    else {
        return;
    };
    if !expected.iter().all(|worker| own_parts.contains_key(worker)) {
        return;
    }
    let Some(responder) = waiting.take() else { return };
    let own = own_parts.iter().filter(|(worker, _)| expected.contains(worker));
    let own: Result<Vec<Part>, String> = own.map(|(_, part)| part.clone()).collect();
    let all = outcome.clone().and_then(|parts| Ok(parts.into_iter().chain(own?).collect()));
    match all {
        Ok(parts) => reply(responder, &ControlReply::Written(parts).encode()),
        Err(reason) => refuse(responder, &reason),
    }
}

fn say_idle(responder: Responder, idle: Idle) {
    reply(responder, &ControlReply::Idle(idle).encode());
}

/// Where the copy of a snapshot is written.
pub(super) type SnapshotWriterCell = Mutex<SnapshotWriter>;
