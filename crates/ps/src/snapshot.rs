//! One snapshot through all servers and workers: the bookkeeping of one server. Pure; whoever
//! completes a snapshot takes the copy.
//!
//! Worker 0 opens a snapshot on every server. From then on a server gives out no values for steps
//! after the snapshot, so every worker comes to it at its next batch boundary, with nothing of its
//! own under way, and says that it is ready. When all of them are, nothing is in flight anywhere:
//! what the servers hold now, together with what the workers are ready with, is one state of the
//! whole job. Servers copy it in memory, let everybody continue, and write the copy while training
//! continues.
//!
//! Why all servers take the same snapshot: a worker is ready for a snapshot only after all servers
//! have acknowledged everything it sent, and sends nothing more before all servers have taken their
//! copy.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::rounds::Members;

/// Number of a snapshot, rising within a job.
pub type SnapshotId = u64;

/// A snapshot that worker 0 wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOrder {
    /// Where servers and workers write their parts.
    pub dir: PathBuf,
    /// What of the tables is written.
    pub scope: SnapshotScope,
}

/// What of the tables a snapshot gives; everything else is always written whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotScope {
    /// Everything.
    #[default]
    Whole,
    /// Everything, and later snapshots may ask for what has changed since.
    Base,
    /// What has changed since the last snapshot that was stored.
    Changes,
}

/// The snapshot of one server that is open, if any, and the workers that are ready for it.
#[derive(Debug)]
pub struct SnapshotRound<T> {
    /// The last one that was taken or given up; 0 before the first.
    last: SnapshotId,
    open: Option<Open<T>>,
}

#[derive(Debug)]
struct Open<T> {
    id: SnapshotId,
    /// Values for this step and later ones are not given out.
    from_step: u64,
    ready: BTreeMap<usize, T>,
}

/// What became of a worker that is ready.
#[derive(Debug, PartialEq)]
pub enum Ready<T> {
    /// Others are still to come.
    Waiting,
    /// That was the last one: all workers with what they brought, in order.
    Complete(SnapshotId, Vec<(usize, T)>),
    /// The snapshot was taken before; this comes again because the answer was lost.
    Past(T),
}

impl<T> Default for SnapshotRound<T> {
    fn default() -> SnapshotRound<T> {
        SnapshotRound { last: 0, open: None }
    }
}

impl<T> SnapshotRound<T> {
    /// Opens a snapshot before `from_step`. Opening it again changes nothing.
    ///
    /// # Errors
    /// If another one is open, or one that is not older was taken.
    pub fn open(&mut self, id: SnapshotId, from_step: u64) -> Result<(), String> {
        match &self.open {
            Some(open) if open.id == id => Ok(()),
            Some(open) => {
                Err(format!("snapshot {id} begins while snapshot {} is not over", open.id))
            }
            None if id == self.last => Ok(()),
            None if id < self.last => {
                Err(format!("snapshot {id} comes after snapshot {}", self.last))
            }
            None => {
                self.open = Some(Open { id, from_step, ready: BTreeMap::new() });
                Ok(())
            }
        }
    }

    /// The snapshot that is open.
    pub fn current(&self) -> Option<SnapshotId> {
        self.open.as_ref().map(|open| open.id)
    }

    /// The last one that was taken or given up; 0 before the first.
    pub fn last(&self) -> SnapshotId {
        self.last
    }

    /// Whether values for a step must wait until a snapshot is over.
    pub fn defers(&self, step: u64) -> bool {
        self.open.as_ref().is_some_and(|open| step >= open.from_step)
    }

    /// A worker has nothing in flight. A second time (after a reconnect) replaces the first. A
    /// worker that heard of the snapshot from another server may come before worker 0 has opened it
    /// here.
    pub fn ready(
        &mut self,
        worker: usize,
        id: SnapshotId,
        brought: T,
        members: &Members,
    ) -> Ready<T> {
        if id <= self.last {
            return Ready::Past(brought);
        }
        let new = || Open { id, from_step: 0, ready: BTreeMap::new() };
        self.open.get_or_insert_with(new).ready.insert(worker, brought);
        match self.complete(members) {
            Some((id, all)) => Ready::Complete(id, all),
            None => Ready::Waiting,
        }
    }

    /// All that is ready, if every member is; the snapshot is over then. To be called when a member
    /// has left.
    pub fn complete(&mut self, members: &Members) -> Option<(SnapshotId, Vec<(usize, T)>)> {
        let open = self.open.as_ref()?;
        if members.is_empty() || !members.iter().all(|w| open.ready.contains_key(&w)) {
            return None;
        }
        self.give_up()
    }

    /// Ends the snapshot that is open without taking it; those that are ready come back.
    pub fn give_up(&mut self) -> Option<(SnapshotId, Vec<(usize, T)>)> {
        let open = self.open.take()?;
        self.last = open.id;
        Some((open.id, open.ready.into_iter().collect()))
    }

    /// Members that are not ready for the snapshot that is open.
    pub fn missing<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = usize> + 'a {
        let open = self.open.as_ref();
        members.iter().filter(move |w| open.is_some_and(|o| !o.ready.contains_key(w)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_snapshot_is_taken_when_everybody_is_ready() {
        let members = Members::new(2);
        let mut snapshot = SnapshotRound::default();
        snapshot.open(1, 5).unwrap();
        snapshot.open(1, 9).unwrap();
        assert!(snapshot.open(2, 5).unwrap_err().contains("snapshot 1 is not over"));
        assert!(!snapshot.defers(4) && snapshot.defers(5) && snapshot.defers(6));
        assert_eq!(snapshot.ready(1, 1, 'b', &members), Ready::Waiting);
        assert_eq!(snapshot.ready(1, 1, 'B', &members), Ready::Waiting);
        assert_eq!(snapshot.missing(&members).collect::<Vec<_>>(), [0]);
        assert_eq!(
            snapshot.ready(0, 1, 'a', &members),
            Ready::Complete(1, vec![(0, 'a'), (1, 'B')])
        );
        assert!(!snapshot.defers(7));
        assert_eq!(snapshot.ready(0, 1, 'a', &members), Ready::Past('a'));
        snapshot.open(1, 5).unwrap();
        assert_eq!(snapshot.current(), None);
        snapshot.open(2, 8).unwrap();
        assert_eq!(snapshot.current(), Some(2));
        assert_eq!(snapshot.ready(0, 2, 'a', &members), Ready::Waiting);
        snapshot.give_up();
        assert_eq!(snapshot.ready(1, 3, 'b', &members), Ready::Waiting);
        snapshot.open(3, 5).unwrap();
        assert!(snapshot.defers(0));
    }

    #[test]
    fn nobody_waits_for_those_that_have_left() {
        let mut members = Members::new(3);
        let mut snapshot = SnapshotRound::default();
        snapshot.open(1, 0).unwrap();
        snapshot.ready(0, 1, 'a', &members);
        snapshot.ready(2, 1, 'c', &members);
        members.leave(2);
        assert_eq!(snapshot.complete(&members), None);
        members.leave(1);
        assert_eq!(snapshot.complete(&members), Some((1, vec![(0, 'a'), (2, 'c')])));
    }

    /// A job as the module describes it, with messages that arrive in any order between different
    /// pairs of processes: every server takes the same pushes of every worker, and the job
    /// continues.
    struct Job {
        servers: Vec<Server>,
        workers: Vec<Worker>,
        /// By worker and server, in order.
        wires: Vec<Vec<std::collections::VecDeque<Message>>>,
    }

    /// Its snapshot, pushes by worker, and those at the snapshot.
    type Server = (SnapshotRound<()>, Vec<u64>, Option<Vec<u64>>);

    #[derive(Debug, Clone, Copy)]
    enum Message {
        Open,
        Pull,
        Push,
        Ready,
    }

    #[derive(Default, Clone)]
    struct Worker {
        /// Answers that are awaited.
        open: usize,
        denied: bool,
        ready_worker: bool,
        pushed: u64,
        has_opened: bool,
    }

    impl Job {
        fn send(&mut self, w: usize, message: Message) {
            self.wires[w].iter_mut().for_each(|wire| wire.push_back(message));
            if !matches!(message, Message::Open) {
                self.workers[w].open = self.servers.len();
            }
        }

        /// A worker that waits for nothing does its next thing.
        fn act(&mut self, w: usize, total: u64, snapshot_at: u64) {
            let n = self.workers[w].pushed;
            if w == 0 && n == snapshot_at && !self.workers[0].has_opened {
                self.workers[0].has_opened = true;
                self.send(0, Message::Open);
            }
            if self.workers[w].ready_worker {
                // Answered by all servers: the snapshot is over.
                self.workers[w].ready_worker = false;
            }
            if self.workers[w].denied {
                (self.workers[w].denied, self.workers[w].ready_worker) = (false, true);
                self.send(w, Message::Ready);
            } else if n < total {
                // A pull, and if it is granted a push: here both in turn.
                self.send(w, Message::Pull);
            }
        }

        fn deliver(&mut self, w: usize, s: usize, members: &Members) {
            let message = self.wires[w][s].pop_front().unwrap();
            let (snapshot, pushed, taken) = &mut self.servers[s];
            match message {
                Message::Open => snapshot.open(1, 0).unwrap(),
                Message::Push => {
                    pushed[w] += 1;
                    self.answer(w);
                }
                Message::Pull => {
                    self.workers[w].denied |= snapshot.defers(u64::MAX);
                    self.answer(w);
                    if self.workers[w].open == 0 && !self.workers[w].denied {
                        self.workers[w].pushed += 1;
                        self.send(w, Message::Push);
                    }
                }
                Message::Ready => {
                    if let Ready::Complete(_, all) = snapshot.ready(w, 1, (), members) {
                        *taken = Some(pushed.clone());
                        all.into_iter().for_each(|(w, ())| self.answer(w));
                    }
                }
            }
        }

        fn answer(&mut self, w: usize) {
            self.workers[w].open -= 1;
        }
    }

    proptest! {
        #[test]
        fn all_servers_take_the_same_snapshot(
            servers in 1usize..4, workers in 1usize..4, snapshot_at in 0u64..6, seed: u64,
        ) {
            let rng = regatta_tensor::Rng::new(seed, 0);
            let total = 8;
            let members = Members::new(workers);
            let server = |_| (SnapshotRound::default(), vec![0; workers], None);
            let mut job = Job {
                servers: (0..servers).map(server).collect(),
                workers: vec![Worker::default(); workers],
                wires: vec![vec![Default::default(); servers]; workers],
            };
            let mut draws = 0;
            loop {
                let mut moves: Vec<(usize, Option<usize>)> = Vec::new();
                for w in 0..workers {
                    let idle = job.workers[w].open == 0;
                    // Who has no more batches still comes to the snapshot.
                    let snapshot_open = job.servers[0].0.current().is_some();
                    let ends = job.workers[w].pushed == total && !job.workers[w].denied;
                    if idle && ends && snapshot_open {
                        job.workers[w].denied = true;
                    }
                    let stands = ends && !(idle && snapshot_open) && !job.workers[w].ready_worker;
                    if idle && !stands {
                        moves.push((w, None));
                    }
                    let full = (0..servers).filter(|&s| !job.wires[w][s].is_empty());
                    moves.extend(full.map(|s| (w, Some(s))));
                }
                if moves.is_empty() {
                    break;
                }
                draws += 1;
                match moves[(rng.u64(draws) % moves.len() as u64) as usize] {
                    (w, None) => job.act(w, total, snapshot_at),
                    (w, Some(s)) => job.deliver(w, s, &members),
                }
            }
            let first = job.servers[0].2.clone();
            prop_assert!(first.is_some());
            for (_, pushed, taken) in &job.servers {
                prop_assert_eq!(taken, &first);
                prop_assert!(pushed.iter().all(|&n| n == total), "{:?}", pushed);
            }
        }
    }
}
