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
            || self.moves_batch(op)?
            || changes_state
            || overwrites
            || waits_for_sum;
        Ok(inherited.or(own.then_some(&op.kind)))
    }

    /// Whether a result has the examples in another dimension than the first: it is neither a row
    /// per example nor a sum over them.
    fn moves_batch(&self, op: &Op) -> Result<bool, Error> {
        for name in op.output_vars() {
            let ty = &self.program.block().var(name, &op.kind)?.ty;
            if !ty.is_batched() && ty.shape.contains(&-1) {
                return Ok(self.kinds(op).contains(&Parts::Rows));
            }
        }
        Ok(false)
    }

    /// What the op says about parts of a batch, given which of its inputs differ between them.
    fn batch(&self, op: &Op) -> Result<Batch, Error> {
        let batch = (OPS.def(&op.kind)?.batch)(op);
        Ok(match batch {
            Batch::RowsOf(slots) => {
                let same = self.kinds_beside(op, slots).iter().all(|p| *p == Parts::Same);
                if same { Batch::PerExample } else { Batch::Whole }
            }
            Batch::LinearIn(slots) if self.kinds_beside(op, slots).contains(&Parts::Rows) => {
                Batch::PerExample
            }
            _ => batch,
        })
    }

    /// Whether the op reads a sum over the batch and would give something else for the parts of it.
    fn needs_complete_sum(&self, op: &Op, batch: Batch) -> bool {
        let kinds = self.kinds_of_values(op, batch);
        let sums = kinds.iter().filter(|p| **p == Parts::Sum).count();
        let is_linear = matches!(batch, Batch::Linear | Batch::LinearIn(_));
        sums > 0 && (!is_linear || sums != kinds.len())
    }

    /// The inputs of which the op reads more than the shape.
    fn kinds_of_values(&self, op: &Op, batch: Batch) -> Vec<Parts> {
        match batch {
            Batch::LinearIn(slots) => self.kinds_where(op, |slot| slots.contains(&slot)),
            _ => self.kinds(op),
        }
    }

    fn kinds_beside(&self, op: &Op, slots: &[&str]) -> Vec<Parts> {
        self.kinds_where(op, |slot| !slots.contains(&slot))
    }

    fn kinds_where(&self, op: &Op, is_asked: impl Fn(&str) -> bool) -> Vec<Parts> {
        let slots = op.inputs.iter().filter(|(slot, _)| is_asked(slot.as_str()));
        slots.flat_map(|(_, vars)| vars).map(|v| self.kind(v)).collect()
    }

    fn kinds(&self, op: &Op) -> Vec<Parts> {
        op.input_vars().map(|v| self.kind(v)).collect()
    }

    fn kind(&self, var: &str) -> Parts {
        self.parts.get(var).copied().unwrap_or(Parts::Same)
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
        let batch = self.batch(op)?;
        if self.needs_complete_sum(op, batch) {
            let reason = format!(
                "op {} is applied to a sum over the batch before it is complete; run it with one \
                 thread",
                op.kind
            );
            return refused("split_batch", reason);
        }
        let has_rows = self.kinds(op).contains(&Parts::Rows);
        let values = self.kinds_of_values(op, batch);
        for name in op.output_vars() {
            let batched = self.program.block().var(name, &op.kind)?.ty.is_batched();
            let part = match has_rows {
                true if batched => Parts::Rows,
                true => Parts::Sum,
                false => values.first().copied().unwrap_or(Parts::Same),
            };
            self.parts.insert(name.to_string(), part);
        }
        Ok(())
    }
}
