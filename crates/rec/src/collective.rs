//! Training by ranks without servers: the same configuration, run as one of several processes.

use std::cell::RefCell;
use std::time::Instant;

use regatta_collective::Group;
use regatta_data::Batch;
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::DistributedStrategy;
use regatta_fleet::collective::{CollectiveTrainer, PassEnd, optimizer_for};
use regatta_tensor::Tensor;

use crate::data::Data;
use crate::metrics::{Measure, Meter};
use crate::network::Network;
use crate::observe::{self, Event, Observer};
use crate::report::{EpochReport, Report, StageSeconds, peak_rss_mb};
use crate::save::{Export, epoch_folder, load_epoch, save_epoch_with};
use crate::train::{IntervalClock, epoch_report, stages};
use crate::{Config, Error};

/// The strategy that a configuration names; the default one if it names none.
///
/// # Errors
/// If the file cannot be read, or it or the configuration asks for what collective training does not
/// have.
pub fn strategy(config: &Config) -> Result<DistributedStrategy, Error> {
    if config.runner.checkpoint.is_some() {
        let reason =
            "ranks make no checkpoints; go on from a saved epoch with runner.model_init_path";
        return Err(Error::key("runner.checkpoint", reason));
    }
    let strategy = match &config.runner.distributed.strategy {
        Some(path) => DistributedStrategy::load(path)?,
        None => DistributedStrategy::default(),
    };
    strategy.check(regatta_fleet::strategy::Use::Collective)?;
    strategy.check_rule(&config.optimizer.rule)?;
    Ok(strategy)
}

/// What a rank knows when it is done.
pub struct RankReport {
    /// Over all ranks.
    pub report: Report,
    /// This rank's epochs.
    pub own: Vec<EpochReport>,
}

/// Trains as one rank of a group. All ranks end with the same parameters; rank 0 saves them.
///
/// # Errors
/// If data or a step fails, a rank is lost, or the strategy does not fit the model.
pub fn train_rank(
    config: &Config,
    group: Group,
    observer: &mut dyn Observer,
) -> Result<RankReport, Error> {
    let strategy = strategy(config)?;
    let network = Network::build_with(config, &optimizer_for(&config.optimizer, &strategy)?)?;
    let (rank, ranks) = (group.rank(), group.size());
    let mut data = Data::open_rank(config, &config.runner.train, &network.schema, rank, ranks)?;
    let mut note = |text: &str| observer.event(&Event::Note(text));
    let export = config.runner.inference.as_ref().filter(|_| rank == 0);
    let export = export.map(|wanted| Export::new(&network, wanted, &mut note)).transpose()?;
    let mut run = RankRun::new(config, &network, &strategy, group, &mut note)?;
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
        let folder = epoch_folder(&config.runner.model_save_path, epoch);
        run.save(&network, export.as_ref(), &folder)?;
        all.stages.save = start.elapsed().as_secs_f64();
        observer.event(&Event::Epoch(&all));
        if rank == 0 {
            observer.event(&Event::Saved(&folder));
        }
        epochs.push(all);
        own.push(mine);
    }
    run.trainer.barrier("end")?;
    let report = Report {
        config: config.to_json(),
        epochs,
        peak_rss_mb: peak_rss_mb(),
        resumed_from: None,
        checkpoints: vec![],
    };
    Ok(RankReport { report, own })
}

struct RankRun {
    trainer: CollectiveTrainer,
    scope: Scope,
    meters: Vec<Meter>,
}

impl RankRun {
    fn new(
        config: &Config,
        network: &Network,
        strategy: &DistributedStrategy,
        group: Group,
        note: &mut dyn FnMut(&str),
    ) -> Result<RankRun, Error> {
        let options = Options {
            threads: config.runner.thread_num,
            check_nan_inf: config.runner.check_nan_inf,
            offload_dir: config.runner.offload_dir.clone(),
            ..Options::default()
        };
        let fetch = network.fetches();
        let mut trainer = CollectiveTrainer::new(
            &network.train,
            strategy,
            group,
            options,
            &network.loss,
            &fetch,
        )?;
        let mut scope = Scope::new();
        let programs = &trainer.plan().each;
        run_startup(&programs.startup, &mut scope)?;
        if let Some(folder) = &config.runner.model_init_path {
            // States that this rank does not keep would only take memory.
            let names = config.runner.init_var_names.as_deref();
            let fresh = load_epoch(&programs.main, &mut scope, folder, names)?;
            if let Some(first) = fresh.first() {
                let (folder, n) = (folder.display(), fresh.len());
                note(&format!(
                    "{folder}: has no {first} ({n} in all); training begins with new ones"
                ));
            }
        }
        trainer.start(&mut scope)?;
        Ok(RankRun { trainer, scope, meters: network.meters(Meter::new) })
    }

    /// One pass over this rank's data.
    fn epoch(
        &mut self,
        config: &Config,
        data: &mut Data,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let (start, times, first) = (Instant::now(), self.trainer.times(), self.trainer.step());
        let (batches, loading) = data.pass(epoch)?;
        let batches = RefCell::new(batches);
        let mut clock = IntervalClock::new();
        let (mut examples, mut batch_id, mut loss_sum) = (0_u64, 0_u64, 0.0_f64);
        let meters = &mut self.meters;
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
            observer.event(&Event::Batch(&observe::Batch { epoch, batch_id, examples, loss }));
            if batch_id.is_multiple_of(config.runner.print_interval) {
                let place = (epoch, batch_id, first + batch_id + 1);
                let metrics = measures(meters);
                let interval = clock.interval(place, Some(loss), metrics, &batches.borrow());
                observer.event(&Event::Interval(&interval));
            }
            batch_id += 1;
            Ok(())
        };
        let end = self.trainer.train(&mut self.scope, next, on_step)?;
        if self.trainer.rank() == 0 {
            tell_idle(epoch, &end, observer);
        }
        let batches = batches.into_inner();
        let bad = batches.bad_lines();
        if bad.count > 0 {
            observer.event(&Event::BadLines(&bad));
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut stages = stages(&[loading, batches.stages()], times, self.trainer.times());
        // The wait for the slowest rank before a step.
        stages.pull = self.trainer.take_waited().as_secs_f64();
        let loss = (examples > 0).then(|| loss_sum / examples as f64);
        let measured = measures(&self.meters);
        Ok(epoch_report(epoch, loss, examples, seconds, stages, &self.meters, measured))
    }

    /// The same over all ranks: sums of examples, losses and counters, the longest time.
    fn global(&mut self, mine: &EpochReport) -> Result<EpochReport, Error> {
        let examples = mine.examples as f64;
        let mut sums = vec![examples, mine.loss.unwrap_or(0.0) * examples];
        let own: Vec<Vec<f64>> = self.meters.iter().map(Meter::counters).collect();
        sums.extend(own.iter().flatten());
        let sums = self.trainer.sum("epoch", &sums)?;
        let longest = self.trainer.max("seconds", &[mine.seconds])?;
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
        let (seconds, stages): (f64, StageSeconds) = (longest[0], mine.stages);
        Ok(epoch_report(mine.epoch, loss, examples, seconds, stages, &meters, measured))
    }

    /// Rank 0 saves, with the optimizer states that other ranks keep; nobody goes on before.
    fn save(
        &self,
        network: &Network,
        export: Option<&Export>,
        folder: &std::path::Path,
    ) -> Result<(), Error> {
        let states = self.trainer.collect_states(&self.scope)?;
        if self.trainer.rank() == 0 {
            let lookup = |name: &str| states.get(name).or_else(|| self.scope.get(name));
            save_epoch_with(network, lookup, export, folder)?;
        }
        Ok(self.trainer.barrier("saved")?)
    }
}

/// Says who ran out of data before others.
fn tell_idle(epoch: u64, end: &PassEnd, observer: &mut dyn Observer) {
    let idle: Vec<String> = end
        .idle
        .iter()
        .enumerate()
        .filter(|(_, steps)| **steps > 0)
        .map(|(rank, steps)| format!("rank {rank} for {steps}"))
        .collect();
    if !idle.is_empty() {
        let text = format!(
            "epoch {epoch}: of {} steps, some ranks had no data left: {}",
            end.steps,
            idle.join(", ")
        );
        observer.event(&Event::Note(&text));
    }
}

fn measures(meters: &[Meter]) -> Vec<Measure> {
    meters.iter().filter_map(|m| Some((m.name().to_string(), m.main()?))).collect()
}
