//! Checkpoints of a run: when they are made, what a worker writes down, and how a run goes on.
//!
//! Reading order: [`WorkerState`] (where a worker is), [`Checkpoints`] (making them), [`Resumed`]
//! (going on), [`divide`] (when the number of workers has changed).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use regatta_checkpoint::{
    Check, Checkpoint, CheckpointConfig, CheckpointDir, Draft, Kind, Manifest, Metadata, Part,
    Progress, Resume, Topology, WorkerPosition, program_hash, write_tensors,
};
use regatta_data::{FilePosition, Position};
use regatta_ps::{Client, CutOrder, CutScope, WrittenTicket};
use regatta_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::metrics::Meter;
use crate::network::Network;
use crate::remote::Mirror;
use crate::report::{CheckpointReport, EpochReport};
use crate::{Config, Error};

/// The part that holds everything of a run without servers.
const MODEL_PART: &str = "model.safetensors";
/// Where a manifest keeps what a worker wrote down.
const STATE: &str = "state";

/// Where a worker is: everything that it needs to go on, beside the parameters. Floats are kept by
/// their bits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerState {
    /// The pass.
    pub(crate) epoch: u64,
    /// Batches and examples of it that are done.
    pub(crate) batches: u64,
    pub(crate) examples: u64,
    /// Sum of losses over these examples.
    pub(crate) loss_sum: u64,
    /// Seconds that this part of the pass took.
    pub(crate) seconds: f64,
    /// Steps since training began, of this worker and of its loop, which workers keep in step.
    pub(crate) steps: u64,
    pub(crate) loop_step: u64,
    /// How far the data were used.
    pub(crate) position: SavedPosition,
    /// Counters of each meter that are not zero, by their number.
    pub(crate) meters: Vec<Vec<(usize, u64)>>,
    /// Passes that are over.
    pub(crate) epochs: Vec<EpochReport>,
    /// The job has reached its end.
    pub(crate) finished: bool,
}

/// How far the data of a pass were used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedPosition {
    batches: u64,
    examples: u64,
    /// File, records, line, and whether that was all of it.
    files: Vec<(usize, u64, u64, bool)>,
}

impl SavedPosition {
    pub(crate) fn of(position: &Position) -> SavedPosition {
        let file = |(file, at): (&usize, &FilePosition)| (*file, at.records, at.line, at.done);
        SavedPosition {
            batches: position.batches,
            examples: position.examples,
            files: position.files.iter().map(file).collect(),
        }
    }

    pub(crate) fn get(&self) -> Position {
        let file = |&(file, records, line, done): &(usize, u64, u64, bool)| {
            (file, FilePosition { records, line, done })
        };
        Position {
            batches: self.batches,
            examples: self.examples,
            files: self.files.iter().map(file).collect(),
        }
    }
}

impl WorkerState {
    pub(crate) fn save_meters(&mut self, meters: &[Meter]) {
        let counters = |meter: &Meter| {
            let all = meter.counters().into_iter().enumerate();
            all.filter(|(_, n)| n.to_bits() != 0).map(|(i, n)| (i, n.to_bits())).collect()
        };
        self.meters = meters.iter().map(counters).collect();
    }

    pub(crate) fn load_meters(&self, meters: &mut [Meter]) {
        for (meter, saved) in meters.iter_mut().zip(&self.meters) {
            let mut counters = vec![0.0; meter.counters().len()];
            for &(i, bits) in saved {
                if let Some(counter) = counters.get_mut(i) {
                    *counter = f64::from_bits(bits);
                }
            }
            meter.set_counters(&counters);
        }
    }

    fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a state is plain data")
    }

    /// The text that goes to whoever writes the manifest.
    pub(crate) fn encode(&self) -> String {
        self.to_text()
    }
}

/// Makes the checkpoints of a run: in a process that trains alone, in worker 0, or in rank 0.
pub(crate) struct Checkpoints {
    config: CheckpointConfig,
    dir: CheckpointDir,
    program_hash: String,
    job: serde_json::Value,
    topology: Topology,
    seed: u64,
    last: Instant,
    /// One is due as soon as the one before is written.
    due: bool,
    open: Option<Draft>,
    /// What the checkpoint under way is.
    kind: Kind,
    /// The checkpoint from which servers count changes.
    changes_since: Option<u64>,
    writing: Option<Writing>,
    /// Numbers that the manifest keeps beside the seed.
    notes: BTreeMap<String, u64>,
    /// Where they are kept beside this machine.
    mirror: Option<Mirror>,
}

/// A checkpoint on its way to disk.
struct Writing {
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
    /// For a run that wants any.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub(crate) fn new(
        config: &Config,
        network: &Network,
        topology: Topology,
    ) -> Result<Option<Checkpoints>, Error> {
        let Some(wanted) = &config.runner.checkpoint else { return Ok(None) };
        if wanted.config.full_every > 1 && topology.servers == 0 {
            return Err(Error::Resume(format!(
                "runner.checkpoint.full_every is {}, but only parameter servers write checkpoints of \
                 changes: leave it out",
                wanted.config.full_every
            )));
        }
        let fail = |source| Error::Write { path: wanted.config.dir.clone(), source };
        std::fs::create_dir_all(&wanted.config.dir).map_err(fail)?;
        Ok(Some(Checkpoints {
            dir: wanted.config.open(),
            config: wanted.config.clone(),
            program_hash: program_hash(&network.train.main),
            job: config.to_json(),
            topology,
            seed: config.runner.seed,
            last: Instant::now(),
            due: false,
            open: None,
            kind: Kind::Full,
            changes_since: None,
            writing: None,
            notes: BTreeMap::new(),
            mirror: wanted.store.as_ref().map(|store| Mirror::new(store, &wanted.config.dir)),
        }))
    }

    /// Servers hold what is in a checkpoint, and count changes from there if it is one of this job's.
    pub(crate) fn go_on_from(&mut self, checkpoint: &Checkpoint) {
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
    ) -> Result<Option<CutOrder>, Error> {
        self.due |= self.config.due(epoch, batch_id, self.last.elapsed());
        if !self.due || self.writing.is_some() || self.open.is_some() {
            return Ok(None);
        }
        self.begin().map(Some)
    }

    /// Begins a checkpoint whatever the interval; none may be under way.
    pub(crate) fn begin(&mut self) -> Result<CutOrder, Error> {
        (self.due, self.last) = (false, Instant::now());
        self.kind = self.config.next_kind(self.changes_since)?;
        let scope = match self.kind {
            Kind::Delta { .. } => CutScope::Changes,
            Kind::Full if self.config.full_every > 1 => CutScope::Base,
            Kind::Full => CutScope::Whole,
        };
        let draft = self.dir.begin(self.dir.next_serial()?)?;
        let dir = draft.path().to_path_buf();
        self.open = Some(draft);
        Ok(CutOrder { dir, scope })
    }

    /// A number that the next manifest keeps.
    pub(crate) fn note(&mut self, name: &str, value: u64) {
        self.notes.insert(name.to_string(), value);
    }

    fn manifest(&self, states: &[(usize, WorkerState)]) -> Manifest {
        let worker = |(worker, state): &(usize, WorkerState)| WorkerPosition {
            worker: *worker,
            epoch: state.epoch,
            batches: state.batches,
            examples: state.examples,
            reader: BTreeMap::from([(STATE.to_string(), state.to_text().into())]),
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
        manifest.rng.extend(self.notes.clone());
        manifest.learning_rate.step = first.loop_step;
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
        self.writing = Some(Writing { draft, manifest, by, stall, since: Instant::now() });
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
        self.writing = Some(Writing { draft, manifest, by, stall, since: Instant::now() });
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
        let Some(Writing { draft, manifest, by, stall, since }) = self.writing.take() else {
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
            client.stored(published.is_ok()).map_err(regatta_fleet::Error::from)?;
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
                "checkpoint {serial} could not be written: {reason}; training goes on, and the \
                 last checkpoint stays"
            )),
        }))
    }

    /// The job is done: its checkpoints stay unless the user wants otherwise.
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
        other => Err(Error::from(regatta_fleet::Error::from(other))),
    }
}

/// What goes wrong with checkpoints, on its way through the loop.
pub(crate) fn in_loop(e: Error) -> regatta_fleet::Error {
    match e {
        Error::Fleet(e) => *e,
        other => regatta_fleet::Error::Config(other.to_string()),
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

/// A checkpoint that a run goes on from.
pub(crate) struct Resumed {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) states: Vec<WorkerState>,
}

/// What can go on from a checkpoint of which kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// One process, or ranks that all have everything.
    Whole,
    /// Servers.
    Servers,
}

impl Resumed {
    /// The checkpoint that a run is to go on from, if any; `note` hears which ones cannot be used.
    ///
    /// # Errors
    /// If the wanted one is not good, or belongs to another model or kind of job.
    pub(crate) fn choose(
        config: &Config,
        network: &Network,
        family: Family,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<Resumed>, Error> {
        let Some(wanted) = &config.runner.checkpoint else { return Ok(None) };
        if wanted.resume == Resume::None {
            return Ok(None);
        }
        if let (Some(store), Resume::Auto | Resume::Latest) = (&wanted.store, &wanted.resume) {
            Mirror::new(store, &wanted.config.dir).fetch(note)?;
        }
        let choice = wanted.config.open().choose(&wanted.resume, Check::Checksums)?;
        choice.passed_over.iter().for_each(|passed| note(&passed.to_string()));
        let Some(checkpoint) = choice.checkpoint else { return Ok(None) };
        Resumed::open(checkpoint, network, family).map(Some)
    }

    /// The checkpoint in a directory that another process has chosen.
    ///
    /// # Errors
    /// If it cannot be read, or belongs to another model or kind of job.
    pub(crate) fn open_at(
        path: &Path,
        network: &Network,
        family: Family,
    ) -> Result<Resumed, Error> {
        Resumed::open(Checkpoint::open(path)?, network, family)
    }

    fn open(checkpoint: Checkpoint, network: &Network, family: Family) -> Result<Resumed, Error> {
        let path = checkpoint.path().to_path_buf();
        let manifest = checkpoint.manifest();
        manifest.check_program(&path, &program_hash(&network.train.main))?;
        let of_servers = manifest.topology.servers > 0;
        if of_servers != (family == Family::Servers) {
            let with = |servers: bool| if servers { "with" } else { "without" };
            return Err(Error::Resume(format!(
                "{}: this checkpoint is of a job {} parameter servers, and this job is one {} them; \
                 start from its parameters with runner.model_init_path or \
                 runner.warmup_model_path, or begin anew with --resume none",
                path.display(),
                with(of_servers),
                with(!of_servers)
            )));
        }
        let state = |worker: &WorkerPosition| {
            let text = worker.reader.get(STATE).and_then(|value| value.as_str());
            text.and_then(|text| serde_json::from_str::<WorkerState>(text).ok())
        };
        let states = manifest.progress.workers.iter().map(state).collect::<Option<Vec<_>>>();
        let states = states.filter(|states| !states.is_empty()).ok_or_else(|| {
            Error::Resume(format!("{}: it does not say where each worker was", path.display()))
        })?;
        Ok(Resumed { checkpoint, states })
    }

    /// Whether the job has reached its end, in so many passes.
    pub(crate) fn is_finished(&self, epochs: u64) -> bool {
        self.states[0].finished && self.states[0].epoch >= epochs
    }

    /// Everything of a run without servers.
    ///
    /// # Errors
    /// If the part is missing or damaged.
    pub(crate) fn tensors(&self) -> Result<Vec<(String, Tensor)>, Error> {
        Ok(self.checkpoint.tensors(MODEL_PART)?.tensors.into_iter().collect())
    }

    /// What a worker had kept for itself, if its part is there.
    ///
    /// # Errors
    /// If the part is damaged.
    pub(crate) fn own_part(&self, name: &str) -> Result<Option<Vec<(String, Tensor)>>, Error> {
        if self.checkpoint.part(name).is_err() {
            return Ok(None);
        }
        Ok(Some(self.checkpoint.tensors(name)?.tensors.into_iter().collect()))
    }

    /// A line for the user.
    pub(crate) fn describe(&self) -> String {
        let progress = &self.checkpoint.manifest().progress;
        format!(
            "going on from {} (epoch {}, {} batches of it done, step {})",
            self.checkpoint.path().display(),
            progress.epoch,
            progress.step,
            progress.global_step
        )
    }
}

/// How data are shared out between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Every worker reads all.
    Everything,
    /// Each has its own files, read in order.
    Files,
    /// Each has its own examples, whose order depends on the number of workers.
    Mixed,
}

/// Where worker `worker` of `workers` goes on, when the checkpoint has the states of any number; with
/// a note if the number has changed. No example is left out:
///
/// - with files of their own, read in order, the workers share the files out anew, and each file goes
///   on where whoever read it was;
/// - where every worker reads everything, a worker goes on where the one of its number was, and new
///   ones begin at the start of the pass;
/// - otherwise the pass begins again.
pub(crate) fn divide(
    states: &[WorkerState],
    worker: usize,
    workers: usize,
    sharing: Sharing,
) -> (WorkerState, Option<String>) {
    if states.len() == workers {
        return (states[worker].clone(), None);
    }
    let first = &states[0];
    let mut state = WorkerState {
        epoch: first.epoch,
        steps: states.iter().map(|s| s.steps).max().unwrap_or(0),
        loop_step: states.iter().map(|s| s.loop_step).max().unwrap_or(0),
        epochs: first.epochs.clone(),
        finished: first.finished,
        meters: first.meters.iter().map(|_| vec![]).collect(),
        ..WorkerState::default()
    };
    let begins_again = sharing == Sharing::Mixed && states.iter().any(|s| s.batches > 0);
    if worker == 0 && !begins_again {
        // The sums of all workers are counted once.
        state.examples = states.iter().map(|s| s.examples).sum();
        let losses = states.iter().map(|s| f64::from_bits(s.loss_sum));
        state.loss_sum = losses.sum::<f64>().to_bits();
        state.meters = sum_meters(states);
        state.seconds = first.seconds;
    }
    let (from, to) = (states.len(), workers);
    let changed = format!("the checkpoint is of {from} workers, this job has {to}");
    let how = match sharing {
        Sharing::Files => {
            state.position = furthest(states);
            "each file goes on where whoever read it was"
        }
        Sharing::Everything => {
            if let Some(before) = states.get(worker) {
                state.position = before.position.clone();
                state.batches = before.batches;
            }
            "workers go on where those of their numbers were, new ones begin the pass"
        }
        Sharing::Mixed if begins_again => {
            "the order of examples depends on it, so the pass begins again and its first examples \
             are trained twice"
        }
        Sharing::Mixed => "no pass was begun",
    };
    (state, Some(format!("{changed}: {how}")))
}

/// How far each file was read by anybody. A worker that went on from a checkpoint of another number of
/// workers also knows of files that are not its own, as they were then.
fn furthest(states: &[WorkerState]) -> SavedPosition {
    let mut files: BTreeMap<usize, (u64, bool, u64)> = BTreeMap::new();
    for &(file, records, line, done) in states.iter().flat_map(|s| &s.position.files) {
        let read = files.entry(file).or_default();
        *read = (*read).max((records, done, line));
    }
    SavedPosition {
        batches: 0,
        examples: files.values().map(|read| read.0).sum(),
        files: files
            .into_iter()
            .map(|(f, (records, done, line))| (f, records, line, done))
            .collect(),
    }
}

fn sum_meters(states: &[WorkerState]) -> Vec<Vec<(usize, u64)>> {
    let n = states.iter().map(|s| s.meters.len()).max().unwrap_or(0);
    let sum = |meter: usize| {
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for &(i, bits) in states.iter().filter_map(|s| s.meters.get(meter)).flatten() {
            *sums.entry(i).or_default() += f64::from_bits(bits);
        }
        sums.into_iter().map(|(i, n)| (i, n.to_bits())).collect()
    };
    (0..n).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(epoch: u64, files: &[(usize, u64, u64, bool)]) -> WorkerState {
        let examples = files.iter().map(|f| f.1).sum();
        WorkerState {
            epoch,
            batches: 3,
            examples,
            loss_sum: 1.5_f64.to_bits(),
            steps: 7,
            position: SavedPosition { batches: 3, examples, files: files.to_vec() },
            meters: vec![vec![(0, 2.0_f64.to_bits()), (9, 1.0_f64.to_bits())]],
            ..WorkerState::default()
        }
    }

    #[test]
    fn the_same_number_of_workers_goes_on_exactly() {
        let states = [state(1, &[(0, 5, 5, false)]), state(1, &[(1, 8, 8, true)])];
        for sharing in [Sharing::Everything, Sharing::Files, Sharing::Mixed] {
            assert_eq!(divide(&states, 1, 2, sharing), (states[1].clone(), None));
        }
    }

    #[test]
    fn files_are_shared_out_anew() {
        let states =
            [state(1, &[(0, 5, 5, false)]), state(1, &[(1, 8, 8, true), (2, 1, 1, false)])];
        for worker in 0..3 {
            let (divided, note) = divide(&states, worker, 3, Sharing::Files);
            let files = divided.position.get().files;
            assert_eq!(files.len(), 3, "every worker knows of every file");
            assert!(files[&1].done && !files[&2].done && files[&2].records == 1);
            assert!(note.unwrap().contains("each file goes on"));
            assert_eq!(divided.examples, if worker == 0 { 14 } else { 0 });
            assert_eq!(divided.meters[0].len(), if worker == 0 { 2 } else { 0 });
        }
        // Divided again: what a worker only heard of is older than what its reader says.
        let mut again: Vec<WorkerState> =
            (0..3).map(|w| divide(&states, w, 3, Sharing::Files).0).collect();
        again[0].position.files[0] = (0, 9, 9, true);
        for worker in 0..2 {
            let files = divide(&again, worker, 2, Sharing::Files).0.position.get().files;
            assert!(files[&0].done && files[&0].records == 9 && files[&2].records == 1);
        }
        let (first, _) = divide(&states, 0, 3, Sharing::Files);
        assert_eq!(first.meters[0][0], (0, 4.0_f64.to_bits()));
        assert_eq!(f64::from_bits(first.loss_sum), 3.0);
    }

    #[test]
    fn what_cannot_be_divided_begins_again_and_nothing_is_left_out() {
        let states = [state(2, &[]), state(2, &[])];
        let (divided, note) = divide(&states, 0, 1, Sharing::Mixed);
        assert_eq!((divided.epoch, divided.batches, divided.examples), (2, 0, 0));
        assert_eq!(divided.position, SavedPosition::default());
        assert!(note.unwrap().contains("begins again"));
        let (new, _) = divide(&states, 2, 3, Sharing::Everything);
        assert_eq!(new.position, SavedPosition::default());
    }
}
