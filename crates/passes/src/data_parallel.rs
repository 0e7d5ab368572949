//! Lets several ranks train one model: every rank computes gradients on its own examples, the
//! gradients are added up, and every rank makes the same updates.

use std::collections::HashMap;

use regatta_ir::{Block, Error, Layout, Op, Program, Role, grad_name};
use regatta_ops::update_rule;

use crate::infer_types::insert_op;
use crate::{checked, refuse_buffers, refused};

const PASS: &str = "data_parallel";

/// Scales the gradient of the loss by this rank's share of the examples (1/ranks if all have as
/// many), and exchanges the gradient of every parameter: dense ones are added up, row-sparse ones
/// gathered and merged. An exchange starts where the gradient is made and is waited for where it is
/// first used, so that it overlaps with the rest of the backward part.
///
/// # Errors
/// If the program has no updates, or exchanges gradients already.
pub fn data_parallel(program: &Program) -> Result<Program, Error> {
    refuse_buffers(program, PASS)?;
    let mut program = program.clone();
    let block = program.block_mut();
    if block.ops.iter().any(|op| op.kind == "scale_by_share") {
        return refused(PASS, "the program exchanges its gradients already");
    }
    let gradients = gradients(block)?;
    scale_loss(block)?;
    for grad in &gradients {
        exchange(block, grad)?;
    }
    number_exchanges(block);
    checked(program)
}

/// The gradients of all parameters that are updated, as the backward part makes them.
fn gradients(block: &Block) -> Result<Vec<String>, Error> {
    let mut gradients = Vec::new();
    for op in &block.ops {
        let (Some(_), Some(param)) = (update_rule(op)?, op.input_var("Param")) else { continue };
        let grad = grad_name(param);
        let makes = |op: &Op| op.role == Role::Backward && op.output_vars().any(|v| v == grad);
        if !block.ops.iter().any(makes) {
            return refused(PASS, format!("nothing makes the gradient '{grad}' of '{param}'"));
        }
        gradients.push(grad);
    }
    if gradients.is_empty() {
        return refused(PASS, "the program updates nothing; call minimize first");
    }
    Ok(gradients)
}

/// Puts the share between the constant 1 that backward begins with and its first use.
fn scale_loss(block: &mut Block) -> Result<(), Error> {
    let of_gradient = |op: &Op| op.output_vars().any(|v| v.contains("@GRAD"));
    let is_seed =
        |op: &Op| op.role == Role::Backward && op.kind == "fill_constant" && of_gradient(op);
    let Some(at) = block.ops.iter().position(is_seed) else {
        return refused(PASS, "the program has no gradient of a loss");
    };
    let grad = block.ops[at].outs("Out")[0].clone();
    let whole = format!("{grad}@WHOLE");
    let mut var = block.var(&grad, PASS)?.clone();
    var.name.clone_from(&whole);
    let ty = var.ty.clone();
    block.declare(var)?;
    block.ops[at].rename_output(&grad, &whole);
    // Declared again as the output of the op that is put behind.
    block.vars.shift_remove(&grad);
    let op = Op::new("scale_by_share").input("X", &whole).output("Out", &grad);
    insert_op(block, at + 1, op.role(Role::Backward))?;
    debug_assert_eq!(block.vars[&grad].ty, ty);
    Ok(())
}

/// Starts the exchange of a gradient behind the last op that makes it, and waits for it in front of
/// the first op that uses it for the update.
fn exchange(block: &mut Block, grad: &str) -> Result<(), Error> {
    let made = block
        .ops
        .iter()
        .rposition(|op| op.role == Role::Backward && op.output_vars().any(|v| v == grad));
    let made = made.expect("checked by gradients");
    let used = block
        .ops
        .iter()
        .position(|op| op.role == Role::Optimize && op.input_vars().any(|v| v == grad));
    let used = used.expect("its parameter is updated");
    let rows = block.var(grad, PASS)?.ty.layout == Layout::Rows;
    let (start, wait) = match rows {
        true => ("gather_rows_start", "gather_rows_wait"),
        false => ("all_reduce_start", "all_reduce_wait"),
    };
    let handle = format!("{grad}@COMM");
    let wait = Op::new(wait)
        .input("Handle", &handle)
        .input("X", grad)
        .attr("name", grad)
        .output("XOut", grad);
    let start = Op::new(start).input("X", grad).attr("name", grad).output("Handle", &handle);
    insert_op(block, made + 1, start.role(Role::Optimize))?;
    insert_op(block, used + 1, wait.role(Role::Optimize))
}

/// Names exchanges by the order in which they start: `grads_0` is that of the gradient that is made
/// first. All ranks exchange in this order.
fn number_exchanges(block: &mut Block) {
    let mut numbers: HashMap<String, String> = HashMap::new();
    for op in &mut block.ops {
        let starts = matches!(op.kind.as_str(), "all_reduce_start" | "gather_rows_start");
        let waits = matches!(op.kind.as_str(), "all_reduce_wait" | "gather_rows_wait");
        if !starts && !waits {
            continue;
        }
        let old = op.str("name").expect("exchanges have names").to_string();
        let next = format!("grads_{}", numbers.len());
        let name = numbers.entry(old).or_insert(next);
        op.attrs.insert("name".into(), name.as_str().into());
    }
}
