//! The whole way from a loss to a training program.

use regatta_ir::{Error, Layout, Op, Program, Programs, Regularizer};
use regatta_optim::{LossScaling, Rule, Schedule};

use crate::merge_lookups::{self, merge_lookups};
use crate::pipeline::{Rewrite, TRAINING, Watch, apply_passes};
use crate::{
    AmpConfig, Backward, Clip, ParamGrad, RecomputeConfig, amp, backward, clip, insert_updates,
    recompute, regularize, scale_loss, skip_overflowed, unscale,
};

/// Everything about how gradients are computed and parameters updated.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    /// The update rule.
    pub rule: Rule,
    /// The base learning rate.
    pub learning_rate: f64,
    /// How it changes with the steps.
    pub schedule: Schedule,
    /// Regularization of parameters that have none of their own.
    pub regularizer: Option<Regularizer>,
    /// Limit on gradients.
    pub clip: Option<Clip>,
    /// Whether rows of tables rest while no gradient names them. Otherwise (Adam, AdamW) rows that
    /// were named once move in every step, as if the gradient were dense.
    pub lazy: bool,
    /// Mixed precision.
    pub amp: Option<AmpConfig>,
    /// Activations that are computed again for the gradients instead of being kept.
    pub recompute: Option<RecomputeConfig>,
}

impl Optimizer {
    /// A rule with a constant learning rate and nothing else: no regularization, no clipping, f32,
    /// all activations kept.
    pub fn new(rule: Rule, learning_rate: f64) -> Optimizer {
        let schedule = Schedule::Constant;
        Optimizer {
            rule,
            learning_rate,
            schedule,
            regularizer: None,
            clip: None,
            lazy: true,
            amp: None,
            recompute: None,
        }
    }
}

/// What `minimize` made.
#[derive(Debug, Clone)]
pub struct Minimized {
    /// The training program and its startup program.
    pub programs: Programs,
    /// The schedule and update ops.
    pub optimize_ops: Vec<Op>,
    /// Parameters with the gradients that update them (after clipping and regularization).
    pub params_grads: Vec<ParamGrad>,
}

/// Appends backward, clipping, regularization and updates: the passes of
/// [`TRAINING`](crate::pipeline::TRAINING), in its order.
///
/// # Errors
/// As the passes it is made of.
pub fn minimize(
    programs: &Programs,
    loss: &str,
    optimizer: &Optimizer,
    what: &Backward,
) -> Result<Minimized, Error> {
    minimize_watched(programs, loss, optimizer, what, &mut |_, _, _| {})
}

/// As [`minimize`]; `watch` sees what every pass makes.
///
/// # Errors
/// As [`minimize`].
pub fn minimize_watched(
    programs: &Programs,
    loss: &str,
    optimizer: &Optimizer,
    what: &Backward,
    watch: &mut Watch<'_>,
) -> Result<Minimized, Error> {
    let mut training = Training {
        programs: programs.clone(),
        grads: Vec::new(),
        loss: loss.to_string(),
        optimizer: optimizer.clone(),
        what: what.clone(),
        first_update: 0,
    };
    watch("build", "the model as it was written", &training);
    apply_passes(TRAINING, &mut training, watch)?;
    let Training { programs, grads, first_update, .. } = training;
    let optimize_ops = programs.main.block().ops[first_update..].to_vec();
    Ok(Minimized { programs, optimize_ops, params_grads: grads })
}

/// The state of the passes in [`TRAINING`](crate::pipeline::TRAINING).
#[derive(Debug, Clone)]
pub struct Training {
    /// The program and its startup program.
    pub programs: Programs,
    /// Parameters with their gradients, once there are any.
    pub grads: Vec<ParamGrad>,
    /// How gradients are computed and parameters updated.
    pub optimizer: Optimizer,
    loss: String,
    what: Backward,
    /// Number of ops before the updates.
    first_update: usize,
}

impl Rewrite for Training {
    fn programs(&self) -> Vec<Program> {
        vec![self.programs.main.clone(), self.programs.startup.clone()]
    }
}

/// The passes. One whose setting is absent changes nothing; the list leaves it out.
impl Training {
    pub(crate) fn loss_scaling(&self) -> Option<&LossScaling> {
        self.optimizer.amp.as_ref()?.loss_scaling.as_ref()
    }

    /// Variables that the settings name.
    fn named(&self) -> Vec<String> {
        self.optimizer.recompute.iter().flat_map(|config| config.checkpoints.clone()).collect()
    }

    pub(crate) fn has_lookups(&self) -> bool {
        merge_lookups::applies(&self.programs.main, &self.loss, &self.what, &self.named())
    }

    pub(crate) fn merge_lookups(&mut self) -> Result<(), Error> {
        let main = &self.programs.main;
        self.programs.main = merge_lookups(main, &self.loss, &self.what, &self.named())?;
        Ok(())
    }

    pub(crate) fn amp(&mut self) -> Result<(), Error> {
        if let Some(config) = &self.optimizer.amp {
            self.programs.main = amp(&self.programs.main, config)?;
        }
        Ok(())
    }

    pub(crate) fn backward(&mut self) -> Result<(), Error> {
        (self.programs.main, self.grads) = backward(&self.programs.main, &self.loss, &self.what)?;
        Ok(())
    }

    pub(crate) fn recompute(&mut self) -> Result<(), Error> {
        if let Some(config) = &self.optimizer.recompute {
            self.programs.main = recompute(&self.programs.main, config)?;
        }
        Ok(())
    }

    pub(crate) fn scale_loss(&mut self) -> Result<(), Error> {
        if let Some(how) = self.loss_scaling() {
            self.programs = scale_loss(&self.programs, &self.loss, how)?;
        }
        Ok(())
    }

    pub(crate) fn unscale(&mut self) -> Result<(), Error> {
        (self.programs.main, self.grads) = unscale(&self.programs.main, &self.grads)?;
        Ok(())
    }

    pub(crate) fn clip(&mut self) -> Result<(), Error> {
        if let Some(how) = self.optimizer.clip {
            (self.programs.main, self.grads) = clip(&self.programs.main, &self.grads, how)?;
        }
        Ok(())
    }

    pub(crate) fn regularize(&mut self) -> Result<(), Error> {
        let how = self.optimizer.regularizer;
        (self.programs.main, self.grads) = regularize(&self.programs.main, &self.grads, how)?;
        Ok(())
    }

    pub(crate) fn insert_updates(&mut self) -> Result<(), Error> {
        self.first_update = self.programs.main.block().ops.len();
        let Optimizer { rule, learning_rate, schedule, .. } = &self.optimizer;
        (self.programs, _) =
            insert_updates(&self.programs, &self.grads, rule, *learning_rate, schedule)?;
        if !self.optimizer.lazy {
            move_touched_rows(&mut self.programs.main);
        }
        Ok(())
    }

    pub(crate) fn skip_overflowed(&mut self) -> Result<(), Error> {
        if let Some(how) = self.loss_scaling() {
            self.programs.main = skip_overflowed(&self.programs.main, how)?;
        }
        Ok(())
    }
}

/// Makes updates of tables that can be anything but lazy move rows that were named before.
fn move_touched_rows(program: &mut Program) {
    let block = program.block_mut();
    let is_rows = |name: &str| block.vars.get(name).is_some_and(|v| v.ty.layout == Layout::Rows);
    let updates = block.ops.iter().enumerate().filter(|(_, op)| op.attrs.contains_key("lazy"));
    let tables = updates.filter(|(_, op)| op.input_var("Grad").is_some_and(is_rows));
    let tables: Vec<usize> = tables.map(|(at, _)| at).collect();
    for at in tables {
        block.ops[at].attrs.insert("lazy".into(), false.into());
    }
}
