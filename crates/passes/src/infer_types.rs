//! Adds ops to a block, declaring their outputs with the types that the ops give them.

use regatta_ir::{Block, Error, Op, OpSet, Origin, VarDef};
use regatta_ops::OPS;

/// Completes an op, declares its outputs, and appends it. An output is new, or is an input that the
/// op updates in place.
///
/// # Errors
/// If the op does not fit its inputs or an output's name is taken.
pub(crate) fn push_op(block: &mut Block, op: Op) -> Result<(), Error> {
    insert_op(block, block.ops.len(), op)
}

/// As [`push_op`], in front of the op that is at that position now.
///
/// # Errors
/// As [`push_op`].
pub(crate) fn insert_op(block: &mut Block, at: usize, mut op: Op) -> Result<(), Error> {
    OPS.known(&op.kind)?.complete(&mut op)?;
    let inputs = op
        .input_vars()
        .map(|v| Ok(block.var(v, &op.kind)?.ty.clone()))
        .collect::<Result<Vec<_>, Error>>()?;
    let outputs = OPS.infer(&op, &inputs)?;
    for (name, ty) in op.output_vars().zip(outputs) {
        if !op.input_vars().any(|v| v == name) {
            block.declare(VarDef::new(name, ty, Origin::Temp))?;
        }
    }
    block.ops.insert(at, op);
    Ok(())
}
