//! What a worker runs: the program alone, or its part of a job.

use std::collections::HashMap;

use regatta_cluster::{Place, PsRole};
use regatta_data::Batch;
use regatta_exec::{Executor, Options, Scope};
use regatta_passes::Split;
use regatta_ps::{Client, Mode};
use regatta_tensor::{Tensor, Value};

use super::plan::{CollectiveJob, Plan, PsPlan};
use crate::collective::CollectiveTrainer;
use crate::ps::{GeoTrainer, PsTrainer};
use crate::{Error, ReduceOp};

/// The training of one worker. The kinds differ in what a step exchanges with whom.
pub(super) enum Engine {
    /// One process.
    Local(Box<Executor>),
    /// Parameter servers.
    Ps(Box<PsTrainer>),
    /// Parameter servers, with a copy of everything here.
    Geo(Box<GeoTrainer>),
    /// Ranks that exchange gradients.
    Collective(Box<CollectiveTrainer>),
}

impl Engine {
    /// Connects to whom there is, and gives all workers the same parameters.
    pub(super) fn start(
        plan: &Plan,
        place: &Place,
        options: Options,
        scope: &mut Scope,
    ) -> Result<Engine, Error> {
        match (place, &plan.ps) {
            (Place::ParameterServer(place), Some(ps)) => {
                let worker = match place.role {
                    PsRole::Worker(worker) => worker,
                    PsRole::Server(_) => 0,
                };
                start_ps(plan, ps, worker, options, scope)
            }
            _ if plan.collective.is_some() => {
                let job = plan.collective.as_ref().expect("checked above");
                start_collective(plan, job, options, scope)
            }
            _ => {
                let executor = Executor::new(plan.programs.main.clone(), options)?;
                Ok(Engine::Local(Box::new(executor)))
            }
        }
    }

    /// One step on values by name; returns what was asked for.
    pub(super) fn run(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>, Error> {
        match self {
            Engine::Local(executor) => Ok(executor.run(scope, feeds, fetch)?.to_vec()),
            Engine::Ps(trainer) => trainer.run(scope, feeds, fetch),
            Engine::Geo(trainer) => trainer.run(scope, feeds, fetch),
            Engine::Collective(trainer) => trainer.run(scope, feeds, fetch),
        }
    }

    /// A pass over batches.
    pub(super) fn train(
        &mut self,
        scope: &mut Scope,
        fetch: &[&str],
        mut next: impl FnMut() -> Result<Option<Batch>, Error>,
        mut on_step: impl FnMut(&[Tensor], Batch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self {
            Engine::Local(executor) => {
                while let Some(batch) = next()? {
                    let block = executor.program().block();
                    let is_input = |name: &str| block.vars.contains_key(name);
                    let feeds: Vec<(&str, &Value)> =
                        batch.iter().filter(|(name, _)| is_input(name)).collect();
                    let fetched = executor.run(scope, &feeds, fetch)?;
                    on_step(fetched, batch)?;
                }
                Ok(())
            }
            Engine::Ps(trainer) => {
                trainer.set_fetch(fetch);
                trainer.train(scope, next, |_, fetched, batch| on_step(fetched, batch))
            }
            Engine::Geo(trainer) => {
                trainer.set_fetch(fetch);
                trainer.train(scope, next, |_, fetched, batch| on_step(fetched, batch))
            }
            Engine::Collective(trainer) => {
                trainer.set_fetch(fetch);
                let on_step = |_: usize, fetched: &[Tensor], batch: Batch| on_step(fetched, batch);
                trainer.train(scope, next, on_step).map(|_| ())
            }
        }
    }

    /// Combines values of all workers. Those that still train go on without this one meanwhile.
    pub(super) fn reduce(
        &mut self,
        call: &str,
        op: ReduceOp,
        values: &[f64],
    ) -> Result<Vec<f64>, Error> {
        match self {
            Engine::Local(_) => Ok(values.to_vec()),
            Engine::Ps(trainer) => {
                trainer.rest()?;
                Ok(trainer.client().reduce(call, op, values)?)
            }
            Engine::Geo(trainer) => Ok(trainer.client().reduce(call, op, values)?),
            Engine::Collective(trainer) => trainer.combine(call, op, values),
        }
    }

    /// Sends what is still to be sent, and takes the latest parameters.
    pub(super) fn pull_parameters(&mut self, scope: &mut Scope) -> Result<(), Error> {
        match self {
            // Ranks have all parameters.
            Engine::Local(_) | Engine::Collective(_) => Ok(()),
            Engine::Ps(trainer) => {
                trainer.flush()?;
                trainer.pull_dense(scope)
            }
            Engine::Geo(trainer) => trainer.finish(scope),
        }
    }

    /// The whole tables, which only servers have.
    pub(super) fn pull_tables(&self, split: &Split) -> Result<Vec<(String, Tensor)>, Error> {
        match self {
            Engine::Ps(trainer) => trainer.pull_tables(split),
            Engine::Local(_) | Engine::Geo(_) | Engine::Collective(_) => Ok(vec![]),
        }
    }

    /// On the first rank, optimizer states that only other ranks keep. All ranks call it if there are
    /// such states.
    pub(super) fn collect_states(&self, scope: &Scope) -> Result<HashMap<String, Tensor>, Error> {
        match self {
            Engine::Collective(trainer) => trainer.collect_states(scope),
            Engine::Local(_) | Engine::Ps(_) | Engine::Geo(_) => Ok(HashMap::new()),
        }
    }

    /// The connections to servers, if there are any.
    pub(super) fn client(&self) -> Option<&Client> {
        match self {
            Engine::Local(_) | Engine::Collective(_) => None,
            Engine::Ps(trainer) => Some(trainer.client()),
            Engine::Geo(trainer) => Some(trainer.client()),
        }
    }

    /// Computes with other options from now on.
    pub(super) fn set_options(&mut self, options: Options) -> Result<(), Error> {
        match self {
            Engine::Local(executor) => {
                let step = executor.step();
                **executor = Executor::new(executor.program().clone(), options)?;
                executor.set_step(step);
                Ok(())
            }
            Engine::Ps(trainer) => trainer.set_options(options),
            Engine::Geo(trainer) => trainer.set_options(options),
            Engine::Collective(trainer) => trainer.set_options(options),
        }
    }

    /// Finishes training.
    pub(super) fn stop(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.pull_parameters(scope)?;
        if let Engine::Collective(trainer) = self {
            trainer.finish(scope)?;
            trainer.barrier("stop")?;
        }
        self.leave()
    }

    /// Leaves the job. A worker with its own copy loses what it has not sent yet.
    pub(super) fn leave(&mut self) -> Result<(), Error> {
        if let Engine::Ps(trainer) = self {
            trainer.flush()?;
        }
        match self.client() {
            Some(client) => Ok(client.leave()?),
            None => Ok(()),
        }
    }
}

fn start_ps(
    plan: &Plan,
    ps: &PsPlan,
    worker: usize,
    options: Options,
    scope: &mut Scope,
) -> Result<Engine, Error> {
    // Before anybody waits for this worker.
    for param in &ps.split.dense {
        if scope.get(&param.name).is_none() {
            let reason = format!(
                "parameter '{}' is not initialised: run the startup program first",
                param.name
            );
            return Err(Error::Order { call: "init_worker", reason });
        }
    }
    let client = super::connect(ps, worker)?;
    Ok(match ps.job.mode {
        Mode::Geo { every } => {
            let mut trainer =
                GeoTrainer::new(&plan.programs, &ps.split, every, client, options, &[])?;
            trainer.start(scope, false)?;
            Engine::Geo(Box::new(trainer))
        }
        mode => {
            let mut trainer = PsTrainer::new(&ps.split, mode, client, options, &[])?;
            trainer.start(scope, false)?;
            Engine::Ps(Box::new(trainer))
        }
    })
}

fn start_collective(
    plan: &Plan,
    job: &CollectiveJob,
    options: Options,
    scope: &mut Scope,
) -> Result<Engine, Error> {
    // Before anybody waits for this rank.
    for var in job.plan.each.startup.persistables() {
        if scope.get(&var.name).is_none() {
            let reason =
                format!("'{}' is not initialised: run the startup program first", var.name);
            return Err(Error::Order { call: "init_worker", reason });
        }
    }
    let group = job.connect()?;
    let (programs, strategy) = (&plan.programs, &plan.strategy);
    let mut trainer = CollectiveTrainer::new(programs, strategy, group, options, &job.loss, &[])?;
    trainer.start(scope)?;
    Ok(Engine::Collective(Box::new(trainer)))
}
