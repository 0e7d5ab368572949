//! Decides which ops each thread runs on its part of the batch and which need the whole.

use std::collections::HashMap;

use regatta_ir::{Error, Origin, Program, Role};
use regatta_ops::{Batch, OPS};

use crate::refused;

/// How a variable relates to the parts of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// Each part has its own rows; the whole is all rows in order.
    Rows,
    /// Each part has a summand; the whole is the sum.
    Sum,
    /// The same in every part.
    Same,
}

/// For each op, whether every part runs it (true) or the whole batch does, afterwards (false); and
/// what each variable made in a part means. Forward and backward ops run in parts, except metrics,
/// which read results but feed no gradient.
///
/// # Errors
/// If an op that needs the whole batch stands in the way, naming it.
pub fn split_batch(program: &Program) -> Result<(Vec<bool>, HashMap<String, Parts>), Error> {
    let block = program.block();
    let mut parts: HashMap<String, Parts> = HashMap::new();
    for var in block.vars.values().filter(|v| v.origin != Origin::Temp) {
        let batched = var.origin == Origin::Data && var.ty.is_batched();
        parts.insert(var.name.clone(), if batched { Parts::Rows } else { Parts::Same });
    }
    let mut in_part = Vec::with_capacity(block.ops.len());
    let mut whole_vars: Vec<&str> = Vec::new();
    for op in &block.ops {
        let batch = (OPS.def(&op.kind)?.batch)(op);
        let reads_whole = op.input_vars().find(|v| whole_vars.contains(v));
        let writes_state = op
            .output_vars()
            .any(|v| block.vars.get(v).is_some_and(|var| var.origin != Origin::Temp));
        if op.role == Role::Optimize || batch == Batch::Whole || writes_state {
            let reads_batch = op
                .input_vars()
                .any(|v| parts.get(v).is_some_and(|p| *p != Parts::Same));
            in_part.push(false);
            if op.role != Role::Optimize || reads_batch || writes_state {
                whole_vars.extend(op.output_vars());
            }
            continue;
        }
        if let Some(var) = reads_whole {
            return refused(
                "split_batch",
                format!(
                    "op {} reads '{var}', which needs the whole batch; run it with one thread",
                    op.kind
                ),
            );
        }
        let kinds: Vec<Parts> =
            op.input_vars().map(|v| parts.get(v).copied().unwrap_or(Parts::Same)).collect();
        let sums = kinds.iter().filter(|p| **p == Parts::Sum).count();
        if sums > 0 && (batch != Batch::Linear || sums != kinds.len()) {
            return refused(
                "split_batch",
                format!(
                    "op {} is applied to a sum over the batch before it is complete; run it with \
                     one thread",
                    op.kind
                ),
            );
        }
        for name in op.output_vars() {
            let batched = block.var(name, &op.kind)?.ty.is_batched();
            let part = if sums > 0 {
                Parts::Sum
            } else if kinds.contains(&Parts::Rows) {
                if batched { Parts::Rows } else { Parts::Sum }
            } else {
                Parts::Same
            };
            parts.insert(name.to_string(), part);
        }
        in_part.push(true);
    }
    Ok((in_part, parts))
}
