//! Training against parameter servers: the same configuration, run as one of several processes.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use regatta_data::Batch;
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::ps::{GeoTrainer, Job, PassTimes, PsTrainer, client_config, server_config};
use regatta_passes::{Split, split_trainer};
use regatta_ps::message::{ReduceOp, ServerStats};
use regatta_ps::{Client, Mode, Server};
use regatta_tensor::Tensor;

use crate::data::Data;
use crate::metrics::{Measure, Meter};
use crate::network::Network;
use crate::observe::{self, Event, Observer};
use crate::report::{EpochReport, Report, StageSeconds, peak_rss_mb};
use crate::save::epoch_folder;
use crate::train::{IntervalClock, epoch_report};
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
/// epochs.
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
    let mut run = WorkerRun::new(config, &network, &split, job, worker)?;
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: config.runner.epochs,
        examples: data.examples,
    });
    let (mut epochs, mut own) = (Vec::new(), Vec::new());
    for epoch in 0..config.runner.epochs {
        if config.runner.use_auc {
            run.meters.iter_mut().for_each(Meter::reset);
        }
        let mine = run.epoch(config, &mut data, epoch, observer)?;
        let mut all = run.global(&mine)?;
        let start = Instant::now();
        let folder = run.save(&config.runner.model_save_path, epoch)?;
        all.stages.save = start.elapsed().as_secs_f64();
        observer.event(&Event::Epoch(&all));
        if worker == 0 {
            observer.event(&Event::Saved(&folder));
        }
        epochs.push(all);
        own.push(mine);
    }
    let servers = if worker == 0 { run.client().stats().map_err(ps)? } else { vec![] };
    run.client().barrier("end").map_err(ps)?;
    run.client().leave().map_err(ps)?;
    let report = Report { config: config.to_json(), epochs, peak_rss_mb: peak_rss_mb() };
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
    step: u64,
}

impl WorkerRun {
    fn new(
        config: &Config,
        network: &Network,
        split: &Split,
        job: &Job,
        worker: usize,
    ) -> Result<WorkerRun, Error> {
        let client = Client::connect(client_config(split, job, worker)).map_err(ps)?;
        let mut scope = Scope::new();
        run_startup(&network.train.startup, &mut scope)?;
        let loaded = match &config.runner.distributed.warmup_model_path {
            Some(dir) if worker == 0 => {
                client.load(&dir.to_string_lossy(), &[]).map_err(ps)?;
                true
            }
            found => found.is_some(),
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
                let mut t = GeoTrainer::new(programs, split, every, client, options, &fetch)?;
                t.start(&mut scope, loaded)?;
                Trainer::Geo(Box::new(t))
            }
            mode => {
                let mut t = PsTrainer::new(split, mode, client, options, &fetch)?;
                t.start(&mut scope, loaded)?;
                Trainer::Ps(Box::new(t))
            }
        };
        Ok(WorkerRun { trainer, scope, meters: network.meters(Meter::new), step: 0 })
    }

    fn client(&self) -> &Client {
        match &self.trainer {
            Trainer::Ps(t) => t.client(),
            Trainer::Geo(t) => t.client(),
        }
    }

    /// One pass over this worker's data.
    fn epoch(
        &mut self,
        config: &Config,
        data: &mut Data,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let start = Instant::now();
        let (batches, loading) = data.pass(epoch)?;
        let batches = RefCell::new(batches);
        let mut clock = IntervalClock::new();
        let (mut examples, mut batch_id, mut loss_sum) = (0_u64, 0_u64, 0.0_f64);
        let (meters, step) = (&mut self.meters, &mut self.step);
        let next = || Ok(batches.borrow_mut().next()?);
        let on_step = |n: usize, fetched: &[Tensor], batch: Batch| {
            batches.borrow_mut().recycle(batch);
            for (meter, head) in meters.iter_mut().zip(fetched[1..].chunks_exact(2)) {
                meter.add(&head[0], &head[1]);
            }
            let loss = fetched[0].f32()[0];
            examples += n as u64;
            loss_sum += f64::from(loss) * n as f64;
            clock.count(n as u64);
            *step += 1;
            observer.event(&Event::Batch(&observe::Batch { epoch, batch_id, examples, loss }));
            if batch_id.is_multiple_of(config.runner.print_interval) {
                let place = (epoch, batch_id, *step);
                let metrics = measures(meters);
                let interval = clock.interval(place, Some(loss), metrics, &batches.borrow());
                observer.event(&Event::Interval(&interval));
            }
            batch_id += 1;
            Ok(())
        };
        let times = match &mut self.trainer {
            Trainer::Ps(t) => {
                t.train(&mut self.scope, next, on_step)?;
                t.take_times()
            }
            Trainer::Geo(t) => {
                t.train(&mut self.scope, next, on_step)?;
                t.take_times()
            }
        };
        let batches = batches.into_inner();
        let bad = batches.bad_lines();
        if bad.count > 0 {
            observer.event(&Event::BadLines(&bad));
        }
        let seconds = start.elapsed().as_secs_f64();
        let reading = crate::train::stages(
            &[loading, batches.stages()],
            Default::default(),
            Default::default(),
        );
        let stages = with_exchanges(reading, &times);
        let loss = (examples > 0).then(|| loss_sum / examples as f64);
        let measured = measures(&self.meters);
        Ok(epoch_report(epoch, loss, examples, seconds, stages, &self.meters, measured))
    }

    /// The same over all workers: sums of examples, losses and counters, the longest time.
    fn global(&mut self, mine: &EpochReport) -> Result<EpochReport, Error> {
        let client = match &self.trainer {
            Trainer::Ps(t) => t.client(),
            Trainer::Geo(t) => t.client(),
        };
        let examples = mine.examples as f64;
        let mut sums = vec![examples, mine.loss.unwrap_or(0.0) * examples];
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
    fn save(&self, path: &Path, epoch: u64) -> Result<PathBuf, Error> {
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
            client.save(&unfinished.to_string_lossy()).map_err(ps)?;
            if folder.exists() {
                std::fs::remove_dir_all(&folder).map_err(fail)?;
            }
            std::fs::rename(&unfinished, &folder).map_err(fail)?;
        }
        client.barrier("saved").map_err(ps)?;
        Ok(folder)
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
