//! Batch normalisation over the examples of all ranks.

use regatta_ir::{Error, OpSet, Program};
use regatta_ops::OPS;

use crate::checked;

/// Replaces `batch_norm` in training by `sync_batch_norm`, and its gradient likewise, so that mean
/// and variance are those of the whole batch over all ranks. Leaves programs without it as they
/// are.
///
/// # Errors
/// If the result does not verify.
pub fn sync_batch_norm(program: &Program) -> Result<Program, Error> {
    let mut program = program.clone();
    for op in &mut program.block_mut().ops {
        let of_training = matches!(op.kind.as_str(), "batch_norm" | "batch_norm_grad");
        if !of_training || op.bool("is_test")? {
            continue;
        }
        // The op and its gradient share what the first has saved.
        let saved = op.output_var("SavedMean").or_else(|| op.input_var("SavedMean"));
        let name = format!("sync_{}", saved.unwrap_or_default());
        op.kind = format!("sync_{}", op.kind);
        op.attrs.insert("name".into(), name.into());
        OPS.known(&op.kind)?.complete(op)?;
    }
    checked(program)
}
