//! A group behind a thread of its own: ops start exchanges and continue to compute.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use regatta_collective::{Error as GroupError, Group, ReduceOp, Wire as GroupWire};
use regatta_ops::KernelError;
use regatta_ops::comm::{Comm, Exchange, Reply, Wire};

use crate::Error;

/// Exchanges that may wait for their turn; more make the step wait.
const QUEUE: usize = 256;

/// The way of a program to other ranks.
///
/// One thread owns the group and performs exchanges in the order in which they were started, which
/// is the same on all ranks. Every operation of the group has a limit, so every exchange ends.
pub struct GroupComm {
    rank: usize,
    size: usize,
    jobs: Option<SyncSender<Job>>,
    done: Arc<ReplyBoard>,
    /// Buffers that came back, by exchange.
    spare: Mutex<HashMap<Arc<str>, Reply>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Exchange(Arc<str>, Exchange),
    /// Anything else that needs the group.
    Call(Box<dyn FnOnce(&mut Group) + Send>),
    /// Says goodbye to the others, then answers.
    Leave(SyncSender<()>),
}

/// Replies of finished exchanges, and a signal for new ones.
#[derive(Default)]
struct ReplyBoard {
    replies: Mutex<Replies>,
    changed: Condvar,
}

#[derive(Default)]
struct Replies {
    by_name: HashMap<Arc<str>, Result<Reply, GroupError>>,
    /// The thread has ended: nothing more will come.
    ended: bool,
}

impl ReplyBoard {
    fn lock(&self) -> MutexGuard<'_, Replies> {
        // A panic elsewhere leaves the map as it was between two insertions.
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupComm {
    /// Gives a group to a thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn new(group: Group) -> Result<GroupComm, Error> {
        let (rank, size) = (group.rank(), group.size());
        let (jobs, queue) = sync_channel(QUEUE);
        let done = Arc::new(ReplyBoard::default());
        let for_thread = Arc::clone(&done);
        let thread = std::thread::Builder::new()
            .name("regatta-comm".into())
            .spawn(move || perform(group, &queue, &for_thread))
            .map_err(|e| Error::Config(format!("cannot start the communication thread: {e}")))?;
        let (spare, thread) = (Mutex::default(), Some(thread));
        Ok(GroupComm { rank, size, jobs: Some(jobs), done, spare, thread })
    }

    /// Lets the thread do something with the group, after everything that was started before, and
    /// waits for the result.
    ///
    /// # Errors
    /// If the group fails, or has failed before.
    pub fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Group) -> Result<T, GroupError> + Send + 'static,
    ) -> Result<T, Error> {
        let (to, from) = sync_channel(1);
        let job = Job::Call(Box::new(move |group| {
            let _ = to.send(work(group));
        }));
        self.send(job).map_err(|e| Error::Config(e.to_string()))?;
        match from.recv() {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(Error::Config(gone().to_string())),
        }
    }

    /// Leaves the group, after everything that was started before. Later exchanges are errors.
    pub fn leave(&self) {
        let (to, from) = sync_channel(1);
        if self.send(Job::Leave(to)).is_ok() {
            // An end without an answer is an end, too.
            let _ = from.recv();
        }
    }

    /// Waits for the exchange of that name, but not longer than a limit: `None` then.
    ///
    /// # Errors
    /// If the group has failed.
    pub fn wait_for(&self, name: &str, limit: Duration) -> Result<Option<Reply>, Error> {
        let mut replies = self.done.lock();
        let deadline = Instant::now() + limit;
        loop {
            if let Some(reply) = replies.by_name.remove(name) {
                return Ok(Some(reply?));
            }
            if replies.ended {
                return Err(Error::Config(gone().to_string()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let woken = self.done.changed.wait_timeout(replies, left);
            replies = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn spare(&self) -> MutexGuard<'_, HashMap<Arc<str>, Reply>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, job: Job) -> Result<(), KernelError> {
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job).map_err(|_| gone())
    }
}

impl Drop for GroupComm {
    fn drop(&mut self) {
        // Without a sender the thread ends after what it has begun; then the group says goodbye.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn gone() -> KernelError {
    KernelError("the communication thread has ended".into())
}

impl Comm for GroupComm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn start(&self, name: &Arc<str>, exchange: Exchange) -> Result<(), KernelError> {
        self.send(Job::Exchange(Arc::clone(name), exchange))
    }

    fn wait(&self, name: &str) -> Result<Reply, KernelError> {
        let mut replies = self.done.lock();
        loop {
            if let Some(reply) = replies.by_name.remove(name) {
                return reply.map_err(|e| KernelError(e.to_string()));
            }
            if replies.ended {
                return Err(gone());
            }
            // The thread answers every exchange within the limit of the group.
            let woken = self.done.changed.wait(replies);
            replies = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn take_buffer(&self, name: &str) -> Vec<f32> {
        match self.spare().get_mut(name) {
            Some(Reply::Floats(buffer)) => std::mem::take(buffer),
            _ => Vec::new(),
        }
    }

    fn give_buffer(&self, name: &Arc<str>, buffer: Vec<f32>) {
        self.spare().insert(Arc::clone(name), Reply::Floats(buffer));
    }

    fn take_parts(&self, name: &str) -> Vec<Vec<u8>> {
        match self.spare().get_mut(name) {
            Some(Reply::Gathered(parts)) => std::mem::take(parts),
            _ => Vec::new(),
        }
    }

    fn give_parts(&self, name: &Arc<str>, parts: Vec<Vec<u8>>) {
        self.spare().insert(Arc::clone(name), Reply::Gathered(parts));
    }
}

/// The life of the thread.
fn perform(group: Group, queue: &Receiver<Job>, done: &ReplyBoard) {
    /// Wakes waiting threads, however the thread ends.
    struct EndGuard<'a>(&'a ReplyBoard);
    impl Drop for EndGuard<'_> {
        fn drop(&mut self) {
            self.0.lock().ended = true;
            self.0.changed.notify_all();
        }
    }
    let _ended = EndGuard(done);
    let mut groups = Groups { world: group, nodes: None };
    while let Ok(job) = queue.recv() {
        match job {
            Job::Call(work) => work(&mut groups.world),
            Job::Leave(answer) => {
                drop(groups);
                let _ = answer.send(());
                return;
            }
            Job::Exchange(name, exchange) => {
                let reply = groups.perform(&name, exchange);
                done.lock().by_name.insert(name, reply);
                done.changed.notify_all();
            }
        }
    }
}

/// All ranks, and the two levels of a hierarchical all-reduce once there was one.
struct Groups {
    world: Group,
    nodes: Option<Nodes>,
}

struct Nodes {
    ranks: usize,
    /// The ranks of this node.
    node: Group,
    /// Ranks with the same position in their nodes; those at position 0 are the leaders.
    across: Group,
}

impl Groups {
    fn perform(&mut self, name: &str, exchange: Exchange) -> Result<Reply, GroupError> {
        match exchange {
            Exchange::AllReduce { mut values, wire, node_ranks: 0 } => {
                self.world.all_reduce(name, &mut values, ReduceOp::Sum, on_wire(wire))?;
                Ok(Reply::Floats(values))
            }
            Exchange::AllReduce { mut values, wire, node_ranks } => {
                self.in_two_levels(name, &mut values, on_wire(wire), node_ranks)?;
                Ok(Reply::Floats(values))
            }
            Exchange::Reduce { mut values, root } => {
                self.world.reduce(name, &mut values, ReduceOp::Sum, root)?;
                Ok(Reply::Floats(values))
            }
            Exchange::Broadcast { mut values, root } => {
                self.world.broadcast(name, &mut values, root)?;
                Ok(Reply::Floats(values))
            }
            Exchange::AllGather { bytes, mut spare } => {
                spare.resize_with(self.world.size(), Vec::new);
                spare[self.world.rank()] = bytes;
                self.world.all_gather_parts(name, &mut spare)?;
                Ok(Reply::Gathered(spare))
            }
        }
    }

    /// Adds up within the node, then among the leaders, and broadcasts the result within the node.
    fn in_two_levels(
        &mut self,
        name: &str,
        values: &mut [f32],
        wire: GroupWire,
        ranks: usize,
    ) -> Result<(), GroupError> {
        if self.nodes.as_ref().is_none_or(|nodes| nodes.ranks != ranks) {
            let rank = self.world.rank();
            let (node, position) = ((rank / ranks) as u64, (rank % ranks) as u64);
            let node = self.world.split(node, position)?;
            let across = self.world.split(position, rank as u64)?;
            self.nodes = Some(Nodes { ranks, node, across });
        }
        let Some(Nodes { node, across, .. }) = &mut self.nodes else { return Ok(()) };
        node.reduce(name, values, ReduceOp::Sum, 0)?;
        if node.rank() == 0 {
            across.all_reduce(name, values, ReduceOp::Sum, wire)?;
        }
        node.broadcast(name, values, 0)
    }
}

fn on_wire(wire: Wire) -> GroupWire {
    match wire {
        Wire::F32 => GroupWire::F32,
        Wire::F16 => GroupWire::F16,
        Wire::Bf16 => GroupWire::Bf16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_have_limits_and_who_has_left_is_named() {
        let mut groups = Group::in_memory(2).unwrap();
        let second = GroupComm::new(groups.pop().unwrap()).unwrap();
        let first = GroupComm::new(groups.pop().unwrap()).unwrap();
        let name: Arc<str> = "sum".into();
        let sum = |comm: &GroupComm| {
            let exchange =
                Exchange::AllReduce { values: vec![1.0], wire: Wire::F32, node_ranks: 0 };
            comm.start(&name, exchange).unwrap();
        };
        sum(&first);
        assert!(first.wait_for(&name, Duration::from_millis(1)).unwrap().is_none());
        sum(&second);
        let long = Duration::from_secs(60);
        let Some(Reply::Floats(values)) = first.wait_for(&name, long).unwrap() else {
            panic!("an all-reduce brings floats")
        };
        assert_eq!(values, [2.0]);
        second.leave();
        sum(&first);
        let error = first.wait_for(&name, long).unwrap_err().to_string();
        assert!(error.contains("rank 1 has left"), "{error}");
        assert!(second.start(&name, Exchange::gather(vec![])).is_err());
    }
}
