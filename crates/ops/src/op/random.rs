//! Random values that differ from step to step: `uniform`, `gaussian`, `randint`, `randperm`,
//! `bernoulli` and `multinomial`.
//!
//! They depend on the seed, the step and the position in the whole batch, and on nothing else, as
//! those of `dropout` do; `fill.rs` has the initial values of parameters. A shape that begins with
//! -1 takes that dimension from the input `Like`.

use regatta_ir::schema::{AttrDef, AttrKind, SlotDef, one, optional};
use regatta_ir::{Error, Schema, VarType};
use regatta_tensor::{DType, Rng};

use super::fill::shape_like;
use crate::def::{no_samples, per_example};
use crate::{Batch, Grad, Infer, Kernel, KernelError, OpDef, Spec, StepCtx};

const LIKE: &[SlotDef] = &[optional("Like")];
const OUT: &[SlotDef] = &[one("Out")];
const SEED: AttrDef = ("seed", AttrKind::Int(0));
const DRAWN: Grad = Grad::None("draws have steps only");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "uniform",
            inputs: LIKE,
            outputs: OUT,
            attrs: &[
                ("shape", AttrKind::RequiredInts),
                ("low", AttrKind::Float(0.0)),
                ("high", AttrKind::Float(1.0)),
                SEED,
            ],
        },
        infer: |i| Ok(vec![VarType::f32(shape_like(i)?)]),
        grad: DRAWN,
        kernel: uniform,
        batch: |_| Batch::RowsOf(&["Like"]),
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "gaussian",
            inputs: LIKE,
            outputs: OUT,
            attrs: &[
                ("shape", AttrKind::RequiredInts),
                ("mean", AttrKind::Float(0.0)),
                ("std", AttrKind::Float(1.0)),
                SEED,
            ],
        },
        infer: |i| Ok(vec![VarType::f32(shape_like(i)?)]),
        grad: DRAWN,
        kernel: gaussian,
        batch: |_| Batch::RowsOf(&["Like"]),
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "randint",
            inputs: LIKE,
            outputs: OUT,
            attrs: &[
                ("shape", AttrKind::RequiredInts),
                ("low", AttrKind::Int(0)),
                ("high", AttrKind::RequiredInt),
                SEED,
            ],
        },
        infer: |i| {
            let (low, high) = (i.op.int("low")?, i.op.int("high")?);
            if low >= high {
                return Err(i.bad_attr("high", format!("is {high}, but should be above {low}")));
            }
            Ok(vec![VarType::dense(DType::I64, shape_like(i)?)])
        },
        grad: DRAWN,
        kernel: integers,
        batch: |_| Batch::RowsOf(&["Like"]),
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "randperm",
            inputs: LIKE,
            outputs: OUT,
            attrs: &[("n", AttrKind::Int(-1)), SEED],
        },
        infer: |i| {
            let rows = i.opt("Like").and_then(|like| like.shape.first().copied());
            let n = rows.unwrap_or(i.op.int("n")?);
            if n < 0 && rows.is_none() {
                return Err(i.bad_attr("n", "must be given, or the input Like"));
            }
            Ok(vec![VarType::dense(DType::I64, [n])])
        },
        grad: DRAWN,
        kernel: permutation,
        batch: |_| Batch::RowsOf(&[]),
        samples: no_samples,
    },
    OpDef {
        schema: Schema { kind: "bernoulli", inputs: &[one("X")], outputs: OUT, attrs: &[SEED] },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: DRAWN,
        kernel: bernoulli,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "multinomial",
            inputs: &[one("X")],
            outputs: OUT,
            attrs: &[
                ("num_samples", AttrKind::Int(1)),
                ("replacement", AttrKind::Bool(false)),
                SEED,
            ],
        },
        infer: infer_multinomial,
        grad: DRAWN,
        kernel: multinomial,
        batch: per_example,
        samples: no_samples,
    },
];

/// Where the numbers of an op begin and which stream they come from.
struct Stream {
    seed: u64,
    batched: bool,
}

impl Stream {
    fn new(s: &Spec<'_>) -> Result<Stream, Error> {
        let batched = !s.ins.is_empty() && s.batched(0);
        Ok(Stream { seed: s.op.int("seed")? as u64, batched })
    }

    /// The generator of this step, and the position in the whole batch of the first of `len`.
    fn of(&self, ctx: &StepCtx, len: usize) -> (Rng, u64) {
        let split = self.batched && ctx.rows > 0;
        let first = if split { len * ctx.first_example / ctx.rows } else { 0 };
        (Rng::new(self.seed, ctx.step), first as u64)
    }
}

fn uniform(s: &Spec<'_>) -> Result<Kernel, Error> {
    let stream = Stream::new(s)?;
    let (low, high) = (s.op.float("low")?, s.op.float("high")?);
    Ok(Box::new(move |io, ctx| {
        let out = io.out_f32(0);
        let (rng, first) = stream.of(ctx, out.len());
        for (i, o) in (first..).zip(out) {
            *o = (low + (high - low) * f64::from(rng.unit_f32(i))) as f32;
        }
        Ok(())
    }))
}

fn gaussian(s: &Spec<'_>) -> Result<Kernel, Error> {
    let stream = Stream::new(s)?;
    let (mean, std) = (s.op.float("mean")?, s.op.float("std")?);
    Ok(Box::new(move |io, ctx| {
        let out = io.out_f32(0);
        let (rng, first) = stream.of(ctx, out.len());
        (first..).zip(out).for_each(|(i, o)| *o = (mean + std * rng.normal(i)) as f32);
        Ok(())
    }))
}

fn integers(s: &Spec<'_>) -> Result<Kernel, Error> {
    let stream = Stream::new(s)?;
    let (low, high) = (s.op.int("low")?, s.op.int("high")?);
    let range = high.wrapping_sub(low) as u64;
    Ok(Box::new(move |io, ctx| {
        let out = io.out_i64(0);
        let (rng, first) = stream.of(ctx, out.len());
        for (i, o) in (first..).zip(out) {
            // The upper half of the product is the number scaled to the range.
            let scaled = (u128::from(rng.u64(i)) * u128::from(range)) >> 64;
            *o = low.wrapping_add(scaled as i64);
        }
        Ok(())
    }))
}

fn permutation(s: &Spec<'_>) -> Result<Kernel, Error> {
    let stream = Stream::new(s)?;
    Ok(Box::new(move |io, ctx| {
        let out = io.out_i64(0);
        let (rng, _) = stream.of(ctx, out.len());
        out.iter_mut().enumerate().for_each(|(i, o)| *o = i as i64);
        out.sort_unstable_by_key(|&i| (rng.u64(i as u64), i));
        Ok(())
    }))
}

fn bernoulli(s: &Spec<'_>) -> Result<Kernel, Error> {
    let stream = Stream::new(s)?;
    Ok(Box::new(move |io, ctx| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        let (rng, first) = stream.of(ctx, out.len());
        for ((i, o), &p) in (first..).zip(out).zip(x) {
            if !(0.0..=1.0).contains(&p) {
                return Err(KernelError(format!("{p} is no probability")));
            }
            *o = f32::from(rng.unit_f32(i) < p);
        }
        Ok(())
    }))
}

fn infer_multinomial(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    let (n, replacement) = (i.op.int("num_samples")?, i.op.bool("replacement")?);
    let Some((&classes, rows)) = x.shape.split_last().filter(|(classes, _)| **classes > 0) else {
        return Err(i.wrong("X", "f32[.., classes] with a known number of classes"));
    };
    if n < 1 || (!replacement && n > classes) {
        let reason = format!("is {n}, but {classes} classes can be drawn without replacement");
        return Err(i.bad_attr("num_samples", reason));
    }
    Ok(vec![VarType::dense(DType::I64, [rows, &[n]].concat())])
}

fn multinomial(s: &Spec<'_>) -> Result<Kernel, Error> {
    let stream = Stream::new(s)?;
    let (_, classes) = s.matrix(0);
    let n = s.op.int("num_samples")? as usize;
    let replacement = s.op.bool("replacement")?;
    let mut room: Vec<(f64, i64)> = vec![(0.0, 0); classes];
    Ok(Box::new(move |io, ctx| {
        let (x, out) = (io.f32(0), io.out_i64(0));
        let (rng, first) = stream.of(ctx, x.len());
        for (r, (x, out)) in x.chunks_exact(classes).zip(out.chunks_exact_mut(n)).enumerate() {
            if let Some(w) = x.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
                return Err(KernelError(format!("{w} in row {r} is no weight of a class")));
            }
            let at = first + (r * classes) as u64;
            if replacement {
                draw_again(&Rng::new(rng.u64(at), at), x, out, &mut room, r)?;
            } else {
                draw_once(&Rng::new(rng.u64(at), at), x, out, &mut room, r)?;
            }
        }
        Ok(())
    }))
}

fn too_few(row: usize, found: usize, wanted: usize) -> KernelError {
    KernelError(format!("row {row} has {found} classes with a weight, but {wanted} are drawn"))
}

/// Each draw is a point in the sum of all weights.
fn draw_again(
    rng: &Rng,
    weights: &[f32],
    out: &mut [i64],
    sums: &mut [(f64, i64)],
    row: usize,
) -> Result<(), KernelError> {
    let mut sum = 0.0;
    for (slot, &w) in sums.iter_mut().zip(weights) {
        sum += f64::from(w);
        *slot = (sum, 0);
    }
    if sum == 0.0 {
        return Err(too_few(row, 0, out.len()));
    }
    for (i, o) in out.iter_mut().enumerate() {
        let point = rng.unit_f64(i as u64) * sum;
        *o = sums.partition_point(|(end, _)| *end <= point).min(weights.len() - 1) as i64;
    }
    Ok(())
}

/// The classes whose exponential clocks, running at the speed of their weights, ring first.
fn draw_once(
    rng: &Rng,
    weights: &[f32],
    out: &mut [i64],
    clocks: &mut [(f64, i64)],
    row: usize,
) -> Result<(), KernelError> {
    let with_weight = weights.iter().filter(|w| **w > 0.0).count();
    if with_weight < out.len() {
        return Err(too_few(row, with_weight, out.len()));
    }
    for (i, (clock, &w)) in clocks.iter_mut().zip(weights).enumerate() {
        let time = -(1.0 - rng.unit_f64(i as u64)).ln();
        *clock = (if w > 0.0 { time / f64::from(w) } else { f64::INFINITY }, i as i64);
    }
    clocks.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    out.iter_mut().zip(clocks).for_each(|(o, clock)| *o = clock.1);
    Ok(())
}
