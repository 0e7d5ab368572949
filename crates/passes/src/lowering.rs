//! A program on its way to the executor: for inputs of known types, the ops of every thread with
//! the memory and the types of their variables.

use std::collections::HashMap;
use std::ops::Range;

use regatta_ir::{Error, Layout, Op, OpSet, Origin, Program, VarType};
use regatta_ops::OPS;

use crate::pipeline::Rewrite;
use crate::{MemoryReuse, Parts, fuse, memory_reuse, refused, split_batch};

/// How a program is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoweringOptions {
    /// Threads that share a batch.
    pub threads: usize,
    /// Ops may be joined.
    pub fuse: bool,
    /// Temporaries may share memory.
    pub memory_reuse: bool,
}

/// The state of the passes in [`EXECUTION`](crate::pipeline::EXECUTION).
#[derive(Debug, Clone)]
pub struct Lowering {
    /// The whole program.
    pub program: Program,
    /// Types of the inputs, with the rows of the whole batch.
    pub feeds: Vec<(String, VarType)>,
    /// Variables that are read after a run.
    pub fetch: Vec<String>,
    /// Examples in the batch.
    pub rows: usize,
    /// How it is to be run.
    pub options: LoweringOptions,
    /// What each variable that a part makes is of the whole.
    pub parts: HashMap<String, Parts>,
    /// One for each thread, if several share the batch, and at the end what runs after them: the
    /// ops on the whole batch, or all ops.
    pub segments: Vec<SegmentProgram>,
}

/// Ops that run one after the other on one thread.
#[derive(Debug, Clone)]
pub struct SegmentProgram {
    /// The ops, and all variables of the whole program.
    pub program: Program,
    /// Examples that it runs on.
    pub range: Range<usize>,
    /// Variables that are read after it has run.
    pub keep: Vec<String>,
    /// Variables that other segments have made before.
    pub imports: Vec<String>,
    /// Types with every dimension known.
    pub types: HashMap<String, VarType>,
}

impl Lowering {
    /// Begins with a program and the types of its inputs, of which `rows` is the batch.
    pub fn new(
        program: &Program,
        feeds: &[(String, VarType)],
        fetch: &[String],
        rows: usize,
        options: LoweringOptions,
    ) -> Lowering {
        Lowering {
            program: program.clone(),
            feeds: feeds.to_vec(),
            fetch: fetch.to_vec(),
            rows,
            options,
            parts: HashMap::new(),
            segments: Vec::new(),
        }
    }

    /// Not where memory is shared already, nor where every variable is to be looked at.
    pub(crate) fn may_fuse(&self) -> bool {
        self.options.fuse && !self.shares_memory()
    }

    /// Whether the program says already which variables share memory.
    pub(crate) fn shares_memory(&self) -> bool {
        self.program.block().vars.values().any(|var| var.buffer.is_some())
    }

    pub(crate) fn fuse(&mut self) -> Result<(), Error> {
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        self.program = fuse(&self.program, &fetch)?;
        Ok(())
    }

    pub(crate) fn split_batch(&mut self) -> Result<(), Error> {
        let threads = self.options.threads.min(self.rows.max(1));
        let ops = &self.program.block().ops;
        if threads == 1 || !ops.iter().any(|op| self.reads_feed(op)) {
            let (program, range, keep) = (self.program.clone(), 0..self.rows, self.fetch.clone());
            self.segments = vec![SegmentProgram::new(program, range, keep, Vec::new())];
            return Ok(());
        }
        let (in_part, parts) = split_batch(&self.program)?;
        let crossing = crossing(&self.program, &in_part, &self.fetch);
        for i in 0..threads {
            let range = self.rows * i / threads..self.rows * (i + 1) / threads;
            let program = self.only(&format!("part{i}"), |at| in_part[at]);
            let part = SegmentProgram::new(program, range, crossing.clone(), Vec::new());
            self.segments.push(part);
        }
        let mut keep = self.fetch.clone();
        keep.extend(crossing.iter().cloned());
        let rest = self.only("rest", |at| !in_part[at]);
        self.segments.push(SegmentProgram::new(rest, 0..self.rows, keep, crossing));
        self.parts = parts;
        Ok(())
    }

    /// A program of some of the ops.
    fn only(&self, name: &str, chosen: impl Fn(usize) -> bool) -> Program {
        let mut program = self.program.clone();
        program.name = format!("{}.{name}", program.name);
        let mut at = 0..;
        program.block_mut().ops.retain(|_| at.next().is_some_and(&chosen));
        program
    }

    fn reads_feed(&self, op: &Op) -> bool {
        let vars = &self.program.block().vars;
        let batched =
            |v: &str| vars.get(v).is_some_and(|v| v.origin == Origin::Data && v.ty.is_batched());
        op.input_vars().any(batched)
    }

    /// Lets temporaries share buffers, unless the program says already who shares what.
    pub(crate) fn memory_reuse(&mut self) -> Result<(), Error> {
        let annotated = self.shares_memory();
        for segment in &mut self.segments {
            let vars = &segment.program.block().vars;
            if annotated {
                let shares = |name: &&String| vars.get(*name).is_some_and(|v| v.buffer.is_some());
                if let Some(name) = segment.keep.iter().find(shares) {
                    let reason = format!(
                        "'{name}' shares memory with other variables and is read after the run; \
                         name it in the skip list of memory_reuse"
                    );
                    return refused("memory_reuse", reason);
                }
                continue;
            }
            let skip = segment.keep.iter().filter(|name| vars.contains_key(*name)).cloned();
            let how =
                MemoryReuse { skip: skip.collect(), skip_grads: false, batch: segment.range.len() };
            segment.program = memory_reuse(&segment.program, &how)?.0;
        }
        Ok(())
    }

    pub(crate) fn concrete_types(&mut self) -> Result<(), Error> {
        for segment in &mut self.segments {
            // What runs on the whole batch also reads what other segments have made of it.
            let whole = segment.range == (0..self.rows);
            let program = if whole { &self.program } else { &segment.program };
            segment.types = concrete_types(program, &self.feeds, segment.range.len())?;
        }
        Ok(())
    }
}

impl SegmentProgram {
    fn new(
        program: Program,
        range: Range<usize>,
        keep: Vec<String>,
        imports: Vec<String>,
    ) -> SegmentProgram {
        SegmentProgram { program, range, keep, imports, types: HashMap::new() }
    }

    /// The program with its types as far as they are known, without the variables of other
    /// segments.
    fn shown(&self) -> Program {
        let mut program = self.program.clone();
        let block = program.block_mut();
        for var in block.vars.values_mut() {
            if let Some(ty) = self.types.get(&var.name) {
                var.ty = ty.clone();
            }
        }
        let used: Vec<&str> = self.keep.iter().chain(&self.imports).map(String::as_str).collect();
        block.drop_unused_vars(&used);
        program
    }
}

impl Rewrite for Lowering {
    fn programs(&self) -> Vec<Program> {
        match self.segments.is_empty() {
            true => vec![self.program.clone()],
            false => self.segments.iter().map(SegmentProgram::shown).collect(),
        }
    }
}

/// Variables made in parts and used by the rest or fetched.
fn crossing(program: &Program, in_part: &[bool], fetch: &[String]) -> Vec<String> {
    let ops = || program.block().ops.iter().zip(in_part);
    let made: Vec<&str> =
        ops().filter(|(_, part)| **part).flat_map(|(op, _)| op.output_vars()).collect();
    let used = ops().filter(|(_, part)| !**part).flat_map(|(op, _)| op.input_vars());
    let mut crossing: Vec<String> = Vec::new();
    for name in used.chain(fetch.iter().map(String::as_str)) {
        if made.contains(&name) && !crossing.iter().any(|c| c == name) {
            crossing.push(name.to_string());
        }
    }
    crossing
}

/// Types of all variables that a program makes of a batch of N rows, with every dimension known.
fn concrete_types(
    program: &Program,
    feeds: &[(String, VarType)],
    rows: usize,
) -> Result<HashMap<String, VarType>, Error> {
    let block = program.block();
    let persistables = block.vars.values().filter(|v| v.is_persistable());
    let mut types: HashMap<String, VarType> =
        persistables.map(|v| (v.name.clone(), v.ty.clone())).collect();
    for (name, ty) in feeds {
        let mut ty = ty.clone();
        if block.var(name, "concrete_types")?.ty.is_batched() {
            ty.shape[0] = rows as i64;
        }
        types.insert(name.clone(), ty);
    }
    for op in &block.ops {
        let known = |v: &str| {
            types
                .get(v)
                .cloned()
                .ok_or_else(|| Error::ReadBeforeWrite { op: op.kind.clone(), var: v.to_string() })
        };
        let ins = op.input_vars().map(known).collect::<Result<Vec<_>, Error>>()?;
        let outs = OPS.infer(op, &ins)?;
        for (name, ty) in op.output_vars().zip(outs) {
            if ty.layout != Layout::Rows && ty.numel().is_none() {
                let reason = format!(
                    "op {}: the shape of '{name}' is not known at run time ({ty})",
                    op.kind
                );
                return refused("concrete_types", reason);
            }
            types.insert(name.to_string(), ty);
        }
    }
    Ok(types)
}
