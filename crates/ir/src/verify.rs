//! Checks a whole program: names, slots, attributes, order and types.

use std::collections::HashSet;

use crate::{Block, Error, OpSet, Origin, Program, VarType};

/// Checks that every op is known and complete, every variable is declared and written before it
/// is read, and every output has the type that the op gives it.
///
/// # Errors
/// The first problem, naming op and variable.
pub fn verify(program: &Program, ops: &dyn OpSet) -> Result<(), Error> {
    let global = program.block();
    for block in &program.blocks {
        verify_block(block, global, ops)?;
    }
    Ok(())
}

fn verify_block(block: &Block, global: &Block, ops: &dyn OpSet) -> Result<(), Error> {
    let find = |name: &str, op: &str| {
        block.vars.get(name).map(Ok).unwrap_or_else(|| global.var(name, op))
    };
    let mut written: HashSet<&str> = HashSet::new();
    for op in &block.ops {
        let mut complete = op.clone();
        ops.known(&op.kind)?.complete(&mut complete)?;
        let mut inputs: Vec<VarType> = Vec::new();
        for name in op.input_vars() {
            let var = find(name, &op.kind)?;
            let from_outside = var.origin != Origin::Temp || !block.vars.contains_key(name);
            if !from_outside && !written.contains(name) {
                return Err(Error::ReadBeforeWrite { op: op.kind.clone(), var: name.to_string() });
            }
            inputs.push(var.ty.clone());
        }
        let outputs = ops.infer(&complete, &inputs)?;
        for ((slot, name), ty) in slot_names(op).zip(outputs) {
            let declared = find(name, &op.kind)?;
            if !fits(&declared.ty, &ty) {
                return Err(Error::Type {
                    op: op.kind.clone(),
                    slot: slot.to_string(),
                    var: name.to_string(),
                    expected: ty.to_string(),
                    actual: declared.ty.to_string(),
                });
            }
            written.insert(name);
        }
    }
    Ok(())
}

fn slot_names(op: &crate::Op) -> impl Iterator<Item = (&str, &str)> {
    op.outputs.iter().flat_map(|(slot, vars)| vars.iter().map(|v| (slot.as_str(), v.as_str())))
}

/// Equal, where -1 stands for any size.
fn fits(declared: &VarType, inferred: &VarType) -> bool {
    declared.dtype == inferred.dtype
        && declared.layout == inferred.layout
        && declared.shape.len() == inferred.shape.len()
        && declared.shape.iter().zip(&inferred.shape).all(|(a, b)| a == b || *a == -1 || *b == -1)
}
