//! The steps of a worker.

use regatta_checkpoint::CheckpointConfig;
use regatta_data::Batch;
use regatta_exec::Scope;
use regatta_tensor::{Tensor, Value};
use regatta_train::metrics::Meter;
use regatta_train::observe::Observer;
use regatta_train::report::Report;
use regatta_train::{Data, Family, Feed, RunSpec, Session, run_feed, run_step};

use super::Fleet;
use super::engine::{Closures, Engine};
use crate::Error;

/// Runs the training program of a [`Fleet`], as an [`Executor`](regatta_exec::Executor) does on one
/// machine.
pub struct FleetExecutor {
    fleet: Fleet,
    fetched: Vec<Tensor>,
}

/// What [`FleetExecutor::train_epochs`] does; Paddle's `Trainer` with its `CheckpointConfig`.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// Data passes.
    pub epochs: u64,
    /// The variable that holds the loss, which is reported.
    pub loss: String,
    /// Predictions that are measured: name of the measure, prediction, label.
    pub heads: Vec<(&'static str, regatta_train::metrics::Metric, String, String)>,
    /// Continue when the loss is NaN or infinite, which is an error otherwise.
    pub allow_non_finite_loss: bool,
    /// Steps between two reports.
    pub print_interval: u64,
    /// Checkpoints; a program that is started again resumes from the newest one.
    pub checkpoint: Option<CheckpointConfig>,
}

impl TrainConfig {
    /// One data pass that reports a loss, without checkpoints.
    pub fn new(loss: impl Into<String>) -> TrainConfig {
        let (loss, heads) = (loss.into(), Vec::new());
        TrainConfig {
            epochs: 1,
            loss,
            heads,
            allow_non_finite_loss: false,
            print_interval: 10,
            checkpoint: None,
        }
    }
}

impl FleetExecutor {
    pub(super) fn new(fleet: Fleet) -> FleetExecutor {
        FleetExecutor { fleet, fetched: Vec::new() }
    }

    /// With the options that the fleet has.
    pub fn of(fleet: &Fleet) -> FleetExecutor {
        FleetExecutor::new(fleet.clone())
    }

    /// One step on named inputs; returns the named variables, in order.
    ///
    /// In modes that wait for servers, the gradients of a step travel with the request for the next
    /// one. [`Fleet::pull_parameters`], a barrier, a save and [`Fleet::stop_worker`] send them at
    /// once. Nothing is prefetched: only [`FleetExecutor::train`] knows later batches.
    ///
    /// # Errors
    /// If an input or output does not fit, or an exchange fails.
    pub fn run(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
    ) -> Result<&[Tensor], Error> {
        let run = |engine: &mut Engine, scope: &mut Scope| {
            engine.set_fetch(fetch);
            Ok(run_step(&mut **engine, scope, feeds)?)
        };
        self.fetched = self.fleet.with_engine("run", scope, run)?;
        Ok(&self.fetched)
    }

    /// A data pass over the batches of a reader, with exchanges prefetched as far as the strategy
    /// says. `on_step` sees what was fetched, and takes the batch back.
    ///
    /// # Errors
    /// If data, a step or an exchange fails.
    pub fn train(
        &mut self,
        scope: &mut Scope,
        fetch: &[&str],
        next: impl FnMut() -> Result<Option<Batch>, Error>,
        on_step: impl FnMut(&[Tensor], Batch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.train_feed(scope, fetch, &mut Closures { next, on_step })
    }

    /// As [`FleetExecutor::train`] over a feed, which sees the steps.
    ///
    /// # Errors
    /// As [`FleetExecutor::train`].
    pub fn train_feed(
        &mut self,
        scope: &mut Scope,
        fetch: &[&str],
        feed: &mut dyn Feed,
    ) -> Result<(), Error> {
        self.fleet.with_engine("train", scope, |engine, scope| {
            engine.set_fetch(fetch);
            Ok(run_feed(&mut **engine, scope, feed)?)
        })
    }

    /// Data passes with reports, measures and checkpoints, as `regatta train` makes them: a program
    /// that is started again after a crash resumes to the bit. All workers call it.
    ///
    /// # Errors
    /// If data, a step, an exchange or a checkpoint fails, or a checkpoint belongs to another
    /// program.
    pub fn train_epochs(
        &mut self,
        scope: &mut Scope,
        data: &mut dyn Data,
        config: &TrainConfig,
        observer: &mut dyn Observer,
    ) -> Result<Report, Error> {
        let spec = self.spec(config)?;
        let (family, is_first) = match self.fleet.server_num() {
            0 => (Family::Whole, self.fleet.is_first_worker()),
            _ => (Family::Servers, self.fleet.is_first_worker()),
        };
        let session = Session::open(spec, family, is_first, observer)?.already_started();
        self.fleet.with_engine("train_epochs", scope, |engine, scope| {
            Ok(session.train(&mut **engine, scope, data, &mut (), observer)?.report)
        })
    }

    fn spec(&self, config: &TrainConfig) -> Result<RunSpec, Error> {
        let state = self.fleet.worker_state("train_epochs")?;
        let Some(plan) = &state.plan else {
            return Err(Error::Internal("a worker without a plan".into()));
        };
        let heads = config.heads.iter();
        let fetch = heads.clone().flat_map(|(_, _, predict, label)| [predict, label]).cloned();
        Ok(RunSpec {
            model: plan.programs.main.name.clone(),
            program: plan.programs.main.clone(),
            epochs: config.epochs,
            fetch: std::iter::once(config.loss.clone()).chain(fetch).collect(),
            heads: true,
            meters: heads.map(|(name, kind, _, _)| Meter::new(name, *kind)).collect(),
            reset_meters: true,
            allow_non_finite_loss: config.allow_non_finite_loss,
            print_interval: config.print_interval.max(1),
            seed: 0,
            learning_rate: regatta_passes::learning_rate(&plan.programs).ok(),
            settings: serde_json::json!({ "strategy": plan.strategy.to_yaml() }),
            fixed: vec![],
            folders: vec![],
            validation: None,
            checkpoint: config.checkpoint.clone().map(Into::into),
        })
    }
}
