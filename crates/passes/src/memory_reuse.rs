//! Lets temporaries share memory: a variable takes the buffer of one that is no longer needed.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use regatta_ir::{Error, Layout, Origin, Program, VarDef, VarType};

/// What must keep its own memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryReuse {
    /// Variables that are read after the run, such as fetched ones.
    pub skip: Vec<String>,
    /// Keep all gradients, for instance because they are sent while the step continues.
    pub skip_grads: bool,
    /// The batch size that bytes are reported for.
    pub batch: usize,
}

/// Bytes of all temporaries, each with its own memory and with shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// Each with its own.
    pub before: usize,
    /// Shared.
    pub after: usize,
}

/// Assigns temporaries to buffers (`buffer=b0` in the text form) so that two share one only if the
/// last op that touches the first comes before the first op that touches the second. What `offload`
/// makes is in a file and takes no part. To be applied last: passes that add ops refuse its result.
///
/// # Errors
/// If a variable to skip is unknown.
pub fn memory_reuse(
    program: &Program,
    options: &MemoryReuse,
) -> Result<(Program, MemoryReport), Error> {
    for name in &options.skip {
        program.block().var(name, "memory_reuse")?;
    }
    let mut program = program.clone();
    let batch = options.batch.max(1);
    let keep: HashSet<&str> = options.skip.iter().map(String::as_str).collect();
    let lives = lifetimes(&program);
    let other_blocks: HashSet<&str> = program.blocks[1..]
        .iter()
        .flat_map(|block| &block.ops)
        .flat_map(|op| op.input_vars().chain(op.output_vars()))
        .collect();
    let elsewhere: HashSet<&str> = program
        .block()
        .ops
        .iter()
        .filter(|op| op.kind == "offload")
        .flat_map(|op| op.output_vars())
        .collect();
    let here = |v: &VarDef| {
        v.origin == Origin::Temp
            && v.ty.layout == Layout::Dense
            && !elsewhere.contains(v.name.as_str())
    };
    let skipped = |name: &str| {
        keep.contains(name)
            || other_blocks.contains(name)
            || (options.skip_grads && name.contains("@GRAD"))
    };
    let shared = |v: &VarDef| here(v) && !skipped(&v.name) && lives.contains_key(v.name.as_str());
    let block = program.block();
    let before = block.vars.values().filter(|v| here(v)).map(|v| bytes(&v.ty, batch)).sum();
    let own: usize =
        block.vars.values().filter(|v| here(v) && !shared(v)).map(|v| bytes(&v.ty, batch)).sum();

    let mut by_size: Vec<(&VarDef, Life)> =
        block.vars.values().filter(|v| shared(v)).map(|v| (v, lives[v.name.as_str()])).collect();
    by_size.sort_by_key(|(var, life)| (Reverse(bytes(&var.ty, batch)), life.born));
    let mut buffers: Vec<Buffer> = Vec::new();
    for (var, life) in by_size {
        let size = bytes(&var.ty, batch);
        // Large ones are placed first, so every buffer so far is large enough; the smallest that is
        // free wastes least, and small values that live long do not keep large buffers from others.
        let free = (0..buffers.len()).filter(|&b| buffers[b].is_free(life));
        let at = free.min_by_key(|&b| buffers[b].bytes).unwrap_or_else(|| {
            buffers.push(Buffer { bytes: size, ..Buffer::default() });
            buffers.len() - 1
        });
        buffers[at].used.push((life, var.name.clone()));
    }
    // Numbered in the order in which they are first used.
    buffers.sort_by_key(Buffer::first_use);
    let assigned: HashMap<&str, usize> = buffers
        .iter()
        .enumerate()
        .flat_map(|(b, buffer)| buffer.used.iter().map(move |(_, name)| (name.as_str(), b)))
        .collect();
    let after = own + buffers.iter().map(|b| b.bytes).sum::<usize>();
    for var in program.block_mut().vars.values_mut() {
        var.buffer = assigned.get(var.name.as_str()).map(|b| format!("b{b}"));
    }
    Ok((program, MemoryReport { before, after }))
}

#[derive(Default)]
struct Buffer {
    bytes: usize,
    /// Who is in it, and when.
    used: Vec<(Life, String)>,
}

impl Buffer {
    fn is_free(&self, life: Life) -> bool {
        let apart = |other: &Life| life.last_use < other.born || other.last_use < life.born;
        self.used.iter().all(|(other, _)| apart(other))
    }

    fn first_use(&self) -> usize {
        self.used.iter().map(|(life, _)| life.born).min().unwrap_or(0)
    }
}

/// First and last op that touches a variable.
#[derive(Debug, Clone, Copy)]
struct Life {
    born: usize,
    last_use: usize,
}

fn lifetimes(program: &Program) -> HashMap<&str, Life> {
    let mut lives: HashMap<&str, Life> = HashMap::new();
    for (i, op) in program.block().ops.iter().enumerate() {
        for var in op.input_vars().chain(op.output_vars()) {
            lives.entry(var).or_insert(Life { born: i, last_use: i }).last_use = i;
        }
    }
    lives
}

fn bytes(ty: &VarType, batch: usize) -> usize {
    let dims = ty.shape.iter().map(|&d| usize::try_from(d).unwrap_or(batch));
    dims.fold(ty.dtype.size(), usize::saturating_mul)
}
