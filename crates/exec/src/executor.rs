//! Runs one program over and over.

use std::path::PathBuf;
use std::sync::Arc;

use rayon::prelude::*;
use regatta_ir::{Origin, Program, VarType, verify};
use regatta_ops::OPS;
use regatta_ops::comm::{Comm, Peers};
#[cfg(doc)]
use regatta_passes::pipeline::EXECUTION;
use regatta_passes::pipeline::Watch;
use regatta_passes::{Lowering, Parts};
use regatta_tensor::{DType, RowIndex, RowSparse, Tensor, Value};

use crate::plan::{self, Import, Part, Plan, loc_dtype, type_of};
use crate::segment::{Range, RoleTimes, ScopePtr, Segment, narrow, widen};
use crate::{Error, Scope};

/// How a program is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Threads that share each batch.
    pub threads: usize,
    /// After every op, look for NaN and infinities and stop with the name of the variable.
    pub check_nan_inf: bool,
    /// Let temporaries share memory.
    pub memory_reuse: bool,
    /// Folder of the file that offloaded activations wait in; the system's temporary folder if none
    /// is given. On a disk it saves memory, on a RAM disk it does not.
    pub offload_dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options { threads: 1, check_nan_inf: false, memory_reuse: true, offload_dir: None }
    }
}

/// Bytes of temporaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// As placed.
    pub bytes: usize,
    /// If every variable had its own memory.
    pub bytes_without_reuse: usize,
    /// Room besides in which ops on 16-bit floats compute, after the first run.
    pub widened_bytes: usize,
    /// Bytes in memory-mapped files.
    pub offloaded_bytes: usize,
}

/// A program and its execution plans so far, one per set of input shapes and fetches.
pub struct Executor {
    program: Program,
    options: Options,
    plans: Vec<Plan>,
    pool: Option<rayon::ThreadPool>,
    index: RowIndex,
    step: u64,
    /// Of execution plans that were dropped.
    past_times: RoleTimes,
    last_plan: Option<usize>,
    peers: Peers,
}

impl Executor {
    /// Checks the program; execution plans are made when it first runs.
    ///
    /// # Errors
    /// If the program is wrong or the options make no sense.
    pub fn new(program: Program, options: Options) -> Result<Executor, Error> {
        verify(&program, &OPS)?;
        if options.threads == 0 {
            return Err(Error::Options("threads must be at least 1".into()));
        }
        let pool = if options.threads > 1 {
            // The caller's thread works too.
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(options.threads)
                .thread_name(|i| format!("regatta-exec-{i}"))
                .build()
                .map_err(|e| Error::Options(format!("cannot start threads: {e}")))?;
            Some(pool)
        } else {
            None
        };
        let (plans, index) = (Vec::new(), RowIndex::default());
        let (past_times, peers) = (RoleTimes::default(), Peers::default());
        let (step, last_plan) = (0, None);
        Ok(Executor { program, options, plans, pool, index, step, last_plan, past_times, peers })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Number of the next step.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sets the number of the next step, as after loading a checkpoint.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Gives the communication ops of the program a way to other ranks.
    pub fn set_comm(&mut self, comm: Arc<dyn Comm>) {
        self.peers.comm = Some(comm);
    }

    /// Sets this rank's part of the examples of the following steps over all ranks.
    pub fn set_share(&mut self, share: f32) {
        self.peers.share = share;
    }

    /// Runs the program once on named inputs and returns the named variables, in order. The result
    /// is overwritten by the next run.
    ///
    /// # Errors
    /// If a feed or fetch does not fit, a persistable has no value, or a kernel meets a bad value.
    /// Parameters are then as before the step, unless the failing op is one of the updates.
    pub fn run(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
    ) -> Result<&[Tensor], Error> {
        self.run_copying(scope, feeds, fetch, fetch.len())
    }

    /// As [`Executor::run`], but only the first `copied` of the fetched variables are copied out.
    /// The others are read where they were computed: [`Executor::fetched_floats`],
    /// [`Executor::fetched_rows`].
    ///
    /// Gradients are sent from where they are computed. Fetching them first copies all dense
    /// parameters once per step; without the copy 2 workers train 4 % faster (batch 512, medians of
    /// 5 interleaved runs on a Sapphire Rapids, 2026-11-17, together with branch-free key selection
    /// in `table`). To repeat:
    /// `bench/compare/run --skip-paddle --skip-torch --only async-2-1 --batch 512`.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_copying(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
        copied: usize,
    ) -> Result<&[Tensor], Error> {
        let at = self.plan_for(feeds, fetch)?;
        self.last_plan = Some(at);
        let plan = &mut self.plans[at];
        let block = self.program.block();
        let is_param = |name: &str| block.vars.get(name).is_some_and(|v| v.origin == Origin::Param);
        plan.rest.kept.iter().for_each(|name| scope.keep_rows(name));
        plan.rest.resolve(scope, is_param)?;
        for part in &mut plan.parts {
            part.segment.resolve(scope, is_param)?;
        }
        let (step, check, peers) = (self.step, self.options.check_nan_inf, &self.peers);
        let persist = ScopePtr::new(scope);
        if let (Some(pool), false) = (&self.pool, plan.parts.is_empty()) {
            let (parts, total) = (&mut plan.parts, plan.rows);
            pool.install(|| {
                parts.par_iter_mut().with_max_len(1).try_for_each(|part| {
                    let range = Range { first: part.first, rows: part.rows, total };
                    part.segment.run(persist, feeds, range, step, check, peers)
                })
            })?;
            for import in &plan.imports {
                take_over(import, &mut plan.parts, &mut plan.rest, &mut self.index);
            }
        }
        let whole = Range { first: 0, rows: plan.rows, total: plan.rows };
        plan.rest.run(persist, feeds, whole, step, check, peers)?;
        self.step += 1;
        for (i, (loc, out)) in plan.fetch_locs.iter().zip(&mut plan.fetched).enumerate() {
            if i < copied || plan.rest.floats_at(*loc).is_none() {
                plan.rest.fetch(*loc, scope, feeds, out);
            }
        }
        Ok(&plan.fetched[..copied.min(plan.fetched.len())])
    }

    /// What a run on inputs of these types would run: the program after the compiler passes of
    /// [`EXECUTION`], which execution plans are made of. `watch` sees the output of every pass.
    ///
    /// # Errors
    /// If inputs or fetches do not fit the program.
    pub fn lowered(
        &self,
        feeds: &[(String, VarType)],
        fetch: &[String],
        watch: &mut Watch<'_>,
    ) -> Result<Lowering, Error> {
        plan::lower(&self.program, feeds, fetch, &self.options, watch)
    }

    /// What the last run fetched; of use as far as it was copied out.
    pub fn fetched(&self) -> &[Tensor] {
        self.last_plan.map_or(&[], |at| &self.plans[at].fetched)
    }

    /// The floats of fetch `i` of the last run, where they were computed if they still are there.
    ///
    /// # Panics
    /// If there is no such fetch, or it does not hold floats.
    pub fn fetched_floats(&self, i: usize) -> &[f32] {
        let plan = &self.plans[self.last_plan.expect("something was run")];
        plan.rest.floats_at(plan.fetch_locs[i]).unwrap_or_else(|| plan.fetched[i].f32())
    }

    /// The row-sparse value of fetch `i` of the last run, if it is one; its entry among the fetched
    /// tensors is empty.
    pub fn fetched_rows(&self, i: usize) -> Option<&RowSparse> {
        let plan = &self.plans[self.last_plan?];
        plan.rest.rows_at(*plan.fetch_locs.get(i)?)
    }

    /// Time that the steps of this executor have taken so far. Where threads share a batch, the
    /// time of one of them counts.
    pub fn times(&self) -> RoleTimes {
        self.plans.iter().fold(self.past_times, |sum, plan| sum + plan_times(plan))
    }

    /// Bytes of temporaries of the last execution plan made.
    pub fn memory(&self) -> Option<MemoryUse> {
        let plan = self.plans.last()?;
        let other = plan.segments().map(Segment::other_bytes);
        let (widened_bytes, offloaded_bytes) =
            other.fold((0, 0), |sum, other| (sum.0 + other.0, sum.1 + other.1));
        let (bytes, bytes_without_reuse) = (plan.bytes(), plan.bytes_without_reuse);
        Some(MemoryUse { bytes, bytes_without_reuse, widened_bytes, offloaded_bytes })
    }

    fn plan_for(&mut self, feeds: &[(&str, &Value)], fetch: &[&str]) -> Result<usize, Error> {
        if let Some(at) = self.plans.iter().position(|plan| matches(plan, feeds, fetch)) {
            return Ok(at);
        }
        let plan = Plan::new(&self.program, feeds, fetch, &self.options)?;
        // Batches of ever new sizes must not fill the memory with plans.
        const MAX_PLANS: usize = 16;
        if self.plans.len() == MAX_PLANS {
            let old = self.plans.remove(0);
            self.past_times = self.past_times + plan_times(&old);
        }
        self.plans.push(plan);
        Ok(self.plans.len() - 1)
    }
}

/// Time of the steps that an execution plan has run.
fn plan_times(plan: &Plan) -> RoleTimes {
    let parts = plan.parts.first().map(|part| part.segment.times).unwrap_or_default();
    parts + plan.rest.times
}

/// Whether an execution plan was made for these inputs and fetches. Allocates nothing.
fn matches(plan: &Plan, feeds: &[(&str, &Value)], fetch: &[&str]) -> bool {
    plan.fetch_names.len() == fetch.len()
        && plan.feed_types.len() == feeds.len()
        && plan.fetch_names.iter().zip(fetch).all(|(a, b)| a == b)
        && plan.feed_types.iter().zip(feeds).all(|((name, ty), (fed, value))| {
            name == fed
                && ty.dtype == value.dtype()
                && match value {
                    Value::Dense(t) => {
                        ty.layout == regatta_ir::Layout::Dense
                            && ty.shape.len() == t.shape().len()
                            && ty.shape.iter().zip(t.shape()).all(|(a, b)| *a == *b as i64)
                    }
                    Value::Ragged(_) => *ty == type_of(value),
                }
        })
}

/// Brings a variable from the parts into the rest: rows one after the other, sums added up in the
/// order of the parts.
fn take_over(import: &Import, parts: &mut [Part], rest: &mut Segment, index: &mut RowIndex) {
    let from = || import.from.iter().copied();
    match (import.how, loc_dtype(import.to)) {
        (Parts::Same, None) => {
            rest.rows(import.to).clone_from(parts[0].segment.rows(import.from[0]));
        }
        (_, None) => {
            let total = parts.iter_mut().zip(from()).map(|(p, l)| p.segment.rows(l).rows.len());
            index.clear(total.sum());
            let out = rest.rows(import.to);
            out.clear();
            for (part, loc) in parts.iter_mut().zip(from()) {
                out.add_rows(part.segment.rows(loc), index);
            }
        }
        (Parts::Same, Some(DType::F32)) => {
            rest.floats(import.to).copy_from_slice(parts[0].segment.floats(import.from[0]));
        }
        (Parts::Same, Some(DType::F16 | DType::BF16)) => {
            rest.halves(import.to).copy_from_slice(parts[0].segment.halves(import.from[0]));
        }
        (Parts::Same, Some(_)) => {
            rest.ints(import.to).copy_from_slice(parts[0].segment.ints(import.from[0]));
        }
        (Parts::Sum, Some(dtype)) if dtype.is_half() => {
            let parts = parts.iter_mut().zip(from()).map(|(p, l)| &*p.segment.halves(l));
            add_halves(dtype, parts, rest.halves(import.to));
        }
        (Parts::Sum, Some(DType::I64 | DType::U64)) => {
            let out = rest.ints(import.to);
            out.fill(0);
            for (part, loc) in parts.iter_mut().zip(from()) {
                let ints = part.segment.ints(loc);
                out.iter_mut().zip(ints).for_each(|(o, x)| *o = o.wrapping_add(*x));
            }
        }
        (Parts::Sum, _) => {
            let out = rest.floats(import.to);
            out.copy_from_slice(parts[0].segment.floats(import.from[0]));
            for (part, loc) in parts[1..].iter_mut().zip(from().skip(1)) {
                add(part.segment.floats(loc), out);
            }
        }
        (Parts::Rows, Some(dtype)) => {
            let mut at = 0;
            for (part, loc) in parts.iter_mut().zip(from()) {
                at += match dtype {
                    DType::F32 => put(part.segment.floats(loc), &mut rest.floats(import.to)[at..]),
                    DType::F16 | DType::BF16 => {
                        put(part.segment.halves(loc), &mut rest.halves(import.to)[at..])
                    }
                    DType::I64 | DType::U64 => {
                        put(part.segment.ints(loc), &mut rest.ints(import.to)[at..])
                    }
                };
            }
        }
    }
}

/// Copies values to the front of a longer slice; returns how many.
fn put<T: Copy>(from: &[T], to: &mut [T]) -> usize {
    to[..from.len()].copy_from_slice(from);
    from.len()
}

/// Adds up 16-bit floats in f32 and rounds once.
fn add_halves<'a>(dtype: DType, parts: impl Iterator<Item = &'a [u16]>, out: &mut [u16]) {
    let (mut sum, mut part) = (vec![0.0; out.len()], vec![0.0; out.len()]);
    for bits in parts {
        widen(dtype, bits, &mut part);
        add(&part, &mut sum);
    }
    narrow(dtype, &sum, out);
}

fn add(x: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}
