//! Runs a kernel on values, in one thread or in parts.
#![expect(unsafe_code, reason = "hands buffers of values to kernels")]

use std::sync::Arc;

use regatta_kernels::vector;
use regatta_ops::{Buf, Io, KernelError};
use regatta_tensor::Data;
use smallvec::SmallVec;

use crate::global::{next_draw, threads, with_context};
use crate::template::Prepared;
use crate::threads::{Split, ranges};
use crate::value::Value;
use crate::{Error, Result};

type Bufs = SmallVec<[Buf; 8]>;

/// Runs a prepared op. Inputs that are absent or updated in place are `None`; outputs must belong
/// to the caller alone.
pub(crate) fn run<'a>(
    prepared: &Prepared,
    ins: impl Iterator<Item = Option<&'a Value>>,
    outs: &mut [Value],
) -> Result<()> {
    let ins: Bufs = ins.map(|value| value.map_or(Buf::Absent, input)).collect();
    let outs: Bufs = outs.iter_mut().map(output).collect();
    let step = if prepared.template.is_random { next_draw() } else { 0 };
    let threads = threads();
    if threads > 1
        && let Some(split) = prepared.split()
    {
        return run_parts(prepared, split, &ins, &outs, threads.min(split.rows), step);
    }
    prepared.with_kernel(|kernel| {
        // SAFETY: inputs are borrowed for as long as the kernel runs and nothing writes them: a
        // value is written only through `output`, which asks for a buffer that nobody else has.
        // So every output is the only way to its memory, too. Buffers are made with values in them.
        let mut io = unsafe { Io::new(&ins, &outs) };
        with_context(|ctx| {
            ctx.step = step;
            kernel(&mut io, ctx)
        })
        .map_err(|e| failed(prepared, &e))
    })
}

fn failed(prepared: &Prepared, error: &KernelError) -> Error {
    Error::Kernel { op: prepared.template.op.kind.clone(), reason: error.to_string() }
}

/// What one thread works on.
struct Part {
    ins: Bufs,
    outs: Bufs,
    first: usize,
    rows: usize,
}

// SAFETY: parts point to different examples of the outputs, or to sums of their own; inputs are
// only read. Whoever makes them waits for the threads before the buffers go.
unsafe impl Send for Part {}

/// Every thread does some of the examples; results that hold none are sums over the parts.
fn run_parts(
    prepared: &Prepared,
    split: &Split,
    ins: &[Buf],
    outs: &[Buf],
    n_parts: usize,
    step: u64,
) -> Result<()> {
    let is_sum = |at: usize| !split.outs_hold[at];
    // Sums of all parts but the first, which writes where the result is.
    let mut sums: Vec<Vec<Vec<f32>>> = (1..n_parts)
        .map(|_| outs.iter().enumerate().map(|(at, buf)| sum_room(is_sum(at), buf)).collect())
        .collect();
    let mut parts: Vec<Part> = Vec::with_capacity(n_parts);
    for (i, range) in ranges(split.rows, n_parts).enumerate() {
        let of = |buf: &Buf, holds: bool| if holds { part(buf, &range, split.rows) } else { *buf };
        let part_outs = outs.iter().enumerate().map(|(at, buf)| match (is_sum(at), i) {
            (true, 1..) => {
                let sum = &mut sums[i - 1][at];
                Buf::F32(sum.as_mut_ptr(), sum.len())
            }
            (is_sum, _) => of(buf, !is_sum),
        });
        let part_outs = part_outs.collect();
        let part_ins = ins.iter().zip(&split.ins_hold).map(|(buf, holds)| of(buf, *holds));
        let (ins, rows) = (part_ins.collect(), range.len());
        parts.push(Part { ins, outs: part_outs, first: range.start, rows });
    }
    let mut results: Vec<Result<()>> = (0..n_parts).map(|_| Ok(())).collect();
    rayon::in_place_scope(|scope| {
        let mut work = parts.into_iter().zip(&mut results);
        let own = work.next();
        for (part, result) in work {
            scope.spawn(move |_| *result = run_part(prepared, split, &part, step));
        }
        if let Some((part, result)) = own {
            *result = run_part(prepared, split, &part, step);
        }
    });
    results.into_iter().collect::<Result<()>>()?;
    for part in &sums {
        for (sum, buf) in part.iter().zip(outs).filter(|(sum, _)| !sum.is_empty()) {
            if let Buf::F32(to, n) = *buf {
                // SAFETY: the threads are done, and the buffer is the caller's alone.
                let to = unsafe { std::slice::from_raw_parts_mut(to, n) };
                vector::add_assign(to, sum);
            }
        }
    }
    Ok(())
}

fn sum_room(is_sum: bool, buf: &Buf) -> Vec<f32> {
    match buf {
        Buf::F32(_, n) if is_sum => vec![0.0; *n],
        _ => vec![],
    }
}

fn run_part(prepared: &Prepared, split: &Split, part: &Part, step: u64) -> Result<()> {
    split.with_kernel(part.rows, &prepared.ins, |kernel| {
        // SAFETY: as in `run`; parts of an output do not overlap.
        let mut io = unsafe { Io::new(&part.ins, &part.outs) };
        with_context(|ctx| {
            (ctx.step, ctx.first_example) = (step, part.first);
            (ctx.rows, ctx.total_rows) = (part.rows, split.rows);
            let done = kernel(&mut io, ctx);
            (ctx.first_example, ctx.rows, ctx.total_rows) = (0, 0, 0);
            done
        })
        .map_err(|e| failed(prepared, &e))
    })
}

/// The examples of a range.
fn part(buf: &Buf, range: &std::ops::Range<usize>, rows: usize) -> Buf {
    macro_rules! cut {
        ($variant:ident, $p:expr, $n:expr) => {{
            let width = $n / rows;
            Buf::$variant($p.wrapping_add(range.start * width), range.len() * width)
        }};
    }
    match *buf {
        Buf::F32(p, n) => cut!(F32, p, n),
        Buf::F16(p, n) => cut!(F16, p, n),
        Buf::BF16(p, n) => cut!(BF16, p, n),
        Buf::I64(p, n) => cut!(I64, p, n),
        Buf::U64(p, n) => cut!(U64, p, n),
        other => other,
    }
}

fn input(value: &Value) -> Buf {
    match value {
        Value::Dense(dense) => {
            let (range, n) = (dense.range(), dense.len());
            // Kernels never write through an input, so a pointer to shared elements will do.
            match dense.data() {
                Data::F32(v) => Buf::F32(v[range].as_ptr().cast_mut(), n),
                Data::F16(v) => Buf::F16(v[range].as_ptr().cast_mut(), n),
                Data::BF16(v) => Buf::BF16(v[range].as_ptr().cast_mut(), n),
                Data::I64(v) => Buf::I64(v[range].as_ptr().cast_mut(), n),
                Data::U64(v) => Buf::U64(v[range].as_ptr().cast_mut(), n),
            }
        }
        Value::Rows(rows) => Buf::Rows(Arc::as_ptr(rows).cast_mut()),
        Value::Ragged(ragged) => {
            Buf::Ragged { value: Arc::as_ptr(ragged), first: 0, rows: ragged.rows() }
        }
    }
}

fn output(value: &mut Value) -> Buf {
    match value {
        Value::Dense(dense) => {
            let (range, n) = (dense.range(), dense.len());
            match dense.data_mut().expect("an output belongs to the caller alone") {
                Data::F32(v) => Buf::F32(v[range].as_mut_ptr(), n),
                Data::F16(v) => Buf::F16(v[range].as_mut_ptr(), n),
                Data::BF16(v) => Buf::BF16(v[range].as_mut_ptr(), n),
                Data::I64(v) => Buf::I64(v[range].as_mut_ptr(), n),
                Data::U64(v) => Buf::U64(v[range].as_mut_ptr(), n),
            }
        }
        Value::Rows(rows) => {
            Buf::Rows(Arc::get_mut(rows).expect("an output belongs to the caller alone"))
        }
        Value::Ragged(_) => Buf::Absent,
    }
}
