//! Trains with larger batches than fit: gradients of several steps are added up before one update.

use std::collections::HashSet;

use regatta_ir::{Block, Error, Layout, Op, Origin, Program, Programs, Role, VarDef, VarType};

use crate::infer_types::{insert_op, push_op};
use crate::{checked, refuse_buffers, refused};

const PASS: &str = "gradient_merge";
const COUNT: &str = "gradient_merge@COUNT";
const ONE: &str = "gradient_merge@ONE";

/// A training program in two parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Periodic {
    /// Runs at every step; the startup program is that of both.
    pub each: Programs,
    /// Runs after every N of them.
    pub then: Program,
}

/// Splits a training program between gradients and updates. The first part adds the gradients to
/// sums that are kept; the second takes their mean over the steps since (or their sum, unless
/// `avg`) and does everything else, exchanges with other ranks included.
///
/// # Errors
/// If the program updates nothing, or its updates use something other than gradients.
pub fn gradient_merge(programs: &Programs, avg: bool) -> Result<Periodic, Error> {
    refuse_buffers(&programs.main, PASS)?;
    let mut each = programs.clone();
    let mut then = Program::new("merged_update");
    let all = std::mem::take(&mut each.main.block_mut().ops);
    let (updates, steps): (Vec<Op>, Vec<Op>) =
        all.into_iter().partition(|op| op.role == Role::Optimize);
    if updates.is_empty() {
        return refused(PASS, "the program updates nothing; call minimize first");
    }
    let crossing = crossing(each.main.block(), &steps, &updates)?;
    each.main.block_mut().ops = steps;
    then.block_mut().vars = each.main.block().vars.clone();
    then.block_mut().ops = updates;
    let inputs: Vec<String> = data_names(each.main.block());
    accumulate(&mut each, &crossing)?;
    take(&mut then, each.main.block(), &crossing, avg)?;
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    each.main.block_mut().drop_unused_vars(&inputs);
    then.block_mut().drop_unused_vars(&[]);
    each.main = checked(each.main)?;
    each.startup = checked(each.startup)?;
    Ok(Periodic { each, then: checked(then)? })
}

fn data_names(block: &Block) -> Vec<String> {
    block.vars.values().filter(|v| v.origin == Origin::Data).map(|v| v.name.clone()).collect()
}

/// The gradients that updates take from the steps.
fn crossing(block: &Block, steps: &[Op], updates: &[Op]) -> Result<Vec<VarDef>, Error> {
    let made: HashSet<&str> = steps.iter().flat_map(Op::output_vars).collect();
    let mut crossing: Vec<VarDef> = Vec::new();
    for name in updates.iter().flat_map(Op::input_vars) {
        let var = block.var(name, PASS)?;
        let temporary = var.origin == Origin::Temp && made.contains(name);
        if !temporary || crossing.iter().any(|v| v.name == name) {
            continue;
        }
        let param = name.strip_suffix("@GRAD").and_then(|param| block.vars.get(param));
        if param.is_none_or(|v| v.origin != Origin::Param) {
            let reason = format!("the updates use '{name}', which is no gradient of a parameter");
            return refused(PASS, reason);
        }
        crossing.push(var.clone());
    }
    Ok(crossing)
}

/// Ending of the names of sums.
const MERGED: &str = "@MERGED";

fn merged(grad: &str) -> String {
    format!("{grad}{MERGED}")
}

/// Whether a variable is one of those in which [`gradient_merge`] keeps gradients between updates.
/// Right after an update they are as they began.
pub fn is_merge_state(name: &str) -> bool {
    name == COUNT || name.ends_with(MERGED)
}

/// Lets every step add its gradients to the sums and count itself.
fn accumulate(each: &mut Programs, gradients: &[VarDef]) -> Result<(), Error> {
    for grad in gradients {
        let sum = merged(&grad.name);
        if grad.ty.layout == Layout::Rows {
            // Begins empty; only steps that touch rows grow it.
            let var = VarDef::new(&sum, grad.ty.clone(), Origin::Persist);
            each.main.block_mut().declare(var)?;
        } else {
            each.add_state(&sum, grad.ty.clone(), 0.0)?;
        }
        let op = Op::new("accumulate").input("X", &grad.name).input("Sum", &sum);
        push_op(each.main.block_mut(), op.output("SumOut", &sum).role(Role::Optimize))?;
    }
    each.add_state(COUNT, VarType::f32([1]), 0.0)?;
    let block = each.main.block_mut();
    let one = Op::new("fill_constant").attr("shape", vec![1i64]).attr("value", 1.0);
    push_op(block, one.output("Out", ONE).role(Role::Optimize))?;
    let count = Op::new("accumulate").input("X", ONE).input("Sum", COUNT);
    push_op(block, count.output("SumOut", COUNT).role(Role::Optimize))
}

/// Begins the updates with the merged gradients under the names of gradients.
fn take(then: &mut Program, each: &Block, gradients: &[VarDef], avg: bool) -> Result<(), Error> {
    let block = then.block_mut();
    block.declare(each.var(COUNT, PASS)?.clone())?;
    for (at, grad) in gradients.iter().enumerate() {
        let sum = merged(&grad.name);
        block.declare(each.var(&sum, PASS)?.clone())?;
        block.vars.shift_remove(&grad.name);
        let op = Op::new("take_merged")
            .input("Sum", &sum)
            .input("Count", COUNT)
            .attr("avg", avg)
            .output("Out", &grad.name)
            .output("SumOut", &sum);
        insert_op(block, at, op.role(Role::Optimize))?;
    }
    let mut reset = Op::new("fill_constant").attr("shape", vec![1i64]).attr("value", 0.0);
    reset = reset.attr("dtype", "f32").output("Out", COUNT).role(Role::Optimize);
    // Written whole, not made: `push_op` would declare it a second time.
    block.ops.push(reset);
    Ok(())
}
