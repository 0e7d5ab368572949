//! Adds ops to a block, declaring their outputs with the types that the ops give them.

use regatta_ir::{Block, Error, Op, OpSet, Origin, VarDef};
use regatta_ops::OPS;

/// Completes an op, declares the outputs that are new, and appends it.
pub(crate) fn push_op(block: &mut Block, op: Op) -> Result<(), Error> {
    let at = block.ops.len();
    insert_op(block, at, op)
}

/// As [`push_op`], at a position.
pub(crate) fn insert_op(block: &mut Block, at: usize, mut op: Op) -> Result<(), Error> {
    OPS.known(&op.kind)?.complete(&mut op)?;
    let inputs = op
        .input_vars()
        .map(|v| Ok(block.var(v, &op.kind)?.ty.clone()))
        .collect::<Result<Vec<_>, Error>>()?;
    let outputs = OPS.infer(&op, &inputs)?;
    for (name, ty) in op.output_vars().zip(outputs) {
        if !block.vars.contains_key(name) {
            block.declare(VarDef::new(name, ty, Origin::Temp))?;
        }
    }
    block.ops.insert(at, op);
    Ok(())
}
