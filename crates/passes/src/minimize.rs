//! The whole way from a loss to a training program.

use regatta_ir::{Error, Op, Programs, Regularizer};
use regatta_optim::{Rule, Schedule};

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
    /// Penalty on parameters that have none of their own.
    pub regularizer: Option<Regularizer>,
    /// Limit on gradients.
    pub clip: Option<Clip>,
    /// Mixed precision.
    pub amp: Option<AmpConfig>,
    /// Activations that are computed again for the gradients instead of being kept.
    pub recompute: Option<RecomputeConfig>,
}

impl Optimizer {
    /// A rule with a constant learning rate and nothing else: no penalty, no clipping, f32, all
    /// activations kept.
    pub fn new(rule: Rule, learning_rate: f64) -> Optimizer {
        let schedule = Schedule::Constant;
        Optimizer {
            rule,
            learning_rate,
            schedule,
            regularizer: None,
            clip: None,
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
    /// Parameters with the gradients that update them (after clipping and penalties).
    pub params_grads: Vec<ParamGrad>,
}

/// Appends backward, clipping, penalties and updates, in this order. With mixed precision, casts come
/// before backward, and gradients are unscaled before clipping; with recompute, parts of the forward
/// ops are repeated within backward.
///
/// # Errors
/// As the passes it is made of.
pub fn minimize(
    programs: &Programs,
    loss: &str,
    optimizer: &Optimizer,
    what: &Backward,
) -> Result<Minimized, Error> {
    let Optimizer { rule, learning_rate, schedule, .. } = optimizer;
    let scaling = optimizer.amp.as_ref().and_then(|config| config.loss_scaling.as_ref());
    let (mut programs, mut grads) = gradients(programs, loss, optimizer, what)?;
    if scaling.is_some() {
        (programs.main, grads) = unscale(&programs.main, &grads)?;
    }
    if let Some(how) = optimizer.clip {
        (programs.main, grads) = clip(&programs.main, &grads, how)?;
    }
    (programs.main, grads) = regularize(&programs.main, &grads, optimizer.regularizer)?;
    let first = programs.main.block().ops.len();
    (programs, _) = insert_updates(&programs, &grads, rule, *learning_rate, schedule)?;
    if let Some(how) = scaling {
        programs.main = skip_overflowed(&programs.main, how)?;
    }
    let optimize_ops = programs.main.block().ops[first..].to_vec();
    Ok(Minimized { programs, optimize_ops, params_grads: grads })
}

/// Forward and backward.
fn gradients(
    programs: &Programs,
    loss: &str,
    optimizer: &Optimizer,
    what: &Backward,
) -> Result<(Programs, Vec<ParamGrad>), Error> {
    let mut programs = programs.clone();
    if let Some(config) = &optimizer.amp {
        programs.main = amp(&programs.main, config)?;
    }
    let grads;
    (programs.main, grads) = backward(&programs.main, loss, what)?;
    if let Some(config) = &optimizer.recompute {
        programs.main = recompute(&programs.main, config)?;
    }
    if let Some(how) = optimizer.amp.as_ref().and_then(|config| config.loss_scaling.as_ref()) {
        programs = scale_loss(&programs, loss, how)?;
    }
    Ok((programs, grads))
}
