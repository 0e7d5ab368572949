//! What `minimize` decides: the programs of this process and its part in the job.

use std::sync::Arc;

use regatta_cluster::{CollectivePlace, Place, PsPlace};
use regatta_collective::{Group, Transport};
use regatta_ir::{Program, Programs};
use regatta_passes::{Backward, Minimized, Optimizer, Split, minimize, split_trainer};
use regatta_ps::Mode;

use super::Fleet;
use regatta_train::job::worker_startup;
use regatta_train::tier::{check_names, refuse_without_servers};
use regatta_train::{Job, RankPlan};

use crate::collective::{join, optimizer_for, plan_ranks};
use crate::strategy::DistributedStrategy;
use crate::{Error, job_token, notify};

/// An optimizer whose program runs on one machine or many.
pub struct DistributedOptimizer {
    pub(super) fleet: Fleet,
    pub(super) optimizer: Optimizer,
    pub(super) strategy: DistributedStrategy,
}

/// What a process has to do.
pub(super) struct Plan {
    /// The whole training program.
    pub(super) programs: Programs,
    pub(super) strategy: DistributedStrategy,
    /// With parameter servers.
    pub(super) ps: Option<PsPlan>,
    /// With ranks that exchange gradients.
    pub(super) collective: Option<CollectiveJob>,
}

/// A job of ranks.
pub(super) struct CollectiveJob {
    pub(super) plan: RankPlan,
    pub(super) loss: String,
    /// Which rank; none if this process trains alone.
    place: Option<CollectivePlace>,
}

/// A job with parameter servers.
pub(super) struct PsPlan {
    pub(super) split: Split,
    pub(super) job: Job,
}

impl DistributedOptimizer {
    /// The strategy.
    pub fn strategy(&self) -> &DistributedStrategy {
        &self.strategy
    }

    /// Appends backward and updates to a program, and prepares this process for its part of them.
    ///
    /// The programs that come back are for this process: its startup program makes what it needs,
    /// and [`Fleet::executor`] runs the main program.
    ///
    /// # Errors
    /// As [`regatta_passes::minimize`], or if the program cannot be divided between workers and
    /// servers.
    pub fn minimize(&self, programs: &Programs, loss: &str) -> Result<Minimized, Error> {
        self.minimize_with(programs, loss, &Backward::default())
    }

    /// As [`DistributedOptimizer::minimize`], with a say in what is differentiated.
    ///
    /// # Errors
    /// As [`DistributedOptimizer::minimize`], or if this fleet has minimized another loss before.
    pub fn minimize_with(
        &self,
        programs: &Programs,
        loss: &str,
        what: &Backward,
    ) -> Result<Minimized, Error> {
        if self.fleet.lock().plan.is_some() {
            let reason = "this fleet has a program already; init another fleet for another program";
            return Err(Error::Order { call: "minimize", reason: reason.into() });
        }
        let mut minimized = self.append(programs, loss, what)?;
        let startup = self.fleet.adopt(&minimized.programs, loss, &self.strategy)?;
        minimized.programs.startup = startup;
        Ok(minimized)
    }

    /// Appends backward and updates to a program, and no more. For programs that grow afterwards:
    /// [`Fleet::adopt`] takes them when they are complete.
    ///
    /// # Errors
    /// As [`regatta_passes::minimize`].
    pub fn append(
        &self,
        programs: &Programs,
        loss: &str,
        what: &Backward,
    ) -> Result<Minimized, Error> {
        let optimizer = match self.fleet.is_collective() {
            true => optimizer_for(&self.optimizer, &self.strategy)?,
            false => self.optimizer.clone(),
        };
        Ok(minimize(programs, loss, &optimizer, what)?)
    }
}

impl Fleet {
    /// Prepares this process for its part of a training program. Returns the startup program of
    /// this process, which makes what it needs and leaves out what servers or other ranks have.
    /// Until training or serving begins, another program can take the place of one.
    ///
    /// # Errors
    /// If the program cannot be divided between workers and servers, or training has begun.
    pub fn adopt(
        &self,
        programs: &Programs,
        loss: &str,
        strategy: &DistributedStrategy,
    ) -> Result<Program, Error> {
        let mut state = self.lock();
        if state.engine.is_some() || state.server.is_some() || state.stopped {
            let reason = "training has begun, and its program can no longer change".to_string();
            return Err(Error::Order { call: "adopt", reason });
        }
        let ps = match self.place() {
            Place::ParameterServer(place) => Some(PsPlan::new(programs, place, strategy)?),
            _ => {
                refuse_without_servers(&strategy.tiers()?)?;
                None
            }
        };
        let collective = self
            .is_collective()
            .then(|| CollectiveJob::new(programs, strategy, self.place(), loss))
            .transpose()?;
        let startup = match (&ps, &collective) {
            (_, Some(job)) => job.plan.each.startup.clone(),
            (Some(ps), _) if !matches!(ps.job.mode, Mode::Geo { .. }) => {
                worker_startup(&programs.startup, &ps.split)
            }
            _ => programs.startup.clone(),
        };
        let (programs, strategy) = (programs.clone(), strategy.clone());
        let options = state.options.clone();
        state.plan = Some(Plan { programs, strategy, ps, collective });
        state.set_options(options)?;
        Ok(startup)
    }

    /// The division of the program between workers and servers, if there are servers.
    pub fn split(&self) -> Option<Split> {
        let state = self.lock();
        Some(state.plan.as_ref()?.ps.as_ref()?.split.clone())
    }
}

impl PsPlan {
    fn new(
        programs: &Programs,
        place: &PsPlace,
        strategy: &DistributedStrategy,
    ) -> Result<PsPlan, Error> {
        let token = job_token(&place.job, &place.servers)?;
        let mut job = Job::new(place.servers.clone(), place.workers, strategy.ps_mode()?, token);
        job.start_timeout = place.job.start_timeout;
        job.tiers = strategy.tiers()?;
        job.observer = Arc::new(|event| notify(event));
        job.notices = Arc::new(|notice| notify(notice));
        let split = split_trainer(programs)?;
        check_names(&job.tiers, split.tables.iter().map(|t| t.name.as_str()))?;
        Ok(PsPlan { split, job })
    }
}

impl CollectiveJob {
    fn new(
        programs: &Programs,
        strategy: &DistributedStrategy,
        place: &Place,
        loss: &str,
    ) -> Result<CollectiveJob, Error> {
        let place = match place {
            Place::Collective(place) => Some(place.clone()),
            _ => None,
        };
        let (rank, ranks) = place.as_ref().map_or((0, 1), |p| (p.rank, p.world_size()));
        let plan = plan_ranks(programs, strategy, rank, ranks)?;
        Ok(CollectiveJob { plan, loss: loss.to_string(), place })
    }

    /// Joins the other ranks.
    pub(super) fn connect(&self) -> Result<Group, Error> {
        let Some(place) = &self.place else { return Ok(Group::in_memory(1)?.remove(0)) };
        join(place, Transport::Auto)
    }
}

impl Plan {
    /// Threads that share a batch.
    pub(super) fn threads(&self) -> usize {
        self.strategy.execution_strategy.num_threads as usize
    }

    /// Notifies the servers that a worker will not train.
    pub(super) fn leave(&self, worker: usize) -> Result<(), Error> {
        match &self.ps {
            Some(ps) => Ok(super::connect(ps, worker)?.leave().map(|_| ())?),
            None => Ok(()),
        }
    }
}
