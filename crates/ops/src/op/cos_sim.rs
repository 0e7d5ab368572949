//! `cos_sim`: the cosine of the angle between rows of `X` and `Y`. A row without length has the
//! cosine 0 with every other and passes no gradient.

use regatta_ir::schema::{one, optional};
use regatta_ir::{Error, Schema, VarType};
use regatta_kernels::vector::{dot, sum_of_squares};

use super::cross_entropy::last_dim_one;
use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "cos_sim",
            inputs: &[one("X"), one("Y")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| {
            let x = i.floats("X")?;
            match x.shape[..] {
                [_, .., d] if d > 0 => {}
                _ => return Err(i.wrong("X", "f32[batch, .., width] with a known width")),
            }
            i.expect("Y", x)?;
            Ok(vec![VarType::f32(last_dim_one(&x.shape))])
        },
        grad: Grad::Rule(|g| Ok(g.several(&["X", "Y"], "Out", &["X", "Y"]))),
        kernel: forward,
        batch: per_example,
        samples: || {
            let of = |low| spread(&[3, 5], low, 1.0);
            vec![Sample::x("rows", of(-1.0)).with("Y", of(-0.8))]
        },
    },
    OpDef {
        schema: Schema {
            kind: "cos_sim_grad",
            inputs: &[one("X"), one("Y"), one("dOut")],
            outputs: &[optional("dX"), optional("dY")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone(); i.op.outputs.len()]),
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

/// One over a squared length; 0 for a row without length.
fn inverse_square(row: &[f32]) -> f32 {
    let squares = sum_of_squares(row);
    // The inverse of a subnormal number is infinite.
    if squares < f32::MIN_POSITIVE { 0.0 } else { 1.0 / squares }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, width) = s.matrix(0);
    Ok(Box::new(move |io, _| {
        let rows = io.f32(0).chunks_exact(width).zip(io.f32(1).chunks_exact(width));
        for (o, (x, y)) in io.out_f32(0).iter_mut().zip(rows) {
            *o = dot(x, y) * inverse_square(x).sqrt() * inverse_square(y).sqrt();
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, width) = s.matrix(0);
    let (dx, dy) = (s.out_at("dX"), s.out_at("dY"));
    Ok(Box::new(move |io, _| {
        let (x, y, d) = (io.f32(0), io.f32(1), io.f32(2));
        for (at, a, b) in [(dx, x, y), (dy, y, x)] {
            let Some(at) = at else { continue };
            let rows = a.chunks_exact(width).zip(b.chunks_exact(width)).zip(d);
            for (da, ((a, b), d)) in io.out_f32(at).chunks_exact_mut(width).zip(rows) {
                let (aa, bb) = (inverse_square(a), inverse_square(b));
                let scale = d * aa.sqrt() * bb.sqrt();
                let along = scale * dot(a, b) * aa;
                for ((da, a), b) in da.iter_mut().zip(a).zip(b) {
                    *da = scale * b - along * a;
                }
            }
        }
        Ok(())
    }))
}
