//! The calls that a distributed training program makes.
//!
//! Reading order: [`Fleet`] (here), `plan` (what `minimize` decided), `engine` (what a worker
//! runs), `executor` (the steps), `pass` (data passes), `server` (the life of a server), `save`
//! (files).

mod engine;
mod executor;
mod pass;
mod plan;
mod save;
mod server;

use std::sync::{Arc, Mutex, MutexGuard};

use regatta_cluster::{Place, PsRole};
use regatta_exec::{Options, Scope};
use regatta_ir::Programs;
use regatta_passes::Optimizer;
use regatta_ps::{Client, Server};

pub use executor::{FleetExecutor, TrainConfig};
pub use pass::DataPass;
pub use plan::DistributedOptimizer;

use self::engine::Engine;
use self::plan::Plan;
use regatta_train::Farewell;
use regatta_train::job::client_config;

use crate::strategy::{DistributedStrategy, Use};
use crate::{Error, ReduceOp, RoleMaker, Util};

/// This process and its job. Clones mean the same.
///
/// When the last clone is gone, a worker that has not called [`Fleet::stop_worker`] leaves the job,
/// so that servers end; after a failed call or in a panic it does not, so that the others hear of
/// it.
#[derive(Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

struct Shared {
    place: Place,
    is_collective: bool,
    strategy: Option<DistributedStrategy>,
    state: Mutex<State>,
}

/// How far the program has come.
#[derive(Default)]
struct State {
    plan: Option<Plan>,
    options: Options,
    server: Option<Server>,
    engine: Option<Engine>,
    /// A data pass has begun and not ended.
    in_pass: bool,
    /// The worker has left its job.
    stopped: bool,
    /// Something that other processes depend on has gone wrong.
    failed: bool,
}

impl Fleet {
    /// Finds out what this process is.
    ///
    /// `role` says how ([`RoleMaker::default`] reads the environment). `is_collective` chooses
    /// between workers that reduce gradients among themselves and parameter servers. `strategy` is
    /// for optimizers that are given none. A process without a job trains alone.
    ///
    /// # Errors
    /// If the role is unclear or does not fit the kind of training, or the strategy cannot be
    /// honoured.
    pub fn init(
        role: impl Into<RoleMaker>,
        is_collective: bool,
        strategy: impl Into<Option<DistributedStrategy>>,
    ) -> Result<Fleet, Error> {
        let (place, is_collective) = role.into().place(is_collective)?;
        let strategy = strategy.into();
        let shared = Shared { place, is_collective, strategy, state: Mutex::default() };
        if let Some(strategy) = &shared.strategy {
            strategy.check(shared.used_for())?;
        }
        Ok(Fleet { shared: Arc::new(shared) })
    }

    /// [`Fleet::init`] with the environment, parameter servers and the default strategy.
    ///
    /// # Errors
    /// As [`Fleet::init`].
    pub fn from_env() -> Result<Fleet, Error> {
        Fleet::init(RoleMaker::default(), false, None)
    }

    /// What this process is, with everything that is known of its job.
    pub fn place(&self) -> &Place {
        &self.shared.place
    }

    /// Whether workers reduce gradients among themselves.
    pub fn is_collective(&self) -> bool {
        self.shared.is_collective
    }

    /// Whether this process trains.
    pub fn is_worker(&self) -> bool {
        !self.is_server()
    }

    /// Whether this process holds parameters for others.
    pub fn is_server(&self) -> bool {
        matches!(self.ps_role(), Some(PsRole::Server(_)))
    }

    /// Whether this process trains and is the first of those that do.
    pub fn is_first_worker(&self) -> bool {
        self.is_worker() && self.worker_index() == 0
    }

    /// The number of this worker, from 0; 0 for a server.
    pub fn worker_index(&self) -> usize {
        match self.place() {
            Place::Collective(place) => place.rank,
            _ => match self.ps_role() {
                Some(PsRole::Worker(index)) => index,
                _ => 0,
            },
        }
    }

    /// Number of workers.
    pub fn worker_num(&self) -> usize {
        match self.place() {
            Place::Local => 1,
            Place::ParameterServer(place) => place.workers,
            Place::Collective(place) => place.world_size(),
        }
    }

    /// Addresses of workers as far as they are known, in order.
    pub fn worker_endpoints(&self) -> &[String] {
        match self.place() {
            Place::Local => &[],
            Place::ParameterServer(place) => &place.worker_endpoints,
            Place::Collective(place) => &place.endpoints,
        }
    }

    /// The number of this server, from 0; 0 for a worker.
    pub fn server_index(&self) -> usize {
        match self.ps_role() {
            Some(PsRole::Server(index)) => index,
            _ => 0,
        }
    }

    /// Number of servers.
    pub fn server_num(&self) -> usize {
        self.server_endpoints().len()
    }

    /// Addresses of servers, in order.
    pub fn server_endpoints(&self) -> &[String] {
        match self.place() {
            Place::ParameterServer(place) => &place.servers,
            _ => &[],
        }
    }

    /// Takes an optimizer and, if it is to be another than that of [`Fleet::init`], a strategy.
    ///
    /// # Errors
    /// If the strategy cannot be honoured or does not fit the optimizer.
    pub fn distributed_optimizer(
        &self,
        optimizer: Optimizer,
        strategy: impl Into<Option<DistributedStrategy>>,
    ) -> Result<DistributedOptimizer, Error> {
        let strategy = strategy.into().or_else(|| self.shared.strategy.clone()).unwrap_or_default();
        strategy.check(self.shared.used_for())?;
        strategy.check_rule(&optimizer.rule)?;
        Ok(DistributedOptimizer { fleet: self.clone(), optimizer, strategy })
    }

    /// The model as it is: programs are rewritten by [`Fleet::distributed_optimizer`]. For code
    /// that wraps both, as Paddle asks for.
    pub fn distributed_model(&self, programs: Programs) -> Programs {
        programs
    }

    /// Something that runs the program of `minimize` step by step.
    ///
    /// # Errors
    /// If nothing was minimized yet, this process is a server, or the strategy asks for another
    /// number of threads.
    pub fn executor(&self, options: Options) -> Result<FleetExecutor, Error> {
        let mut state = self.worker_state("executor")?;
        state.set_options(options)?;
        drop(state);
        Ok(FleetExecutor::new(self.clone()))
    }

    /// Connects to the servers and gives all workers the same parameters: those of the first, from
    /// its `scope`, unless the servers have loaded some. The first step does it if it was not done.
    ///
    /// # Errors
    /// If the startup program was not run before, or a server or worker does not come.
    pub fn init_worker(&self, scope: &mut Scope) -> Result<(), Error> {
        let mut state = self.worker_state("init_worker")?;
        self.start_engine(&mut state, scope).map(|_| ())
    }

    /// Connections of this worker for a program that computes by itself and only keeps rows on the
    /// servers: it pulls and pushes them with the client, and leaves the job with it. Every worker
    /// calls it.
    ///
    /// # Errors
    /// If this process is no worker of a job with servers, has begun to train, or a server or
    /// worker does not come.
    pub fn table_client(&self) -> Result<Client, Error> {
        let mut state = self.worker_state("table_client")?;
        let Some(ps) = state.plan.as_ref().and_then(|plan| plan.ps.as_ref()) else {
            let reason = "this job has no servers that could keep rows".to_string();
            return Err(Error::Order { call: "table_client", reason });
        };
        if state.engine.is_some() {
            let reason = "this worker trains a program already".to_string();
            return Err(Error::Order { call: "table_client", reason });
        }
        if let Some(param) = ps.split.dense.first() {
            return Err(Error::Config(format!(
                "the program has the dense parameter '{}', and only rows of tables travel here",
                param.name
            )));
        }
        let client = connect(ps, self.worker_index())?;
        if client.worker() == 0 {
            client.set_dense(&[])?;
        }
        client.barrier("start")?;
        // The client leaves the job, not this fleet.
        state.stopped = true;
        Ok(client)
    }

    /// Sends what is still to be sent, takes the latest parameters into `scope`, and leaves the
    /// job. Servers end when all workers have left.
    ///
    /// # Errors
    /// If a server is gone, or the job ends without a worker that was lost, naming it.
    pub fn stop_worker(&self, scope: &mut Scope) -> Result<(), Error> {
        let mut state = self.lock();
        if state.stopped {
            return Ok(());
        }
        drop(state);
        state = self.worker_state("stop_worker")?;
        state.stopped = true;
        let outcome = match (state.engine.take(), &state.plan) {
            (Some(mut engine), _) => stop(&mut engine, scope),
            // It has nothing to train, and the servers must hear of it.
            (None, Some(plan)) => plan.leave(self.worker_index()),
            (None, None) => Ok(()),
        };
        state.failed |= outcome.is_err();
        outcome
    }

    /// Waits until all workers have come this far.
    ///
    /// # Errors
    /// If a worker is lost, or this one has not begun to train.
    pub fn barrier_worker(&self) -> Result<(), Error> {
        self.reduce("barrier_worker", ReduceOp::Sum, &[]).map(|_| ())
    }

    /// Exchanges of small values among workers.
    pub fn util(&self) -> Util {
        Util::new(self.clone())
    }

    /// Combines values of all workers.
    pub(crate) fn reduce(
        &self,
        call: &'static str,
        op: ReduceOp,
        values: &[f64],
    ) -> Result<Vec<f64>, Error> {
        if self.worker_num() == 1 && self.is_worker() {
            return Ok(values.to_vec());
        }
        let mut state = self.worker_state(call)?;
        let Some(engine) = &mut state.engine else {
            let reason = "call init_worker, or run a step, first".to_string();
            return Err(Error::Order { call, reason });
        };
        let outcome = engine.reduce(call, op, values).map_err(Error::from);
        state.failed |= outcome.is_err();
        outcome
    }

    fn ps_role(&self) -> Option<PsRole> {
        match self.place() {
            Place::ParameterServer(place) => Some(place.role),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The state of a worker that has something to train and can still do so.
    fn worker_state(&self, call: &'static str) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        let too_late = |reason: &str| Err(Error::Order { call, reason: reason.to_string() });
        if self.is_server() {
            return too_late(&format!(
                "this process is {}, which calls init_server and run_server",
                self.place()
            ));
        }
        if state.plan.is_none() {
            return too_late("call minimize of the distributed optimizer first");
        }
        if state.stopped {
            return too_late("stop_worker was called, and this worker has left the job");
        }
        if state.failed {
            return too_late("an earlier call has failed, and this worker cannot continue");
        }
        Ok(state)
    }

    /// The engine, made and connected if it was not.
    fn start_engine<'a>(
        &self,
        state: &'a mut State,
        scope: &mut Scope,
    ) -> Result<&'a mut Engine, Error> {
        if state.engine.is_none() {
            let State { plan: Some(plan), options, .. } = state else {
                let reason = "call minimize of the distributed optimizer first".to_string();
                return Err(Error::Order { call: "init_worker", reason });
            };
            let engine = engine::start(plan, self.place(), options.clone(), scope);
            // A call in the wrong order can be made again in the right one.
            state.failed |= engine.as_ref().is_err_and(|e| !matches!(e, Error::Order { .. }));
            state.engine = Some(engine?);
        }
        Ok(state.engine.as_mut().expect("made above"))
    }

    /// Does something with the engine; what fails there leaves the worker unable to continue.
    fn with_engine<T>(
        &self,
        call: &'static str,
        scope: &mut Scope,
        work: impl FnOnce(&mut Engine, &mut Scope) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.worker_state(call)?;
        let outcome = work(self.start_engine(&mut state, scope)?, scope);
        state.failed |= outcome.is_err();
        outcome
    }
}

impl State {
    fn set_options(&mut self, options: Options) -> Result<(), Error> {
        let wanted = self.plan.as_ref().map_or(1, |plan| plan.threads());
        let threads = match (options.threads, wanted) {
            (own, wanted) if own == wanted || wanted == 1 => own,
            (1, wanted) => wanted,
            (own, wanted) => {
                return Err(Error::Config(format!(
                    "the executor is to use {own} threads, but execution_strategy.num_threads is \
                     {wanted}"
                )));
            }
        };
        self.options = Options { threads, ..options };
        match &mut self.engine {
            Some(engine) => Ok(engine.set_options(self.options.clone())?),
            None => Ok(()),
        }
    }
}

impl Shared {
    fn used_for(&self) -> Use {
        if self.is_collective { Use::Collective } else { Use::ParameterServer }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(|e| e.into_inner());
        if state.stopped || state.failed || std::thread::panicking() {
            return;
        }
        if let Some(engine) = &mut state.engine {
            // Nobody is left to hear of a failure but those that wait for this worker, who will.
            let _ = engine.leave();
        }
    }
}

/// Completes what is left to do, and leaves the job.
fn stop(engine: &mut Engine, scope: &mut Scope) -> Result<(), Error> {
    engine.pull_parameters(scope)?;
    engine.finish(scope)?;
    if engine.client().is_none() {
        engine.barrier("stop")?;
    }
    Ok(Farewell::check(&engine.leave()?)?)
}

/// The connections of a worker of parameter servers.
fn connect(plan: &plan::PsPlan, worker: usize) -> Result<Client, Error> {
    Ok(Client::connect(client_config(&plan.split, &plan.job, worker))?)
}
