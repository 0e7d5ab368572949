//! `elementwise_add`, `_sub`, `_mul`, `_div`, `_max`, `_min`, `_pow`, `_mod`, `_floordiv` and
//! `prelu` with broadcasting, and their gradients.
//!
//! All but `prelu` take signed integers as well, which wrap around; dividing one by 0 stops the
//! run. A NaN on either side is the maximum and the minimum; where both sides are equal, the
//! gradient goes to Y.

use regatta_ir::schema::{one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::DType;

use super::binary::{Add, Binary, Div, FloorDiv, Max, Min, Mod, Mul, Pow, Prelu, Sub};
use super::broadcast::{Broadcast, broadcast_shape, map_pairs};
use crate::def::{linear, no_samples, per_example, spread};
use crate::{Batch, Grad, GradCtx, Infer, Kernel, KernelError, OpDef, Sample, Spec};

const fn forward_def<B: Binary>(
    kind: &'static str,
    batch: fn(&Op) -> Batch,
    samples: fn() -> Vec<Sample>,
) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X"), one("Y")] },
            outputs: const { &[one("Out")] },
            attrs: &[],
        },
        infer: infer::<B>,
        grad: Grad::Rule(grad),
        kernel: forward::<B>,
        batch,
        samples,
    }
}

const fn grad_def<B: Binary>(kind: &'static str) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X"), one("Y"), one("dOut")] },
            outputs: const { &[optional("dX"), optional("dY")] },
            attrs: &[],
        },
        infer: infer_grad,
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: backward::<B>,
        batch: per_example,
        samples: no_samples,
    }
}

pub(crate) static DEFS: &[OpDef] = &[
    forward_def::<Add>("elementwise_add", linear, samples),
    forward_def::<Sub>("elementwise_sub", linear, samples),
    forward_def::<Mul>("elementwise_mul", per_example, samples),
    forward_def::<Div>("elementwise_div", per_example, samples),
    forward_def::<Max>("elementwise_max", per_example, samples),
    forward_def::<Min>("elementwise_min", per_example, samples),
    forward_def::<Pow>("elementwise_pow", per_example, powers),
    forward_def::<Mod>("elementwise_mod", per_example, between_steps),
    forward_def::<FloorDiv>("elementwise_floordiv", per_example, between_steps),
    forward_def::<Prelu>("prelu", per_example, samples),
    grad_def::<Add>("elementwise_add_grad"),
    grad_def::<Sub>("elementwise_sub_grad"),
    grad_def::<Mul>("elementwise_mul_grad"),
    grad_def::<Div>("elementwise_div_grad"),
    grad_def::<Max>("elementwise_max_grad"),
    grad_def::<Min>("elementwise_min_grad"),
    grad_def::<Pow>("elementwise_pow_grad"),
    grad_def::<Mod>("elementwise_mod_grad"),
    grad_def::<FloorDiv>("elementwise_floordiv_grad"),
    grad_def::<Prelu>("prelu_grad"),
];

fn infer<B: Binary>(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = if B::INTS.is_some() { i.numbers("X")? } else { i.floats("X")? };
    let y = i.dense("Y")?;
    let shape = broadcast_shape(&x.shape, &y.shape).filter(|_| y.dtype == x.dtype);
    let misfit = || i.wrong("Y", &format!("{} that broadcasts with {:?}", x.dtype, x.shape));
    Ok(vec![VarType::dense(x.dtype, shape.ok_or_else(misfit)?)])
}

fn infer_grad(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    Ok(i.op.outputs.iter().map(|(slot, _)| i.ty(&slot[1..]).clone()).collect())
}

fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
    if let Some(sign) = sign_of_y(g) {
        return Ok(copies(g, &dout, sign));
    }
    let mut op = g
        .grad_op()
        .input("X", &g.op.ins("X")[0])
        .input("Y", &g.op.ins("Y")[0])
        .input("dOut", &dout);
    for (slot, out) in [("X", "dX"), ("Y", "dY")] {
        if let Some(d) = g.din(slot) {
            op = op.output(out, &d);
        }
    }
    Ok(if op.outputs.is_empty() { vec![] } else { vec![op] })
}

/// For sums and differences of equal shapes, the sign of Y: the gradients are then plain copies,
/// which need neither input.
fn sign_of_y(g: &GradCtx<'_>) -> Option<f64> {
    let same = (g.ty)(g.op.input_var("X")?) == (g.ty)(g.op.input_var("Y")?);
    match g.op.kind.as_str() {
        "elementwise_add" if same => Some(1.0),
        "elementwise_sub" if same => Some(-1.0),
        _ => None,
    }
}

fn copies(g: &GradCtx<'_>, dout: &str, sign: f64) -> Vec<Op> {
    let copy = |slot, sign: f64| {
        let d = g.din(slot)?;
        let op = if sign == 1.0 { Op::new("assign") } else { Op::new("scale").attr("scale", sign) };
        Some(op.input("X", dout).output("Out", &d))
    };
    [copy("X", 1.0), copy("Y", sign)].into_iter().flatten().collect()
}

fn forward<B: Binary>(s: &Spec<'_>) -> Result<Kernel, Error> {
    match (s.outs[0].dtype, B::INTS) {
        (DType::I64, Some(f)) if B::DIVIDES => Ok(divide(map_pairs::<i64, i64>(s, f)?)),
        (DType::I64, Some(f)) => map_pairs::<i64, i64>(s, f),
        _ => map_pairs::<f32, f32>(s, B::f),
    }
}

fn divide(mut kernel: Kernel) -> Kernel {
    Box::new(move |io, ctx| {
        if let Some(at) = io.i64(1).iter().position(|&y| y == 0) {
            return Err(KernelError(format!("element {at} of the divisor is 0")));
        }
        kernel(io, ctx)
    })
}

fn backward<B: Binary>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = Broadcast::new(&s.dims(0), &s.dims(1));
    let (dx, dy) = (s.out_at("dX"), s.out_at("dY"));
    Ok(Box::new(move |io, _| {
        let (x, y, d) = (io.f32(0), io.f32(1), io.f32(2));
        if let Some(dx) = dx {
            let dx = io.out_f32(dx);
            dx.fill(0.0);
            accumulate(&walk, x, y, d, dx, walk.inner.1, true, B::dx);
        }
        if let Some(dy) = dy {
            let dy = io.out_f32(dy);
            dy.fill(0.0);
            accumulate(&walk, x, y, d, dy, walk.inner.2, false, B::dy);
        }
        Ok(())
    }))
}

/// Adds `df(x, y, dout)` into the gradient of X or of Y, summing where that input was repeated.
#[inline(always)]
fn accumulate(
    walk: &Broadcast,
    x: &[f32],
    y: &[f32],
    d: &[f32],
    grad: &mut [f32],
    stride: usize,
    of_x: bool,
    df: impl Fn(f32, f32, f32) -> f32,
) {
    let (n, sx, sy) = walk.inner;
    walk.for_each_run(|o, xo, yo| {
        let to = if of_x { xo } else { yo };
        let d = &d[o..o + n];
        if stride == 0 {
            let sum: f32 =
                d.iter().enumerate().map(|(i, &d)| df(x[xo + i * sx], y[yo + i * sy], d)).sum();
            grad[to] += sum;
        } else {
            let grad = &mut grad[to..to + n];
            for (i, (g, &d)) in grad.iter_mut().zip(d).enumerate() {
                *g += df(x[xo + i * sx], y[yo + i * sy], d);
            }
        }
    });
}

fn powers() -> Vec<Sample> {
    let pair = |name, x: &[usize], y: &[usize]| {
        Sample::x(name, spread(x, 0.5, 2.0)).with("Y", spread(y, -2.0, 2.0))
    };
    vec![pair("same shape", &[3, 4], &[3, 4]), pair("row", &[3, 4], &[4])]
}

/// Quotients that no small change moves over a whole number.
fn between_steps() -> Vec<Sample> {
    let pair = |name, low: f32, high: f32, y: &[usize]| {
        Sample::x(name, spread(&[3, 4], low, high)).with("Y", spread(y, 0.9, 1.0))
    };
    vec![pair("positive", 2.3, 2.6, &[3, 4]), pair("negative", -1.7, -1.2, &[4])]
}

fn samples() -> Vec<Sample> {
    let pair = |name, x: &[usize], y: &[usize]| {
        Sample::x(name, spread(x, -2.0, 2.0)).with("Y", spread(y, 0.5, 2.0))
    };
    vec![
        pair("same shape", &[3, 4], &[3, 4]),
        pair("row", &[3, 4], &[4]),
        pair("column", &[3, 4], &[3, 1]),
        pair("one number", &[3, 4], &[1]),
        pair("X repeats", &[1, 4], &[3, 4]),
        pair("both repeat", &[2, 1, 3], &[4, 1]),
    ]
}
