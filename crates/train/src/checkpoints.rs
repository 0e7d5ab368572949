//! Checkpoints of a run: when they are due, and how they are written and published.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use regatta_checkpoint::{
    Checkpoint, CheckpointConfig, CheckpointDir, Draft, Kind, Manifest, Metadata, Part, Progress,
    Resume, Topology, WorkerPosition, program_hash, write_tensors,
};
use regatta_optim::Schedule;
use regatta_ps::{Client, SnapshotOrder, SnapshotScope, WrittenTicket};
use regatta_tensor::Tensor;

use crate::Error;
use crate::backend::{Backend, Snapshot, SnapshotValues};
use crate::front::RunSpec;
use crate::observe::{Event, Observer};
use crate::remote::Mirror;
use crate::report::CheckpointReport;
use crate::state::{WorkerState, by_shard};

/// The part that holds everything of a run without servers.
pub(crate) const MODEL_PART: &str = "model.safetensors";
/// Where a manifest keeps what a worker wrote down.
pub(crate) const STATE: &str = "state";
/// The entry of a worker's position that says what the data are.
pub(crate) const DATA: &str = "data";

/// The checkpoints of a run, and what it resumes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpointing {
    /// Where on this machine, when and how many.
    pub config: CheckpointConfig,
    /// The address in a remote store where they are kept, if they are.
    pub store: Option<String>,
    /// What to resume from.
    pub resume: Resume,
}

impl From<CheckpointConfig> for Checkpointing {
    /// On this machine; a job that is started again resumes from the newest one.
    fn from(config: CheckpointConfig) -> Checkpointing {
        Checkpointing { config, store: None, resume: Resume::Auto }
    }
}

/// When checkpoints are due; every worker has it.
#[derive(Debug, Default)]
pub(crate) struct Due {
    config: Option<CheckpointConfig>,
    /// One is due, and waits until a snapshot can be taken.
    pending: bool,
}

impl Due {
    pub(crate) fn new(wanted: Option<&Checkpointing>) -> Due {
        Due { config: wanted.map(|wanted| wanted.config.clone()), pending: false }
    }

    /// Whether the job has checkpoints.
    pub(crate) fn has_any(&self) -> bool {
        self.config.is_some()
    }

    /// A step of the job is done: whether to request a snapshot now, with the order of the worker
    /// that writes it. Where all decide together they do so by steps only, because clocks differ.
    pub(crate) fn after_step(
        &mut self,
        backend: &dyn Backend,
        log: &mut CheckpointLog,
        observer: &mut dyn Observer,
        (epoch, step): (u64, u64),
    ) -> Result<Option<Option<SnapshotOrder>>, Error> {
        let Some(config) = &self.config else { return Ok(None) };
        if !backend.decides_together() {
            let Some(checkpoints) = &mut log.checkpoints else { return Ok(None) };
            return Ok(checkpoints.after_step(epoch, step)?.map(Some));
        }
        self.pending |= config.due(epoch, step, Duration::ZERO);
        if !self.pending || !backend.is_settled() {
            return Ok(None);
        }
        self.pending = false;
        log.finish(backend, observer)?;
        Ok(Some(log.checkpoints.as_mut().map(Checkpoints::begin).transpose()?))
    }
}

/// The checkpoints of a run and what became of them. Only the first worker makes any.
#[derive(Default)]
pub(crate) struct CheckpointLog {
    pub(crate) checkpoints: Option<Checkpoints>,
    pub(crate) made: Vec<CheckpointReport>,
}

impl CheckpointLog {
    /// Publishes what is written by now.
    pub(crate) fn poll(
        &mut self,
        backend: &dyn Backend,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let outcome = checkpoints.poll(backend.client())?;
        self.note(outcome, observer);
        Ok(())
    }

    /// Waits for the checkpoint in flight.
    pub(crate) fn finish(
        &mut self,
        backend: &dyn Backend,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let outcome = checkpoints.finish(backend.client())?;
        self.note(outcome, observer);
        Ok(())
    }

    /// Lets the values of a snapshot be written.
    pub(crate) fn write(
        &mut self,
        snapshot: Snapshot,
        workers: usize,
        stall: Duration,
    ) -> Result<(), Error> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let decode = |(worker, text): &(usize, String)| {
            let state = serde_json::from_str::<WorkerState>(text);
            let state = state.map_err(|e| Error::Internal(format!("worker {worker}: {e}")))?;
            Ok((*worker, state))
        };
        let states = snapshot.states.iter().map(decode).collect::<Result<Vec<_>, Error>>()?;
        let states = by_shard(&states, &snapshot.orphans, workers);
        match snapshot.values {
            SnapshotValues::Here(tensors) => checkpoints.write_alone(tensors, &states, stall),
            SnapshotValues::Servers(ticket) => {
                checkpoints.written_by_servers(ticket, &states, stall);
                Ok(())
            }
            SnapshotValues::Elsewhere => Ok(()),
        }
    }

    fn note(&mut self, outcome: Option<Outcome>, observer: &mut dyn Observer) {
        match outcome {
            Some(Outcome::Made(report)) => {
                observer.event(&Event::Checkpoint(&report));
                self.made.push(report);
            }
            Some(Outcome::Failed(reason)) => observer.event(&Event::Note(&reason)),
            None => {}
        }
    }
}

/// Makes the checkpoints of a run: in a process that trains alone, in worker 0, or in rank 0.
pub(crate) struct Checkpoints {
    config: CheckpointConfig,
    dir: CheckpointDir,
    program_hash: String,
    job: serde_json::Value,
    /// Its base and how it changes.
    learning_rate: Option<(f64, Schedule)>,
    /// What the data are.
    data: Option<String>,
    topology: Topology,
    seed: u64,
    last: Instant,
    /// One is due as soon as the one before is written.
    due: bool,
    open: Option<Draft>,
    /// The kind of the checkpoint in flight.
    kind: Kind,
    /// The checkpoint from which servers count changes.
    changes_since: Option<u64>,
    writing: Option<CheckpointWrite>,
    /// Where they are kept beside this machine.
    mirror: Option<Mirror>,
}

/// A checkpoint that is being written.
struct CheckpointWrite {
    draft: Draft,
    manifest: Manifest,
    by: Writer,
    stall: Duration,
    since: Instant,
}

enum Writer {
    Thread(JoinHandle<Result<Part, regatta_checkpoint::Error>>),
    Servers(WrittenTicket),
}

/// What became of a checkpoint.
pub(crate) enum Outcome {
    /// It is there.
    Made(CheckpointReport),
    /// It could not be written; the last one stays.
    Failed(String),
}

impl Checkpoints {
    /// With what manifests keep: the program's hash, the seed, all settings of the job, and what
    /// its data are.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub(crate) fn new(
        wanted: &Checkpointing,
        topology: Topology,
        (spec, data): (&RunSpec, Option<String>),
    ) -> Result<Checkpoints, Error> {
        if wanted.config.full_every > 1 && topology.servers == 0 {
            return Err(Error::Resume(format!(
                "full_every of the checkpoints is {}, but only parameter servers write delta \
                 checkpoints: leave it out",
                wanted.config.full_every
            )));
        }
        let fail = |source| Error::Write { path: wanted.config.dir.clone(), source };
        std::fs::create_dir_all(&wanted.config.dir).map_err(fail)?;
        Ok(Checkpoints {
            dir: wanted.config.open(),
            config: wanted.config.clone(),
            program_hash: program_hash(&spec.program),
            job: spec.settings.clone(),
            learning_rate: spec.learning_rate.clone(),
            data,
            topology,
            seed: spec.seed,
            last: Instant::now(),
            due: false,
            open: None,
            kind: Kind::Full,
            changes_since: None,
            writing: None,
            mirror: wanted.store.as_ref().map(|store| Mirror::new(store, &wanted.config.dir)),
        })
    }

    /// Servers hold what is in a checkpoint, and count changes from there if it is one of this
    /// job's.
    pub(crate) fn resume_from(&mut self, checkpoint: &Checkpoint) {
        let serial = checkpoint.manifest().serial;
        let canonical = |path: &Path| path.canonicalize().ok();
        let is_ours = canonical(checkpoint.path()) == canonical(&self.dir.path_of(serial));
        self.changes_since = Some(serial).filter(|_| is_ours);
    }

    /// A step is done: what is to be written where, if a checkpoint is to be made now.
    pub(crate) fn after_step(
        &mut self,
        epoch: u64,
        batch_id: u64,
    ) -> Result<Option<SnapshotOrder>, Error> {
        self.due |= self.config.due(epoch, batch_id, self.last.elapsed());
        if !self.due || self.writing.is_some() || self.open.is_some() {
            return Ok(None);
        }
        self.begin().map(Some)
    }

    /// Begins a checkpoint whatever the interval; none may be under way.
    pub(crate) fn begin(&mut self) -> Result<SnapshotOrder, Error> {
        (self.due, self.last) = (false, Instant::now());
        self.kind = self.config.next_kind(self.changes_since)?;
        let scope = match self.kind {
            Kind::Delta { .. } => SnapshotScope::Changes,
            Kind::Full if self.config.full_every > 1 => SnapshotScope::Base,
            Kind::Full => SnapshotScope::Whole,
        };
        let draft = self.dir.begin(self.dir.next_serial()?)?;
        let dir = draft.path().to_path_buf();
        self.open = Some(draft);
        Ok(SnapshotOrder { dir, scope })
    }

    fn manifest(&self, states: &[(usize, WorkerState)]) -> Manifest {
        let reader = |state: &WorkerState| {
            let data = self.data.as_ref().map(|data| (DATA.to_string(), data.clone().into()));
            [(STATE.to_string(), state.encode().into())].into_iter().chain(data).collect()
        };
        let worker = |(worker, state): &(usize, WorkerState)| WorkerPosition {
            worker: *worker,
            epoch: state.epoch,
            batches: state.batches,
            examples: state.examples,
            reader: reader(state),
        };
        let first = states.first().map(|(_, state)| state.clone()).unwrap_or_default();
        let progress = Progress {
            epoch: first.epoch,
            step: first.batches,
            global_step: first.steps,
            workers: states.iter().map(worker).collect(),
        };
        let mut manifest = Manifest::new(&self.program_hash, self.topology.clone(), progress);
        (manifest.kind, manifest.config) = (self.kind, self.job.clone());
        manifest.rng =
            BTreeMap::from([("seed".into(), self.seed), ("step".into(), first.loop_step)]);
        manifest.learning_rate.step = first.loop_step;
        if let Some((base, schedule)) = &self.learning_rate {
            let last = first.loop_step.saturating_sub(1);
            // As f32, as steps use it, and with no more digits than that.
            let used = schedule.lr(*base, last).to_string();
            manifest.learning_rate.value = used.parse().unwrap_or_default();
        }
        manifest
    }

    /// Writes the tensors of a process that has everything, on a thread of its own.
    pub(crate) fn write_alone(
        &mut self,
        tensors: Vec<(String, Tensor)>,
        states: &[(usize, WorkerState)],
        stall: Duration,
    ) -> Result<(), Error> {
        let Some(draft) = self.open.take() else { return Ok(()) };
        let (path, manifest) = (draft.path().to_path_buf(), self.manifest(states));
        let write = move || {
            let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
            write_tensors(&path, MODEL_PART, named, &Metadata::new())
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        let fail = |source| Error::Write { path: draft.path().to_path_buf(), source };
        let by = Writer::Thread(thread.map_err(fail)?);
        self.writing = Some(CheckpointWrite { draft, manifest, by, stall, since: Instant::now() });
        Ok(())
    }

    /// Servers and workers write; their states are known.
    pub(crate) fn written_by_servers(
        &mut self,
        ticket: WrittenTicket,
        states: &[(usize, WorkerState)],
        stall: Duration,
    ) {
        let Some(draft) = self.open.take() else { return };
        let (manifest, by) = (self.manifest(states), Writer::Servers(ticket));
        self.writing = Some(CheckpointWrite { draft, manifest, by, stall, since: Instant::now() });
    }

    /// Publishes the checkpoint on its way if everything is written; never waits.
    pub(crate) fn poll(&mut self, client: Option<&Client>) -> Result<Option<Outcome>, Error> {
        if let Some(reason) = self.mirror.as_mut().and_then(Mirror::poll) {
            return Ok(Some(Outcome::Failed(reason)));
        }
        let Some(writing) = &mut self.writing else { return Ok(None) };
        let parts = match (&mut writing.by, client) {
            (Writer::Thread(thread), _) if !thread.is_finished() => return Ok(None),
            (Writer::Servers(ticket), Some(client)) => match client.try_written(ticket) {
                Ok(None) => return Ok(None),
                Ok(Some(parts)) => Some(Ok(parts)),
                Err(e) => Some(Err(refusal(e)?)),
            },
            _ => None,
        };
        self.conclude(client, parts)
    }

    /// Publishes the checkpoint on its way, waiting until everything is written.
    pub(crate) fn finish(&mut self, client: Option<&Client>) -> Result<Option<Outcome>, Error> {
        self.conclude(client, None)
    }

    fn conclude(
        &mut self,
        client: Option<&Client>,
        parts: Option<Result<Vec<Part>, String>>,
    ) -> Result<Option<Outcome>, Error> {
        let Some(CheckpointWrite { draft, manifest, by, stall, since }) = self.writing.take()
        else {
            return Ok(None);
        };
        let parts = match (parts, by, client) {
            (Some(parts), _, _) => parts,
            (None, Writer::Thread(thread), _) => match thread.join() {
                Ok(part) => part.map(|part| vec![part]).map_err(|e| e.to_string()),
                Err(_) => Err("the thread that writes it has panicked".into()),
            },
            (None, Writer::Servers(ticket), Some(client)) => match client.finish_written(ticket) {
                Ok(parts) => Ok(parts),
                Err(e) => Err(refusal(e)?),
            },
            (None, Writer::Servers(_), None) => Err("there is no connection to servers".into()),
        };
        let serial = draft.serial();
        let published = parts.and_then(|p| publish(draft, manifest, p));
        if let Some(client) = client.filter(|_| self.config.full_every > 1) {
            client.stored(published.is_ok()).map_err(Error::from)?;
            if published.is_ok() {
                self.changes_since = Some(serial);
            }
        }
        Ok(Some(match published {
            Ok((path, manifest)) => {
                // What is being sent must stay until it has arrived.
                if self.mirror.as_ref().is_none_or(Mirror::is_idle) {
                    self.dir.rotate(self.config.keep)?;
                }
                if let Some(mirror) = &mut self.mirror {
                    mirror.send();
                }
                Outcome::Made(report(path, &manifest, stall, since.elapsed()))
            }
            Err(reason) => Outcome::Failed(format!(
                "checkpoint {serial} could not be written: {reason}; training continues, and the \
                 last checkpoint stays"
            )),
        }))
    }

    /// The job is done: its checkpoints stay, unless the settings say otherwise.
    pub(crate) fn done(&mut self) -> Result<(), Error> {
        if !self.config.keep_when_done {
            if let Some(mirror) = &mut self.mirror {
                mirror.remove_all()?;
            }
            return Ok(self.dir.remove_all()?);
        }
        self.mirror.as_mut().map_or(Ok(()), |mirror| {
            mirror.finish()?;
            self.dir.rotate(self.config.keep)?;
            mirror.finish()
        })
    }
}

/// What a server says when it cannot write; anything else ends the training.
fn refusal(e: regatta_ps::Error) -> Result<String, Error> {
    match e {
        regatta_ps::Error::Refused { .. } => Ok(e.to_string()),
        other => Err(Error::from(other)),
    }
}

fn publish(
    draft: Draft,
    mut manifest: Manifest,
    parts: Vec<Part>,
) -> Result<(PathBuf, Manifest), String> {
    manifest.serial = draft.serial();
    manifest.parts = parts;
    draft.publish(manifest.clone()).map(|path| (path, manifest)).map_err(|e| e.to_string())
}

fn report(
    path: PathBuf,
    manifest: &Manifest,
    stall: Duration,
    writing: Duration,
) -> CheckpointReport {
    CheckpointReport {
        serial: manifest.serial,
        path,
        epoch: manifest.progress.epoch,
        batch: manifest.progress.step,
        step: manifest.progress.global_step,
        stall_seconds: stall.as_secs_f64(),
        write_seconds: writing.as_secs_f64(),
        bytes: manifest.parts.iter().map(|part| part.bytes).sum(),
    }
}
