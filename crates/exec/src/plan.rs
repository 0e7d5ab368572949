//! Program + shapes of the inputs -> segments: which kernels run where, on which memory.

use std::collections::{HashMap, HashSet};

use regatta_ir::{Block, Layout, Op, OpSet, Origin, Program, VarType};
use regatta_ops::{OPS, Spec};
use regatta_passes::{MemoryReuse, Parts, fuse, memory_reuse, split_batch};
use regatta_tensor::{DType, Tensor, Value};

use crate::arena::whole_lines;
use crate::mapped::MappedFile;
use crate::segment::{Loc, PlannedOp, Segment};
use crate::{Error, Options};

/// A program made ready for inputs of certain shapes and for certain fetches.
pub(crate) struct Plan {
    /// Types of the feeds, by position; a run with other types needs another plan.
    pub(crate) feed_types: Vec<(String, VarType)>,
    pub(crate) fetch_names: Vec<String>,
    /// Examples in the batch.
    pub(crate) rows: usize,
    /// Each runs its part of the batch; empty when one thread does everything.
    pub(crate) parts: Vec<Part>,
    /// Runs after the parts: updates and metrics, or everything.
    pub(crate) rest: Segment,
    /// What the rest takes over from the parts.
    pub(crate) imports: Vec<Import>,
    /// Where each fetched value is found after a run.
    pub(crate) fetch_locs: Vec<Loc>,
    pub(crate) fetched: Vec<Tensor>,
    /// Bytes of temporaries without sharing memory.
    pub(crate) bytes_without_reuse: usize,
}

/// One thread's share.
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

/// A variable that the rest needs from the parts.
pub(crate) struct Import {
    pub(crate) how: Parts,
    /// Where it is in each part.
    pub(crate) from: Vec<Loc>,
    pub(crate) to: Loc,
}

/// The type of a value as a program would declare it.
pub(crate) fn type_of(value: &Value) -> VarType {
    match value {
        Value::Dense(t) => {
            VarType::dense(t.dtype(), t.shape().iter().map(|&d| d as i64).collect::<Vec<_>>())
        }
        Value::Ragged(r) => VarType {
            dtype: r.values().dtype(),
            layout: Layout::Ragged,
            shape: vec![r.rows() as i64],
        },
    }
}

impl Plan {
    pub(crate) fn new(
        program: &Program,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
        options: &Options,
    ) -> Result<Plan, Error> {
        let feed_types: Vec<(String, VarType)> =
            feeds.iter().map(|(name, value)| (name.to_string(), type_of(value))).collect();
        let rows = check_feeds(program, &feed_types)?;
        let fetch_names: Vec<String> = fetch.iter().map(|f| f.to_string()).collect();
        check_fetches(program, &fetch_names)?;
        let fused = fused(program, fetch, options)?;
        let program = fused.as_ref().unwrap_or(program);
        let threads = options.threads.min(rows.max(1));
        let plan = if threads > 1 && program.block().ops.iter().any(|op| reads_feed(program, op)) {
            Self::split(program, feed_types, fetch_names, rows, threads, options)?
        } else {
            Self::single(program, feed_types, fetch_names, rows, options)?
        };
        Ok(plan)
    }

    fn single(
        program: &Program,
        feed_types: Vec<(String, VarType)>,
        fetch_names: Vec<String>,
        rows: usize,
        options: &Options,
    ) -> Result<Plan, Error> {
        let all = vec![true; program.block().ops.len()];
        let layout =
            Compiled::new(program, &all, &feed_types, rows, (0, rows), &fetch_names, &[], options)?;
        let (fetch_locs, fetched) = layout.fetches(&fetch_names)?;
        Ok(Plan {
            feed_types,
            fetch_names,
            rows,
            parts: vec![],
            bytes_without_reuse: layout.bytes_without_reuse,
            rest: layout.segment,
            imports: vec![],
            fetch_locs,
            fetched,
        })
    }

    fn split(
        program: &Program,
        feed_types: Vec<(String, VarType)>,
        fetch_names: Vec<String>,
        rows: usize,
        threads: usize,
        options: &Options,
    ) -> Result<Plan, Error> {
        let (in_part, kinds) = split_batch(program)?;
        let wanted = crossing(program, &in_part, &fetch_names);
        let mut parts = Vec::new();
        let mut part_locs = Vec::new();
        let mut bytes = 0;
        for i in 0..threads {
            let (first, end) = (rows * i / threads, rows * (i + 1) / threads);
            let part = Compiled::new(
                program,
                &in_part,
                &feed_types,
                rows,
                (first, end),
                &wanted,
                &[],
                options,
            )?;
            bytes += part.bytes_without_reuse;
            part_locs.push(part.locs);
            parts.push(Part { segment: part.segment, first, rows: end - first });
        }
        let in_rest: Vec<bool> = in_part.iter().map(|p| !p).collect();
        let mut keep = fetch_names.clone();
        keep.extend(wanted.iter().cloned());
        let rest = Compiled::new(
            program,
            &in_rest,
            &feed_types,
            rows,
            (0, rows),
            &keep,
            &wanted,
            options,
        )?;
        let imports = wanted
            .iter()
            .map(|name| Import {
                how: kinds[name],
                from: part_locs.iter().map(|locs| locs[name]).collect(),
                to: rest.locs[name],
            })
            .collect();
        let (fetch_locs, fetched) = rest.fetches(&fetch_names)?;
        Ok(Plan {
            feed_types,
            fetch_names,
            rows,
            parts,
            bytes_without_reuse: bytes + rest.bytes_without_reuse,
            rest: rest.segment,
            imports,
            fetch_locs,
            fetched,
        })
    }

    /// Bytes of temporaries as placed.
    pub(crate) fn bytes(&self) -> usize {
        self.segments().map(|segment| segment.bytes).sum()
    }

    /// The parts and the rest.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.parts.iter().map(|part| &part.segment).chain([&self.rest])
    }
}

/// The program with ops joined, if that is allowed: not where memory is shared already, nor where
/// every variable is to be looked at.
fn fused(program: &Program, fetch: &[&str], options: &Options) -> Result<Option<Program>, Error> {
    let annotated = program.block().vars.values().any(|v| v.buffer.is_some());
    if annotated || options.check_nan_inf {
        return Ok(None);
    }
    Ok(Some(fuse(program, fetch)?))
}

fn reads_feed(program: &Program, op: &Op) -> bool {
    op.input_vars().any(|v| {
        program.block().vars.get(v).is_some_and(|v| v.origin == Origin::Data && v.ty.is_batched())
    })
}

/// Variables made in parts and used by the rest or fetched.
fn crossing(program: &Program, in_part: &[bool], fetch: &[String]) -> Vec<String> {
    let block = program.block();
    let made: Vec<&str> = block
        .ops
        .iter()
        .zip(in_part)
        .filter(|(_, part)| **part)
        .flat_map(|(op, _)| op.output_vars())
        .collect();
    let used = block
        .ops
        .iter()
        .zip(in_part)
        .filter(|(_, part)| !**part)
        .flat_map(|(op, _)| op.input_vars())
        .chain(fetch.iter().map(String::as_str));
    let mut wanted: Vec<String> = Vec::new();
    for name in used {
        if made.contains(&name) && !wanted.iter().any(|w| w == name) {
            wanted.push(name.to_string());
        }
    }
    wanted
}

/// Checks the feeds against the declared inputs; returns the number of examples.
fn check_feeds(program: &Program, feeds: &[(String, VarType)]) -> Result<usize, Error> {
    let block = program.block();
    let inputs: Vec<&str> =
        block.vars.values().filter(|v| v.origin == Origin::Data).map(|v| v.name.as_str()).collect();
    let mut batch: Option<(&str, usize)> = None;
    for (name, ty) in feeds {
        if !inputs.contains(&name.as_str()) {
            return Err(Error::UnknownFeed {
                name: name.clone(),
                nearest: regatta_ir::nearest(name, inputs.iter().copied()).map(str::to_string),
                inputs: inputs.iter().map(|i| i.to_string()).collect(),
            });
        }
        let declared = &block.vars[name].ty;
        if !fits(declared, ty) {
            return Err(Error::FeedType {
                name: name.clone(),
                expected: declared.to_string(),
                actual: ty.to_string(),
            });
        }
        if declared.is_batched() {
            let rows = ty.shape[0] as usize;
            match batch {
                Some((other, other_rows)) if other_rows != rows => {
                    let (name, other) = (name.clone(), other.to_string());
                    return Err(Error::BatchSize { name, rows, other, other_rows });
                }
                _ => batch = Some((name, rows)),
            }
        }
    }
    let used = |name: &str| block.ops.iter().any(|op| op.input_vars().any(|v| v == name));
    for name in inputs {
        if used(name) && !feeds.iter().any(|(f, _)| f == name) {
            let ty = block.vars[name].ty.to_string();
            return Err(Error::MissingFeed { name: name.to_string(), ty });
        }
    }
    Ok(batch.map_or(1, |(_, rows)| rows))
}

fn fits(declared: &VarType, given: &VarType) -> bool {
    declared.dtype == given.dtype
        && declared.layout == given.layout
        && declared.shape.len() == given.shape.len()
        && declared.shape.iter().zip(&given.shape).all(|(d, g)| d == g || *d < 0)
}

fn check_fetches(program: &Program, fetch: &[String]) -> Result<(), Error> {
    let block = program.block();
    for name in fetch {
        let problem = |reason: String| Error::Fetch { name: name.clone(), reason };
        let var = block.vars.get(name).ok_or_else(|| {
            let near = regatta_ir::nearest(name, block.vars.keys().map(String::as_str));
            let hint = near.map(|n| format!("; did you mean '{n}'?")).unwrap_or_default();
            problem(format!("no such variable in program '{}'{hint}", program.name))
        })?;
        if var.ty.layout == Layout::Ragged {
            return Err(problem(format!("it is {}, a ragged input", var.ty)));
        }
    }
    Ok(())
}

/// A segment with the places of its variables.
struct Compiled {
    segment: Segment,
    locs: HashMap<String, Loc>,
    types: HashMap<String, VarType>,
    bytes_without_reuse: usize,
}

impl Compiled {
    /// `chosen` says which ops belong to the segment, `range` which examples; `keep` must still be
    /// there afterwards, `imports` come from other segments.
    fn new(
        program: &Program,
        chosen: &[bool],
        feeds: &[(String, VarType)],
        total: usize,
        range: (usize, usize),
        keep: &[String],
        imports: &[String],
        options: &Options,
    ) -> Result<Compiled, Error> {
        let mut sub = program.clone();
        let mut flags = chosen.iter();
        sub.block_mut().ops.retain(|_| *flags.next().expect("one flag per op"));
        let sub = place(sub, keep, range.1 - range.0, options)?;
        let block = sub.block();
        let types = concrete_types(program, chosen, feeds, total, range)?;
        let mut layout = MemoryLayout::new(block);
        let mut locs: HashMap<String, Loc> = HashMap::new();
        let mut persist: Vec<(String, VarType)> = Vec::new();
        let mut kept: Vec<String> = Vec::new();
        let mut planned = Vec::new();
        for name in imports {
            let loc = layout.place(block, name, &types)?;
            locs.insert(name.clone(), loc);
        }
        for op in &block.ops {
            for name in op.input_vars().chain(op.output_vars()) {
                if locs.contains_key(name) {
                    continue;
                }
                let var = block.var(name, &op.kind)?;
                let loc = match var.origin {
                    Origin::Data => Loc::Feed {
                        at: feeds.iter().position(|(f, _)| f == name).expect("feeds were checked"),
                        batched: var.ty.is_batched(),
                    },
                    Origin::Param | Origin::Persist if var.ty.layout == Layout::Rows => {
                        kept.push(name.to_string());
                        Loc::KeptRows(kept.len() - 1)
                    }
                    Origin::Param | Origin::Persist => {
                        persist.push((name.to_string(), var.ty.clone()));
                        Loc::Persist(persist.len() - 1)
                    }
                    Origin::Temp => layout.place(block, name, &types)?,
                };
                locs.insert(name.to_string(), loc);
            }
            planned.push(plan_op(block, op, &types, &locs)?);
        }
        for name in keep {
            let var = block.vars.get(name).or_else(|| program.block().vars.get(name));
            if let Some(var) = var
                && !locs.contains_key(name)
            {
                match var.origin {
                    Origin::Data => {
                        let at = feeds.iter().position(|(f, _)| f == name).ok_or_else(|| {
                            Error::MissingFeed { name: name.clone(), ty: var.ty.to_string() }
                        })?;
                        let batched = var.ty.is_batched();
                        locs.insert(name.clone(), Loc::Feed { at, batched });
                    }
                    Origin::Param | Origin::Persist => {
                        persist.push((name.clone(), var.ty.clone()));
                        locs.insert(name.clone(), Loc::Persist(persist.len() - 1));
                    }
                    Origin::Temp => {}
                }
            }
        }
        let (bytes_without_reuse, n_rows) = (layout.own_bytes, layout.n_rows);
        let file = match layout.file_bytes {
            0 => None,
            bytes => Some(MappedFile::new(bytes, options.offload_dir.as_deref())?),
        };
        let segment = Segment::new(planned, layout.bytes, file, n_rows, persist, kept);
        Ok(Compiled { segment, locs, types, bytes_without_reuse })
    }

    fn fetches(&self, names: &[String]) -> Result<(Vec<Loc>, Vec<Tensor>), Error> {
        let mut locs = Vec::new();
        let mut tensors = Vec::new();
        for name in names {
            let loc = self.locs.get(name).ok_or_else(|| Error::Fetch {
                name: name.clone(),
                reason: "no op of this program makes it".into(),
            })?;
            let ty = &self.types[name];
            // A row-sparse value stays where it is; see `Executor::fetched_rows`.
            let shape: Vec<usize> = match ty.layout {
                Layout::Rows => vec![0],
                _ => ty.shape.iter().map(|&d| d as usize).collect(),
            };
            let dtype = if ty.dtype.is_half() { DType::F32 } else { ty.dtype };
            tensors.push(Tensor::zeros(dtype, &shape));
            locs.push(*loc);
        }
        Ok((locs, tensors))
    }
}

/// Lets temporaries share buffers, unless the program says already who shares what.
fn place(
    program: Program,
    keep: &[String],
    batch: usize,
    options: &Options,
) -> Result<Program, Error> {
    let annotated = program.block().vars.values().any(|v| v.buffer.is_some());
    if annotated {
        let shared = keep.iter().find(|name| {
            let buffer = program.block().vars.get(*name).and_then(|v| v.buffer.as_ref());
            buffer.is_some()
        });
        return match shared {
            Some(name) => Err(Error::Fetch {
                name: name.clone(),
                reason: "it shares memory with other variables; name it in the skip list of \
                         memory_reuse"
                    .into(),
            }),
            None => Ok(program),
        };
    }
    if !options.memory_reuse {
        return Ok(program);
    }
    let declared = &program.block().vars;
    let skip = keep.iter().filter(|name| declared.contains_key(*name)).cloned().collect();
    let reuse = MemoryReuse { skip, skip_grads: false, batch };
    Ok(memory_reuse(&program, &reuse)?.0)
}

/// Types of all variables with every dimension known. Runs over the whole program, so that a
/// segment knows the types of what other segments make; those have the rows of this range too.
fn concrete_types(
    program: &Program,
    chosen: &[bool],
    feeds: &[(String, VarType)],
    total: usize,
    range: (usize, usize),
) -> Result<HashMap<String, VarType>, Error> {
    let block = program.block();
    let whole = range == (0, total);
    let mut types: HashMap<String, VarType> = HashMap::new();
    for var in block.vars.values().filter(|v| v.is_persistable()) {
        types.insert(var.name.clone(), var.ty.clone());
    }
    for (name, ty) in feeds {
        let mut ty = ty.clone();
        if block.vars[name].ty.is_batched() {
            ty.shape[0] = (range.1 - range.0) as i64;
        }
        types.insert(name.clone(), ty);
    }
    for (op, chosen) in block.ops.iter().zip(chosen) {
        if !whole && !chosen {
            continue;
        }
        let ins = op
            .input_vars()
            .map(|v| {
                types.get(v).cloned().ok_or_else(|| {
                    let (op, var) = (op.kind.clone(), v.to_string());
                    Error::Program(regatta_ir::Error::ReadBeforeWrite { op, var })
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let outs = OPS.infer(op, &ins)?;
        for (name, ty) in op.output_vars().zip(outs) {
            if ty.layout != Layout::Rows && ty.numel().is_none() {
                return Err(Error::Options(format!(
                    "op {}: the shape of '{name}' is not known at run time ({ty})",
                    op.kind
                )));
            }
            types.insert(name.to_string(), ty);
        }
    }
    Ok(types)
}

/// Gives temporaries their places in the arena.
#[derive(Default)]
struct MemoryLayout {
    bytes: usize,
    /// Bytes in the memory-mapped file.
    file_bytes: usize,
    /// What `offload` makes, which is placed there.
    offloaded: HashSet<String>,
    own_bytes: usize,
    n_rows: usize,
    buffers: HashMap<String, usize>,
}

impl MemoryLayout {
    fn new(block: &Block) -> MemoryLayout {
        let offloads = block.ops.iter().filter(|op| op.kind == "offload");
        let offloaded = offloads.flat_map(|op| op.output_vars().map(str::to_string)).collect();
        MemoryLayout { offloaded, ..MemoryLayout::default() }
    }

    fn place(
        &mut self,
        block: &Block,
        name: &str,
        types: &HashMap<String, VarType>,
    ) -> Result<Loc, Error> {
        let ty = &types[name];
        if ty.layout == Layout::Rows {
            self.n_rows += 1;
            return Ok(Loc::Rows(self.n_rows - 1));
        }
        let len = ty.numel().expect("checked by concrete_types");
        let size = whole_lines(len * ty.dtype.size());
        if self.offloaded.contains(name) {
            self.file_bytes += size;
            return Ok(Loc::File { offset: self.file_bytes - size, len, dtype: ty.dtype });
        }
        self.own_bytes += size;
        let buffer = block.vars.get(name).and_then(|v| v.buffer.clone());
        let offset = match buffer {
            None => self.reserve(size),
            Some(buffer) => match self.buffers.get(&buffer) {
                Some(&offset) => offset,
                None => {
                    let sharing =
                        block.vars.values().filter(|v| v.buffer.as_ref() == Some(&buffer));
                    let largest = sharing
                        .filter_map(|v| types.get(&v.name))
                        .map(|ty| whole_lines(ty.numel().unwrap_or(0) * ty.dtype.size()))
                        .max();
                    let offset = self.reserve(largest.unwrap_or(size));
                    self.buffers.insert(buffer, offset);
                    offset
                }
            },
        };
        Ok(Loc::Arena { offset, len, dtype: ty.dtype })
    }

    fn reserve(&mut self, bytes: usize) -> usize {
        self.bytes += bytes;
        self.bytes - bytes
    }
}

fn plan_op(
    block: &Block,
    op: &Op,
    types: &HashMap<String, VarType>,
    locs: &HashMap<String, Loc>,
) -> Result<PlannedOp, Error> {
    let known = |v: &str| types[v].clone();
    let declared: Vec<VarType> = op.input_vars().map(|v| block.vars[v].ty.clone()).collect();
    let ins: Vec<VarType> = op.input_vars().map(known).collect();
    let outs: Vec<VarType> = op.output_vars().map(known).collect();
    let kernel = OPS.kernel(&Spec { op, declared: &declared, ins: &ins, outs: &outs })?;
    let in_locs = op
        .input_vars()
        .map(|v| if op.output_vars().any(|o| o == v) { Loc::Absent } else { locs[v] })
        .collect();
    Ok(PlannedOp {
        kind: op.kind.clone(),
        role: op.role,
        kernel,
        in_locs,
        out_locs: op.output_vars().map(|v| locs[v]).collect(),
        out_names: op.output_vars().map(str::to_string).collect(),
        ins: Vec::new(),
        outs: Vec::new(),
    })
}

/// Elements of a dtype behind a location, for messages and copies.
pub(crate) fn loc_dtype(loc: Loc) -> Option<DType> {
    match loc {
        Loc::Arena { dtype, .. } | Loc::File { dtype, .. } => Some(dtype),
        _ => None,
    }
}
