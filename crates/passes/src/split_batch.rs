//! Decides which ops each thread runs on its part of the batch and which need the whole.

use std::collections::{HashMap, HashSet};

use regatta_ir::{Error, Op, Origin, Program, Role};
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
/// what each variable made in a part means.
///
/// Forward and backward ops run in parts. Updates run on the whole, as do ops that need all
/// examples or change what is kept between runs (metrics), forward ops on sums over the batch,
/// which are complete only afterwards, and forward ops that follow from any of these.
///
/// # Errors
/// If a gradient depends on an op that needs the whole batch or on a sum over the batch; the
/// message names the op.
pub fn split_batch(program: &Program) -> Result<(Vec<bool>, HashMap<String, Parts>), Error> {
    let mut split = Split::new(program);
    let in_part = program
        .block()
        .ops
        .iter()
        .map(|op| {
            let whole = split.needs_whole(op)?;
            if let Some(why) = whole {
                split.run_on_whole(op, why)?;
            } else {
                split.run_in_parts(op)?;
            }
            Ok(whole.is_none())
        })
        .collect::<Result<Vec<bool>, Error>>()?;
    Ok((in_part, split.parts))
}

struct Split<'a> {
    program: &'a Program,
    parts: HashMap<String, Parts>,
    /// Variables that only the whole batch has, and the op that made it so.
    whole: HashMap<&'a str, &'a str>,
    /// Variables that ops of the whole batch use. A part must not change them, because all parts
    /// run before.
    used_by_whole: HashSet<&'a str>,
}

impl<'a> Split<'a> {
    fn new(program: &'a Program) -> Split<'a> {
        let mut parts = HashMap::new();
        for var in program.block().vars.values().filter(|v| v.origin != Origin::Temp) {
            let batched = var.origin == Origin::Data && var.ty.is_batched();
            parts.insert(var.name.clone(), if batched { Parts::Rows } else { Parts::Same });
        }
        Split { program, parts, whole: HashMap::new(), used_by_whole: HashSet::new() }
    }

    /// The op because of which this one runs on the whole batch, if it does.
    fn needs_whole(&self, op: &'a Op) -> Result<Option<&'a str>, Error> {
        let batch = self.batch(op)?;
        let vars = &self.program.block().vars;
        let changes_state =
            op.output_vars().any(|v| vars.get(v).is_some_and(|v| v.origin != Origin::Temp));
        let inherited = op.input_vars().find_map(|v| self.whole.get(v).copied());
        let overwrites = op.output_vars().any(|v| self.used_by_whole.contains(v));
        let waits_for_sum = op.role == Role::Forward && self.needs_complete_sum(op, batch);
        let own = op.role == Role::Optimize
            || batch == Batch::Whole
            || changes_state
            || overwrites
            || waits_for_sum;
        Ok(inherited.or(own.then_some(&op.kind)))
    }

    /// What the op says about parts of a batch, given which of its inputs differ between them.
    fn batch(&self, op: &Op) -> Result<Batch, Error> {
        let batch = (OPS.def(&op.kind)?.batch)(op);
        let Batch::RowsOf(slots) = batch else { return Ok(batch) };
        let same = |v: &String| self.parts.get(v).is_none_or(|parts| *parts == Parts::Same);
        let others = op.inputs.iter().filter(|(slot, _)| !slots.contains(&slot.as_str()));
        let fits = others.into_iter().all(|(_, vars)| vars.iter().all(same));
        Ok(if fits { Batch::PerExample } else { Batch::Whole })
    }

    /// Whether the op reads a sum over the batch and would give something else for the parts of it.
    fn needs_complete_sum(&self, op: &Op, batch: Batch) -> bool {
        let kinds = self.kinds(op);
        let sums = kinds.iter().filter(|p| **p == Parts::Sum).count();
        sums > 0 && (batch != Batch::Linear || sums != kinds.len())
    }

    fn kinds(&self, op: &Op) -> Vec<Parts> {
        op.input_vars().map(|v| self.parts.get(v).copied().unwrap_or(Parts::Same)).collect()
    }

    fn run_on_whole(&mut self, op: &'a Op, why: &'a str) -> Result<(), Error> {
        if op.role == Role::Backward {
            let reason = format!(
                "the gradients depend on op {why}, which needs the whole batch; run it with one \
                 thread"
            );
            return refused("split_batch", reason);
        }
        self.whole.extend(op.output_vars().map(|v| (v, why)));
        self.used_by_whole.extend(op.input_vars().chain(op.output_vars()));
        Ok(())
    }

    fn run_in_parts(&mut self, op: &Op) -> Result<(), Error> {
        if self.needs_complete_sum(op, self.batch(op)?) {
            let reason = format!(
                "op {} is applied to a sum over the batch before it is complete; run it with one \
                 thread",
                op.kind
            );
            return refused("split_batch", reason);
        }
        let kinds = self.kinds(op);
        for name in op.output_vars() {
            let batched = self.program.block().var(name, &op.kind)?.ty.is_batched();
            let part = if kinds.contains(&Parts::Rows) {
                if batched { Parts::Rows } else { Parts::Sum }
            } else {
                kinds.first().copied().unwrap_or(Parts::Same)
            };
            self.parts.insert(name.to_string(), part);
        }
        Ok(())
    }
}
