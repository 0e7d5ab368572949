//! A whole run: begin or resume, one data pass after the other, end. The same for every backend.

use std::path::{Path, PathBuf};
use std::time::Instant;

use regatta_data::Position;
use regatta_exec::Scope;
use regatta_ir::Program;
use regatta_ps::message::ServerStats;

use crate::Error;
use crate::backend::{Backend, RestoredState};
use crate::checkpoints::{CheckpointLog, Checkpoints, Due};
use crate::front::{Data, Feed, ModelFiles, RunSpec, TrainedModel};
use crate::metrics::Meter;
use crate::observe::{Event, Observer};
use crate::own_part::{OwnPart, worker_part};
use crate::pass::{
    Fetch, IntervalClock, Pass, epoch_report, idle_note, measures, run_pass, stage_seconds,
};
use crate::report::{EpochReport, Report, peak_rss_mb};
use crate::resume::{Family, ResumePoint};
use crate::state::{Sharing, WorkerState, divide};
use crate::totals::sum_over_workers;

/// The reports of a run.
pub struct RunReports {
    /// Of all workers together.
    pub report: Report,
    /// This worker's epochs.
    pub own: Vec<EpochReport>,
}

/// Leaves a job that is done, when all workers have come this far. The first one hears what servers
/// report.
///
/// # Errors
/// If a worker or server is gone.
pub fn leave(backend: &mut dyn Backend) -> Result<Vec<ServerStats>, Error> {
    let servers = backend.server_stats()?;
    backend.barrier("end")?;
    backend.leave()?;
    Ok(servers)
}

/// A run from its beginning to its end.
pub struct Session {
    spec: RunSpec,
    family: Family,
    chosen: Option<ResumePoint>,
    state: WorkerState,
    position: Position,
    due: Due,
    log: CheckpointLog,
    own_part: OwnPart,
    resumed_from: Option<PathBuf>,
    was_finished: bool,
    /// Workers have their values already.
    is_started: bool,
}

impl Session {
    /// The first worker chooses the checkpoint to resume from, before anything is connected.
    ///
    /// # Errors
    /// If the checkpoint is not good, or belongs to another model or kind of job.
    pub fn open(
        spec: RunSpec,
        family: Family,
        is_first: bool,
        observer: &mut dyn Observer,
    ) -> Result<Session, Error> {
        let mut note = |text: &str| observer.event(&Event::Note(text));
        let wanted = spec.checkpoint.as_ref().filter(|_| is_first);
        let chosen = ResumePoint::choose(wanted, &spec.program, family, &mut note)?;
        Ok(Session {
            due: Due::new(spec.checkpoint.as_ref()),
            spec,
            family,
            chosen,
            state: WorkerState::default(),
            position: Position::default(),
            log: CheckpointLog::default(),
            own_part: OwnPart::default(),
            resumed_from: None,
            was_finished: false,
            is_started: false,
        })
    }

    /// For a backend that was started before: it keeps its values unless there is a checkpoint.
    #[must_use]
    pub fn already_started(self) -> Session {
        Session { is_started: true, ..self }
    }

    /// Trains until all data passes are done. `scope` holds the initial values.
    ///
    /// # Errors
    /// If data, a step, an exchange or a file fails. What was saved before stays, and nothing is
    /// half-written.
    pub fn train(
        mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        data: &mut dyn Data,
        files: &mut dyn ModelFiles,
        observer: &mut dyn Observer,
    ) -> Result<RunReports, Error> {
        let sharing = data.sharing();
        if let Err(e) = self.begin(backend, scope, files, sharing, observer) {
            // While the connections are there: when they are closed, servers end too, and the
            // process that ends first is believed to be the cause.
            if backend.client().is_some() {
                observer.event(&Event::Note(&format!("this worker ends: {e}")));
            }
            return Err(e);
        }
        observer.event(&Event::Begin {
            model: &self.spec.model,
            parameters: parameters(&self.spec.program),
            epochs: self.spec.epochs,
            examples: data.examples(),
        });
        let mut own = Vec::new();
        while self.state.epoch < self.spec.epochs {
            own.push(self.epoch(backend, scope, data, files, observer)?);
        }
        self.end(backend, scope, observer)?;
        let report = Report {
            config: self.spec.settings,
            epochs: self.state.epochs,
            peak_rss_mb: peak_rss_mb(),
            resumed_from: self.resumed_from,
            checkpoints: self.log.made,
        };
        Ok(RunReports { report, own })
    }

    /// Begins with initial values, with a saved model, or with a checkpoint.
    fn begin(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        files: &mut dyn ModelFiles,
        sharing: Sharing,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let mut note = |text: &str| observer.event(&Event::Note(text));
        let fetch: Vec<&str> = self.spec.fetch.iter().map(String::as_str).collect();
        backend.set_fetch(&fetch);
        if let Some(wanted) = &self.spec.checkpoint {
            if let Some(reason) = backend.refuses_checkpoints(&wanted.config) {
                return Err(Error::Config(format!("checkpoints: {reason}")));
            }
            if backend.worker() == 0 {
                let keep = (self.spec.seed, self.spec.settings.clone());
                let made = Checkpoints::new(wanted, &self.spec.program, backend.topology(), keep)?;
                self.log.checkpoints = Some(made);
            }
        }
        match self.find_checkpoint(backend)? {
            Some(resumed) => self.restore(backend, scope, resumed, sharing, &mut note),
            None if self.is_started => Ok(()),
            None => {
                let loaded = files.load_initial(backend, scope, &mut note)?;
                backend.start(scope, loaded)
            }
        }
    }

    /// All workers resume from the checkpoint that the first one has chosen, if any; servers load
    /// it before the others hear of it.
    fn find_checkpoint(&mut self, backend: &mut dyn Backend) -> Result<Option<ResumePoint>, Error> {
        let Some(wanted) = &self.spec.checkpoint else { return Ok(None) };
        let chosen = self.chosen.take();
        let path = chosen.as_ref().map(|resumed| resumed.checkpoint.path().to_string_lossy());
        let path = path.map(|path| path.into_owned()).unwrap_or_default();
        if let (Some(client), Some(_)) = (backend.client(), &chosen) {
            client.restore(&path, wanted.config.full_every > 1)?;
        }
        let paths = backend.gather("resume", path.as_bytes())?;
        let first = String::from_utf8_lossy(paths.first().map_or(&[], Vec::as_slice));
        match chosen {
            Some(resumed) => Ok(Some(resumed)),
            None if first.is_empty() => Ok(None),
            None => {
                ResumePoint::open_at(Path::new(&*first), &self.spec.program, self.family).map(Some)
            }
        }
    }

    fn restore(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        resumed: ResumePoint,
        sharing: Sharing,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let (worker, workers) = (backend.worker(), backend.workers());
        let (state, changed) = divide(&resumed.states, worker, workers, sharing);
        self.was_finished = resumed.is_finished(self.spec.epochs);
        if worker == 0 {
            note(&resumed.describe());
            changed.iter().for_each(|text| note(text));
            if self.was_finished {
                note("the job has reached its end: there is nothing more to train");
            }
        }
        if let Some(checkpoints) = &mut self.log.checkpoints {
            checkpoints.resume_from(&resumed.checkpoint);
        }
        let before = resumed.states.len();
        let tensors = match self.family {
            Family::Whole => Some(resumed.tensors_of(&backend.kept())?),
            // Statistics that each worker keeps are much the same everywhere; copies of geo are
            // not.
            Family::Servers => resumed.own_part(&worker_part(worker % before, before))?,
        };
        let (step, same_workers) = (state.loop_step, before == workers);
        let restored = backend.restore(scope, RestoredState { step, tensors, same_workers })?;
        restored.into_iter().for_each(note);
        state.load_meters(&mut self.spec.meters);
        self.position = state.position.get();
        self.state = WorkerState { finished: false, ..state };
        self.resumed_from = Some(resumed.checkpoint.path().to_path_buf());
        Ok(())
    }

    /// One data pass, or the rest of one; saves the model after it. Returns this worker's numbers.
    fn epoch(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        data: &mut dyn Data,
        files: &mut dyn ModelFiles,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let epoch = self.state.epoch;
        if self.spec.reset_meters && self.state.batches == 0 && self.state.pass_steps == 0 {
            self.spec.meters.iter_mut().for_each(Meter::reset);
        }
        let clock = IntervalClock::new(self.state.seconds);
        let (mut feed, loading) = data.begin_pass(epoch, &self.position)?;
        let mut pass = self.pass(clock, observer);
        run_pass(backend, scope, &mut *feed, &mut pass)?;
        let counted = pass.counted();
        let stages = stage_seconds(&[loading, feed.stages()], backend.take_times());
        tell_end(epoch, backend, &*feed, observer);
        drop(feed);
        let measured = measures(&self.spec.meters);
        let mine = epoch_report(counted, stages, &self.spec.meters, measured);
        let mut meters = self.spec.meters.clone();
        let counted = sum_over_workers(backend, &mut meters, &self.state, &mine)?;
        let mut all = epoch_report(counted, mine.stages, &meters, measures(&meters));
        let start = Instant::now();
        let saved = self.save(backend, scope, files, observer)?;
        all.stages.save = start.elapsed().as_secs_f64();
        observer.event(&Event::Epoch(&all));
        if let Some(folder) = saved {
            observer.event(&Event::Saved(&folder));
        }
        self.position = Position::default();
        self.state.end_pass(all);
        Ok(mine)
    }

    fn pass<'a>(&'a mut self, clock: IntervalClock, observer: &'a mut dyn Observer) -> Pass<'a> {
        let fetch = Fetch { names: &self.spec.fetch, heads: self.spec.heads, scores: false };
        Pass {
            state: &mut self.state,
            position: &mut self.position,
            meters: &mut self.spec.meters,
            fetch,
            print_interval: self.spec.print_interval,
            due: &mut self.due,
            checkpoints: &mut self.log,
            own_part: &mut self.own_part,
            observer,
            clock,
        }
    }

    /// The first worker saves; nobody continues before.
    fn save(
        &self,
        backend: &mut dyn Backend,
        scope: &Scope,
        files: &mut dyn ModelFiles,
        observer: &mut dyn Observer,
    ) -> Result<Option<PathBuf>, Error> {
        // Everything that was pushed is applied: a worker passes here only after its last push.
        backend.barrier("before saving")?;
        let states = backend.collect_states(scope)?;
        let mut saved = None;
        if backend.worker() == 0 {
            let (epoch, step) = (self.state.epoch, self.state.steps);
            let model = TrainedModel { epoch, step, scope, states, backend };
            saved = files.save(&model, &mut |text| observer.event(&Event::Note(text)))?;
        }
        backend.barrier("saved")?;
        Ok(saved)
    }

    /// The last checkpoint says that the job is done.
    fn end(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        if !self.due.has_any() {
            return Ok(());
        }
        self.log.finish(backend, observer)?;
        if !self.was_finished {
            self.state.finished = true;
            if let Some(checkpoints) = &mut self.log.checkpoints {
                let order = checkpoints.begin()?;
                backend.request_snapshot(Some(&order))?;
            }
            self.pass(IntervalClock::new(0.0), observer).snapshot(backend, scope)?;
            self.own_part.finish(backend)?;
            self.log.finish(backend, observer)?;
        }
        self.log.checkpoints.as_mut().map_or(Ok(()), Checkpoints::done)
    }
}

/// Reports what the end of a pass shows: skipped lines, ranks without data.
pub(crate) fn tell_end(
    epoch: u64,
    backend: &dyn Backend,
    feed: &dyn Feed,
    observer: &mut dyn Observer,
) {
    if let Some(text) = idle_note(epoch, &backend.pass_end()).filter(|_| backend.worker() == 0) {
        observer.event(&Event::Note(&text));
    }
    let bad = feed.bad_lines();
    if bad.count > 0 {
        observer.event(&Event::BadLines(&bad));
    }
}

/// Numbers that are learned.
fn parameters(program: &Program) -> u64 {
    program.block().params().map(|p| p.ty.numel().unwrap_or(0) as u64).sum()
}
