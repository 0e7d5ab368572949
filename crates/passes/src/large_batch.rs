//! Update rules for large batches in the place of those that a program has: LARS for momentum, LAMB
//! for Adam.

use regatta_ir::{Error, Op, Program};
use regatta_ops::{update_op, update_rule};
use regatta_optim::{Lamb as LambRule, LarsMomentum, Rule};

use crate::{checked, refuse_buffers, refused};

/// What LARS needs beyond momentum; Paddle's `lars_configs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Lars {
    /// Length of a step relative to the length of the weights.
    pub coeff: f32,
    /// L2 regularization.
    pub weight_decay: f32,
    /// Added to the divisor of the local learning rate.
    pub epsilon: f32,
    /// Parameters whose names contain one of these get no regularization.
    pub exclude: Vec<String>,
}

/// What LAMB needs beyond Adam; Paddle's `lamb_configs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Lamb {
    /// Weight of the weights in the direction of a step.
    pub weight_decay: f32,
    /// Parameters whose names end with one of these get none.
    pub exclude: Vec<String>,
}

/// Replaces `momentum` by `lars_momentum` with the same `mu`.
///
/// # Errors
/// If a parameter is updated by another rule.
pub fn lars(program: &Program, how: &Lars) -> Result<Program, Error> {
    let excluded = |name: &str| how.exclude.iter().any(|part| name.contains(part.as_str()));
    replace(program, "lars", "momentum without nesterov", |rule, param| match rule {
        Rule::Momentum(m) if !m.nesterov => Some(Rule::LarsMomentum(LarsMomentum {
            mu: m.mu,
            coeff: how.coeff,
            weight_decay: if excluded(param) { 0.0 } else { how.weight_decay },
            epsilon: how.epsilon,
        })),
        _ => None,
    })
}

/// Replaces `adam` by `lamb` with the same betas and epsilon.
///
/// # Errors
/// If a parameter is updated by another rule.
pub fn lamb(program: &Program, how: &Lamb) -> Result<Program, Error> {
    let excluded = |name: &str| how.exclude.iter().any(|end| name.ends_with(end.as_str()));
    replace(program, "lamb", "adam", |rule, param| match rule {
        Rule::Adam(a) => Some(Rule::Lamb(LambRule {
            beta1: a.beta1,
            beta2: a.beta2,
            epsilon: a.epsilon,
            weight_decay: if excluded(param) { 0.0 } else { how.weight_decay },
        })),
        _ => None,
    })
}

/// The rules have the same states as those they replace, so only the update ops change.
fn replace(
    program: &Program,
    pass: &str,
    wanted: &str,
    new: impl Fn(Rule, &str) -> Option<Rule>,
) -> Result<Program, Error> {
    refuse_buffers(program, pass)?;
    let mut program = program.clone();
    for op in &mut program.block_mut().ops {
        let Some(rule) = update_rule(op)? else { continue };
        let param = op.ins("Param")[0].clone();
        let Some(new) = new(rule, &param) else {
            let reason = format!("'{param}' is updated by {}, but {pass} needs {wanted}", op.kind);
            return refused(pass, reason);
        };
        new.validate()
            .map_err(|e| Error::Pass { pass: pass.to_string(), reason: e.to_string() })?;
        let mut swapped: Op = update_op(&new)?;
        swapped.attrs.insert("lr_scale".into(), op.attrs["lr_scale"].clone());
        (op.kind, op.attrs) = (swapped.kind, swapped.attrs);
    }
    checked(program)
}
