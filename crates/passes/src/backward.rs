//! Appends the ops that compute the gradient of a loss.

use std::collections::{HashMap, HashSet};

use regatta_ir::{Block, Error, Op, Origin, Program, Role, grad_name};
use regatta_ops::{Grad, GradCtx, OPS};
use regatta_tensor::DType;

use crate::infer_types::push_op;
use crate::{checked, refuse_buffers, refused};

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
/// If the program has gradients already, the loss is not one float, an op on the way has no
/// gradient, a variable on the way is written more than once, or a named parameter is not trained
/// or does not reach the loss.
pub fn backward(
    program: &Program,
    loss: &str,
    what: &Backward,
) -> Result<(Program, Vec<ParamGrad>), Error> {
    refuse_buffers(program, "backward")?;
    let mut program = program.clone();
    let block = program.block();
    if let Some(op) = block.ops.iter().find(|op| op.role != Role::Forward) {
        let var = op.output_vars().next().unwrap_or("nothing");
        let found = format!("the program has gradients already (op {} makes '{var}')", op.kind);
        return refused("backward", format!("{found}; start from the program before `minimize`"));
    }
    let loss_ty = &block.var(loss, "backward")?.ty;
    if loss_ty.numel() != Some(1) || loss_ty.dtype != DType::F32 {
        return refused("backward", format!("the loss '{loss}' is {loss_ty}, not one float"));
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
        for name in &what.no_grad_set {
            block.var(name, "backward")?;
        }
        let stopped = |name: &str| {
            what.no_grad_set.iter().any(|n| n == name)
                || block.vars.get(name).is_none_or(|v| v.stop_gradient)
        };
        for name in what.parameters.iter().flatten() {
            let var = block.var(name, "backward")?;
            if var.origin != Origin::Param {
                return refused("backward", format!("'{name}' is no parameter"));
            }
            if !var.param.trainable || stopped(name) {
                let reason = "it is frozen, has stop_gradient or is in no_grad_set";
                return refused("backward", format!("parameter '{name}' is not trained: {reason}"));
            }
        }
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
            .filter(|v| !stopped(&v.name) && v.ty.dtype == DType::F32)
            .map(|v| v.name.clone())
            .collect();
        // Integers carry no gradient.
        let flows =
            |v: &&str| !stopped(v) && block.vars.get(*v).is_some_and(|var| var.ty.dtype.is_float());
        let mut wanted = leaves.clone();
        let mut carries = vec![false; block.ops.len()];
        for (i, op) in block.ops.iter().enumerate() {
            carries[i] = op.role == Role::Forward && op.input_vars().any(|v| wanted.contains(v));
            if carries[i] {
                wanted.extend(op.output_vars().filter(flows).map(str::to_string));
            }
        }
        if !wanted.contains(loss) {
            return refused("backward", format!("'{loss}' depends on nothing that is trained"));
        }
        let mut needed: HashSet<&str> = HashSet::from([loss]);
        let mut path = Vec::new();
        for (i, op) in block.ops.iter().enumerate().rev() {
            let leads_to_loss = |v: &str| needed.contains(v) && wanted.contains(v);
            if carries[i] && op.output_vars().any(leads_to_loss) {
                needed.extend(op.input_vars());
                path.push(i);
            }
        }
        path.reverse();
        let walk = Walk { wanted, leaves, path };
        walk.refuse_second_writes(block)?;
        Ok(walk)
    }

    /// A gradient belongs to one value, so a variable on the way must have only one.
    fn refuse_second_writes(&self, block: &Block) -> Result<(), Error> {
        let mut writers: HashMap<&str, usize> = HashMap::new();
        for var in block.ops.iter().flat_map(Op::output_vars) {
            *writers.entry(var).or_default() += 1;
        }
        for op in self.path.iter().map(|&i| &block.ops[i]) {
            for var in op.input_vars().chain(op.output_vars()) {
                let given = usize::from(self.leaves.contains(var));
                let values = given + writers.get(var).copied().unwrap_or(0);
                if self.wanted.contains(var) && values > 1 {
                    let reason =
                        format!("'{var}' is written more than once on the way to the loss");
                    return refused("backward", reason);
                }
            }
        }
        Ok(())
    }

    /// Gradient ops run after all forward ops, so what they read must still be there.
    fn refuse_overwritten(&self, block: &Block, i: usize, gradient: &Op) -> Result<(), Error> {
        for var in gradient.input_vars() {
            let changed_later = |op: &Op| op.output_vars().any(|v| v == var);
            if let Some(op) = block.ops[i + 1..].iter().find(|op| changed_later(op)) {
                let reason = format!(
                    "the gradient of op {} needs '{var}', which op {} overwrites",
                    block.ops[i].kind, op.kind
                );
                return refused("backward", reason);
            }
        }
        Ok(())
    }

    /// The reverse walk: each op turns the gradients of its outputs into those of its inputs.
    fn gradient_ops(&self, program: &Program, loss: &str) -> Result<Vec<Op>, Error> {
        let block = program.block();
        let seed = Op::new("fill_constant")
            .attr("shape", block.var(loss, "backward")?.ty.shape.clone())
            .attr("value", 1.0)
            .output("Out", &grad_name(loss));
        let mut made = GradientOps::default();
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
                    let op = &op.kind;
                    let reason =
                        format!("op {op} on the way to the loss has no gradient: {reason}");
                    return refused("backward", reason);
                }
            };
            for op in ops {
                self.refuse_overwritten(block, i, &op)?;
                made.push(op);
            }
        }
        Ok(made.with_sums())
    }
}

/// Gradient ops so far, and which of their outputs are parts of the same gradient.
#[derive(Default)]
struct GradientOps {
    ops: Vec<Op>,
    /// Gradient variable -> (op, slot, position in the slot) of each part.
    parts: HashMap<String, Vec<(usize, usize, usize)>>,
}

impl GradientOps {
    fn push(&mut self, op: Op) {
        let at = self.ops.len();
        for (slot, (_, vars)) in op.outputs.iter().enumerate() {
            for (i, var) in vars.iter().enumerate() {
                self.parts.entry(var.clone()).or_default().push((at, slot, i));
            }
        }
        self.ops.push(op);
    }

    /// Where a variable is used more than once, renames the parts and adds their sum after the
    /// last.
    fn with_sums(mut self) -> Vec<Op> {
        let mut sums: HashMap<usize, Vec<Op>> = HashMap::new();
        let mut shared: Vec<_> = self.parts.iter().filter(|(_, parts)| parts.len() > 1).collect();
        shared.sort();
        for (grad, parts) in shared {
            let names: Vec<String> = (0..parts.len()).map(|i| format!("{grad}@PART@{i}")).collect();
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
