//! Limits gradients before the update.

use regatta_ir::{Error, Op, Program, Role};

use crate::infer_types::push_op;
use crate::{ParamGrad, checked, refuse_buffers};

/// How gradients are limited.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// Every element to `[min, max]`.
    Value {
        /// Lower bound.
        min: f64,
        /// Upper bound.
        max: f64,
    },
    /// Each gradient to a Euclidean norm.
    Norm(f64),
    /// All gradients together to a Euclidean norm.
    GlobalNorm(f64),
}

/// Appends clipping ops; parameters marked as not clipped keep their gradient.
///
/// # Errors
/// If a bound makes no sense or the gradients are clipped already.
pub fn clip(
    program: &Program,
    grads: &[ParamGrad],
    how: Clip,
) -> Result<(Program, Vec<ParamGrad>), Error> {
    refuse_buffers(program, "clip")?;
    let mut program = program.clone();
    let block = program.block_mut();
    let clipped: Vec<&ParamGrad> =
        grads.iter().filter(|g| block.vars.get(&g.param).is_none_or(|v| v.param.clip)).collect();
    let mut result = grads.to_vec();
    if clipped.is_empty() {
        return Ok((program, result));
    }
    if let Clip::GlobalNorm(norm) = how {
        let op = Op::new("global_norm_factor")
            .inputs("X", clipped.iter().map(|g| g.grad.as_str()))
            .attr("clip_norm", norm)
            .output("Out", "global_norm_factor@CLIP");
        push_op(block, op.role(Role::Optimize))?;
    }
    for (i, g) in grads.iter().enumerate() {
        if !clipped.contains(&g) {
            continue;
        }
        let op = match how {
            Clip::Value { min, max } => {
                Op::new("clip_by_value").attr("min", min).attr("max", max).input("X", &g.grad)
            }
            Clip::Norm(norm) => Op::new("clip_by_norm").attr("max_norm", norm).input("X", &g.grad),
            Clip::GlobalNorm(_) => {
                Op::new("scale_by").input("X", &g.grad).input("Factor", "global_norm_factor@CLIP")
            }
        };
        result[i].grad = format!("{}@CLIP", g.grad);
        push_op(block, op.output("Out", &result[i].grad).role(Role::Optimize))?;
    }
    Ok((checked(program)?, result))
}
