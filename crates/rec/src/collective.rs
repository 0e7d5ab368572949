//! Training by ranks without servers: the same configuration, run as one of several processes.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_checkpoint::{CheckpointConfig, Topology};
use regatta_collective::Group;
use regatta_data::{Batch, Position};
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::DistributedStrategy;
use regatta_fleet::collective::{CollectiveTrainer, PassEnd, When, optimizer_for};
use regatta_ir::Program;
use regatta_tensor::Tensor;

use crate::checkpoint::{
    Checkpoints, Family, Resumed, SavedPosition, WorkerState, divide, in_loop,
};
use crate::data::Data;
use crate::metrics::{Measure, Meter};
use crate::network::Network;
use crate::observe::{self, Event, Observer};
use crate::report::{CheckpointReport, EpochReport, Report, StageSeconds, peak_rss_mb};
use crate::save::{Export, about, epoch_folder, load_epoch, save_epoch_with};
use crate::train::{IntervalClock, epoch_report, stages, tell};
use crate::{Config, Error};

/// The strategy that a configuration names; the default one if it names none.
///
/// # Errors
/// If the file cannot be read, or it or the configuration asks for what collective training does not
/// have.
pub fn strategy(config: &Config) -> Result<DistributedStrategy, Error> {
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
    let chosen = match rank {
        0 => Resumed::choose(config, &network, Family::Whole, &mut note)?,
        _ => None,
    };
    let mut run = RankRun::new(config, &network, &strategy, group, chosen, &mut note)?;
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: config.runner.epochs,
        examples: data.examples,
    });
    let mut own = Vec::new();
    while run.state.epoch < config.runner.epochs {
        let epoch = run.state.epoch;
        if config.runner.use_auc && run.state.batches == 0 && run.pass_steps == 0 {
            run.meters.iter_mut().for_each(Meter::reset);
        }
        let mine = run.epoch(config, &mut data, observer)?;
        let mut all = run.global(&mine)?;
        let start = Instant::now();
        let folder = epoch_folder(&config.runner.model_save_path, epoch);
        run.save(config, &network, export.as_ref(), &folder)?;
        all.stages.save = start.elapsed().as_secs_f64();
        observer.event(&Event::Epoch(&all));
        if rank == 0 {
            observer.event(&Event::Saved(&folder));
        }
        run.end_epoch(all);
        own.push(mine);
    }
    run.end(observer)?;
    run.trainer.barrier("end")?;
    let report = Report {
        config: config.to_json(),
        epochs: run.state.epochs,
        peak_rss_mb: peak_rss_mb(),
        resumed_from: run.resumed_from,
        checkpoints: run.made,
    };
    Ok(RankReport { report, own })
}

struct RankRun {
    trainer: CollectiveTrainer,
    scope: Scope,
    meters: Vec<Meter>,
    state: WorkerState,
    position: Position,
    /// Steps of the pass before this run began.
    pass_steps: u64,
    /// When checkpoints are due, on all ranks; rank 0 makes them.
    due: Option<CheckpointConfig>,
    /// One is due, and waits until ranks are together.
    is_due: bool,
    checkpoints: Option<Checkpoints>,
    made: Vec<CheckpointReport>,
    resumed_from: Option<PathBuf>,
    was_finished: bool,
}

/// Refuses what a checkpoint of rank 0, made when ranks are together, does not hold.
fn check_checkpoints(
    config: &Config,
    network: &Network,
    strategy: &DistributedStrategy,
    when: When,
) -> Result<(), Error> {
    let Some(wanted) = &config.runner.checkpoint else { return Ok(()) };
    let reason = if wanted.config.seconds.is_some() {
        "ranks make checkpoints by steps: use runner.checkpoint.step_interval instead of seconds"
    } else if strategy.dgc {
        "with dgc every rank keeps what it has not sent yet, which checkpoints do not hold"
    } else if matches!(when, When::Adaptive { .. }) {
        "adaptive_localsgd chooses its next steps from losses that checkpoints do not hold; use localsgd"
    } else if when.is_local() && keeps_own_states(network) {
        "with localsgd every rank keeps states of its own (momentum, loss scaling), which checkpoints do \
         not hold; use the sgd optimizer without float16"
    } else {
        return Ok(());
    };
    Err(Error::key("runner.checkpoint.dir", reason))
}

/// Whether steps change more than parameters and what follows from their number.
fn keeps_own_states(network: &Network) -> bool {
    let block = network.train.main.block();
    let mut ops = block.ops.iter();
    ops.any(|op| op.kind == "update_loss_scaling" || !op.outs("StatesOut").is_empty())
}

impl RankRun {
    fn new(
        config: &Config,
        network: &Network,
        strategy: &DistributedStrategy,
        group: Group,
        chosen: Option<Resumed>,
        note: &mut dyn FnMut(&str),
    ) -> Result<RankRun, Error> {
        let options = Options {
            threads: config.runner.thread_num,
            check_nan_inf: config.runner.check_nan_inf,
            offload_dir: config.runner.offload_dir.clone(),
            ..Options::default()
        };
        let fetch = network.fetches();
        let trainer = CollectiveTrainer::new(
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
            let mut kept = Program::new("kept");
            for var in trainer.plan().kept() {
                kept.block_mut().declare(var.clone()).map_err(regatta_fleet::Error::from)?;
            }
            let fresh = load_epoch(&kept, &mut scope, folder, names)?;
            if let Some(first) = fresh.first() {
                let (folder, n) = (folder.display(), fresh.len());
                note(&format!(
                    "{folder}: has no {first} ({n} in all); training begins with new ones"
                ));
            }
        }
        check_checkpoints(config, network, strategy, trainer.plan().when)?;
        let (rank, ranks) = (trainer.rank(), trainer.ranks());
        let topology =
            Topology { mode: "collective".into(), ranks, workers: ranks, ..Topology::default() };
        let checkpoints = match rank {
            0 => Checkpoints::new(config, network, topology)?,
            _ => None,
        };
        let mut run = RankRun {
            trainer,
            scope,
            meters: network.meters(Meter::new),
            state: WorkerState::default(),
            position: Position::default(),
            pass_steps: 0,
            due: config.runner.checkpoint.as_ref().map(|wanted| wanted.config.clone()),
            is_due: false,
            checkpoints,
            made: Vec::new(),
            resumed_from: None,
            was_finished: false,
        };
        run.resume(config, network, chosen, note)?;
        run.trainer.start(&mut run.scope)?;
        Ok(run)
    }

    /// All ranks go on from the checkpoint that rank 0 has chosen, if any.
    fn resume(
        &mut self,
        config: &Config,
        network: &Network,
        chosen: Option<Resumed>,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        if self.due.is_none() {
            return Ok(());
        }
        let own = chosen.as_ref().map(|r| r.checkpoint.path().to_string_lossy().into_owned());
        let paths = self.trainer.gather_texts("resume", &own.unwrap_or_default())?;
        let resumed = match chosen {
            Some(resumed) => resumed,
            None if paths[0].is_empty() => return Ok(()),
            None => Resumed::open_at(Path::new(&paths[0]), network, Family::Whole)?,
        };
        let (rank, ranks) = (self.trainer.rank(), self.trainer.ranks());
        let sharing = Data::sharing_of_ranks(config, &config.runner.train, ranks);
        let (state, changed) = divide(&resumed.states, rank, ranks, sharing);
        self.was_finished = resumed.is_finished(config.runner.epochs);
        if rank == 0 {
            note(&resumed.describe());
            changed.iter().for_each(|text| note(text));
            if self.was_finished {
                note("the job has reached its end: there is nothing more to train");
            }
        }
        let kept = self.trainer.plan().kept().into_iter();
        let here: HashSet<&str> = kept.map(|var| var.name.as_str()).collect();
        for (name, tensor) in resumed.tensors()? {
            if here.contains(name.as_str()) {
                self.scope.set(&name, tensor);
            }
        }
        self.trainer.set_step(state.loop_step);
        state.load_meters(&mut self.meters);
        self.position = state.position.get();
        self.pass_steps = resumed.checkpoint.manifest().rng.get("pass_steps").copied().unwrap_or(0);
        if changed.is_some() {
            self.pass_steps = 0;
        }
        self.state = WorkerState { finished: false, ..state };
        self.resumed_from = Some(resumed.checkpoint.path().to_path_buf());
        Ok(())
    }

    /// One pass over this rank's data, or the rest of one.
    fn epoch(
        &mut self,
        config: &Config,
        data: &mut Data,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let (start, times) = (Instant::now(), self.trainer.times());
        let (epoch, before, pass_steps) = (self.state.epoch, self.state.seconds, self.pass_steps);
        let first = self.trainer.step() - self.state.batches.min(self.trainer.step());
        let (batches, loading) = data.resume(epoch, &self.position)?;
        let batches = RefCell::new(batches);
        let observer = RefCell::new(observer);
        let mut clock = IntervalClock::new();
        let RankRun {
            trainer, scope, meters, state, position, due, is_due, checkpoints, made, ..
        } = self;
        let shared = RefCell::new((meters, state, position));
        let next = || Ok(batches.borrow_mut().next()?);
        let on_step = |n: usize, fetched: &[Tensor], batch: Batch| {
            let (meters, state, position) = &mut *shared.borrow_mut();
            position.advance(&batch);
            batches.borrow_mut().recycle(batch);
            for (meter, head) in meters.iter_mut().zip(fetched[1..].chunks_exact(2)) {
                meter.add(&head[0], &head[1]);
            }
            let loss = fetched[0].f32()[0];
            let batch_id = state.batches;
            state.batches += 1;
            state.steps += 1;
            state.examples += n as u64;
            let loss_sum = f64::from_bits(state.loss_sum) + f64::from(loss) * n as f64;
            state.loss_sum = loss_sum.to_bits();
            clock.count(n as u64);
            let examples = state.examples;
            let batch = observe::Batch { epoch, batch_id, examples, loss };
            observer.borrow_mut().event(&Event::Batch(&batch));
            if batch_id.is_multiple_of(config.runner.print_interval) {
                let place = (epoch, batch_id, first + batch_id + 1);
                let metrics = measures(meters);
                let interval = clock.interval(place, Some(loss), metrics, &batches.borrow());
                observer.borrow_mut().event(&Event::Interval(&interval));
            }
            Ok(())
        };
        let between = |trainer: &CollectiveTrainer, scope: &Scope, step: u64| {
            let step = pass_steps + step;
            let observer = &mut **observer.borrow_mut();
            if let Some(checkpoints) = checkpoints.as_mut() {
                let outcome = checkpoints.poll(None).map_err(in_loop)?;
                tell(outcome, made, observer);
            }
            // By steps only, so that all ranks decide alike.
            *is_due |= due.as_ref().is_some_and(|c| c.due(epoch, step, Duration::ZERO));
            if !*is_due || !trainer.is_settled() {
                return Ok(());
            }
            *is_due = false;
            if let Some(checkpoints) = checkpoints.as_mut() {
                let outcome = checkpoints.finish(None).map_err(in_loop)?;
                tell(outcome, made, observer);
                checkpoints.begin().map_err(in_loop)?;
            }
            let (meters, state, position) = &mut *shared.borrow_mut();
            state.seconds = before + start.elapsed().as_secs_f64();
            state.position = SavedPosition::of(position);
            state.save_meters(meters);
            checkpoint(trainer, scope, state, step + 1, checkpoints)
        };
        let end = trainer.train_with(scope, next, on_step, between)?;
        let observer = observer.into_inner();
        self.pass_steps = 0;
        if self.trainer.rank() == 0 {
            tell_idle(epoch, &end, observer);
        }
        let batches = batches.into_inner();
        let bad = batches.bad_lines();
        if bad.count > 0 {
            observer.event(&Event::BadLines(&bad));
        }
        let seconds = before + start.elapsed().as_secs_f64();
        let mut stages = stages(&[loading, batches.stages()], times, self.trainer.times());
        // The wait for the slowest rank before a step.
        stages.pull = self.trainer.take_waited().as_secs_f64();
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
        if self.due.is_none() {
            return Ok(());
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            tell(checkpoints.finish(None)?, &mut self.made, observer);
        }
        if self.was_finished {
            return Ok(());
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.begin()?;
        }
        self.state.finished = true;
        self.state.save_meters(&self.meters);
        checkpoint(&self.trainer, &self.scope, &mut self.state, 0, &mut self.checkpoints)?;
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        tell(checkpoints.finish(None)?, &mut self.made, observer);
        checkpoints.done()
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
        config: &Config,
        network: &Network,
        export: Option<&Export>,
        folder: &Path,
    ) -> Result<(), Error> {
        let states = self.trainer.collect_states(&self.scope)?;
        if self.trainer.rank() == 0 {
            let lookup = |name: &str| states.get(name).or_else(|| self.scope.get(name));
            let about = about(config, self.state.steps);
            save_epoch_with(network, lookup, export, about, folder)?;
        }
        Ok(self.trainer.barrier("saved")?)
    }
}

/// All ranks: tell rank 0 where they are; it copies what all have and writes it.
fn checkpoint(
    trainer: &CollectiveTrainer,
    scope: &Scope,
    state: &mut WorkerState,
    pass_steps: u64,
    checkpoints: &mut Option<Checkpoints>,
) -> Result<(), regatta_fleet::Error> {
    let start = Instant::now();
    state.loop_step = trainer.step();
    let texts = trainer.gather_texts("checkpoint", &state.encode())?;
    let others = trainer.collect_states(scope)?;
    let Some(checkpoints) = checkpoints else { return Ok(()) };
    let read = |(rank, text): (usize, &String)| {
        let state = serde_json::from_str::<WorkerState>(text);
        let state = state.map_err(|e| regatta_fleet::Error::Config(format!("rank {rank}: {e}")))?;
        Ok((rank, state))
    };
    let states =
        texts.iter().enumerate().map(read).collect::<Result<Vec<_>, regatta_fleet::Error>>()?;
    let kept = trainer.plan().kept().into_iter().map(|var| &var.name);
    let kept = kept.filter_map(|name| Some((name.clone(), scope.get(name)?.clone())));
    let tensors = kept.filter(|(name, _)| !others.contains_key(name)).collect::<Vec<_>>();
    let tensors = tensors.into_iter().chain(others).collect();
    checkpoints.note("pass_steps", pass_steps);
    checkpoints.write_alone(tensors, &states, start.elapsed()).map_err(in_loop)
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
