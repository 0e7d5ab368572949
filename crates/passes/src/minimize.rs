//! The whole way from a loss to a training program.

use regatta_ir::{Error, Op, Programs, Regularizer};
use regatta_optim::{Rule, Schedule};

use crate::{Backward, Clip, ParamGrad, backward, clip, insert_updates, regularize};

/// Everything about how parameters are updated.
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
}

impl Optimizer {
    /// A rule with a constant learning rate, no penalty and no clipping.
    pub fn new(rule: Rule, learning_rate: f64) -> Optimizer {
        let schedule = Schedule::Constant;
        Optimizer { rule, learning_rate, schedule, regularizer: None, clip: None }
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

/// Appends backward, clipping, penalties and updates, in this order.
///
/// # Errors
/// As the passes it is made of.
pub fn minimize(
    programs: &Programs,
    loss: &str,
    optimizer: &Optimizer,
    what: &Backward,
) -> Result<Minimized, Error> {
    let (mut main, mut grads) = backward(&programs.main, loss, what)?;
    if let Some(how) = optimizer.clip {
        (main, grads) = clip(&main, &grads, how)?;
    }
    (main, grads) = regularize(&main, &grads, optimizer.regularizer)?;
    let programs = Programs { main, startup: programs.startup.clone() };
    let Optimizer { rule, learning_rate, schedule, .. } = optimizer;
    let (programs, optimize_ops) =
        insert_updates(&programs, &grads, rule, *learning_rate, schedule)?;
    Ok(Minimized { programs, optimize_ops, params_grads: grads })
}
