//! Program + shapes of the inputs -> segments: which kernels run where, on which memory.

use std::collections::{HashMap, HashSet};

use regatta_ir::{Block, Layout, Op, OpSet, Origin, Program, VarType};
use regatta_ops::{OPS, Spec};
use regatta_passes::{MemoryReuse, Parts, fuse, memory_reuse, split_batch};
use regatta_tensor::{DType, RowIndex, Tensor, Value};

use crate::arena::whole_lines;
use crate::mapped::MappedFile;
use crate::segment::{Loc, PlannedOp, Segment};
use crate::{Error, Options, Scope};

/// A program made ready for inputs of certain shapes and for certain fetches.
pub(crate) struct Plan {
    /// Types of the feeds, by position; a run with other types needs another plan.
    pub(crate) feed_types: Vec<(String, VarType)>,
    pub(crate) fetch_names: Vec<String>,
    /// Examples in the batch.
    pub(crate) rows: usize,
    /// Pieces that parts compute one after the other; none when one segment runs the whole program.
    pub(crate) pieces: usize,
    /// Each runs its part of every piece; empty when one segment runs the whole program.
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
    /// One for each number of examples that it gets at a time.
    pub(crate) segments: Vec<Segment>,
    /// What it runs, by piece.
    pub(crate) turns: Vec<Turn>,
}

/// A segment of a part, and the examples that it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) segment: usize,
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

impl Part {
    /// The segment that has run the given piece.
    pub(crate) fn of_piece(&mut self, piece: usize) -> (Turn, &mut Segment) {
        let turn = self.turns[piece];
        (turn, &mut self.segments[turn.segment])
    }
}

/// A variable that the rest needs from the parts.
pub(crate) struct Import {
    pub(crate) how: Parts,
    /// Where it is in each segment of each part.
    pub(crate) from: Vec<Vec<Loc>>,
    pub(crate) to: Loc,
    /// Where rows of a row-sparse sum are.
    pub(crate) index: RowIndex,
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
        let cut = match program.block().ops.iter().any(|op| reads_feed(program, op)) {
            true => Cut::new(program, &feed_types, &fetch_names, rows, threads, options)?,
            false => None,
        };
        match cut {
            Some(cut) => Self::split(program, feed_types, fetch_names, rows, &cut, options),
            None => Self::single(program, feed_types, fetch_names, rows, options),
        }
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
            pieces: 0,
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
        cut: &Cut,
        options: &Options,
    ) -> Result<Plan, Error> {
        let Cut { in_part, kinds, threads, pieces } = cut;
        let wanted = crossing(program, in_part, &fetch_names);
        let mut parts = Vec::new();
        let mut part_locs = Vec::new();
        let mut bytes = 0;
        for thread in 0..*threads {
            let mut part = Part { segments: Vec::new(), turns: Vec::new() };
            let (mut sizes, mut locs) = (Vec::new(), Vec::new());
            for piece in 0..*pieces {
                let (first, end) = share(share((0, rows), piece, *pieces), thread, *threads);
                let known = sizes.iter().position(|size| *size == end - first);
                let segment = known.unwrap_or(sizes.len());
                if known.is_none() {
                    let range = (first, end);
                    let made = Compiled::new(
                        program,
                        in_part,
                        &feed_types,
                        rows,
                        range,
                        &wanted,
                        &[],
                        options,
                    )?;
                    bytes += made.bytes_without_reuse;
                    sizes.push(end - first);
                    locs.push(made.locs);
                    part.segments.push(made.segment);
                }
                part.turns.push(Turn { segment, first, rows: end - first });
            }
            parts.push(part);
            part_locs.push(locs);
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
                from: part_locs
                    .iter()
                    .map(|part| part.iter().map(|locs| locs[name]).collect())
                    .collect(),
                to: rest.locs[name],
                index: RowIndex::default(),
            })
            .collect();
        let (fetch_locs, fetched) = rest.fetches(&fetch_names)?;
        Ok(Plan {
            feed_types,
            fetch_names,
            rows,
            pieces: *pieces,
            parts,
            bytes_without_reuse: bytes + rest.bytes_without_reuse,
            rest: rest.segment,
            imports,
            fetch_locs,
            fetched,
        })
    }

    /// Finds the persistables of all segments in a scope. Cheap if the scope is unchanged.
    pub(crate) fn resolve(
        &mut self,
        scope: &Scope,
        is_param: impl Fn(&str) -> bool + Copy,
    ) -> Result<(), Error> {
        let parts = self.parts.iter_mut().flat_map(|part| &mut part.segments);
        parts.chain([&mut self.rest]).try_for_each(|segment| segment.resolve(scope, is_param))
    }

    /// Bytes of temporaries as placed.
    pub(crate) fn bytes(&self) -> usize {
        self.segments().map(|segment| segment.bytes).sum()
    }

    /// The parts and the rest.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.parts.iter().flat_map(|part| &part.segments).chain([&self.rest])
    }
}

/// Examples of the smallest piece. Smaller ones would spend their time on adding up gradients.
const SMALLEST_PIECE: usize = 512;
/// Bytes of temporaries, without sharing, that a piece may have if it can be made smaller: what layers
/// of a click model (400-400-400) have with the smallest piece.
const PIECE_BYTES: usize = 6 << 20;

/// How a batch is divided: into pieces that are computed one after the other, so that their
/// temporaries stay in the caches and take little memory, and every piece between threads.
struct Cut {
    /// Which ops every part runs, and what their variables are of the whole.
    in_part: Vec<bool>,
    kinds: HashMap<String, Parts>,
    threads: usize,
    pieces: usize,
}

impl Cut {
    /// None if one thread computes the whole batch at once.
    fn new(
        program: &Program,
        feeds: &[(String, VarType)],
        fetch: &[String],
        rows: usize,
        threads: usize,
        options: &Options,
    ) -> Result<Option<Cut>, Error> {
        let may_cut = options.pieces && rows >= 2 * SMALLEST_PIECE * threads;
        if threads == 1 && !may_cut {
            return Ok(None);
        }
        let (in_part, kinds) = match split_batch(program) {
            Ok(split) => split,
            // What needs the whole batch gets it, if one thread can do it.
            Err(_) if threads == 1 => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let pieces = match may_cut && can_be_added_up(program, &in_part, &kinds, fetch) {
            true => n_pieces(rows / threads, bytes_per_row(program, &in_part, feeds, rows)?),
            false => 1,
        };
        Ok((threads > 1 || pieces > 1).then_some(Cut { in_part, kinds, threads, pieces }))
    }
}

/// Whether sums of pieces can be added up one after the other without loss: 16-bit ones would be
/// rounded every time. And a program that lets gradients travel while it computes has them only
/// with the last piece, so it would wait for them.
fn can_be_added_up(
    program: &Program,
    in_part: &[bool],
    kinds: &HashMap<String, Parts>,
    fetch: &[String],
) -> bool {
    let block = program.block();
    let last_part = in_part.iter().rposition(|part| *part).unwrap_or(0);
    let mut early = block.ops[..last_part].iter().zip(in_part).filter(|(_, part)| !**part);
    let half = |name: &str| block.vars.get(name).is_some_and(|var| var.ty.dtype.is_half());
    let sum = |name: &str| kinds.get(name) == Some(&Parts::Sum);
    let wanted = crossing(program, in_part, fetch);
    !wanted.iter().any(|name| sum(name) && half(name))
        && !early.any(|(op, _)| op.input_vars().any(sum))
}

/// Bytes of the temporaries of parts that one more example takes.
fn bytes_per_row(
    program: &Program,
    in_part: &[bool],
    feeds: &[(String, VarType)],
    rows: usize,
) -> Result<usize, Error> {
    let types = concrete_types(program, in_part, feeds, rows, (0, rows))?;
    let block = program.block();
    let made = block.ops.iter().zip(in_part).filter(|(_, part)| **part);
    let made = made.flat_map(|(op, _)| op.output_vars());
    let batched = made.filter(|name| block.vars.get(*name).is_some_and(|v| v.ty.is_batched()));
    let bytes = batched.map(|name| types[name].numel().unwrap_or(0) * types[name].dtype.size());
    Ok(bytes.sum::<usize>().div_ceil(rows.max(1)))
}

/// Pieces of a part with so many examples. All of them have the same size if that can be had: then
/// they share their memory.
fn n_pieces(rows: usize, bytes_per_row: usize) -> usize {
    let most = rows / SMALLEST_PIECE;
    let wanted = (rows * bytes_per_row).div_ceil(PIECE_BYTES).clamp(1, most.max(1));
    (wanted..=most.min(2 * wanted)).find(|n| rows.is_multiple_of(*n)).unwrap_or(wanted)
}

/// Share number `i` of `n` of a range.
fn share((first, end): (usize, usize), i: usize, n: usize) -> (usize, usize) {
    let len = end - first;
    (first + len * i / n, first + len * (i + 1) / n)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_same_size_if_that_can_be_had() {
        // 12 KB per example: 512 examples fill a piece.
        let of = |rows| n_pieces(rows, 12 << 10);
        assert_eq!([of(2048), of(1536), of(1024), of(5120)], [4, 3, 2, 10]);
        // 4 pieces would do, but 5 are alike.
        assert_eq!(n_pieces(2565, 9 << 10), 5);
        // A prime number cannot be divided.
        assert_eq!(n_pieces(2053, 12 << 10), 4);
        // Little memory, or few examples.
        assert_eq!([n_pieces(4096, 1 << 10), of(700), of(1023)], [1, 1, 1]);
        // Whatever it takes, pieces do not become smaller.
        assert_eq!(n_pieces(2048, 1 << 20), 4);
    }

    /// Gradients that travel while others are computed would travel only with the last piece.
    #[test]
    fn programs_that_exchange_gradients_are_not_cut() {
        let mut b = regatta_ops::builder(7);
        let x = b.data("x", DType::F32, &[-1, 16]).unwrap();
        let h = b.fc(&x, 2000, regatta_ir::Act::Relu).unwrap();
        let h = b.fc(&h, 2000, regatta_ir::Act::Relu).unwrap();
        let loss = b.mean(&h).unwrap().name().to_string();
        let sgd = regatta_passes::Optimizer::new(regatta_optim::Rule::Sgd(Default::default()), 0.1);
        let backward = regatta_passes::Backward::default();
        let alone = regatta_passes::minimize(&b.finish(), &loss, &sgd, &backward).unwrap();
        let alone = alone.programs.main;
        let together = regatta_passes::data_parallel(&alone).unwrap();
        let feeds = [("x".to_string(), VarType::dense(DType::F32, vec![1024, 16]))];
        let options = Options::default();
        let cut = |program| Cut::new(program, &feeds, &[], 1024, 1, &options).unwrap();
        assert_eq!(cut(&alone).map(|cut| cut.pieces), Some(2));
        assert!(cut(&together).is_none());
    }

    #[test]
    fn shares_are_all_of_it() {
        for (first, end, n) in [(0, 2053, 4), (7, 9, 3), (5, 5, 2)] {
            let shares: Vec<_> = (0..n).map(|i| share((first, end), i, n)).collect();
            assert_eq!((shares[0].0, shares[n - 1].1), (first, end));
            assert!(shares.windows(2).all(|w| w[0].1 == w[1].0), "{shares:?}");
        }
    }
}
