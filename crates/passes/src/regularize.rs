//! Adds the regularization of parameters to their gradients.

use regatta_ir::{Error, Op, Program, Regularizer, Role};

use crate::infer_types::push_op;
use crate::{ParamGrad, checked, refuse_buffers, refused};

/// Appends `grad + coeff * penalty(param)` for every parameter that has its own regularization, or
/// the given one. Row-sparse gradients are penalised on the rows that are there.
///
/// # Errors
/// If a factor is no finite number, a gradient does not fit its parameter, or regularization was
/// added already.
pub fn regularize(
    program: &Program,
    grads: &[ParamGrad],
    default: Option<Regularizer>,
) -> Result<(Program, Vec<ParamGrad>), Error> {
    refuse_buffers(program, "regularize")?;
    let mut program = program.clone();
    let block = program.block_mut();
    let mut result = grads.to_vec();
    for g in &mut result {
        let own = block.var(&g.param, "regularize")?.param.regularizer;
        let (kind, coeff) = match own.or(default) {
            Some(Regularizer::L1(c)) if c != 0.0 => ("l1_decay", c),
            Some(Regularizer::L2(c)) if c != 0.0 => ("l2_decay", c),
            _ => continue,
        };
        if !coeff.is_finite() {
            return refused("regularize", format!("the factor for '{}' is {coeff}", g.param));
        }
        let out = format!("{}@DECAY", g.grad);
        let op = Op::new(kind).input("X", &g.grad).input("Param", &g.param).attr("coeff", coeff);
        push_op(block, op.output("Out", &out).role(Role::Optimize))?;
        g.grad = out;
    }
    Ok((checked(program)?, result))
}
