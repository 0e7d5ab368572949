//! Training: a configuration goes in; saved epochs and a report come out.

use std::time::{Duration, Instant};

use regatta_data::{Batch, Batches, Stages};
use regatta_exec::{Executor, Options, RoleTimes, Scope, run_startup};

use crate::data::Data;
use crate::metrics::{Measure, Meter};
use crate::network::{Network, feeds, inputs};
use crate::observe::{self, Event, Interval, Observer};
use crate::report::{EpochReport, Report, StageSeconds, peak_rss_mb};
use crate::save::{Export, epoch_folder, load_epoch, save_epoch};
use crate::zoo::Metric;
use crate::{Config, Error};

/// Trains the model of a configuration and saves every epoch.
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
    let mut trainer = Trainer::new(config, &network, &mut note)?;
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: config.runner.epochs,
        examples: data.examples,
    });
    let mut epochs = Vec::new();
    for epoch in 0..config.runner.epochs {
        if config.runner.use_auc {
            trainer.meters.iter_mut().for_each(Meter::reset);
        }
        let mut report = run_epoch(config, &mut trainer, &mut data, epoch, observer)?;
        let folder = epoch_folder(&config.runner.model_save_path, epoch);
        let start = Instant::now();
        save_epoch(&network, &trainer.scope, export.as_ref(), &folder)?;
        report.stages.save = start.elapsed().as_secs_f64();
        observer.event(&Event::Epoch(&report));
        observer.event(&Event::Saved(&folder));
        epochs.push(report);
    }
    Ok(Report { config: config.to_json(), epochs, peak_rss_mb: peak_rss_mb() })
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
            let fresh = load_epoch(&network.train.main, &mut scope, folder)?;
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

    fn metrics(&self) -> Vec<Measure> {
        let named = |m: &Meter| Some((m.name().to_string(), m.main()?));
        self.meters.iter().filter_map(named).collect()
    }
}

/// One pass over the data.
fn run_epoch(
    config: &Config,
    trainer: &mut Trainer,
    data: &mut Data,
    epoch: u64,
    observer: &mut dyn Observer,
) -> Result<EpochReport, Error> {
    let (start, times) = (Instant::now(), trainer.executor.times());
    let (mut batches, loading) = data.pass(epoch)?;
    let mut clock = IntervalClock::new();
    let (mut examples, mut batch_id, mut loss_sum) = (0_u64, 0_u64, 0.0_f64);
    while let Some(batch) = batches.next()? {
        let loss = trainer.step(&batch)?;
        let n = batch.examples() as u64;
        batches.recycle(batch);
        examples += n;
        loss_sum += f64::from(loss) * n as f64;
        clock.count(n);
        observer.event(&Event::Batch(&observe::Batch { epoch, batch_id, examples, loss }));
        if batch_id.is_multiple_of(config.runner.print_interval) {
            let step = trainer.executor.step();
            let place = (epoch, batch_id, step);
            let interval = clock.interval(place, Some(loss), trainer.metrics(), &batches);
            observer.event(&Event::Interval(&interval));
        }
        batch_id += 1;
    }
    let bad = batches.bad_lines();
    if bad.count > 0 {
        observer.event(&Event::BadLines(&bad));
    }
    let seconds = start.elapsed().as_secs_f64();
    let stages = stages(&[loading, batches.stages()], times, trainer.executor.times());
    let loss = Some(loss_sum / examples.max(1) as f64);
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
    EpochReport { epoch, loss, auc, examples, examples_per_sec, seconds, stages, metrics }
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
