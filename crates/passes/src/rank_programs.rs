//! A training program on its way to the programs of one rank.

use regatta_ir::{Error, Program, Programs};

use crate::pipeline::{RANKS, Rewrite, Watch, apply_passes};
use crate::{
    Dgc, FuseAllReduce, Lamb, Lars, Periodic, Sharding, data_parallel, dgc, fp16_all_reduce,
    fuse_all_reduce, gradient_merge, hierarchical_all_reduce, lamb, lars, local_sgd, sharding,
    sync_batch_norm,
};

/// How ranks train together.
#[derive(Debug, Clone, Default)]
pub struct RankSettings {
    /// Number of ranks.
    pub ranks: usize,
    /// Layer-wise rates for momentum.
    pub lars: Option<Lars>,
    /// Layer-wise rates for Adam.
    pub lamb: Option<Lamb>,
    /// Ranks train apart and average their parameters after some steps.
    pub local: bool,
    /// Batch normalization over the batches of all ranks.
    pub sync_batch_norm: bool,
    /// Only the largest entries of gradients travel.
    pub dgc: Option<Dgc>,
    /// Every rank keeps a part of the optimizer state.
    pub sharding: Option<Sharding>,
    /// Values travel as 16-bit floats.
    pub fp16_all_reduce: bool,
    /// Ranks of a node, whose sums are computed first.
    pub node_ranks: Option<usize>,
    /// Several gradients travel together.
    pub fuse_all_reduce: Option<FuseAllReduce>,
    /// Gradients of several steps are added up; true for their mean.
    pub gradient_merge: Option<bool>,
}

/// What a rank runs: the state of the passes in [`RANKS`].
#[derive(Debug, Clone)]
pub struct RankPrograms {
    /// What runs at every step, and the startup program of everything.
    pub each: Programs,
    /// What runs after some of the steps.
    pub then: Option<Program>,
    pub(crate) settings: RankSettings,
}

impl RankPrograms {
    /// Rewrites a training program for one rank; `watch` sees what every pass makes.
    ///
    /// # Errors
    /// As the passes.
    pub fn new(
        training: &Programs,
        settings: RankSettings,
        watch: &mut Watch<'_>,
    ) -> Result<RankPrograms, Error> {
        let mut programs = RankPrograms { each: training.clone(), then: None, settings };
        apply_passes(RANKS, &mut programs, watch)?;
        Ok(programs)
    }

    /// Whether values are summed over ranks.
    pub(crate) fn reduces(&self) -> bool {
        let program = self.then.as_ref().unwrap_or(&self.each.main);
        program.block().ops.iter().any(|op| op.kind == "all_reduce_start")
    }

    /// The program that exchanges values with other ranks: the second one, if ranks train apart.
    fn exchanging(&mut self) -> &mut Program {
        self.then.as_mut().unwrap_or(&mut self.each.main)
    }
}

impl Rewrite for RankPrograms {
    fn programs(&self) -> Vec<Program> {
        let each = [self.each.main.clone(), self.each.startup.clone()];
        each.into_iter().chain(self.then.clone()).collect()
    }
}

/// The passes. One whose setting is absent changes nothing; the list leaves it out.
impl RankPrograms {
    pub(crate) fn lars(&mut self) -> Result<(), Error> {
        if let Some(how) = &self.settings.lars {
            self.each.main = lars(&self.each.main, how)?;
        }
        Ok(())
    }

    pub(crate) fn lamb(&mut self) -> Result<(), Error> {
        if let Some(how) = &self.settings.lamb {
            self.each.main = lamb(&self.each.main, how)?;
        }
        Ok(())
    }

    pub(crate) fn local_sgd(&mut self) -> Result<(), Error> {
        let Periodic { each, then } = local_sgd(&self.each, self.settings.ranks)?;
        (self.each, self.then) = (each, Some(then));
        Ok(())
    }

    pub(crate) fn data_parallel(&mut self) -> Result<(), Error> {
        self.each.main = data_parallel(&self.each.main)?;
        Ok(())
    }

    pub(crate) fn sync_batch_norm(&mut self) -> Result<(), Error> {
        self.each.main = sync_batch_norm(&self.each.main)?;
        Ok(())
    }

    pub(crate) fn dgc(&mut self) -> Result<(), Error> {
        if let Some(how) = &self.settings.dgc {
            self.each = dgc(&self.each, how)?;
        }
        Ok(())
    }

    pub(crate) fn sharding(&mut self) -> Result<(), Error> {
        if let Some(how) = self.settings.sharding {
            self.each = sharding(&self.each, how)?;
        }
        Ok(())
    }

    pub(crate) fn fp16_all_reduce(&mut self) -> Result<(), Error> {
        let program = self.exchanging();
        *program = fp16_all_reduce(program)?;
        Ok(())
    }

    pub(crate) fn hierarchical_all_reduce(&mut self) -> Result<(), Error> {
        let ranks = self.settings.ranks;
        if let Some(node_ranks) = self.settings.node_ranks {
            let program = self.exchanging();
            *program = hierarchical_all_reduce(program, ranks, node_ranks)?;
        }
        Ok(())
    }

    pub(crate) fn fuse_all_reduce(&mut self) -> Result<(), Error> {
        if let Some(how) = self.settings.fuse_all_reduce {
            let program = self.exchanging();
            *program = fuse_all_reduce(program, &how)?;
        }
        Ok(())
    }

    pub(crate) fn gradient_merge(&mut self) -> Result<(), Error> {
        if let Some(mean) = self.settings.gradient_merge {
            let Periodic { each, then } = gradient_merge(&self.each, mean)?;
            (self.each, self.then) = (each, Some(then));
        }
        Ok(())
    }
}
