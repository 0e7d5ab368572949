//! `cross_entropy`: `-log p[label]` of given probabilities, or `-sum q log p` for soft labels.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Schema, VarType};
use regatta_tensor::{DType, Tensor};

use crate::def::{no_samples, per_example, spread};
use crate::{Grad, Infer, Kernel, KernelError, OpDef, Sample, Spec};

/// Keeps the logarithm finite when a probability underflows to zero.
const TINY: f32 = 1e-20;

/// At least `TINY`; NaN stays, so that a diverged network is seen.
fn floored(p: f32) -> f32 {
    if p < TINY { TINY } else { p }
}

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "cross_entropy",
            inputs: &[one("X"), one("Label")],
            outputs: &[one("Out")],
            attrs: &[("soft_label", AttrKind::Bool(false))],
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Label"]))),
        kernel: forward,
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "cross_entropy_grad",
            inputs: &[one("X"), one("Label"), one("dOut")],
            outputs: &[one("dX")],
            attrs: &[("soft_label", AttrKind::Bool(false))],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    let out = last_dim_one(&x.shape);
    if i.op.bool("soft_label")? {
        i.expect("Label", x)?;
    } else {
        i.expect("Label", &VarType::dense(DType::I64, out.clone()))?;
    }
    Ok(vec![VarType::f32(out)])
}

pub(super) fn last_dim_one(shape: &[i64]) -> Vec<i64> {
    let mut out = shape.to_vec();
    if let Some(last) = out.last_mut() {
        *last = 1;
    }
    out
}

/// A label as an index into the classes.
pub(super) fn class(label: i64, classes: usize, example: usize) -> Result<usize, KernelError> {
    usize::try_from(label).ok().filter(|&c| c < classes).ok_or_else(|| {
        KernelError(format!(
            "label {label} of example {example} is not one of the {classes} classes"
        ))
    })
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, classes) = s.matrix(0);
    let soft = s.op.bool("soft_label")?;
    Ok(Box::new(move |io, ctx| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        for (r, (p, out)) in x.chunks_exact(classes).zip(out).enumerate() {
            *out = if soft {
                let q = &io.f32(1)[r * classes..(r + 1) * classes];
                -p.iter().zip(q).map(|(p, q)| q * floored(*p).ln()).sum::<f32>()
            } else {
                -floored(p[class(io.i64(1)[r], classes, ctx.first_example + r)?]).ln()
            };
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, classes) = s.matrix(0);
    let soft = s.op.bool("soft_label")?;
    Ok(Box::new(move |io, ctx| {
        let (x, d, dx) = (io.f32(0), io.f32(2), io.out_f32(0));
        let rows = x.chunks_exact(classes).zip(d).zip(dx.chunks_exact_mut(classes));
        for (r, ((p, &d), dx)) in rows.enumerate() {
            if soft {
                let q = &io.f32(1)[r * classes..(r + 1) * classes];
                for ((dx, &p), &q) in dx.iter_mut().zip(p).zip(q) {
                    *dx = -d * q / floored(p);
                }
            } else {
                let c = class(io.i64(1)[r], classes, ctx.first_example + r)?;
                dx.fill(0.0);
                dx[c] = -d / floored(p[c]);
            }
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let p = || spread(&[3, 4], 0.2, 0.9);
    let labels = Tensor::from_i64(&[3, 1], vec![2, 0, 3]).expect("lengths agree");
    vec![
        Sample::x("hard labels", p()).with("Label", labels),
        Sample::x("soft labels", p())
            .with("Label", spread(&[3, 4], 0.1, 0.5))
            .fix("Label")
            .attr("soft_label", true),
    ]
}
