//! `softmax` and `log_softmax` over one dimension, the last unless said otherwise. Over the batch
//! it is dimension 0, and all examples are needed at once.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};

use super::element::{around, batch_from_end, say_zero};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, Infer, Kernel, OpDef, Sample, Spec};

const ATTRS: &[AttrDef] = &[("axis", AttrKind::Int(-1))];

regatta_kernels::simd! {
    fn softmax_grad(y: &[f32], d: &[f32], width: usize, dx: &mut [f32]) {
        let rows = y.chunks_exact(width).zip(d.chunks_exact(width));
        for ((y, d), dx) in rows.zip(dx.chunks_exact_mut(width)) {
            let dot: f32 = y.iter().zip(d).map(|(y, d)| y * d).sum();
            for ((dx, &y), &d) in dx.iter_mut().zip(y).zip(d) {
                *dx = y * (d - dot);
            }
        }
    }
}

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "softmax",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["Out"]))),
        kernel: forward,
        batch,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "softmax_grad",
            inputs: &[one("Out"), one("dOut")],
            outputs: &[one("dX")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("Out")?.clone()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: backward,
        batch,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "log_softmax",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["Out"]))),
        kernel: log_forward,
        batch,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "log_softmax_grad",
            inputs: &[one("Out"), one("dOut")],
            outputs: &[one("dX")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("Out")?.clone()]),
        grad: NO_SECOND,
        kernel: log_backward,
        batch,
        samples: no_samples,
    },
];

fn batch(op: &Op) -> Batch {
    if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::PerExample }
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    let (axis, given) = (i.axis("axis", x.shape.len())?, i.op.int("axis")?);
    if batch_from_end(x, given, axis) {
        return Err(say_zero(i, "axis", given));
    }
    let known_when_run = x.shape[axis] == -2 || (axis == 0 && x.is_batched());
    if x.shape[axis] < 1 && !known_when_run {
        return Err(i.wrong("X", &format!("f32 with a known size of dimension {axis}")));
    }
    Ok(vec![x.clone()])
}

/// Numbers that are normalised together, and numbers from one of them to the next.
fn sizes(s: &Spec<'_>) -> Result<(usize, usize), Error> {
    let dims = s.dims(0);
    let axis = resolve_axis(s.op.int("axis")?, dims.len()).unwrap_or(0);
    Ok((dims[axis], around(&dims, axis).1))
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (n, step) = sizes(s)?;
    let mut of_column = vec![0.0; step];
    Ok(Box::new(move |io, _| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        if x.is_empty() {
            return Ok(());
        }
        if step == 1 {
            regatta_kernels::rows::softmax(x, n, out);
            return Ok(());
        }
        for (x, out) in x.chunks_exact(n * step).zip(out.chunks_exact_mut(n * step)) {
            columns(x, out, &mut of_column);
        }
        Ok(())
    }))
}

/// Softmax of each column of a matrix; `of_column` has room for a number of each.
fn columns(x: &[f32], out: &mut [f32], of_column: &mut [f32]) {
    let step = of_column.len();
    of_column.copy_from_slice(&x[..step]);
    for row in x.chunks_exact(step) {
        of_column.iter_mut().zip(row).for_each(|(max, x)| *max = max.max(*x));
    }
    for (row, out) in x.chunks_exact(step).zip(out.chunks_exact_mut(step)) {
        let row = row.iter().zip(&*of_column);
        out.iter_mut().zip(row).for_each(|(o, (x, max))| *o = (x - max).exp());
    }
    of_column.fill(0.0);
    for row in out.chunks_exact(step) {
        of_column.iter_mut().zip(row).for_each(|(sum, y)| *sum += y);
    }
    for row in out.chunks_exact_mut(step) {
        row.iter_mut().zip(&*of_column).for_each(|(y, sum)| *y /= sum);
    }
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (n, step) = sizes(s)?;
    let mut dots = vec![0.0; step];
    Ok(Box::new(move |io, _| {
        let (y, d, dx) = (io.f32(0), io.f32(1), io.out_f32(0));
        if y.is_empty() {
            return Ok(());
        }
        if step == 1 {
            softmax_grad(y, d, n, dx);
            return Ok(());
        }
        let blocks = y.chunks_exact(n * step).zip(d.chunks_exact(n * step));
        for ((y, d), dx) in blocks.zip(dx.chunks_exact_mut(n * step)) {
            columns_grad(y, d, dx, &mut dots);
        }
        Ok(())
    }))
}

fn columns_grad(y: &[f32], d: &[f32], dx: &mut [f32], dots: &mut [f32]) {
    let step = dots.len();
    dots.fill(0.0);
    for (y, d) in y.chunks_exact(step).zip(d.chunks_exact(step)) {
        dots.iter_mut().zip(y.iter().zip(d)).for_each(|(dot, (y, d))| *dot += y * d);
    }
    let rows = y.chunks_exact(step).zip(d.chunks_exact(step));
    for ((y, d), dx) in rows.zip(dx.chunks_exact_mut(step)) {
        for (((dx, &y), &d), &dot) in dx.iter_mut().zip(y).zip(d).zip(&*dots) {
            *dx = y * (d - dot);
        }
    }
}

fn log_forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (n, step) = sizes(s)?;
    let (mut largest, mut sums) = (vec![0.0; step], vec![0.0; step]);
    Ok(Box::new(move |io, _| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        if x.is_empty() {
            return Ok(());
        }
        for (x, out) in x.chunks_exact(n * step).zip(out.chunks_exact_mut(n * step)) {
            largest.copy_from_slice(&x[..step]);
            for row in x.chunks_exact(step) {
                largest.iter_mut().zip(row).for_each(|(max, x)| *max = max.max(*x));
            }
            sums.fill(0.0);
            for row in x.chunks_exact(step) {
                let row = row.iter().zip(&largest);
                sums.iter_mut().zip(row).for_each(|(sum, (x, max))| *sum += (x - max).exp());
            }
            sums.iter_mut().zip(&largest).for_each(|(sum, max)| *sum = sum.ln() + max);
            for (row, out) in x.chunks_exact(step).zip(out.chunks_exact_mut(step)) {
                let row = row.iter().zip(&sums);
                out.iter_mut().zip(row).for_each(|(o, (x, sum))| *o = x - sum);
            }
        }
        Ok(())
    }))
}

fn log_backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (n, step) = sizes(s)?;
    let mut sums = vec![0.0; step];
    Ok(Box::new(move |io, _| {
        let (y, d, dx) = (io.f32(0), io.f32(1), io.out_f32(0));
        if y.is_empty() {
            return Ok(());
        }
        let blocks = y.chunks_exact(n * step).zip(d.chunks_exact(n * step));
        for ((y, d), dx) in blocks.zip(dx.chunks_exact_mut(n * step)) {
            sums.fill(0.0);
            for row in d.chunks_exact(step) {
                sums.iter_mut().zip(row).for_each(|(sum, d)| *sum += d);
            }
            let rows = y.chunks_exact(step).zip(d.chunks_exact(step));
            for ((y, d), dx) in rows.zip(dx.chunks_exact_mut(step)) {
                for (((dx, &y), &d), &sum) in dx.iter_mut().zip(y).zip(d).zip(&sums) {
                    *dx = d - y.exp() * sum;
                }
            }
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let over = |name, shape: &[usize], axis: i64| {
        Sample::x(name, spread(shape, -2.0, 2.0)).attr("axis", axis)
    };
    vec![
        Sample::x("rows", spread(&[3, 5], -2.0, 2.0)),
        over("columns", &[3, 5], 0),
        over("in the middle", &[2, 3, 4], 1),
        over("in the middle, from the end", &[2, 3, 2], -2),
        over("of size one", &[2, 1, 3], 1),
    ]
}
