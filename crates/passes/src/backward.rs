//! Appends the ops that compute the gradient of a loss.

use std::collections::{HashMap, HashSet};

use regatta_ir::{Error, Op, Origin, Program, Role, grad_name};
use regatta_ops::{Grad, GradCtx, OPS};

use crate::infer_types::push_op;
use crate::{checked, refused};

/// A parameter and the variable that holds its gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamGrad {
    /// The parameter.
    pub param: String,
    /// Its gradient.
    pub grad: String,
}

/// What to differentiate.
#[derive(Debug, Clone, Default)]
pub struct Backward {
    /// Only these parameters; all trainable ones if not given.
    pub parameters: Option<Vec<String>>,
    /// Gradients do not flow into or through these variables.
    pub no_grad_set: Vec<String>,
}

/// Appends gradient ops for everything that `loss` depends on and that wants a gradient: trainable
/// parameters and inputs without `stop_gradient`. Returns the parameters with their gradients.
///
/// # Errors
/// If the loss is not one number, an op on the way has no gradient, or a named parameter does not
/// reach the loss.
pub fn backward(
    program: &Program,
    loss: &str,
    what: &Backward,
) -> Result<(Program, Vec<ParamGrad>), Error> {
    let mut program = program.clone();
    let block = program.block();
    let loss_ty = &block.var(loss, "backward")?.ty;
    if loss_ty.numel() != Some(1) {
        return refused("backward", format!("the loss '{loss}' is {loss_ty}, not one number"));
    }
    let walk = Walk::new(&program, loss, what)?;
    let gradient_ops = walk.gradient_ops(&program, loss)?;
    let block = program.block_mut();
    for op in gradient_ops {
        push_op(block, op.role(Role::Backward))?;
    }
    let param_grads = block
        .params()
        .map(|p| ParamGrad { param: p.name.clone(), grad: grad_name(&p.name) })
        .filter(|pg| walk.leaves.contains(&pg.param) && block.vars.contains_key(&pg.grad))
        .collect::<Vec<_>>();
    for name in what.parameters.iter().flatten() {
        if !param_grads.iter().any(|pg| pg.param == *name) {
            return refused("backward", format!("the loss does not depend on '{name}'"));
        }
    }
    Ok((checked(program)?, param_grads))
}

/// What the reverse walk needs to know beforehand.
struct Walk {
    /// Variables that want a gradient.
    wanted: HashSet<String>,
    /// Those of them that no op makes.
    leaves: HashSet<String>,
    /// Indices of the ops between them and the loss, in program order.
    path: Vec<usize>,
}

impl Walk {
    fn new(program: &Program, loss: &str, what: &Backward) -> Result<Walk, Error> {
        let block = program.block();
        for name in what.parameters.iter().flatten().chain(&what.no_grad_set) {
            block.var(name, "backward")?;
        }
        let stopped = |name: &str| {
            what.no_grad_set.iter().any(|n| n == name)
                || block.vars.get(name).is_none_or(|v| v.stop_gradient)
        };
        let leaves: HashSet<String> = block
            .vars
            .values()
            .filter(|v| match v.origin {
                Origin::Param => {
                    v.param.trainable
                        && what.parameters.as_ref().is_none_or(|list| list.contains(&v.name))
                }
                Origin::Data => true,
                Origin::Persist | Origin::Temp => false,
            })
            .filter(|v| !stopped(&v.name) && v.ty.dtype == regatta_tensor::DType::F32)
            .map(|v| v.name.clone())
            .collect();
        let mut wanted = leaves.clone();
        let mut carries = vec![false; block.ops.len()];
        for (i, op) in block.ops.iter().enumerate() {
            carries[i] = op.role == Role::Forward && op.input_vars().any(|v| wanted.contains(v));
            if carries[i] {
                wanted.extend(op.output_vars().filter(|v| !stopped(v)).map(str::to_string));
            }
        }
        if !wanted.contains(loss) {
            return refused("backward", format!("'{loss}' depends on nothing that is trained"));
        }
        let mut needed: HashSet<&str> = HashSet::from([loss]);
        let mut path = Vec::new();
        for (i, op) in block.ops.iter().enumerate().rev() {
            let flows = |v: &str| needed.contains(v) && wanted.contains(v);
            if carries[i] && op.output_vars().any(flows) {
                needed.extend(op.input_vars());
                path.push(i);
            }
        }
        path.reverse();
        Ok(Walk { wanted, leaves, path })
    }

    /// The reverse walk: each op turns the gradients of its outputs into those of its inputs.
    fn gradient_ops(&self, program: &Program, loss: &str) -> Result<Vec<Op>, Error> {
        let block = program.block();
        let seed = Op::new("fill_constant")
            .attr("shape", block.var(loss, "backward")?.ty.shape.clone())
            .attr("value", 1.0)
            .output("Out", &grad_name(loss));
        let mut made = Made::default();
        made.push(seed);
        for &i in self.path.iter().rev() {
            let op = &block.ops[i];
            let has_grad = |v: &str| {
                if op.output_vars().any(|o| o == v) {
                    made.parts.contains_key(&grad_name(v))
                } else {
                    self.wanted.contains(v)
                }
            };
            if !op.output_vars().any(has_grad) {
                continue;
            }
            let ty = |v: &str| block.vars[v].ty.clone();
            let ops = match OPS.def(&op.kind)?.grad {
                Grad::Rule(rule) => rule(&GradCtx { op, has_grad: &has_grad, ty: &ty })?,
                Grad::None(reason) => {
                    let reason =
                        format!("the loss depends on op {}, but {reason}: no gradient", op.kind);
                    return refused("backward", reason);
                }
            };
            for op in ops {
                made.push(op);
            }
        }
        Ok(made.with_sums())
    }
}

/// Gradient ops so far, and which of their outputs are parts of the same gradient.
#[derive(Default)]
struct Made {
    ops: Vec<Op>,
    /// Gradient variable -> (op, slot, position in the slot) of each part.
    parts: HashMap<String, Vec<(usize, usize, usize)>>,
}

impl Made {
    fn push(&mut self, op: Op) {
        let at = self.ops.len();
        for (slot, (_, vars)) in op.outputs.iter().enumerate() {
            for (i, var) in vars.iter().enumerate() {
                self.parts.entry(var.clone()).or_default().push((at, slot, i));
            }
        }
        self.ops.push(op);
    }

    /// Where a variable is used more than once, renames the parts and adds their sum after the last.
    fn with_sums(mut self) -> Vec<Op> {
        let mut sums: HashMap<usize, Vec<Op>> = HashMap::new();
        let mut shared: Vec<_> = self.parts.iter().filter(|(_, parts)| parts.len() > 1).collect();
        shared.sort();
        for (grad, parts) in shared {
            let names: Vec<String> =
                (0..parts.len()).map(|i| format!("{grad}@PART@{i}")).collect();
            for (&(op, slot, i), name) in parts.iter().zip(&names) {
                self.ops[op].outputs[slot].1[i] = name.clone();
            }
            let sum =
                Op::new("sum").inputs("X", names.iter().map(String::as_str)).output("Out", grad);
            let last = parts.iter().map(|p| p.0).max().expect("there are parts");
            sums.entry(last).or_default().push(sum);
        }
        let mut all = Vec::with_capacity(self.ops.len());
        for (i, op) in self.ops.into_iter().enumerate() {
            all.push(op);
            all.extend(sums.remove(&i).unwrap_or_default());
        }
        all
    }
}
