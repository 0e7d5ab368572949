//! The steps of a worker.

use regatta_data::Batch;
use regatta_exec::Scope;
use regatta_tensor::{Tensor, Value};

use super::Fleet;
use crate::Error;

/// Runs the training program of a [`Fleet`], as an [`Executor`](regatta_exec::Executor) does on one
/// machine.
pub struct FleetExecutor {
    fleet: Fleet,
    fetched: Vec<Tensor>,
}

impl FleetExecutor {
    pub(super) fn new(fleet: Fleet) -> FleetExecutor {
        FleetExecutor { fleet, fetched: Vec::new() }
    }

    /// One step on named inputs; returns the named variables, in order.
    ///
    /// In modes that wait for servers, the gradients of a step travel with the request for the next
    /// one. [`Fleet::pull_parameters`], a barrier, a save and [`Fleet::stop_worker`] send them at once.
    ///
    /// # Errors
    /// If an input or output does not fit, or an exchange fails.
    pub fn run(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
    ) -> Result<&[Tensor], Error> {
        let run = |engine: &mut super::Engine, scope: &mut Scope| engine.run(scope, feeds, fetch);
        self.fetched = self.fleet.with_engine("run", scope, run)?;
        Ok(&self.fetched)
    }

    /// A pass over the batches of a reader, with exchanges running ahead as far as the strategy
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
        self.fleet
            .with_engine("train", scope, |engine, scope| engine.train(scope, fetch, next, on_step))
    }
}
