//! Training against parameter servers: the same configuration, run as one of several processes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use regatta_checkpoint::{Encoding, Topology, load_statistics, save_about, save_statistics};
use regatta_data::{Batch, Batches, Position};
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::ps::{
    GeoTrainer, Job, PassTimes, PsTrainer, Run, client_config, server_config, worker_part,
    worker_startup,
};
use regatta_passes::{Split, split_trainer};
use regatta_ps::message::{CutTaken, ReduceOp, ServerStats};
use regatta_ps::{Client, CutOrder, Mode, Server};
use regatta_table::SaveMode;
use regatta_tensor::Tensor;

use crate::checkpoint::{
    Checkpoints, Family, Resumed, SavedPosition, WorkerState, divide, in_loop,
};
use crate::data::Data;
use crate::export::{Trained, export};
use crate::metrics::{Measure, Meter};
use crate::network::Network;
use crate::observe::{self, Event, Observer};
use crate::report::{CheckpointReport, EpochReport, Report, StageSeconds, peak_rss_mb};
use crate::save::{INFERENCE_FOLDER, about, epoch_folder, has_server_parts};
use crate::train::{IntervalClock, epoch_report, tell};
use crate::{Config, Error};

/// The mode that a configuration asks for; `async` if it does not say.
///
/// # Errors
/// If the mode is one that parameter servers do not have.
pub fn mode(config: &Config) -> Result<Mode, Error> {
    let d = &config.runner.distributed;
    Ok(match d.sync_mode.as_deref().unwrap_or("async") {
        "sync" => Mode::Sync,
        "half_async" => Mode::HalfAsync,
        "async" => Mode::Async(d.asynchronous),
        "bounded" => Mode::Bounded { staleness: d.staleness.unwrap_or(0) },
        "geo" => Mode::Geo { every: d.geo_step.unwrap_or(1) },
        other => {
            let reason = format!("'{other}' is not a mode of parameter servers");
            return Err(Error::key("runner.sync_mode", reason));
        }
    })
}

fn split(network: &Network) -> Result<Split, Error> {
    Ok(split_trainer(&network.train)?)
}

/// Runs server `index` of a job until all workers have left; `ready` hears where it listens.
///
/// # Errors
/// If it cannot listen, or a worker is lost in a mode that waits for it.
pub fn serve(
    config: &Config,
    job: &Job,
    index: usize,
    ready: impl FnOnce(&str),
) -> Result<ServerStats, Error> {
    let network = Network::build(config)?;
    let split = split(&network)?;
    let server = Server::start(server_config(&split, job, index)?).map_err(ps)?;
    ready(&server.endpoint());
    server.run().map_err(ps)
}

fn ps(e: regatta_ps::Error) -> Error {
    Error::from(regatta_fleet::Error::from(e))
}

/// Trains as worker `worker` of a job. The report counts all workers; `own` are this worker's
/// epochs. With checkpoints, the job goes on from the newest one.
///
/// # Errors
/// If data, a step or a server fails.
pub fn train_worker(
    config: &Config,
    job: &Job,
    worker: usize,
    observer: &mut dyn Observer,
) -> Result<WorkerReport, Error> {
    let network = Network::build(config)?;
    let split = split(&network)?;
    let mut data =
        Data::open_part(config, &config.runner.train, &network.schema, worker, job.workers)?;
    let mut run = WorkerRun::new(config, &network, &split, job, worker, observer)?;
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: config.runner.epochs,
        examples: data.examples,
    });
    let mut own = Vec::new();
    while run.state.epoch < config.runner.epochs {
        let epoch = run.state.epoch;
        if config.runner.use_auc && run.state.batches == 0 {
            run.meters.iter_mut().for_each(Meter::reset);
        }
        let mine = run.epoch(config, &mut data, observer)?;
        let mut all = run.global(&mine)?;
        let start = Instant::now();
        let folder = run.save(config, &network, epoch, observer)?;
        all.stages.save = start.elapsed().as_secs_f64();
        observer.event(&Event::Epoch(&all));
        if worker == 0 {
            observer.event(&Event::Saved(&folder));
        }
        run.end_epoch(all);
        own.push(mine);
    }
    run.end(observer)?;
    let servers = if worker == 0 { run.client().stats().map_err(ps)? } else { vec![] };
    run.client().barrier("end").map_err(ps)?;
    run.client().leave().map_err(ps)?;
    let report = Report {
        config: config.to_json(),
        epochs: run.state.epochs,
        peak_rss_mb: peak_rss_mb(),
        resumed_from: run.resumed_from,
        checkpoints: run.made,
    };
    Ok(WorkerReport { report, own, servers })
}

/// What a worker knows when it is done.
pub struct WorkerReport {
    /// Over all workers.
    pub report: Report,
    /// This worker's epochs.
    pub own: Vec<EpochReport>,
    /// Numbers about the servers; worker 0 asks for them.
    pub servers: Vec<ServerStats>,
}

enum Trainer {
    Ps(Box<PsTrainer>),
    Geo(Box<GeoTrainer>),
}

struct WorkerRun {
    trainer: Trainer,
    scope: Scope,
    meters: Vec<Meter>,
    state: WorkerState,
    position: Position,
    /// Worker 0 makes them.
    checkpoints: Option<Checkpoints>,
    made: Vec<CheckpointReport>,
    resumed_from: Option<PathBuf>,
    was_finished: bool,
    /// All workers know whether there are any.
    has_checkpoints: bool,
}

impl WorkerRun {
    fn new(
        config: &Config,
        network: &Network,
        split: &Split,
        job: &Job,
        worker: usize,
        observer: &mut dyn Observer,
    ) -> Result<WorkerRun, Error> {
        let mut note = |text: &str| observer.event(&Event::Note(text));
        let chosen = match worker {
            0 => Resumed::choose(config, network, Family::Servers, &mut note)?,
            _ => None,
        };
        let client = Client::connect(client_config(split, job, worker)).map_err(ps)?;
        let mut scope = Scope::new();
        match job.mode {
            Mode::Geo { .. } => run_startup(&network.train.startup, &mut scope)?,
            _ => run_startup(&worker_startup(&network.train.startup, split)?, &mut scope)?,
        }
        let resumed = match resume(config, network, &client, chosen) {
            Ok(resumed) => resumed,
            Err(e) => return Err(told(e, &mut note)),
        };
        let options = Options {
            threads: config.runner.thread_num,
            check_nan_inf: config.runner.check_nan_inf,
            offload_dir: config.runner.offload_dir.clone(),
            ..Options::default()
        };
        let fetch = network.fetches();
        let trainer = match job.mode {
            Mode::Geo { every } => {
                let programs = &network.train;
                let t = GeoTrainer::new(programs, split, every, client, options, &fetch)?;
                Trainer::Geo(Box::new(t))
            }
            mode => {
                let t = PsTrainer::new(split, mode, client, options, &fetch)?;
                Trainer::Ps(Box::new(t))
            }
        };
        let topology = Topology {
            mode: job.mode.name().into(),
            servers: job.endpoints.len(),
            workers: job.workers,
            ranks: 0,
        };
        let checkpoints = match worker {
            0 => Checkpoints::new(config, network, topology)?,
            _ => None,
        };
        let mut run = WorkerRun {
            trainer,
            scope,
            meters: network.meters(Meter::new),
            state: WorkerState::default(),
            position: Position::default(),
            checkpoints,
            made: Vec::new(),
            resumed_from: None,
            was_finished: false,
            has_checkpoints: config.runner.checkpoint.is_some(),
        };
        if let (Some(checkpoints), Some(resumed)) = (&mut run.checkpoints, &resumed) {
            checkpoints.go_on_from(&resumed.checkpoint);
        }
        let begun = match resumed {
            Some(resumed) => run.restore(config, resumed, &mut note),
            None => run.start(config, network),
        };
        match begun {
            Ok(()) => Ok(run),
            Err(e) => Err(told(e, &mut note)),
        }
    }

    /// Begins with first values, or with a saved model.
    fn start(&mut self, config: &Config, network: &Network) -> Result<(), Error> {
        let d = &config.runner.distributed;
        let init = d.warmup_model_path.as_ref().or(config.runner.model_init_path.as_ref());
        if let Some(dir) = init.filter(|_| self.client().worker() == 0) {
            let names = config.runner.init_var_names.as_deref().unwrap_or_default();
            self.client().load(&dir.to_string_lossy(), names).map_err(ps)?;
        }
        // Statistics are not on servers: every worker begins with those that were saved.
        if let Some(dir) = init.filter(|dir| has_server_parts(dir)) {
            let names = config.runner.init_var_names.as_deref();
            let wanted = |name: &String| names.is_none_or(|names| names.contains(name));
            for (name, tensor) in load_statistics(&network.forward.main, dir)? {
                if wanted(&name) {
                    self.scope.set(&name, tensor);
                }
            }
        }
        // What is not named begins with first values; servers keep what they have loaded.
        let whole = init.is_some() && config.runner.init_var_names.is_none();
        match &mut self.trainer {
            Trainer::Ps(t) => t.start(&mut self.scope, whole)?,
            Trainer::Geo(t) => t.start(&mut self.scope, whole)?,
        }
        Ok(())
    }

    /// Goes on from a checkpoint that the servers have loaded.
    fn restore(
        &mut self,
        config: &Config,
        resumed: Resumed,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let (worker, workers) = (self.client().worker(), self.client().workers());
        let sharing = Data::sharing(config, &config.runner.train);
        let (state, changed) = divide(&resumed.states, worker, workers, sharing);
        let before = resumed.states.len();
        // Statistics that each worker keeps are much the same everywhere; copies of geo mode are not.
        let own = resumed.own_part(&worker_part(worker % before, before))?;
        if worker == 0 {
            note(&resumed.describe());
            changed.iter().for_each(|text| note(text));
        }
        match &mut self.trainer {
            Trainer::Ps(t) => {
                t.restore(&mut self.scope, state.loop_step, own.unwrap_or_default());
                t.start(&mut self.scope, true)?;
            }
            Trainer::Geo(t) => {
                let own = own.filter(|_| before == workers);
                if own.is_none() {
                    note("this worker begins with the values of the servers, without a copy");
                }
                t.restore(&mut self.scope, state.loop_step, own)?;
            }
        }
        self.was_finished = resumed.is_finished(config.runner.epochs);
        if self.was_finished && worker == 0 {
            note("the job has reached its end: there is nothing more to train");
        }
        state.load_meters(&mut self.meters);
        self.position = state.position.get();
        self.state = WorkerState { finished: false, ..state };
        self.resumed_from = Some(resumed.checkpoint.path().to_path_buf());
        Ok(())
    }

    fn client(&self) -> &Client {
        match &self.trainer {
            Trainer::Ps(t) => t.client(),
            Trainer::Geo(t) => t.client(),
        }
    }

    /// One pass over this worker's data, or the rest of one.
    fn epoch(
        &mut self,
        config: &Config,
        data: &mut Data,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let start = Instant::now();
        let (epoch, before) = (self.state.epoch, self.state.seconds);
        let (batches, loading) = data.resume(epoch, &self.position)?;
        let mut pass = Pass {
            print_interval: config.runner.print_interval,
            batches: Some(batches),
            clock: IntervalClock::new(),
            meters: &mut self.meters,
            state: &mut self.state,
            position: &mut self.position,
            checkpoints: &mut self.checkpoints,
            made: &mut self.made,
            observer,
            start,
            before,
        };
        let times = match &mut self.trainer {
            Trainer::Ps(t) => {
                t.train_with(&mut self.scope, &mut pass)?;
                t.take_times()
            }
            Trainer::Geo(t) => {
                t.train_with(&mut self.scope, &mut pass)?;
                t.take_times()
            }
        };
        let reading = pass.batches.as_ref().map(Batches::stages).unwrap_or_default();
        let bad = pass.batches.as_ref().map(Batches::bad_lines).unwrap_or_default();
        if bad.count > 0 {
            observer.event(&Event::BadLines(&bad));
        }
        let seconds = before + start.elapsed().as_secs_f64();
        let reading =
            crate::train::stages(&[loading, reading], Default::default(), Default::default());
        let stages = with_exchanges(reading, &times);
        let examples = self.state.examples;
        let loss_sum = f64::from_bits(self.state.loss_sum);
        let loss = (examples > 0).then(|| loss_sum / examples as f64);
        let measured = measures(&self.meters);
        Ok(epoch_report(epoch, loss, examples, seconds, stages, &self.meters, measured))
    }

    fn end_epoch(&mut self, report: EpochReport) {
        let mut epochs = std::mem::take(&mut self.state.epochs);
        epochs.push(report);
        self.position = Position::default();
        let (epoch, steps) = (self.state.epoch + 1, self.state.steps);
        self.state = WorkerState { epoch, steps, epochs, ..WorkerState::default() };
    }

    /// The last checkpoint says that the job is done.
    fn end(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if !self.has_checkpoints {
            return Ok(());
        }
        self.finish_checkpoint(observer)?;
        if !self.was_finished {
            self.state.finished = true;
            if let Some(checkpoints) = &mut self.checkpoints {
                let order = checkpoints.begin()?;
                self.client().open_cut(&order).map_err(ps)?;
            }
            let mut pass = Pass {
                print_interval: 1,
                batches: None,
                clock: IntervalClock::new(),
                meters: &mut self.meters,
                state: &mut self.state,
                position: &mut self.position,
                checkpoints: &mut self.checkpoints,
                made: &mut self.made,
                observer,
                start: Instant::now(),
                before: 0.0,
            };
            match &mut self.trainer {
                Trainer::Ps(t) => t.cut(&self.scope, &mut pass)?,
                Trainer::Geo(t) => t.cut(&mut self.scope, &mut pass)?,
            }
            match &mut self.trainer {
                Trainer::Ps(t) => t.finish_part()?,
                Trainer::Geo(t) => t.finish_part()?,
            }
            self.finish_checkpoint(observer)?;
        }
        self.checkpoints.as_mut().map_or(Ok(()), Checkpoints::done)
    }

    /// Waits for the checkpoint on its way.
    fn finish_checkpoint(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let client = match &self.trainer {
            Trainer::Ps(t) => t.client(),
            Trainer::Geo(t) => t.client(),
        };
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let outcome = checkpoints.finish(Some(client))?;
        tell(outcome, &mut self.made, observer);
        Ok(())
    }

    /// The same over all workers: sums of examples, losses and counters, the longest time.
    fn global(&mut self, mine: &EpochReport) -> Result<EpochReport, Error> {
        let client = match &self.trainer {
            Trainer::Ps(t) => t.client(),
            Trainer::Geo(t) => t.client(),
        };
        let examples = mine.examples as f64;
        let loss = mine.loss.unwrap_or(0.0) * examples;
        let mut sums = vec![examples, loss];
        let own: Vec<Vec<f64>> = self.meters.iter().map(Meter::counters).collect();
        sums.extend(own.iter().flatten());
        let sums = client.reduce("epoch", ReduceOp::Sum, &sums).map_err(ps)?;
        let longest = client.reduce("seconds", ReduceOp::Max, &[mine.seconds]).map_err(ps)?;
        let mut meters = self.meters.clone();
        let mut rest = &sums[2..];
        for (meter, own) in meters.iter_mut().zip(&own) {
            let (now, later) = rest.split_at(own.len());
            meter.set_counters(now);
            rest = later;
        }
        let examples = sums[0] as u64;
        let loss = (examples > 0).then(|| sums[1] / sums[0]);
        let measured = measures(&meters);
        let seconds = longest.first().copied().unwrap_or(mine.seconds);
        Ok(epoch_report(mine.epoch, loss, examples, seconds, mine.stages, &meters, measured))
    }

    /// Lets the servers save an epoch. The folder appears when all of them have written their part.
    fn save(
        &self,
        config: &Config,
        network: &Network,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<PathBuf, Error> {
        let path = &config.runner.model_save_path;
        let folder = epoch_folder(path, epoch);
        let client = self.client();
        // Everything that was pushed is applied: a worker passes here only after its last push.
        client.barrier("before saving").map_err(ps)?;
        if client.worker() == 0 {
            let unfinished = path.join(format!(".{epoch}.saving"));
            let fail = |source| Error::Write { path: folder.clone(), source };
            if unfinished.exists() {
                std::fs::remove_dir_all(&unfinished).map_err(fail)?;
            }
            client.save(&unfinished.to_string_lossy(), SaveMode::All).map_err(ps)?;
            save_about(&unfinished, &about(config, self.state.steps))?;
            save_statistics(&network.forward.main, |name| self.scope.get(name), &unfinished)?;
            if config.runner.inference.is_some() {
                let note = &mut |text: &str| observer.event(&Event::Note(text));
                let to = unfinished.join(INFERENCE_FOLDER);
                export(&Trained::open(&unfinished)?, config, &to, Encoding::F32, note)?;
            }
            if folder.exists() {
                std::fs::remove_dir_all(&folder).map_err(fail)?;
            }
            std::fs::rename(&unfinished, &folder).map_err(fail)?;
        }
        client.barrier("saved").map_err(ps)?;
        Ok(folder)
    }
}

/// Says what went wrong while the connections are still there: when they are closed, the servers end
/// too, and the one that ends first is believed to be the cause.
pub(crate) fn told(e: Error, note: &mut dyn FnMut(&str)) -> Error {
    note(&format!("this worker ends: {e}"));
    e
}

/// Worker 0 lets the servers load the checkpoint that it has chosen; the others hear which one it is.
fn resume(
    config: &Config,
    network: &Network,
    client: &Client,
    chosen: Option<Resumed>,
) -> Result<Option<Resumed>, Error> {
    if config.runner.checkpoint.is_none() {
        return Ok(None);
    }
    let mut path = Vec::new();
    if let Some(resumed) = &chosen {
        let dir = resumed.checkpoint.path().to_string_lossy().into_owned();
        let count_changes =
            config.runner.checkpoint.as_ref().is_some_and(|c| c.config.full_every > 1);
        client.restore(&dir, count_changes).map_err(ps)?;
        path = dir.bytes().map(f64::from).collect();
    }
    // Only worker 0 has something to say, so all of them hear the same.
    let path = client.reduce("resume", ReduceOp::Gather, &path).map_err(ps)?;
    if chosen.is_some() || path.is_empty() {
        return Ok(chosen);
    }
    let bytes: Vec<u8> = path.iter().map(|byte| *byte as u8).collect();
    let path = PathBuf::from(String::from_utf8_lossy(&bytes).into_owned());
    Resumed::open_at(&path, network, Family::Servers).map(Some)
}

/// What the loop of a worker asks of its run.
struct Pass<'a> {
    print_interval: u64,
    batches: Option<Batches>,
    clock: IntervalClock,
    meters: &'a mut Vec<Meter>,
    state: &'a mut WorkerState,
    position: &'a mut Position,
    checkpoints: &'a mut Option<Checkpoints>,
    made: &'a mut Vec<CheckpointReport>,
    observer: &'a mut dyn Observer,
    start: Instant,
    /// Seconds of the pass before this run.
    before: f64,
}

impl Run for Pass<'_> {
    fn next(&mut self) -> Result<Option<Batch>, regatta_fleet::Error> {
        match &mut self.batches {
            Some(batches) => Ok(batches.next()?),
            None => Ok(None),
        }
    }

    fn on_step(
        &mut self,
        client: &Client,
        fetched: &[Tensor],
        batch: Batch,
    ) -> Result<Option<CutOrder>, regatta_fleet::Error> {
        self.position.advance(&batch);
        let n = batch.examples() as u64;
        if let Some(batches) = &mut self.batches {
            batches.recycle(batch);
        }
        for (meter, head) in self.meters.iter_mut().zip(fetched[1..].chunks_exact(2)) {
            meter.add(&head[0], &head[1]);
        }
        let loss = fetched[0].f32()[0];
        let (epoch, batch_id) = (self.state.epoch, self.state.batches);
        self.state.batches += 1;
        self.state.steps += 1;
        self.state.examples += n;
        let loss_sum = f64::from_bits(self.state.loss_sum) + f64::from(loss) * n as f64;
        self.state.loss_sum = loss_sum.to_bits();
        self.clock.count(n);
        let examples = self.state.examples;
        self.observer.event(&Event::Batch(&observe::Batch { epoch, batch_id, examples, loss }));
        if batch_id.is_multiple_of(self.print_interval)
            && let Some(batches) = &self.batches
        {
            let place = (epoch, batch_id, self.state.steps);
            let metrics = measures(self.meters);
            let interval = self.clock.interval(place, Some(loss), metrics, batches);
            self.observer.event(&Event::Interval(&interval));
        }
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(None) };
        let outcome = checkpoints.poll(Some(client)).map_err(in_loop)?;
        tell(outcome, self.made, self.observer);
        checkpoints.after_step(epoch, batch_id).map_err(in_loop)
    }

    fn at_cut(&mut self, step: u64) -> Result<String, regatta_fleet::Error> {
        self.state.loop_step = step;
        self.state.seconds = self.before + self.start.elapsed().as_secs_f64();
        self.state.position = SavedPosition::of(self.position);
        self.state.save_meters(self.meters);
        Ok(self.state.encode())
    }

    fn cut_taken(
        &mut self,
        client: &Client,
        cut: CutTaken,
        stall: Duration,
    ) -> Result<(), regatta_fleet::Error> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let states = cut.states.iter().map(|(worker, text)| {
            let state: WorkerState = serde_json::from_str(text)
                .map_err(|e| regatta_fleet::Error::Config(format!("worker {worker}: {e}")))?;
            Ok((*worker, state))
        });
        let states = states.collect::<Result<Vec<_>, regatta_fleet::Error>>()?;
        checkpoints.written_by_servers(client.written()?, &states, stall);
        Ok(())
    }
}

fn measures(meters: &[Meter]) -> Vec<Measure> {
    meters.iter().filter_map(|m| Some((m.name().to_string(), m.main()?))).collect()
}

fn with_exchanges(stages: StageSeconds, times: &PassTimes) -> StageSeconds {
    StageSeconds {
        pull: times.pull.as_secs_f64(),
        forward: times.compute.as_secs_f64(),
        push: times.push.as_secs_f64(),
        ..stages
    }
}
