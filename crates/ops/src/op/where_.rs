//! `where`: X where the condition is not 0, otherwise Y. All three broadcast. The condition is i64
//! and takes no gradient.

use regatta_ir::schema::{one, optional};
use regatta_ir::{Error, Schema, VarType};
use regatta_tensor::{DType, Tensor};

use super::broadcast::broadcast_shape;
use super::element::{Element, by_dtype};
use super::walk::{Strides, Walk, step_to};
use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "where",
            inputs: &[one("Condition"), one("X"), one("Y")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.several(&["Condition", "X", "Y"], "Out", &["X", "Y"]))),
        kernel: |s| by_dtype!(s.ins[1], forward(s)),
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "where_grad",
            inputs: &[one("Condition"), one("X"), one("Y"), one("dOut")],
            outputs: &[optional("dX"), optional("dY")],
            attrs: &[],
        },
        infer: |i| Ok(i.op.outputs.iter().map(|(slot, _)| i.ty(&slot[1..]).clone()).collect()),
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let condition = i.dense("Condition")?;
    if condition.dtype != DType::I64 {
        return Err(i.wrong("Condition", "dense i64 (0 or 1)"));
    }
    let (x, y) = (i.dense("X")?, i.dense("Y")?);
    let both = broadcast_shape(&x.shape, &y.shape).filter(|_| y.dtype == x.dtype);
    let misfit = || i.wrong("Y", &format!("{} that broadcasts with {:?}", x.dtype, x.shape));
    let both = both.ok_or_else(misfit)?;
    let misfit = || i.wrong("Condition", &format!("i64 that broadcasts with {both:?}"));
    let shape = broadcast_shape(&condition.shape, &both).ok_or_else(misfit)?;
    Ok(vec![VarType::dense(x.dtype, shape)])
}

/// Over a result of `dims`: the result, condition, X and Y.
fn walk(s: &Spec<'_>, dims: &[usize]) -> Walk<4> {
    let input = |i| Strides::broadcast(&s.dims(i), dims.len());
    Walk::new(dims, [Strides::dense(dims), input(0), input(1), input(2)])
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let dims: Vec<usize> = s.outs[0].shape.iter().map(|&d| d as usize).collect();
    let walk = walk(s, &dims);
    Ok(Box::new(move |io, _| {
        let (condition, x, y) = (io.i64(0), T::input(io, 1), T::input(io, 2));
        let out = T::output(io, 0);
        let [_, sc, sx, sy] = walk.steps;
        walk.for_each_run(|[o, c, xo, yo]| {
            for (i, out) in out[o..o + walk.len].iter_mut().enumerate() {
                let holds = condition[step_to(c, sc, i)] != 0;
                *out = if holds { x[step_to(xo, sx, i)] } else { y[step_to(yo, sy, i)] };
            }
        });
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = walk(s, &s.dims(3));
    let (dx, dy) = (s.out_at("dX"), s.out_at("dY"));
    Ok(Box::new(move |io, _| {
        let (condition, d) = (io.i64(0), io.f32(3));
        if let Some(dx) = dx {
            let dx = io.out_f32(dx);
            dx.fill(0.0);
            walk.for_each(|[o, c, x, _]| {
                if condition[c] != 0 {
                    dx[x] += d[o];
                }
            });
        }
        if let Some(dy) = dy {
            let dy = io.out_f32(dy);
            dy.fill(0.0);
            walk.for_each(|[o, c, _, y]| {
                if condition[c] == 0 {
                    dy[y] += d[o];
                }
            });
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, condition: &[usize], x: &[usize], y: &[usize]| {
        let n: usize = condition.iter().product();
        let holds = (0..n as i64).map(|i| i * 5 % 3 % 2).collect();
        let condition = Tensor::from_i64(condition, holds).expect("lengths agree");
        Sample { name, ..Sample::default() }
            .with("Condition", condition)
            .with("X", spread(x, -1.0, 1.0))
            .with("Y", spread(y, 1.0, 2.0))
    };
    vec![
        of("same shape", &[3, 4], &[3, 4], &[3, 4]),
        of("a row and one number", &[3, 4], &[4], &[1]),
        of("condition of rows", &[3, 1], &[3, 4], &[1, 4]),
        of("condition is the largest", &[2, 3, 2], &[3, 1], &[2]),
    ]
}
