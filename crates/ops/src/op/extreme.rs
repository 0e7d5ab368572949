//! The largest and smallest over some dimensions: `reduce_max`, `reduce_min`, `reduce_amax`,
//! `reduce_amin`, and their positions along one dimension, `argmax` and `argmin`.
//!
//! Values are floats or signed integers; over a NaN the result is NaN, while positions leave NaN
//! out and are the first of equal ones. The gradient of `reduce_max` goes to every element that is
//! equal to it, that of `reduce_amax` to all of them in equal shares (as in Paddle).

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::DType;

use super::element::{Element, around, batch_from_end, say_zero};
use super::reduce::{
    ATTRS, batch_of_dims, belonging, fold, forward_schema, infer_by_dims, map_back, samples,
};
use crate::def::{NO_SECOND, no_samples};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, Infer, Kernel, OpDef, Spec};

const fn value_def(kind: &'static str, kernel: fn(&Spec<'_>) -> Result<Kernel, Error>) -> OpDef {
    OpDef {
        schema: forward_schema(kind),
        infer: |i| infer_by_dims(i, i.numbers("X")?),
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Out"]))),
        kernel,
        batch: batch_of_dims,
        samples,
    }
}

const fn grad_def(kind: &'static str, kernel: fn(&Spec<'_>) -> Result<Kernel, Error>) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X"), one("Out"), one("dOut")] },
            outputs: const { &[one("dX")] },
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel,
        batch: batch_of_dims,
        samples: no_samples,
    }
}

const POSITION: &[AttrDef] =
    &[("axis", AttrKind::RequiredInt), ("keep_dim", AttrKind::Bool(false))];

const fn position_def(kind: &'static str, kernel: fn(&Spec<'_>) -> Result<Kernel, Error>) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X")] },
            outputs: const { &[one("Out")] },
            attrs: POSITION,
        },
        infer: infer_position,
        grad: Grad::None("positions have steps only"),
        kernel,
        batch: batch_of_axis,
        samples: no_samples,
    }
}

pub(crate) static DEFS: &[OpDef] = &[
    value_def("reduce_max", max),
    value_def("reduce_min", min),
    value_def("reduce_amax", max),
    value_def("reduce_amin", min),
    grad_def("reduce_max_grad", to_all),
    grad_def("reduce_min_grad", to_all),
    grad_def("reduce_amax_grad", in_shares),
    grad_def("reduce_amin_grad", in_shares),
    position_def("argmax", |s| match s.ins[0].dtype {
        DType::I64 => position(s, |x: i64, best| x > best, |_| false),
        _ => position(s, |x: f32, best| x > best, f32::is_nan),
    }),
    position_def("argmin", |s| match s.ins[0].dtype {
        DType::I64 => position(s, |x: i64, best| x < best, |_| false),
        _ => position(s, |x: f32, best| x < best, f32::is_nan),
    }),
];

fn max(s: &Spec<'_>) -> Result<Kernel, Error> {
    if s.ins[0].dtype == DType::I64 {
        return fold(s, i64::MIN, Ord::max);
    }
    fold(s, f32::NEG_INFINITY, |a: f32, b: f32| if b > a || b.is_nan() { b } else { a })
}

fn min(s: &Spec<'_>) -> Result<Kernel, Error> {
    if s.ins[0].dtype == DType::I64 {
        return fold(s, i64::MAX, Ord::min);
    }
    fold(s, f32::INFINITY, |a: f32, b: f32| if b < a || b.is_nan() { b } else { a })
}

fn to_all(s: &Spec<'_>) -> Result<Kernel, Error> {
    map_back(s, |x, out, d| if x == out { d } else { 0.0 })
}

fn in_shares(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = belonging(s)?;
    let mut counts = vec![0.0f32; s.ins[1].numel().unwrap_or(0)];
    Ok(Box::new(move |io, _| {
        let (x, out, d, dx) = (io.f32(0), io.f32(1), io.f32(2), io.out_f32(0));
        if x.is_empty() {
            return Ok(());
        }
        counts.fill(0.0);
        let (n, _, step) = walk.inner;
        walk.for_each_run(|_, at, to| {
            for i in 0..n {
                let to = to + i * step;
                counts[to] += f32::from(x[at + i] == out[to]);
            }
        });
        walk.for_each_run(|_, at, to| {
            for i in 0..n {
                let to = to + i * step;
                dx[at + i] = if x[at + i] == out[to] { d[to] / counts[to] } else { 0.0 };
            }
        });
        Ok(())
    }))
}

fn batch_of_axis(op: &Op) -> Batch {
    if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::PerExample }
}

fn infer_position(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.numbers("X")?;
    let (axis, given) = (i.axis("axis", x.shape.len())?, i.op.int("axis")?);
    if batch_from_end(x, given, axis) {
        return Err(say_zero(i, "axis", given));
    }
    if x.shape[axis] == 0 {
        return Err(i.wrong("X", &format!("an array with something in dimension {axis}")));
    }
    let mut shape = x.shape.clone();
    if i.op.bool("keep_dim")? || shape.len() == 1 {
        shape[axis] = 1;
    } else {
        shape.remove(axis);
    }
    Ok(vec![VarType::dense(DType::I64, shape)])
}

fn position<T: Element>(
    s: &Spec<'_>,
    beats: impl Fn(T, T) -> bool + Send + 'static,
    is_nan: impl Fn(T) -> bool + Send + 'static,
) -> Result<Kernel, Error> {
    let dims = s.dims(0);
    let axis = resolve_axis(s.op.int("axis")?, dims.len()).unwrap_or(0);
    let (size, step) = (dims[axis], around(&dims, axis).1);
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), io.out_i64(0));
        if x.is_empty() {
            return Ok(());
        }
        for (x, out) in x.chunks_exact(size * step).zip(out.chunks_exact_mut(step)) {
            for (column, out) in out.iter_mut().enumerate() {
                let mut best = 0;
                for n in 1..size {
                    let (a, b) = (x[n * step + column], x[best * step + column]);
                    if beats(a, b) || (is_nan(b) && !is_nan(a)) {
                        best = n;
                    }
                }
                *out = best as i64;
            }
        }
        Ok(())
    }))
}
