//! What a worker trains with: the program alone, or its part of a job.

use regatta_cluster::{Place, PsRole};
use regatta_data::Batch;
use regatta_exec::{Options, Scope};
use regatta_ps::Mode;
use regatta_tensor::Tensor;
use regatta_train::{Backend, Feed, Geo, Local, Ranks, Servers};

use super::plan::{CollectiveJob, Plan, PsPlan};
use crate::Error;

/// The training of one worker.
pub(super) type Engine = Box<dyn Backend + Send>;

/// Connects to whom there is, and gives all workers the same parameters.
pub(super) fn start(
    plan: &Plan,
    place: &Place,
    options: Options,
    scope: &mut Scope,
) -> Result<Engine, Error> {
    let mut engine: Engine = match (place, &plan.ps, &plan.collective) {
        (Place::ParameterServer(place), Some(ps), _) => {
            let worker = match place.role {
                PsRole::Worker(worker) => worker,
                PsRole::Server(_) => 0,
            };
            servers(plan, ps, worker, options, scope)?
        }
        (_, _, Some(job)) => ranks(plan, job, options, scope)?,
        _ => Box::new(Local::new(plan.programs.main.clone(), options)?),
    };
    engine.start(scope, false)?;
    Ok(engine)
}

fn servers(
    plan: &Plan,
    ps: &PsPlan,
    worker: usize,
    options: Options,
    scope: &Scope,
) -> Result<Engine, Error> {
    // Before anybody waits for this worker.
    for param in &ps.split.dense {
        check_initialised(scope, "parameter ", &param.name)?;
    }
    let client = super::connect(ps, worker)?;
    Ok(match ps.job.mode {
        Mode::Geo { every } => {
            Box::new(Geo::new(&plan.programs, &ps.split, every, client, options)?)
        }
        mode => Box::new(Servers::new(&ps.split, mode, client, options)?),
    })
}

fn ranks(
    plan: &Plan,
    job: &CollectiveJob,
    options: Options,
    scope: &Scope,
) -> Result<Engine, Error> {
    // Before anybody waits for this rank.
    for var in job.plan.each.startup.persistables() {
        check_initialised(scope, "", &var.name)?;
    }
    let group = job.connect()?;
    let settings = plan.strategy.to_yaml();
    let plan_of_rank = job.plan.clone();
    let ranks = Ranks::new(&plan.programs, plan_of_rank, group, options, &job.loss, &settings)?;
    Ok(Box::new(ranks))
}

fn check_initialised(scope: &Scope, what: &str, name: &str) -> Result<(), Error> {
    if scope.get(name).is_some() {
        return Ok(());
    }
    let reason = format!("{what}'{name}' is not initialised: run the startup program first");
    Err(Error::Order { call: "init_worker", reason })
}

/// Batches and steps as two closures.
pub(super) struct Closures<N, S> {
    pub(super) next: N,
    pub(super) on_step: S,
}

impl<N, S> Feed for Closures<N, S>
where
    N: FnMut() -> Result<Option<Batch>, Error>,
    S: FnMut(&[Tensor], Batch) -> Result<(), Error>,
{
    fn next(&mut self) -> Result<Option<Batch>, regatta_train::Error> {
        (self.next)().map_err(Error::in_loop)
    }

    fn done(&mut self, batch: Batch, fetched: &[Tensor]) -> Result<(), regatta_train::Error> {
        (self.on_step)(fetched, batch).map_err(Error::in_loop)
    }
}
