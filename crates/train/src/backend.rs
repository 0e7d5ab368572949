//! What differs between the kinds of training: how a step exchanges values, and with whom.
//!
//! In: batches that [`run_pass`](crate::run_pass) has read. Out: steps that are done, snapshots. A
//! backend never prints, counts examples or touches files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_checkpoint::{CheckpointConfig, Part, Topology, try_dir};
use regatta_data::FileRead;
use regatta_exec::{RoleTimes, Scope};
use regatta_ps::message::{ReduceOp, ServerStats};
use regatta_ps::{
    Client, DataStart, Idle, Progress, Rejoined, SnapshotOrder, TakenShard, WrittenTicket,
};
use regatta_table::SaveMode;
use regatta_tensor::Tensor;

use crate::Error;
use crate::input::{Input, Next};
use crate::marks::HeldShard;

/// One process in training: alone, with parameter servers, with servers and a copy of its own, or
/// as one of several ranks.
///
/// A data pass is a conversation: [`advance`](Backend::advance) does what can be done and returns
/// what it needs, until it returns [`Turn::End`].
pub trait Backend {
    /// The connections to servers, where there are any.
    fn client(&self) -> Option<&Client> {
        None
    }

    /// This process among those that train, from 0. The first one decides and writes.
    fn worker(&self) -> usize {
        self.client().map_or(0, Client::worker)
    }

    /// Number of processes that train.
    fn workers(&self) -> usize {
        self.client().map_or(1, Client::workers)
    }

    /// The kind of job and its size, for the manifests of checkpoints.
    fn topology(&self) -> Topology;

    /// What computes, if it is not the processors.
    fn device(&self) -> Option<String> {
        None
    }

    /// Steps of the job, which a checkpoint keeps.
    fn step(&self) -> u64;

    /// Continues after this many steps.
    fn set_step(&mut self, step: u64);

    /// Chooses what [`Backend::fetched`] shows after a step.
    fn set_fetch(&mut self, fetch: &[&str]);

    /// What was fetched in the last step.
    fn fetched(&self) -> &[Tensor];

    /// Gives all workers the same values, at the beginning of a job. `servers_have_values`: they
    /// have loaded a model, and worker 0 has nothing to send.
    ///
    /// # Errors
    /// If a worker, rank or server is gone, or has another program.
    fn start(&mut self, scope: &mut Scope, servers_have_values: bool) -> Result<(), Error> {
        let _ = (scope, servers_have_values);
        Ok(())
    }

    /// The same after a restart, with what a checkpoint holds; a note for the user, if there is
    /// one.
    ///
    /// # Errors
    /// As [`Backend::start`], or if values of this program are missing.
    fn restore(
        &mut self,
        scope: &mut Scope,
        restored: RestoredState,
    ) -> Result<Option<&'static str>, Error> {
        let step = restored.put_into(scope);
        self.set_step(step);
        self.start(scope, true).map(|()| None)
    }

    /// Begins a data pass; with `start`, others can take over the data of a worker that is lost.
    ///
    /// # Errors
    /// If a server is gone.
    fn begin_pass(&mut self, start: Option<PassStart>) -> Result<(), Error> {
        let _ = start;
        Ok(())
    }

    /// Ends a data pass that a program has made step by step: servers have all that this process
    /// has changed.
    ///
    /// # Errors
    /// If a server is gone.
    fn end_pass(&mut self) -> Result<(), Error> {
        self.before_meeting()
    }

    /// A batch of a shard is counted: the next push brings servers to know.
    fn progressed(&mut self, batch: &BatchProgress<'_>) {
        let _ = batch;
    }

    /// Does everything that can be done now; returns what is needed, or what is done.
    ///
    /// # Errors
    /// If a step or an exchange fails.
    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error>;

    /// The answer to [`Turn::Read`].
    ///
    /// # Errors
    /// If another process is gone.
    fn give(&mut self, next: Next) -> Result<(), Error>;

    /// How many batches the backend wants to see before they are given, by [`Backend::prefetch`].
    fn lookahead(&self) -> usize {
        0
    }

    /// Will be given after all batches that were announced before: time to fetch what it needs.
    /// This never waits, and what is wrong with a batch is said when it is given.
    fn prefetch(&mut self, input: &Input) {
        let _ = input;
    }

    /// After [`Turn::End`]: waits until the data pass is over for all workers, a snapshot is
    /// requested (call it again then), or there is a shard to take over.
    ///
    /// # Errors
    /// If a worker or server is gone.
    fn wait_for_others(&mut self) -> Result<Idle, Error> {
        let over = || Idle::PassOver { untrained: vec![] };
        self.client().map_or_else(|| Ok(over()), |client| Ok(client.idle()?))
    }

    /// Takes over the shard that [`Backend::wait_for_others`] has named. The data pass continues
    /// with its batches.
    ///
    /// # Errors
    /// If a server is gone.
    fn take_over(&mut self, shard: usize, step: u64) -> Result<TakenShard, Error> {
        let _ = step;
        Err(Error::Internal(format!("nobody has lost shard {shard}")))
    }

    /// Takes part again after the others have lost this worker, with nothing to do at first; none
    /// where that cannot be. `note` hears what it waits for.
    ///
    /// # Errors
    /// If the job is over, or a server is gone.
    fn rejoin(
        &mut self,
        scope: &mut Scope,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<Rejoined>, Error> {
        let _ = (scope, note);
        Ok(None)
    }

    /// How the data pass that has just ended went.
    fn pass_end(&self) -> PassEnd {
        PassEnd::default()
    }

    /// Whether all workers decide alike when a checkpoint is due; otherwise the first one does, and
    /// the others hear of it.
    fn decides_together(&self) -> bool {
        false
    }

    /// Whether a snapshot could be taken now, where all decide together.
    fn is_settled(&self) -> bool {
        true
    }

    /// Why this job cannot have such checkpoints, if it cannot.
    fn refuses_checkpoints(&self, config: &CheckpointConfig) -> Option<&'static str> {
        let _ = config;
        None
    }

    /// Requests a snapshot: [`Turn::Snapshot`] follows when the job has come to one. The order is
    /// that of the first worker; others have none.
    ///
    /// # Errors
    /// If a server is gone.
    fn request_snapshot(&mut self, order: Option<&SnapshotOrder>) -> Result<(), Error> {
        match (self.client(), order) {
            (Some(client), Some(order)) => Ok(client.open_snapshot(order)?),
            _ => Ok(()),
        }
    }

    /// Takes part in a snapshot with what this worker wrote down.
    ///
    /// # Errors
    /// If a worker, rank or server is gone.
    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error>;

    /// Reports the part of a snapshot that this worker has written itself.
    ///
    /// # Errors
    /// If the server that collects the parts is gone.
    fn report_part(&mut self, written: Result<Part, String>) -> Result<(), Error> {
        self.client().map_or(Ok(()), |client| Ok(client.own_part(written)?))
    }

    /// Names of the variables that this process keeps and a checkpoint of rank 0 must hold; none
    /// where servers have them.
    fn kept(&self) -> Vec<String> {
        Vec::new()
    }

    /// Optimizer states that only other ranks keep, on the first one. All call it.
    ///
    /// # Errors
    /// If a rank is gone.
    fn collect_states(&mut self, scope: &Scope) -> Result<HashMap<String, Tensor>, Error> {
        let _ = scope;
        Ok(HashMap::new())
    }

    /// Sends what is still to be sent, and takes the latest parameters.
    ///
    /// # Errors
    /// If a server is gone.
    fn pull_parameters(&mut self, scope: &mut Scope) -> Result<(), Error> {
        let _ = scope;
        Ok(())
    }

    /// The latest whole tables, which only servers have.
    ///
    /// # Errors
    /// If a server is gone.
    fn pull_tables(&mut self) -> Result<Vec<(String, Tensor)>, Error> {
        Ok(vec![])
    }

    /// Completes what the last steps have left to do, before a job ends. All workers call it.
    ///
    /// # Errors
    /// If a rank is gone.
    fn finish(&mut self, scope: &mut Scope) -> Result<(), Error> {
        let _ = scope;
        Ok(())
    }

    /// Completes what others would wait for while this worker waits for them.
    ///
    /// # Errors
    /// If a server is gone.
    fn before_meeting(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Combines numbers of all workers, or gathers them in their order.
    ///
    /// # Errors
    /// If a worker is gone.
    fn reduce(&mut self, name: &str, op: ReduceOp, values: &[f64]) -> Result<Vec<f64>, Error> {
        self.before_meeting()?;
        self.client().map_or(Ok(values.to_vec()), |c| Ok(c.reduce(name, op, values)?))
    }

    /// Bytes of all workers, in their order.
    ///
    /// # Errors
    /// If a worker is gone.
    fn gather(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.before_meeting()?;
        self.client().map_or(Ok(vec![bytes.to_vec()]), |c| Ok(c.gather(name, bytes)?))
    }

    /// Waits until all workers are here.
    ///
    /// # Errors
    /// If a worker is gone.
    fn barrier(&mut self, name: &str) -> Result<(), Error> {
        self.before_meeting()?;
        self.client().map_or(Ok(()), |client| Ok(client.barrier(name)?))
    }

    /// Where the time of steps has gone since the last call.
    fn take_times(&mut self) -> StepTimes;

    /// Computes with other options from now on.
    ///
    /// # Errors
    /// If they do not fit the program.
    fn set_options(&mut self, options: regatta_exec::Options) -> Result<(), Error>;

    /// Leaves the job. Returns the workers that were lost and did not come back, and how.
    ///
    /// # Errors
    /// If a server is gone.
    fn leave(&mut self) -> Result<Vec<String>, Error> {
        self.client().map_or(Ok(vec![]), |client| Ok(client.leave()?))
    }

    /// Numbers about the servers, for the first worker.
    ///
    /// # Errors
    /// If a server is gone.
    fn server_stats(&mut self) -> Result<Vec<ServerStats>, Error> {
        match self.client() {
            Some(client) if client.worker() == 0 => Ok(client.stats()?),
            _ => Ok(vec![]),
        }
    }
}

/// The data of a pass.
#[derive(Debug, Clone)]
pub struct PassStart {
    /// For servers.
    pub data: DataStart,
    /// What each server has of this worker's shard, if they have different parts of it.
    pub applied: Vec<Progress>,
}

/// A batch that is trained.
pub struct BatchProgress<'a> {
    pub(crate) shard: &'a HeldShard,
    pub(crate) reads: &'a [FileRead],
}

/// What a backend needs or has done.
#[derive(Debug)]
pub enum Turn {
    /// It needs a batch; [`Backend::give`] answers.
    Read,
    /// A step is done on this input.
    Step(Input),
    /// A step is done in which this worker had no examples, only others.
    Idle,
    /// The job stands still for a snapshot; [`Backend::snapshot`] takes part.
    Snapshot,
    /// Nothing can be done before the input that was deferred with [`Next::Later`].
    Wait,
    /// This worker has no more batches, and nothing of it is in flight.
    End,
}

/// What a worker contributes to a checkpoint, and what it knows of the others.
pub struct Snapshot {
    /// What each worker wrote down, by its number. Only the first worker needs it.
    pub states: Vec<(usize, String)>,
    /// Shards of lost workers, and how far they are on each server.
    pub orphans: Vec<(usize, Vec<Progress>)>,
    /// Where the values are.
    pub values: SnapshotValues,
    /// What this worker must write itself, and where.
    pub own: Option<(PathBuf, Vec<(String, Tensor)>)>,
}

/// Where the values of a snapshot are.
pub enum SnapshotValues {
    /// Copied here, to be written by this process.
    Here(Vec<(String, Tensor)>),
    /// On servers, which write them.
    Servers(WrittenTicket),
    /// Another worker has them.
    Elsewhere,
}

/// What a checkpoint holds for one worker.
#[derive(Debug, Default)]
pub struct RestoredState {
    /// Steps of the job.
    pub step: u64,
    /// Variables by name, where this worker's part is there.
    pub tensors: Option<Vec<(String, Tensor)>>,
    /// There are as many workers as there were.
    pub same_workers: bool,
}

impl RestoredState {
    /// Puts the variables into a scope; returns the step.
    pub(crate) fn put_into(self, scope: &mut Scope) -> u64 {
        let tensors = self.tensors.into_iter().flatten();
        tensors.for_each(|(name, tensor)| scope.set(&name, tensor));
        self.step
    }
}

/// How a data pass went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassEnd {
    /// Steps, the same on all ranks.
    pub steps: u64,
    /// Steps that each rank took part in without examples, because it had fewer than others.
    pub idle: Vec<u64>,
}

/// Where the time of steps has gone, as seen by one process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepTimes {
    /// Finding distinct ids, requesting values, waiting for them; or for the slowest rank.
    pub pull: Duration,
    /// Predictions and loss.
    pub forward: Duration,
    /// Gradients.
    pub backward: Duration,
    /// Updates that are made here.
    pub update: Duration,
    /// Sending gradients and waiting until they are applied.
    pub push: Duration,
}

impl StepTimes {
    /// With the time that programs ran since `before`.
    #[must_use]
    pub(crate) fn with_roles(self, now: RoleTimes, before: RoleTimes) -> StepTimes {
        StepTimes {
            forward: now.forward.saturating_sub(before.forward),
            backward: now.backward.saturating_sub(before.backward),
            update: now.optimize.saturating_sub(before.optimize),
            ..self
        }
    }
}

/// Tries whether this process and all servers can write to a directory.
///
/// # Errors
/// If one of them cannot.
pub fn try_target(backend: &dyn Backend, dir: &Path) -> Result<(), Error> {
    try_dir(dir)?;
    match backend.client() {
        Some(client) => Ok(client.try_save(&dir.to_string_lossy())?),
        None => Ok(()),
    }
}

/// Lets servers write their parts of a model to a directory, with the rows that a mode asks for.
///
/// # Errors
/// If there are no servers, or one of them cannot write.
pub fn save_parts(backend: &dyn Backend, dir: &Path, mode: SaveMode) -> Result<(), Error> {
    let Some(client) = backend.client() else {
        return Err(Error::Internal("only servers save parts".into()));
    };
    Ok(client.save(&dir.to_string_lossy(), mode)?)
}
