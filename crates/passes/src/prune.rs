//! Programs for inference.

use std::collections::HashSet;

use regatta_ir::schema::Arity;
use regatta_ir::{Attr, Error, Op, OpSet, Origin, Program, Role, Schema};
use regatta_ops::OPS;

use crate::merge_lookups::separate_lookups;
use crate::{checked, refused};

/// The forward part only, with layers that behave differently in training (dropout, batch
/// normalisation) switched to inference. It takes the same inputs; memory is no longer shared,
/// since what is in use when has changed.
///
/// # Errors
/// If an op is unknown or the result does not verify.
pub fn clone_for_test(program: &Program) -> Result<Program, Error> {
    let mut program = program.clone();
    let block = program.block_mut();
    block.ops.retain(|op| op.role == Role::Forward);
    let read: HashSet<String> =
        block.ops.iter().flat_map(|op| op.input_vars().map(str::to_string)).collect();
    for op in &mut block.ops {
        let schema = OPS.known(&op.kind)?;
        if schema.attrs.iter().any(|(name, _)| *name == "is_test") {
            op.attrs.insert("is_test".to_string(), Attr::Bool(true));
            drop_training_outputs(op, schema, &read);
        }
    }
    let inputs: Vec<String> =
        block.vars.values().filter(|v| v.origin == Origin::Data).map(|v| v.name.clone()).collect();
    block.drop_unused_vars(&inputs.iter().map(String::as_str).collect::<Vec<_>>());
    for var in block.vars.values_mut() {
        var.buffer = None;
    }
    checked(program)
}

/// Drops optional outputs that only training needs: state that inference leaves alone, and what the
/// forward op saved for its gradient.
fn drop_training_outputs(op: &mut Op, schema: &Schema, read: &HashSet<String>) {
    let updated: Vec<String> = op.input_vars().map(str::to_string).collect();
    op.outputs.retain(|(slot, vars)| {
        let optional =
            schema.outputs.iter().any(|def| def.name == slot && def.arity == Arity::Optional);
        let needed = |v: &String| read.contains(v) && !updated.contains(v);
        !optional || vars.iter().any(needed)
    });
}

/// Only what the targets need, in inference form. Lookups that were merged for training ask for the
/// inputs of the targets only.
///
/// # Errors
/// If a target is unknown or nothing in the forward part makes it.
pub fn prune(program: &Program, targets: &[&str]) -> Result<Program, Error> {
    for target in targets {
        program.block().var(target, "prune")?;
    }
    let mut program = clone_for_test(program)?;
    program.name = "infer".to_string();
    let block = program.block_mut();
    for target in targets {
        let made = block.ops.iter().any(|op| op.output_vars().any(|v| v == *target));
        let given = block.vars.get(*target).is_some_and(|v| v.origin != Origin::Temp);
        if !made && !given {
            return refused("prune", format!("nothing in the forward part makes '{target}'"));
        }
    }
    separate_lookups(block)?;
    let mut needed: HashSet<String> = targets.iter().map(|t| t.to_string()).collect();
    let mut kept = Vec::new();
    for op in block.ops.drain(..).rev() {
        if op.output_vars().any(|v| needed.contains(v)) {
            // What it writes was needed from here on; before it, only what it reads is.
            for var in op.output_vars() {
                needed.remove(var);
            }
            needed.extend(op.input_vars().map(str::to_string));
            kept.push(op);
        }
    }
    kept.reverse();
    block.ops = kept;
    block.drop_unused_vars(targets);
    checked(program)
}
