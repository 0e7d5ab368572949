//! Programs for inference.

use std::collections::HashSet;

use regatta_ir::{Attr, Error, Program, Role};

use crate::checked;

/// The forward part only, with layers that behave differently in training (dropout, batch
/// normalisation) switched to inference.
///
/// # Errors
/// If the result does not verify.
pub fn clone_for_test(program: &Program) -> Result<Program, Error> {
    let mut program = program.clone();
    let block = program.block_mut();
    block.ops.retain(|op| op.role == Role::Forward);
    for op in &mut block.ops {
        if let Some(flag) = op.attrs.get_mut("is_test") {
            *flag = Attr::Bool(true);
        }
    }
    block.drop_unused_vars(&[]);
    checked(program)
}

/// Only what the targets need, in inference form.
///
/// # Errors
/// If a target is unknown or nothing makes it.
pub fn prune(program: &Program, targets: &[&str]) -> Result<Program, Error> {
    for target in targets {
        program.block().var(target, "prune")?;
    }
    let mut program = clone_for_test(program)?;
    program.name = "infer".to_string();
    let block = program.block_mut();
    let mut needed: HashSet<String> = targets.iter().map(|t| t.to_string()).collect();
    let mut kept = Vec::new();
    for op in block.ops.drain(..).rev() {
        if op.output_vars().any(|v| needed.contains(v)) {
            needed.extend(op.input_vars().map(str::to_string));
            kept.push(op);
        }
    }
    kept.reverse();
    block.ops = kept;
    block.drop_unused_vars(targets);
    for target in targets {
        block.var(target, "prune")?;
    }
    checked(program)
}
