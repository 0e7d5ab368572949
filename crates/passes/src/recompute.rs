//! Keeps few activations for the gradients and computes the others again when they are needed.
//!
//! The forward ops are split into segments at checkpoints. What crosses a boundary is kept; what
//! stays within a segment is dropped after it and computed again, from the same inputs by the same
//! ops, when the gradients of that segment begin. Random ops follow from seed, step and position,
//! so they give the same again: the result has the same bits. The last segment is not repeated,
//! because its gradients come at once.
//!
//! Reading order: [`RecomputeConfig`], [`recompute()`], `boundaries` (where to split when no
//! checkpoint is named).

mod boundaries;

use std::collections::{HashMap, HashSet};

use regatta_ir::{Block, Error, Layout, Op, Origin, Program, Role, VarType};

use crate::infer_types::push_op;
use crate::{checked, refuse_buffers, refused};

const PASS: &str = "recompute";

/// What is kept, and where.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecomputeConfig {
    /// Activations to keep. If none is named, the forward ops are split into about as many segments
    /// as each has ops, where least has to be kept.
    pub checkpoints: Vec<String>,
    /// Write checkpoints to a memory-mapped file and read them back for the gradients.
    pub enable_offload: bool,
    /// The shape that every named checkpoint must have, the batch included; none asks for nothing.
    pub checkpoint_shape: Vec<i64>,
}

/// Rewrites a program with gradients so that only checkpoints are kept between its forward and its
/// backward ops. The ops that are repeated stand among the backward ops and make `<var>@AGAIN`.
///
/// Ops that change what is kept between runs (batch normalisation, metrics) or exchange values run
/// once only; what they make is kept.
///
/// # Errors
/// If the program has no gradients or is rewritten already, a checkpoint is not an activation, or
/// `checkpoint_shape` is not its shape.
pub fn recompute(program: &Program, config: &RecomputeConfig) -> Result<Program, Error> {
    refuse_buffers(program, PASS)?;
    let block = program.block();
    if !block.ops.iter().any(|op| op.role == Role::Backward) {
        return refused(PASS, "the program has no gradients; call backward first");
    }
    if block.vars.keys().any(|v| v.ends_with(AGAIN)) {
        return refused(PASS, "parts of the program are computed again already");
    }
    let forward = Forward::new(block);
    check_config(block, &forward, config)?;
    let (boundaries, checkpoints) = if config.checkpoints.is_empty() {
        let boundaries = boundaries::choose(block, &forward);
        let crossing = forward.crossing(&boundaries);
        (boundaries, crossing)
    } else {
        let named: HashSet<&str> = config.checkpoints.iter().map(String::as_str).collect();
        let mut boundaries: Vec<usize> = named.iter().map(|v| forward.writer[v]).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        (boundaries, named)
    };
    let plan = Plan::new(block, &forward, &boundaries, checkpoints, config.enable_offload)?;
    checked(plan.rewrite(program)?)
}

/// End of the name of what is computed again.
const AGAIN: &str = "@AGAIN";

fn check_config(
    block: &Block,
    forward: &Forward<'_>,
    config: &RecomputeConfig,
) -> Result<(), Error> {
    let shape = &config.checkpoint_shape;
    if let Some(d) = shape.iter().find(|d| **d < 1) {
        return refused(PASS, format!("checkpoint_shape {shape:?} holds {d}; give every size"));
    }
    for name in &config.checkpoints {
        let var = block.var(name, PASS)?;
        if !forward.writer.contains_key(name.as_str()) {
            let reason = "it is no activation that one forward op makes";
            return refused(PASS, format!("'{name}' cannot be a checkpoint: {reason}"));
        }
        if !shape.is_empty() && !has_shape(&var.ty, shape) {
            let reason = format!("the checkpoint '{name}' is {}, not of checkpoint_shape", var.ty);
            return refused(PASS, format!("{reason} {shape:?}"));
        }
    }
    Ok(())
}

/// Equal, where a dimension that is known at run time only fits every size.
fn has_shape(ty: &VarType, shape: &[i64]) -> bool {
    ty.shape.len() == shape.len() && ty.shape.iter().zip(shape).all(|(a, b)| *a < 0 || a == b)
}

/// Who makes and reads what among the forward ops.
pub(crate) struct Forward<'a> {
    block: &'a Block,
    /// Temporaries that exactly one op makes, all of them forward ops: the position of that op.
    pub(crate) writer: HashMap<&'a str, usize>,
    /// The last forward op that reads a variable.
    pub(crate) last_reader: HashMap<&'a str, usize>,
    /// What forward ops write and the program keeps between runs.
    changed_state: HashSet<&'a str>,
}

impl<'a> Forward<'a> {
    fn new(block: &'a Block) -> Forward<'a> {
        let mut writers: HashMap<&str, Vec<usize>> = HashMap::new();
        for (i, op) in block.ops.iter().enumerate() {
            op.output_vars().for_each(|v| writers.entry(v).or_default().push(i));
        }
        let is_temp = |v: &str| block.vars.get(v).is_some_and(|v| v.origin == Origin::Temp);
        let once = |(v, at): (&'a str, Vec<usize>)| match at[..] {
            [i] if is_temp(v) && block.ops[i].role == Role::Forward => Some((v, i)),
            _ => None,
        };
        let forward = || block.ops.iter().enumerate().filter(|(_, op)| op.role == Role::Forward);
        let reads = forward().flat_map(|(i, op)| op.input_vars().map(move |v| (v, i)));
        let changed = forward().flat_map(|(_, op)| op.output_vars()).filter(|v| !is_temp(v));
        Forward {
            block,
            writer: writers.into_iter().filter_map(once).collect(),
            last_reader: reads.collect(),
            changed_state: changed.collect(),
        }
    }

    /// Variables made up to one of the boundaries and read by forward ops behind it. A boundary is
    /// the position of the op that it comes after.
    fn crossing(&self, boundaries: &[usize]) -> HashSet<&'a str> {
        let crosses = |v: &&str| {
            let (made, read) = (self.writer[*v], self.last_reader.get(*v).copied().unwrap_or(0));
            boundaries.iter().any(|&end| made <= end && read > end)
        };
        self.writer.keys().copied().filter(crosses).collect()
    }

    /// Whether running the op a second time gives the same and changes nothing else.
    fn can_run_again(&self, op: &Op) -> bool {
        let exchanges = op.kind.ends_with("_start") || op.kind.ends_with("_wait");
        op.role == Role::Forward
            && !exchanges
            && op.output_vars().all(|v| self.writer.contains_key(v))
            && op.input_vars().all(|v| self.stays(v))
    }

    /// Whether the variable still has the value that forward ops read when gradients are computed.
    fn stays(&self, var: &str) -> bool {
        let is_temp = self.block.vars.get(var).is_some_and(|v| v.origin == Origin::Temp);
        if is_temp { self.writer.contains_key(var) } else { !self.changed_state.contains(var) }
    }

    /// Whether the variable could be made again.
    fn can_make_again(&self, var: &str) -> bool {
        self.writer.get(var).is_some_and(|&i| self.can_run_again(&self.block.ops[i]))
    }
}

/// What is computed again, and what is written to the file.
struct Plan<'a> {
    /// Segment of each activation that is computed again.
    again: HashMap<&'a str, usize>,
    /// The ops of each segment that are repeated.
    repeated: Vec<Vec<&'a Op>>,
    /// Checkpoints that the file holds in the meantime.
    offloaded: HashSet<&'a str>,
}

impl<'a> Plan<'a> {
    fn new(
        block: &'a Block,
        forward: &Forward<'a>,
        boundaries: &[usize],
        checkpoints: HashSet<&'a str>,
        offload: bool,
    ) -> Result<Plan<'a>, Error> {
        let segment_of = |i: usize| boundaries.iter().filter(|&&end| end < i).count();
        let crossing = forward.crossing(boundaries);
        // Activations that are dropped, unless no gradient needs them.
        let dropped = |v: &str| {
            forward.can_make_again(v)
                && segment_of(forward.writer[v]) < boundaries.len()
                && !crossing.contains(v)
                && !checkpoints.contains(v)
        };
        let backward = || block.ops.iter().filter(|op| op.role == Role::Backward);
        let mut needed: HashSet<&str> =
            backward().flat_map(Op::input_vars).filter(|v| dropped(v)).collect();
        let mut repeated: Vec<Vec<&Op>> = vec![Vec::new(); boundaries.len()];
        let mut again = HashMap::new();
        for (i, op) in block.ops.iter().enumerate().rev() {
            if op.role != Role::Forward || !op.output_vars().any(|v| needed.contains(v)) {
                continue;
            }
            needed.extend(op.input_vars().filter(|v| dropped(v)));
            repeated[segment_of(i)].push(op);
            // What is kept is not taken from here, though the op makes it again beside the others.
            again.extend(op.output_vars().filter(|v| dropped(v)).map(|v| (v, segment_of(i))));
        }
        repeated.iter_mut().for_each(|ops| ops.reverse());
        let mut offloaded = HashSet::new();
        if offload {
            let read_later: HashSet<&str> = backward()
                .chain(repeated.iter().flatten().copied())
                .flat_map(Op::input_vars)
                .collect();
            offloaded = checkpoints.into_iter().filter(|v| read_later.contains(v)).collect();
            refuse_odd_layouts(block, &offloaded)?;
        }
        Ok(Plan { again, repeated, offloaded })
    }

    fn rewrite(&self, program: &Program) -> Result<Program, Error> {
        let mut out = program.clone();
        let block = out.block_mut();
        let ops = std::mem::take(&mut block.ops);
        let mut later = Later { plan: self, repeated: HashSet::new(), reloaded: HashSet::new() };
        for op in ops {
            if op.role == Role::Backward {
                later.push(block, op)?;
                continue;
            }
            let made: Vec<String> = op.output_vars().map(str::to_string).collect();
            let is_forward = op.role == Role::Forward;
            block.ops.push(op);
            for var in made.iter().filter(|v| is_forward && self.offloaded.contains(v.as_str())) {
                let offload = Op::new("offload").input("X", var);
                push_op(block, offload.output("Out", &format!("{var}@OFFLOADED")))?;
            }
        }
        Ok(out)
    }
}

/// Only plain arrays can be written to the file.
fn refuse_odd_layouts(block: &Block, vars: &HashSet<&str>) -> Result<(), Error> {
    for name in vars {
        let ty = &block.var(name, PASS)?.ty;
        if ty.layout != Layout::Dense {
            return refused(
                PASS,
                format!("the checkpoint '{name}' is {ty}; it cannot be offloaded"),
            );
        }
    }
    Ok(())
}

/// The backward ops, with what they need brought back in front of them.
struct Later<'p> {
    plan: &'p Plan<'p>,
    repeated: HashSet<usize>,
    reloaded: HashSet<String>,
}

impl Later<'_> {
    fn push(&mut self, block: &mut Block, mut op: Op) -> Result<(), Error> {
        for var in op.input_vars().map(str::to_string).collect::<Vec<_>>() {
            if let Some(&segment) = self.plan.again.get(var.as_str()) {
                self.repeat(block, segment)?;
                op.rename_input(&var, &format!("{var}{AGAIN}"));
            } else if self.plan.offloaded.contains(var.as_str()) {
                self.reload(block, &var)?;
                op.rename_input(&var, &format!("{var}@RELOADED"));
            }
        }
        // Gradient ops have their outputs declared; repeated ops make new ones.
        if op.output_vars().all(|v| block.vars.contains_key(v)) {
            block.ops.push(op);
            return Ok(());
        }
        push_op(block, op)
    }

    /// Repeats the ops of a segment, unless they were already.
    fn repeat(&mut self, block: &mut Block, segment: usize) -> Result<(), Error> {
        if !self.repeated.insert(segment) {
            return Ok(());
        }
        for op in &self.plan.repeated[segment] {
            let mut op = (*op).clone().role(Role::Backward);
            for var in op.output_vars().map(str::to_string).collect::<Vec<_>>() {
                op.rename_output(&var, &format!("{var}{AGAIN}"));
            }
            self.push(block, op)?;
        }
        Ok(())
    }

    fn reload(&mut self, block: &mut Block, var: &str) -> Result<(), Error> {
        if !self.reloaded.insert(var.to_string()) {
            return Ok(());
        }
        let op = Op::new("reload").input("X", &format!("{var}@OFFLOADED"));
        push_op(block, op.output("Out", &format!("{var}@RELOADED")).role(Role::Backward))
    }
}
