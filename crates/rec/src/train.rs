//! Training: a configuration goes in; saved epochs and a report come out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use regatta_checkpoint::Topology;
use regatta_data::{Batch, Batches, Position, Stages};
use regatta_exec::{Executor, Options, RoleTimes, Scope, run_startup};
use regatta_ir::Program;
use regatta_tensor::Tensor;

use crate::checkpoint::{
    Checkpoints, Family, Outcome, Resumed, SavedPosition, WorkerState, divide,
};
use crate::data::Data;
use crate::metrics::{Measure, Meter};
use crate::network::{Network, feeds, inputs};
use crate::observe::{self, Event, Interval, Observer};
use crate::report::{CheckpointReport, EpochReport, Report, StageSeconds, peak_rss_mb};
use crate::save::{Export, about, epoch_folder, load_epoch, save_epoch};
use crate::zoo::Metric;
use crate::{Config, Error};

/// Trains the model of a configuration and saves every epoch. With checkpoints, it goes on from the
/// newest one.
///
/// # Errors
/// If the configuration cannot be used after all, the data cannot be read, a step fails or an epoch
/// cannot be saved. What was saved before stays, and nothing is half-written.
pub fn train(config: &Config, observer: &mut dyn Observer) -> Result<Report, Error> {
    let network = Network::build(config)?;
    let mut data = Data::open(config, &config.runner.train, &network.schema)?;
    let mut note = |text: &str| observer.event(&Event::Note(text));
    let export = config.runner.inference.as_ref();
    let export = export.map(|wanted| Export::new(&network, wanted, &mut note)).transpose()?;
    let resumed = Resumed::choose(config, &network, Family::Whole, &mut note)?;
    let mut trainer = Trainer::new(config, &network, &mut note)?;
    let mut run = LocalRun::new(config, &network, &mut trainer, resumed, &mut note)?;
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: config.runner.epochs,
        examples: data.examples,
    });
    while run.state.epoch < config.runner.epochs {
        let epoch = run.state.epoch;
        if config.runner.use_auc && run.state.batches == 0 {
            trainer.meters.iter_mut().for_each(Meter::reset);
        }
        let mut report = run_epoch(config, &mut trainer, &mut data, &mut run, observer)?;
        let folder = epoch_folder(&config.runner.model_save_path, epoch);
        let start = Instant::now();
        let about = about(config, trainer.executor.step());
        save_epoch(&network, &trainer.scope, export.as_ref(), about, &folder)?;
        report.stages.save = start.elapsed().as_secs_f64();
        observer.event(&Event::Epoch(&report));
        observer.event(&Event::Saved(&folder));
        run.end_epoch(report);
    }
    run.end(&mut trainer, observer)?;
    Ok(Report {
        config: config.to_json(),
        epochs: run.state.epochs,
        peak_rss_mb: peak_rss_mb(),
        resumed_from: run.resumed_from,
        checkpoints: run.made,
    })
}

/// Where a run on one machine is, and its checkpoints.
struct LocalRun {
    state: WorkerState,
    position: Position,
    checkpoints: Option<Checkpoints>,
    made: Vec<CheckpointReport>,
    resumed_from: Option<PathBuf>,
    was_finished: bool,
}

impl LocalRun {
    /// From the beginning, or from a checkpoint.
    fn new(
        config: &Config,
        network: &Network,
        trainer: &mut Trainer,
        resumed: Option<Resumed>,
        note: &mut dyn FnMut(&str),
    ) -> Result<LocalRun, Error> {
        let topology = Topology { mode: "local".into(), workers: 1, ..Topology::default() };
        let mut run = LocalRun {
            state: WorkerState::default(),
            position: Position::default(),
            checkpoints: Checkpoints::new(config, network, topology)?,
            made: Vec::new(),
            resumed_from: None,
            was_finished: false,
        };
        let Some(resumed) = resumed else { return Ok(run) };
        note(&resumed.describe());
        let sharing = Data::sharing(config, &config.runner.train);
        let (state, changed) = divide(&resumed.states, 0, 1, sharing);
        changed.iter().for_each(|text| note(text));
        run.was_finished = resumed.is_finished(config.runner.epochs);
        if run.was_finished {
            note("the job has reached its end: there is nothing more to train");
        }
        trainer.restore(&network.train.main, &resumed, &state)?;
        run.position = state.position.get();
        run.resumed_from = Some(resumed.checkpoint.path().to_path_buf());
        run.state = WorkerState { finished: false, ..state };
        Ok(run)
    }

    /// Counts a batch, and makes a checkpoint after it if one is due.
    fn after_batch(
        &mut self,
        trainer: &Trainer,
        seconds: f64,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let (epoch, batch_id) = (self.state.epoch, self.state.batches);
        self.state.batches += 1;
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let outcome = checkpoints.poll(None)?;
        let due = checkpoints.after_step(epoch, batch_id)?.is_some();
        self.tell(outcome, observer);
        if due {
            self.checkpoint(trainer, seconds)?;
        }
        Ok(())
    }

    /// Copies everything and lets it be written.
    fn checkpoint(&mut self, trainer: &Trainer, seconds: f64) -> Result<(), Error> {
        let start = Instant::now();
        self.state.seconds = seconds;
        self.state.position = SavedPosition::of(&self.position);
        self.state.save_meters(&trainer.meters);
        (self.state.steps, self.state.loop_step) =
            (trainer.executor.step(), trainer.executor.step());
        let kept = trainer.executor.program().persistables().map(|var| &var.name);
        let kept = kept.filter_map(|name| Some((name.clone(), trainer.scope.get(name)?.clone())));
        let tensors = kept.collect();
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        checkpoints.write_alone(tensors, &[(0, self.state.clone())], start.elapsed())
    }

    fn tell(&mut self, outcome: Option<Outcome>, observer: &mut dyn Observer) {
        tell(outcome, &mut self.made, observer);
    }

    fn end_epoch(&mut self, report: EpochReport) {
        let mut epochs = std::mem::take(&mut self.state.epochs);
        epochs.push(report);
        self.position = Position::default();
        self.state = WorkerState { epoch: self.state.epoch + 1, epochs, ..WorkerState::default() };
    }

    /// The last checkpoint says that the job is done.
    fn end(&mut self, trainer: &mut Trainer, observer: &mut dyn Observer) -> Result<(), Error> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let outcome = checkpoints.finish(None)?;
        tell(outcome, &mut self.made, observer);
        if !self.was_finished {
            checkpoints.begin()?;
            self.state.finished = true;
            self.checkpoint(trainer, 0.0)?;
            let outcome = self.checkpoints.as_mut().map(|c| c.finish(None)).transpose()?.flatten();
            self.tell(outcome, observer);
        }
        self.checkpoints.as_mut().map_or(Ok(()), Checkpoints::done)
    }
}

/// Tells what became of a checkpoint.
pub(crate) fn tell(
    outcome: Option<Outcome>,
    made: &mut Vec<CheckpointReport>,
    observer: &mut dyn Observer,
) {
    match outcome {
        Some(Outcome::Made(report)) => {
            observer.event(&Event::Checkpoint(&report));
            made.push(report);
        }
        Some(Outcome::Failed(reason)) => observer.event(&Event::Note(&reason)),
        None => {}
    }
}

/// A model in training.
pub struct Trainer {
    executor: Executor,
    scope: Scope,
    inputs: Vec<String>,
    fetch: Vec<String>,
    meters: Vec<Meter>,
}

impl Trainer {
    /// First values of all parameters, or those of `model_init_path`.
    ///
    /// # Errors
    /// If the programs are wrong or the saved epoch does not fit.
    pub fn new(
        config: &Config,
        network: &Network,
        note: &mut dyn FnMut(&str),
    ) -> Result<Trainer, Error> {
        let mut scope = Scope::new();
        run_startup(&network.train.startup, &mut scope)?;
        if let Some(folder) = &config.runner.model_init_path {
            let names = config.runner.init_var_names.as_deref();
            let fresh = load_epoch(&network.train.main, &mut scope, folder, names)?;
            if !fresh.is_empty() {
                let n = fresh.len();
                note(&format!(
                    "{}: has no {} ({n} in all); training begins with new ones",
                    folder.display(),
                    fresh[0]
                ));
            }
        }
        let threads = config.runner.thread_num;
        let check_nan_inf = config.runner.check_nan_inf;
        let offload_dir = config.runner.offload_dir.clone();
        let options = Options { threads, check_nan_inf, offload_dir, ..Options::default() };
        Ok(Trainer {
            inputs: inputs(&network.train.main),
            fetch: network.fetches().iter().map(|name| name.to_string()).collect(),
            meters: network.meters(Meter::new),
            executor: Executor::new(network.train.main.clone(), options)?,
            scope,
        })
    }

    /// One step: feed, run, measure. Returns the loss.
    ///
    /// # Errors
    /// If the batch does not fit the program or a kernel meets a bad value.
    pub fn step(&mut self, batch: &Batch) -> Result<f32, Error> {
        let feeds = feeds(batch, &self.inputs);
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        let fetched = self.executor.run(&mut self.scope, &feeds, &fetch)?;
        for (meter, head) in self.meters.iter_mut().zip(fetched[1..].chunks_exact(2)) {
            meter.add(&head[0], &head[1]);
        }
        Ok(fetched[0].f32()[0])
    }

    /// Goes on from a checkpoint: parameters, optimizer state, step and counters, all to the bit.
    fn restore(
        &mut self,
        program: &Program,
        resumed: &Resumed,
        state: &WorkerState,
    ) -> Result<(), Error> {
        let mut saved: BTreeMap<String, Tensor> = resumed.tensors()?.into_iter().collect();
        for var in program.persistables() {
            let Some(tensor) = saved.remove(&var.name) else {
                let path = resumed.checkpoint.path().display();
                return Err(Error::Resume(format!("{path} has no '{}'", var.name)));
            };
            self.scope.set(&var.name, tensor);
        }
        self.executor.set_step(state.loop_step);
        state.load_meters(&mut self.meters);
        Ok(())
    }

    fn metrics(&self) -> Vec<Measure> {
        let named = |m: &Meter| Some((m.name().to_string(), m.main()?));
        self.meters.iter().filter_map(named).collect()
    }
}

/// One pass over the data, or the rest of one.
fn run_epoch(
    config: &Config,
    trainer: &mut Trainer,
    data: &mut Data,
    run: &mut LocalRun,
    observer: &mut dyn Observer,
) -> Result<EpochReport, Error> {
    let (start, times) = (Instant::now(), trainer.executor.times());
    let (epoch, before) = (run.state.epoch, run.state.seconds);
    let (mut batches, loading) = data.resume(epoch, &run.position)?;
    let mut clock = IntervalClock::new();
    while let Some(batch) = batches.next()? {
        let loss = trainer.step(&batch)?;
        let n = batch.examples() as u64;
        run.position.advance(&batch);
        batches.recycle(batch);
        let batch_id = run.state.batches;
        run.state.examples += n;
        let loss_sum = f64::from_bits(run.state.loss_sum) + f64::from(loss) * n as f64;
        run.state.loss_sum = loss_sum.to_bits();
        clock.count(n);
        let examples = run.state.examples;
        observer.event(&Event::Batch(&observe::Batch { epoch, batch_id, examples, loss }));
        if batch_id.is_multiple_of(config.runner.print_interval) {
            let step = trainer.executor.step();
            let place = (epoch, batch_id, step);
            let interval = clock.interval(place, Some(loss), trainer.metrics(), &batches);
            observer.event(&Event::Interval(&interval));
        }
        run.after_batch(trainer, before + start.elapsed().as_secs_f64(), observer)?;
    }
    let bad = batches.bad_lines();
    if bad.count > 0 {
        observer.event(&Event::BadLines(&bad));
    }
    let seconds = before + start.elapsed().as_secs_f64();
    let stages = stages(&[loading, batches.stages()], times, trainer.executor.times());
    let examples = run.state.examples;
    let loss = Some(f64::from_bits(run.state.loss_sum) / examples.max(1) as f64);
    Ok(epoch_report(epoch, loss, examples, seconds, stages, &trainer.meters, trainer.metrics()))
}

/// Puts the numbers of a pass together.
pub(crate) fn epoch_report(
    epoch: u64,
    loss: Option<f64>,
    examples: u64,
    seconds: f64,
    stages: StageSeconds,
    meters: &[Meter],
    measures: Vec<Measure>,
) -> EpochReport {
    let first_auc = meters.iter().find(|m| m.kind() == Metric::Auc);
    let auc = first_auc.and_then(Meter::main);
    // What has a field of its own is not repeated.
    let metrics = measures.into_iter().filter(|(name, _)| name != "auc").collect();
    let examples_per_sec = examples as f64 / seconds.max(1e-9);
    let missing_ids = 0;
    EpochReport {
        epoch,
        loss,
        auc,
        examples,
        examples_per_sec,
        seconds,
        stages,
        missing_ids,
        metrics,
    }
}

/// Seconds by stage of one pass.
pub(crate) fn stages(reading: &[Stages], before: RoleTimes, after: RoleTimes) -> StageSeconds {
    let sum = |of: fn(&Stages) -> Duration| reading.iter().map(of).sum::<Duration>().as_secs_f64();
    let since = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64();
    StageSeconds {
        read: sum(|s| s.read),
        parse: sum(|s| s.parse),
        batch: sum(|s| s.batch),
        wait: sum(|s| s.wait),
        forward: since(after.forward, before.forward),
        backward: since(after.backward, before.backward),
        update: since(after.optimize, before.optimize),
        ..StageSeconds::default()
    }
}

/// Means over the batches since the last line.
pub(crate) struct IntervalClock {
    start: Instant,
    waited: Duration,
    batches: u64,
    examples: u64,
}

impl IntervalClock {
    pub(crate) fn new() -> IntervalClock {
        IntervalClock { start: Instant::now(), waited: Duration::ZERO, batches: 0, examples: 0 }
    }

    pub(crate) fn count(&mut self, examples: u64) {
        self.batches += 1;
        self.examples += examples;
    }

    /// Ends an interval at `(epoch, batch_id, step)` and begins the next.
    pub(crate) fn interval(
        &mut self,
        (epoch, batch_id, step): (u64, u64, u64),
        loss: Option<f32>,
        metrics: Vec<Measure>,
        batches: &Batches,
    ) -> Interval {
        let (now, waited) = (Instant::now(), batches.stages().wait);
        let n = self.batches.max(1) as f64;
        let interval = Interval {
            epoch,
            batch_id,
            step,
            loss,
            metrics,
            reader_seconds: waited.saturating_sub(self.waited).as_secs_f64() / n,
            batch_seconds: (now - self.start).as_secs_f64() / n,
            samples: self.examples as f64 / n,
        };
        *self = IntervalClock { start: now, waited, batches: 0, examples: 0 };
        interval
    }
}
