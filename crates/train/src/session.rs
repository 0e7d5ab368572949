//! A whole run: begin or resume, one data pass after the other, end. The same for every backend.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_checkpoint::{FolderLock, try_dir};
use regatta_data::Stages;
use regatta_data::arrivals::PassPlan;
use regatta_exec::Scope;
use regatta_ir::Program;
use regatta_ps::message::{ReduceOp, ServerStats};
use regatta_ps::{DataStart, Idle, Progress};

use crate::Error;
use crate::arriving::{KEPT_REPORTS, Look, Wait, decode_plan, encode_plan};
use crate::backend::{Backend, PassStart, RestoredState, try_target};
use crate::checkpoints::{CheckpointLog, Checkpoints, Due};
use crate::front::{Data, Feed, ModelFiles, RunSpec, SaveMoment, TrainedModel};
use crate::marks::{HeldShard, least};
use crate::metrics::{ExampleKeys, Meter};
use crate::observe::{Event, Observer};
use crate::own_part::{OwnPart, worker_part};
use crate::pass::{
    Fetch, IntervalClock, Pass, epoch_report, idle_note, measures, run_pass, stage_seconds,
    wait_for_others,
};
use crate::report::{EpochReport, Report, peak_rss_mb};
use crate::resume::{Family, ResumePoint};
use crate::state::{Sharing, WorkerState, divide};
use crate::tier_meter::TierMeter;
use crate::totals::sum_over_workers;
use crate::validation::Judgement;

/// The reports of a run.
pub struct RunReports {
    /// Of all workers together.
    pub report: Report,
    /// This worker's epochs.
    pub own: Vec<EpochReport>,
}

/// How a job ended.
pub struct Farewell {
    /// Numbers of the servers, for the first worker.
    pub servers: Vec<ServerStats>,
    /// Workers that were lost and did not come back, and how.
    pub lost: Vec<String>,
}

impl Farewell {
    /// An error if the job has ended without some of its workers.
    ///
    /// # Errors
    /// Names them.
    pub fn check(lost: &[String]) -> Result<(), Error> {
        match lost.is_empty() {
            true => Ok(()),
            false => Err(Error::Lost(format!(
                "{}; the job has ended without {}",
                lost.join("; "),
                if lost.len() == 1 { "it" } else { "them" }
            ))),
        }
    }
}

/// Leaves a job that is done, when all workers have come this far.
///
/// # Errors
/// If a worker or server is gone.
pub fn leave(backend: &mut dyn Backend) -> Result<Farewell, Error> {
    let servers = backend.server_stats()?;
    backend.barrier("end")?;
    let lost = backend.leave()?;
    Ok(Farewell { servers, lost })
}

/// A run from its beginning to its end.
pub struct Session {
    spec: RunSpec,
    family: Family,
    chosen: Option<ResumePoint>,
    state: WorkerState,
    /// The shards of the data that this worker trains; the last one is being read.
    held: Vec<HeldShard>,
    /// Where all shards begin, for the first worker of a job that resumes.
    starts: Vec<(usize, Progress)>,
    /// Others have lost this worker, which then rejoined them in the midst of a data pass.
    has_rejoined: bool,
    due: Due,
    log: CheckpointLog,
    own_part: OwnPart,
    /// None: training does not tell examples apart.
    keys: ExampleKeys,
    /// What rows on disk mean for the speed.
    tiers: TierMeter,
    resumed_from: Option<PathBuf>,
    was_finished: bool,
    /// The validation data show no better epochs any more.
    stops_early: bool,
    /// The last data pass whose plan this worker has, where data arrive while training.
    followed: Option<(u64, PassPlan)>,
    /// A data pass has ended since the last checkpoint between two of them.
    has_trained: bool,
    /// Workers have their values already.
    is_started: bool,
    /// No other job writes to the folders of this one.
    _locks: Vec<FolderLock>,
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
        let locks = if is_first { lock_folders(&spec, &mut note)? } else { vec![] };
        let chosen = ResumePoint::choose(wanted, &spec, family, &mut note)?;
        Ok(Session {
            due: Due::new(spec.checkpoint.as_ref()),
            spec,
            family,
            chosen,
            state: WorkerState::default(),
            held: Vec::new(),
            starts: Vec::new(),
            has_rejoined: false,
            log: CheckpointLog::default(),
            own_part: OwnPart::default(),
            keys: ExampleKeys::default(),
            tiers: TierMeter::default(),
            resumed_from: None,
            was_finished: false,
            stops_early: false,
            followed: None,
            has_trained: false,
            is_started: false,
            _locks: locks,
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
        if let Err(e) = self.begin(backend, scope, files, data, observer) {
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
            epochs: (!data.arrives()).then_some(self.spec.epochs),
            examples: data.examples(),
        });
        let mut own = Vec::new();
        if !data.arrives() {
            self.save_again(backend, scope, files, observer)?;
        }
        loop {
            match self.next_epoch(backend, scope, data, files, observer) {
                Ok(Some(mine)) => own.push(mine),
                Ok(None) => break,
                Err(e) if e.is_dropped() => self.rejoin(backend, scope, data, e, observer)?,
                Err(e) => return Err(e),
            }
        }
        if data.arrives() {
            self.save_now(SaveMoment::End, backend, scope, files, observer)?;
        }
        self.end(backend, scope, observer)?;
        let best = self.judgement(&self.state.epochs)?.map(|judged| judged.best.0);
        let report = Report {
            best_epoch: best,
            config: self.spec.settings,
            device: backend.device(),
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
        data: &dyn Data,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let mut note = |text: &str| observer.event(&Event::Note(text));
        let fetch: Vec<&str> = self.spec.fetch.iter().map(String::as_str).collect();
        backend.set_fetch(&fetch);
        if backend.worker() == 0 {
            files.try_targets(backend)?;
        }
        if let Some(wanted) = &self.spec.checkpoint {
            if let Some(reason) = backend.refuses_checkpoints(&wanted.config) {
                return Err(Error::Config(format!("checkpoints: {reason}")));
            }
            if backend.worker() == 0 {
                try_target(backend, &wanted.config.dir)?;
                let identity = data.identity();
                if let Some(resumed) = &self.chosen {
                    resumed.check_same(&self.spec, identity.as_deref(), &mut note)?;
                }
                let keep = (&self.spec, identity);
                let made = Checkpoints::new(wanted, backend.topology(), keep)?;
                self.log.checkpoints = Some(made);
            }
        }
        match self.find_checkpoint(backend)? {
            Some(resumed) => {
                self.restore(backend, scope, resumed, data.sharing(), &mut note)?;
                // A run that had stopped does not go on when it is started again.
                let last = self.state.epoch.saturating_sub(1);
                self.judge(last, backend, files, observer)
            }
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
            None => ResumePoint::open_at(Path::new(&*first), &self.spec, self.family).map(Some),
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
        let (mut state, changed) = divide(&resumed.states, worker, workers, sharing);
        if resumed.checkpoint.manifest().topology.servers != backend.topology().servers {
            // Other servers have other parts of what a lost worker has pushed last.
            state.applied.clear();
        }
        if worker == 0 {
            let start = |shard: usize| {
                let state = divide(&resumed.states, shard, workers, sharing).0;
                (shard, own_shard(shard, &state).progress())
            };
            self.starts = (0..workers).map(start).collect();
        }
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
        self.state = WorkerState { finished: false, ..state };
        self.resumed_from = Some(resumed.checkpoint.path().to_path_buf());
        Ok(())
    }

    /// The next data pass, or the rest of one; none if there is no more.
    fn next_epoch(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        data: &mut dyn Data,
        files: &mut dyn ModelFiles,
        observer: &mut dyn Observer,
    ) -> Result<Option<EpochReport>, Error> {
        let is_over = match data.arrives() {
            // Others are in the midst of a data pass.
            true if self.has_rejoined => false,
            true => {
                let plan = self.next_pass(backend, scope, data, observer)?;
                let is_first = self.state.epoch == 0 && self.resumed_from.is_none();
                if let Some(plan) = plan.as_ref().filter(|_| is_first) {
                    self.save_now(SaveMoment::Before(plan), backend, scope, files, observer)?;
                }
                let is_over = plan.is_none();
                self.followed = plan.map(|plan| (self.state.epoch, plan));
                is_over
            }
            false => self.state.epoch >= self.spec.epochs || self.stops_early,
        };
        match is_over {
            true => Ok(None),
            false => self.epoch(backend, scope, data, files, observer).map(Some),
        }
    }

    /// Waits for the next pass of data that arrive; none if they have ended.
    fn next_pass(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        data: &mut dyn Data,
        observer: &mut dyn Observer,
    ) -> Result<Option<PassPlan>, Error> {
        let mut wait = Wait::new(self.has_trained && self.due.has_any());
        loop {
            match wait.look(&mut self.state, backend, data, observer)? {
                Look::Pass(plan) => return Ok(Some(plan)),
                Look::End => return Ok(None),
                Look::Again => {}
                Look::Checkpoint => {
                    self.checkpoint(backend, scope, observer)?;
                    self.has_trained = false;
                }
            }
        }
    }

    /// Makes a checkpoint between two data passes; all workers call it.
    fn checkpoint(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        self.log.finish(backend, observer)?;
        if let Some(checkpoints) = &mut self.log.checkpoints {
            let order = checkpoints.begin()?;
            backend.request_snapshot(Some(&order))?;
        }
        self.held = vec![own_shard(backend.worker(), &self.state)];
        self.pass(observer).snapshot(backend, scope)?;
        self.held.clear();
        self.own_part.finish(backend)?;
        self.log.finish(backend, observer)
    }

    /// Saves the model beside the saves after data passes; all workers call it.
    fn save_now(
        &self,
        moment: SaveMoment<'_>,
        backend: &mut dyn Backend,
        scope: &Scope,
        files: &mut dyn ModelFiles,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let epoch = self.state.epoch.saturating_sub(1);
        if let Some(folder) = self.save(epoch, moment, backend, scope, files, observer)? {
            observer.event(&Event::Saved(&folder));
        }
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
        let mut reading = Vec::new();
        let mut next = match std::mem::take(&mut self.has_rejoined) {
            true => wait_for_others(backend, scope, &mut self.pass(observer))?,
            false => {
                backend.begin_pass(Some(self.start(backend, data)))?;
                self.train_on(data, backend, scope, &mut reading, observer)?
            }
        };
        while let Idle::TakeOver { shard, step } = next {
            let mut shard = self.take_over(shard, step, backend, data, observer)?;
            next = self.train_on(&mut *shard, backend, scope, &mut reading, observer)?;
        }
        check_all_trained(epoch, &next)?;
        let counted = self.pass(observer).counted();
        let stages = stage_seconds(&reading, backend.take_times());
        let measured = measures(&self.spec.meters);
        let mine = epoch_report(counted, stages, &self.spec.meters, measured);
        let mut meters = self.spec.meters.clone();
        let counted = sum_over_workers(backend, &mut meters, &self.state, &mine)?;
        let mut all = epoch_report(counted, mine.stages, &meters, measures(&meters));
        if backend.client().is_some_and(|client| client.lookahead() > 0) {
            let servers = backend.server_stats()?;
            all.metrics.extend(self.tiers.measures(&servers, all.seconds));
        }
        let start = Instant::now();
        let planned = self.state.planned.clone();
        let after = |planned| SaveMoment::After(planned, all.examples);
        let moment = planned.as_ref().map_or(SaveMoment::Epoch, |planned| after(&planned.plan));
        let saved = self.save(epoch, moment, backend, scope, files, observer)?;
        all.stages.save = start.elapsed().as_secs_f64();
        if let (Some(_), Some(folder)) = (&self.spec.validation, &saved) {
            all.validation = Some(Box::new(files.validate(epoch, folder, observer)?));
        }
        observer.event(&Event::Epoch(&all));
        if let Some(folder) = saved {
            observer.event(&Event::Saved(&folder));
        }
        self.held.clear();
        self.has_trained = true;
        self.state.end_pass(all);
        if data.arrives() && self.state.epochs.len() > KEPT_REPORTS {
            self.state.epochs.remove(0);
        }
        self.judge(epoch, backend, files, observer)?;
        Ok(mine)
    }

    fn judgement(&self, epochs: &[EpochReport]) -> Result<Option<Judgement>, Error> {
        self.spec.validation.as_ref().map_or(Ok(None), |validation| validation.judge(epochs))
    }

    /// The first worker marks the best epoch, and decides for all whether training goes on.
    fn judge(
        &mut self,
        epoch: u64,
        backend: &mut dyn Backend,
        files: &mut dyn ModelFiles,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        if self.spec.validation.is_none() {
            return Ok(());
        }
        let judged = self.judgement(&self.state.epochs)?;
        if let Some(Judgement { metric, best: (best, value), stops }) = &judged {
            if *best == epoch {
                files.is_best(epoch)?;
            }
            if *stops && self.state.epoch < self.spec.epochs {
                let text = format!("training stops early: {metric} was best at epoch {best}");
                observer.event(&Event::Note(&format!("{text} ({value:.6})")));
            }
        }
        let stops = f64::from(judged.is_some_and(|judged| judged.stops));
        let stops = backend.reduce("stops early", ReduceOp::Max, &[stops])?;
        self.stops_early = stops.first().is_some_and(|stops| *stops > 0.0);
        Ok(())
    }

    /// Trains on the rest of the shard that was taken last.
    fn train_on(
        &mut self,
        data: &mut dyn Data,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        reading: &mut Vec<Stages>,
        observer: &mut dyn Observer,
    ) -> Result<Idle, Error> {
        let epoch = self.state.epoch;
        let from = self.held.last().map(|held| held.position.clone()).unwrap_or_default();
        let (mut feed, loading) = data.begin_pass(epoch, &from)?;
        let mut pass = self.pass(observer);
        let next = run_pass(backend, scope, &mut *feed, &mut pass)?;
        self.state.seconds = pass.clock.seconds();
        reading.extend([loading, feed.stages()]);
        tell_end(epoch, backend, &*feed, observer);
        Ok(next)
    }

    /// Where a data pass begins. This worker holds its own shard from now on.
    fn start(&mut self, backend: &dyn Backend, data: &dyn Data) -> PassStart {
        let worker = backend.worker();
        let own = own_shard(worker, &self.state);
        let mut shards = std::mem::take(&mut self.starts);
        shards.retain(|(shard, _)| *shard != worker);
        shards.push((worker, own.progress()));
        self.held = vec![own];
        let applied = std::mem::take(&mut self.state.applied);
        let (pass, readable_by_all) = (self.state.epoch, data.reads_all_shards());
        let plan = self.followed.as_ref().map(|(_, plan)| encode_plan(plan));
        PassStart { data: DataStart { pass, readable_by_all, plan, shards }, applied }
    }

    /// Takes over the data of a lost worker, where servers know them to be.
    fn take_over(
        &mut self,
        shard: usize,
        step: u64,
        backend: &mut dyn Backend,
        data: &dyn Data,
        observer: &mut dyn Observer,
    ) -> Result<Box<dyn Data>, Error> {
        let taken = backend.take_over(shard, step)?;
        let held = HeldShard::at(shard, &least(&taken.progress));
        let (worker, batches) = (backend.worker(), held.position.batches);
        observer.event(&Event::Note(&format!(
            "worker {shard} is lost: worker {worker} takes over its data of epoch {}, of which \
             {batches} batches are trained",
            self.state.epoch
        )));
        // The report of the data pass counts what the lost worker has trained.
        self.state.examples += held.counted;
        let loss_sum = f64::from_bits(self.state.loss_sum) + held.loss_sum;
        self.state.loss_sum = loss_sum.to_bits();
        self.held.push(held);
        data.shard(shard)
    }

    /// Takes part again after servers have lost this worker. Others may have its data by now, so it
    /// has none before it takes over a shard, its own or another, or the next data pass begins.
    fn rejoin(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        data: &mut dyn Data,
        lost: Error,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let mut note = |text: &str| observer.event(&Event::Note(text));
        note(&format!("{lost}; rejoining the job"));
        self.own_part = OwnPart::default();
        let Some(rejoined) = backend.rejoin(scope, &mut note)? else { return Err(lost) };
        let (worker, pass) = (backend.worker(), rejoined.pass);
        note(&format!("worker {worker} has rejoined the job in epoch {pass}"));
        self.spec.meters.iter_mut().for_each(Meter::reset);
        let before = std::mem::take(&mut self.state);
        let WorkerState { steps, epochs, planned, .. } = before;
        self.state = WorkerState { epoch: pass, steps, epochs, planned, ..WorkerState::default() };
        (self.held, self.has_rejoined) = (vec![], true);
        if data.arrives() {
            let plan = decode_plan(rejoined.plan.as_deref())?;
            data.follow(pass, &plan)?;
            self.followed = Some((pass, plan));
        }
        Ok(())
    }

    fn pass<'a>(&'a mut self, observer: &'a mut dyn Observer) -> Pass<'a> {
        let clock = IntervalClock::new(self.state.seconds);
        let non_finite = non_finite_losses(&self.spec);
        let fetch = Fetch { names: &self.spec.fetch, heads: self.spec.heads, scores: false };
        Pass {
            state: &mut self.state,
            held: &mut self.held,
            meters: &mut self.spec.meters,
            keys: &mut self.keys,
            fetch,
            non_finite,
            print_interval: self.spec.print_interval,
            due: &mut self.due,
            checkpoints: &mut self.log,
            own_part: &mut self.own_part,
            observer,
            clock,
        }
    }

    /// The model of a job that is done may be missing: saved elsewhere, or removed.
    fn save_again(
        &self,
        backend: &mut dyn Backend,
        scope: &Scope,
        files: &mut dyn ModelFiles,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let Some(epoch) = self.state.epoch.checked_sub(1).filter(|_| self.was_finished) else {
            return Ok(());
        };
        let is_missing = backend.worker() == 0 && !files.is_saved(epoch);
        let missing = backend.reduce("model", ReduceOp::Max, &[f64::from(is_missing)])?;
        if missing.first().is_none_or(|missing| *missing == 0.0) {
            return Ok(());
        }
        let moment = SaveMoment::Epoch;
        if let Some(folder) = self.save(epoch, moment, backend, scope, files, observer)? {
            observer.event(&Event::Saved(&folder));
        }
        Ok(())
    }

    /// The first worker saves; nobody continues before.
    fn save(
        &self,
        epoch: u64,
        moment: SaveMoment<'_>,
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
            let step = self.state.steps;
            let model = TrainedModel { epoch, moment, step, scope, states, backend };
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
            self.checkpoint(backend, scope, observer)?;
        }
        self.log.checkpoints.as_mut().map_or(Ok(()), Checkpoints::done)
    }
}

/// How long a run waits for the processes of one that was killed to let go of their folders.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Takes the folders of a run for itself.
fn lock_folders(spec: &RunSpec, note: &mut dyn FnMut(&str)) -> Result<Vec<FolderLock>, Error> {
    let checkpoints = spec.checkpoint.iter().map(|wanted| &wanted.config.dir);
    let mut folders: Vec<&PathBuf> = spec.folders.iter().chain(checkpoints).collect();
    folders.dedup();
    let mut locks = Vec::new();
    let until = Instant::now() + LOCK_LIMIT;
    for folder in folders {
        try_dir(folder)?;
        let lock = loop {
            match FolderLock::take(folder, &spec.model) {
                Err(regatta_checkpoint::Error::Refused { .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                taken => break taken?,
            }
        };
        lock.warning().into_iter().for_each(&mut *note);
        locks.push(lock);
    }
    Ok(locks)
}

/// This worker's own shard where its state says it is.
fn own_shard(worker: usize, state: &WorkerState) -> HeldShard {
    HeldShard {
        shard: worker,
        position: state.position.get(),
        counted: state.examples,
        loss_sum: f64::from_bits(state.loss_sum),
    }
}

/// No data pass ends while data of a lost worker are not trained.
fn check_all_trained(epoch: u64, end: &Idle) -> Result<(), Error> {
    let Idle::PassOver { untrained } = end else { return Ok(()) };
    let workers: Vec<String> = untrained.iter().map(usize::to_string).collect();
    match workers.is_empty() {
        true => Ok(()),
        false => Err(Error::Lost(format!(
            "data of epoch {epoch} are not trained: worker {} is lost, and no other worker can \
             read its data; start the job again, which resumes from its newest checkpoint",
            workers.join(", ")
        ))),
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

/// How many losses in a row may be NaN or infinite; none for any number of them.
fn non_finite_losses(spec: &RunSpec) -> Option<u32> {
    // Steps that overflow are left out until the factor on the loss is small enough. With Paddle's
    // defaults it takes 94 of them from the first factor down to 1.
    const WITH_LOSS_SCALING: u32 = 1000;
    let scales = spec.program.block().ops.iter().any(|op| op.kind == "check_finite");
    match spec.allow_non_finite_loss {
        true => None,
        false => Some(if scales { WITH_LOSS_SCALING } else { 0 }),
    }
}

/// Numbers that are learned.
fn parameters(program: &Program) -> u64 {
    program.block().params().map(|p| p.ty.numel().unwrap_or(0) as u64).sum()
}
