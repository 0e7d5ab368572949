//! What `minimize` decides: the programs of this process and its part in the job.

use std::sync::Arc;

use regatta_cluster::{CollectivePlace, Place, PsPlace};
use regatta_collective::{Group, Transport};
use regatta_exec::Options;
use regatta_ir::Programs;
use regatta_passes::{Backward, Minimized, Optimizer, Split, minimize, split_trainer};
use regatta_ps::Mode;

use super::Fleet;
use regatta_train::job::worker_startup;
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
        let mut state = self.fleet.lock();
        if state.plan.is_some() {
            let reason = "this fleet has a program already; init another fleet for another program";
            return Err(Error::Order { call: "minimize", reason: reason.into() });
        }
        let collective = self.fleet.is_collective();
        let optimizer = match collective {
            true => optimizer_for(&self.optimizer, &self.strategy)?,
            false => self.optimizer.clone(),
        };
        let mut minimized = minimize(programs, loss, &optimizer, what)?;
        let ps = match self.fleet.place() {
            Place::ParameterServer(place) => {
                Some(PsPlan::new(&minimized.programs, place, &self.strategy)?)
            }
            _ => None,
        };
        let (programs, strategy) = (minimized.programs.clone(), self.strategy.clone());
        if let Some(ps) = &ps
            && !matches!(ps.job.mode, Mode::Geo { .. })
        {
            minimized.programs.startup = worker_startup(&programs.startup, &ps.split);
        }
        let collective = collective
            .then(|| CollectiveJob::new(&programs, &strategy, self.fleet.place(), loss))
            .transpose()?;
        if let Some(job) = &collective {
            minimized.programs.startup = job.plan.each.startup.clone();
        }
        state.plan = Some(Plan { programs, strategy, ps, collective });
        state.set_options(Options::default())?;
        Ok(minimized)
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
        job.observer = Arc::new(|event| notify(event));
        job.notices = Arc::new(|notice| notify(notice));
        Ok(PsPlan { split: split_trainer(programs)?, job })
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
