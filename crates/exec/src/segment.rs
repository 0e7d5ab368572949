//! Kernels in order over placed memory: the loop that every step goes through.
#![expect(unsafe_code, reason = "turns placed memory into the slices that kernels see")]

use std::time::{Duration, Instant};

use regatta_ir::{Layout, Role, VarType};
use regatta_kernels::half::{self, Half};
use regatta_ops::comm::Peers;
use regatta_ops::{Buf, Io, Kernel, StepCtx};
use regatta_tensor::{DType, Data, RowSparse, Tensor, Value};

use crate::arena::Arena;
use crate::mapped::MappedFile;
use crate::{Error, Scope};

/// Where a variable is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Loc {
    /// In the segment's arena.
    Arena { offset: usize, len: usize, dtype: DType },
    /// In the segment's memory-mapped file.
    File { offset: usize, len: usize, dtype: DType },
    /// The segment's row-sparse value of that number.
    Rows(usize),
    /// The segment's persistable of that number.
    Persist(usize),
    /// The segment's row-sparse persistable of that number.
    KeptRows(usize),
    /// The caller's feed of that number; a batched one is sliced to the rows of the range.
    Feed { at: usize, batched: bool },
    /// Reached as an output only.
    Absent,
}

/// An op ready to run.
pub(crate) struct PlannedOp {
    pub(crate) kind: String,
    pub(crate) role: Role,
    pub(crate) kernel: Kernel,
    pub(crate) in_locs: Vec<Loc>,
    pub(crate) out_locs: Vec<Loc>,
    pub(crate) out_names: Vec<String>,
    /// The locations of this run, as pointers; written again by every run.
    pub(crate) ins: Vec<Buf>,
    pub(crate) outs: Vec<Buf>,
}

/// Ops that run one after the other on one thread.
pub(crate) struct Segment {
    pub(crate) ops: Vec<PlannedOp>,
    pub(crate) bytes: usize,
    arena: Arena,
    /// What waits outside of the arena.
    file: Option<MappedFile>,
    rows: Vec<RowSparse>,
    persist: Vec<(String, VarType)>,
    /// Names of the row-sparse persistables.
    pub(crate) kept: Vec<String>,
    /// Index in the scope of each persistable, valid for that version of the scope.
    persist_at: Vec<usize>,
    kept_at: Vec<usize>,
    scope_version: u64,
    ctx: StepCtx,
    /// Time of all runs so far, by role.
    pub(crate) times: RoleTimes,
}

/// Time that steps have taken, by the role of their ops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoleTimes {
    /// Prediction and loss.
    pub forward: Duration,
    /// Gradients.
    pub backward: Duration,
    /// Clipping, regularization, schedules and updates.
    pub optimize: Duration,
}

impl std::ops::Add for RoleTimes {
    type Output = RoleTimes;

    fn add(self, other: RoleTimes) -> RoleTimes {
        RoleTimes {
            forward: self.forward + other.forward,
            backward: self.backward + other.backward,
            optimize: self.optimize + other.optimize,
        }
    }
}

impl RoleTimes {
    fn count(&mut self, role: Role, time: Duration) {
        *match role {
            Role::Forward => &mut self.forward,
            Role::Backward => &mut self.backward,
            Role::Optimize => &mut self.optimize,
        } += time;
    }
}

// SAFETY: the raw pointers in `ops` are written at the start of each run from memory that outlives
// it, and are never read in between; everything else is owned.
unsafe impl Send for Segment {}

/// Pointers to the tensors of a scope, to be handed to several threads. Threads only read through
/// them unless a single segment runs.
#[derive(Clone, Copy)]
pub(crate) struct ScopePtr {
    tensors: *mut Tensor,
    n_tensors: usize,
    rows: *mut (String, RowSparse),
    n_rows: usize,
}

// SAFETY: segments that run in parallel have no op that writes a persistable (split_batch leaves
// such ops to the rest), so they only read.
unsafe impl Send for ScopePtr {}
// SAFETY: as above.
unsafe impl Sync for ScopePtr {}

impl ScopePtr {
    pub(crate) fn new(scope: &mut Scope) -> ScopePtr {
        let tensors = scope.tensors_mut();
        let (tensors, n_tensors) = (tensors.as_mut_ptr(), tensors.len());
        let rows = scope.rows_mut();
        ScopePtr { tensors, n_tensors, rows: rows.as_mut_ptr(), n_rows: rows.len() }
    }
}

/// Which examples of the batch a run is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) total: usize,
}

impl Segment {
    pub(crate) fn new(
        ops: Vec<PlannedOp>,
        bytes: usize,
        file: Option<MappedFile>,
        n_rows: usize,
        persist: Vec<(String, VarType)>,
        kept: Vec<String>,
    ) -> Segment {
        Segment {
            ops,
            bytes,
            arena: Arena::new(bytes),
            file,
            rows: vec![RowSparse::default(); n_rows],
            persist,
            kept,
            persist_at: Vec::new(),
            kept_at: Vec::new(),
            scope_version: 0,
            ctx: StepCtx::default(),
            times: RoleTimes::default(),
        }
    }

    /// Finds the persistables in a scope, checking their types. Cheap if the scope is unchanged.
    pub(crate) fn resolve(
        &mut self,
        scope: &Scope,
        params: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        if self.scope_version == scope.version() {
            return Ok(());
        }
        self.persist_at.clear();
        for (name, ty) in &self.persist {
            let at = scope.index(name).ok_or_else(|| Error::NotInitialised {
                what: if params(name) { "parameter" } else { "state" },
                name: name.clone(),
            })?;
            let tensor = scope.at(at);
            let shape: Vec<i64> = tensor.shape().iter().map(|&d| d as i64).collect();
            let found = VarType { dtype: tensor.dtype(), layout: Layout::Dense, shape };
            if found != *ty {
                return Err(Error::Persistable {
                    name: name.clone(),
                    expected: ty.to_string(),
                    actual: found.to_string(),
                });
            }
            self.persist_at.push(at);
        }
        self.kept_at.clear();
        for name in &self.kept {
            let at = scope
                .rows_index(name)
                .ok_or_else(|| Error::NotInitialised { what: "state", name: name.clone() })?;
            self.kept_at.push(at);
        }
        self.scope_version = scope.version();
        Ok(())
    }

    /// Runs all ops. `resolve` must have succeeded for the scope behind `persist`.
    pub(crate) fn run(
        &mut self,
        persist: ScopePtr,
        feeds: &[(&str, &Value)],
        range: Range,
        step: u64,
        check_nan_inf: bool,
        peers: &Peers,
    ) -> Result<(), Error> {
        self.ctx.step = step;
        self.ctx.first_example = range.first;
        self.ctx.rows = range.rows;
        self.ctx.total_rows = range.total;
        self.ctx.peers.clone_from(peers);
        self.bind(persist, feeds, range);
        // Ops of one role follow each other, so the clock is read a few times per run, not per op.
        let mut timed = (Role::Forward, Instant::now());
        for op in &mut self.ops {
            if op.role != timed.0 {
                let now = Instant::now();
                self.times.count(timed.0, now - timed.1);
                timed = (op.role, now);
            }
            // SAFETY: `bind` has just pointed every buffer at live memory of the right type and
            // length. The plan gives variables that live at the same time separate memory, and an
            // input that is also an output is `Absent` among the inputs.
            let mut io = unsafe { Io::new(&op.ins, &op.outs) };
            (op.kernel)(&mut io, &mut self.ctx).map_err(|e| Error::Kernel {
                step,
                op: op.kind.clone(),
                output: op.out_names.first().cloned().unwrap_or_default(),
                reason: e.to_string(),
            })?;
            if check_nan_inf {
                check_finite(op, step)?;
            }
        }
        self.times.count(timed.0, timed.1.elapsed());
        Ok(())
    }

    fn bind(&mut self, persist: ScopePtr, feeds: &[(&str, &Value)], range: Range) {
        let base = self.arena.base();
        let file = self.file.as_mut().map_or(std::ptr::null_mut(), MappedFile::base);
        let rows = self.rows.as_mut_ptr();
        let (persist_at, kept_at) = (&self.persist_at, &self.kept_at);
        let point = |loc: Loc| -> Buf {
            match loc {
                // SAFETY: the plan reserved `len` elements at `offset` within the arena.
                Loc::Arena { offset, len, dtype } => buf(unsafe { base.add(offset) }, len, dtype),
                // SAFETY: the plan made the file as long as what it placed there.
                Loc::File { offset, len, dtype } => buf(unsafe { file.add(offset) }, len, dtype),
                // SAFETY: the plan counted the row-sparse values that it numbers.
                Loc::Rows(i) => Buf::Rows(unsafe { rows.add(i) }),
                Loc::Persist(i) => {
                    let at = persist_at[i];
                    assert!(at < persist.n_tensors, "the scope was resolved");
                    // SAFETY: within the scope's tensors; each persistable is a tensor of its own,
                    // so no two of these references are to the same one at a time.
                    tensor_buf(unsafe { &mut *persist.tensors.add(at) })
                }
                Loc::KeptRows(i) => {
                    let at = kept_at[i];
                    assert!(at < persist.n_rows, "the scope was resolved");
                    // SAFETY: within the scope's row-sparse values; as for tensors.
                    Buf::Rows(unsafe { &raw mut (*persist.rows.add(at)).1 })
                }
                Loc::Feed { at, batched } => feed_buf(feeds[at].1, range, batched),
                Loc::Absent => Buf::Absent,
            }
        };
        for op in &mut self.ops {
            op.ins.clear();
            op.ins.extend(op.in_locs.iter().map(|&l| point(l)));
            op.outs.clear();
            op.outs.extend(op.out_locs.iter().map(|&l| point(l)));
        }
    }

    /// The first byte of what the execution plan placed at `offset` in the arena or in the file.
    fn at(&mut self, loc: Loc) -> *mut u8 {
        match (loc, &mut self.file) {
            // SAFETY: offsets of a plan lie within the memory that was made for it.
            (Loc::File { offset, .. }, Some(file)) => unsafe { file.base().add(offset) },
            // SAFETY: as above.
            (Loc::Arena { offset, .. }, _) => unsafe { self.arena.base().add(offset) },
            (other, _) => panic!("{other:?} is not in the memory of the segment"),
        }
    }

    /// The floats at a location in this segment, to read or to fill.
    pub(crate) fn floats(&mut self, loc: Loc) -> &mut [f32] {
        match loc {
            Loc::Arena { len, dtype: DType::F32, .. }
            | Loc::File { len, dtype: DType::F32, .. } => {
                // SAFETY: reserved by the plan, zeroed at first, borrowed as long as the segment.
                unsafe { std::slice::from_raw_parts_mut(self.at(loc).cast(), len) }
            }
            other => panic!("{other:?} holds no floats"),
        }
    }

    /// The bits of the 16-bit floats at a location in this segment.
    pub(crate) fn halves(&mut self, loc: Loc) -> &mut [u16] {
        match loc {
            Loc::Arena { len, dtype, .. } | Loc::File { len, dtype, .. } if dtype.is_half() => {
                // SAFETY: as in `floats`.
                unsafe { std::slice::from_raw_parts_mut(self.at(loc).cast(), len) }
            }
            other => panic!("{other:?} holds no 16-bit floats"),
        }
    }

    /// The integers at a location in this segment.
    pub(crate) fn ints(&mut self, loc: Loc) -> &mut [i64] {
        match loc {
            // Unsigned ones are moved as they are: bits are copied and added alike.
            Loc::Arena { len, dtype, .. } | Loc::File { len, dtype, .. } if !dtype.is_float() => {
                // SAFETY: as in `floats`.
                unsafe { std::slice::from_raw_parts_mut(self.at(loc).cast(), len) }
            }
            other => panic!("{other:?} holds no integers"),
        }
    }

    /// A row-sparse value of this segment.
    pub(crate) fn rows(&mut self, loc: Loc) -> &mut RowSparse {
        match loc {
            Loc::Rows(i) => &mut self.rows[i],
            other => panic!("{other:?} is not row-sparse"),
        }
    }

    /// Bytes that ops compute in besides their variables, and bytes in the file.
    pub(crate) fn other_bytes(&self) -> (usize, usize) {
        let computing = self.ctx.widened.len() * size_of::<f32>();
        (computing, self.file.as_ref().map_or(0, MappedFile::len))
    }

    /// A row-sparse value of this segment, if that is what the location holds.
    pub(crate) fn rows_at(&self, loc: Loc) -> Option<&RowSparse> {
        match loc {
            Loc::Rows(i) => self.rows.get(i),
            _ => None,
        }
    }

    /// Floats in the memory of this segment, if that is what the location holds.
    pub(crate) fn floats_at(&self, loc: Loc) -> Option<&[f32]> {
        let (start, len) = match (loc, &self.file) {
            (Loc::File { offset, len, dtype: DType::F32 }, Some(file)) => {
                (file.start().wrapping_add(offset), len)
            }
            (Loc::Arena { offset, len, dtype: DType::F32 }, _) => {
                (self.arena.start().wrapping_add(offset), len)
            }
            _ => return None,
        };
        // SAFETY: reserved by the plan, zeroed at first, and written by nobody while it is
        // borrowed.
        Some(unsafe { std::slice::from_raw_parts(start.cast(), len) })
    }

    /// Copies a value out after a run. 16-bit floats come out as f32.
    pub(crate) fn fetch(
        &mut self,
        loc: Loc,
        scope: &Scope,
        feeds: &[(&str, &Value)],
        out: &mut Tensor,
    ) {
        match loc {
            Loc::Arena { dtype, .. } | Loc::File { dtype, .. } if dtype.is_half() => {
                widen(dtype, self.halves(loc), out.f32_mut());
            }
            Loc::Arena { .. } | Loc::File { .. } => match out.data_mut() {
                Data::F32(v) => v.copy_from_slice(self.floats(loc)),
                Data::F16(_) | Data::BF16(_) => unreachable!("fetched as f32"),
                Data::I64(v) => v.copy_from_slice(self.ints(loc)),
                Data::U64(v) => {
                    v.iter_mut().zip(self.ints(loc)).for_each(|(o, i)| *o = *i as u64);
                }
            },
            Loc::Persist(i) => copy(scope.at(self.persist_at[i]), out),
            Loc::Feed { at, .. } => {
                if let Value::Dense(t) = feeds[at].1 {
                    copy(t, out);
                }
            }
            Loc::Rows(_) | Loc::KeptRows(_) => {}
            Loc::Absent => unreachable!("fetches were checked"),
        }
    }
}

fn buf(p: *mut u8, len: usize, dtype: DType) -> Buf {
    match dtype {
        DType::F32 => Buf::F32(p.cast(), len),
        DType::F16 => Buf::F16(p.cast(), len),
        DType::BF16 => Buf::BF16(p.cast(), len),
        DType::I64 => Buf::I64(p.cast(), len),
        DType::U64 => Buf::U64(p.cast(), len),
    }
}

fn copy(from: &Tensor, to: &mut Tensor) {
    match (from.data(), to.data_mut()) {
        (Data::F32(a), Data::F32(b)) => b.copy_from_slice(a),
        (Data::F16(a), Data::F32(b)) => widen(DType::F16, a, b),
        (Data::BF16(a), Data::F32(b)) => widen(DType::BF16, a, b),
        (Data::I64(a), Data::I64(b)) => b.copy_from_slice(a),
        (Data::U64(a), Data::U64(b)) => b.copy_from_slice(a),
        _ => unreachable!("the plan made the target of the same type"),
    }
}

/// Writes 16-bit floats as f32.
pub(crate) fn widen(from: DType, bits: &[u16], out: &mut [f32]) {
    half::widen(format(from), bits, out);
}

/// Writes f32 rounded to 16 bits.
pub(crate) fn narrow(to: DType, x: &[f32], bits: &mut [u16]) {
    half::narrow(format(to), x, bits);
}

fn format(dtype: DType) -> Half {
    if dtype == DType::F16 { Half::F16 } else { Half::Bf16 }
}

fn tensor_buf(t: &mut Tensor) -> Buf {
    match t.data_mut() {
        Data::F32(v) => Buf::F32(v.as_mut_ptr(), v.len()),
        Data::F16(v) => Buf::F16(v.as_mut_ptr(), v.len()),
        Data::BF16(v) => Buf::BF16(v.as_mut_ptr(), v.len()),
        Data::I64(v) => Buf::I64(v.as_mut_ptr(), v.len()),
        Data::U64(v) => Buf::U64(v.as_mut_ptr(), v.len()),
    }
}

/// The rows of a fed value that a range is about. Kernels get feeds as inputs only, so the pointers
/// are never written through.
fn feed_buf(value: &Value, range: Range, batched: bool) -> Buf {
    let part_of = if batched { Some(range) } else { None };
    fn part<T>(v: &[T], rows: usize, range: Option<Range>) -> (*mut T, usize) {
        // Inputs without a batch dimension are the same for every part.
        let Some(range) = range else {
            return (v.as_ptr().cast_mut(), v.len());
        };
        let width = v.len() / rows.max(1);
        let slice = &v[range.first * width..(range.first + range.rows) * width];
        (slice.as_ptr().cast_mut(), slice.len())
    }
    match value {
        Value::Ragged(r) => Buf::Ragged { value: r, first: range.first, rows: range.rows },
        Value::Dense(t) => {
            let rows = t.shape().first().copied().unwrap_or(1);
            match t.data() {
                Data::F32(v) => {
                    let (p, n) = part(v, rows, part_of);
                    Buf::F32(p, n)
                }
                Data::F16(v) => {
                    let (p, n) = part(v, rows, part_of);
                    Buf::F16(p, n)
                }
                Data::BF16(v) => {
                    let (p, n) = part(v, rows, part_of);
                    Buf::BF16(p, n)
                }
                Data::I64(v) => {
                    let (p, n) = part(v, rows, part_of);
                    Buf::I64(p, n)
                }
                Data::U64(v) => {
                    let (p, n) = part(v, rows, part_of);
                    Buf::U64(p, n)
                }
            }
        }
    }
}

fn check_finite(op: &PlannedOp, step: u64) -> Result<(), Error> {
    for (buf, name) in op.outs.iter().zip(&op.out_names) {
        if let Some((at, value)) = first_not_finite(*buf) {
            let (op, var) = (op.kind.clone(), name.clone());
            return Err(Error::NotFinite { step, op, var, at, value });
        }
    }
    Ok(())
}

/// The first NaN or infinity in a buffer that was bound for this run and has just been written.
fn first_not_finite(buf: Buf) -> Option<(usize, f32)> {
    let values: &[f32] = match buf {
        // SAFETY: bound for this run and written by the kernel that has just returned.
        Buf::F32(p, n) => unsafe { std::slice::from_raw_parts(p, n) },
        // SAFETY: as above.
        Buf::Rows(p) => unsafe { &(*p).values },
        Buf::F16(p, n) | Buf::BF16(p, n) => {
            let widen = match buf {
                Buf::F16(..) => half::f16_to_f32,
                _ => half::bf16_to_f32,
            };
            // SAFETY: as above.
            let bits = unsafe { std::slice::from_raw_parts(p, n) };
            let found = bits.iter().position(|&b| !widen(b).is_finite());
            return found.map(|at| (at, widen(bits[at])));
        }
        _ => return None,
    };
    values.iter().position(|v| !v.is_finite()).map(|at| (at, values[at]))
}
