//! `cross_entropy`: `-log p[label]` of given probabilities, or `-sum q log p` for soft labels.
//!
//! Labels are classes, of the shape of the examples or with a last dimension of 1, or with
//! `soft_label` a probability for each class; none takes a gradient. An example whose class is
//! `ignore_index` has no loss and no gradient.

use regatta_ir::schema::{AttrDef, AttrKind, one};
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

/// What the losses of classes share.
pub(super) const ATTRS: &[AttrDef] =
    &[("soft_label", AttrKind::Bool(false)), ("ignore_index", AttrKind::Int(-100))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "cross_entropy",
            inputs: &[one("X"), one("Label")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![loss_type(i, i.floats("X")?)?]),
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
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

/// The type of the loss of these scores: one number for each label.
pub(super) fn loss_type(i: &Infer<'_>, scores: &VarType) -> Result<VarType, Error> {
    let Some((classes, examples)) = scores.shape.split_last() else {
        return Err(i.wrong(&i.op.inputs[0].0, "f32[.., classes]"));
    };
    let loss = VarType::f32([examples, &[1]].concat());
    let label = i.ty("Label");
    if i.op.bool("soft_label")? {
        i.expect("Label", &VarType::f32([examples, &[*classes]].concat()))?;
    } else if label.shape.len() + 1 == scores.shape.len() {
        i.expect("Label", &VarType::dense(DType::I64, examples))?;
    } else {
        i.expect("Label", &VarType::dense(DType::I64, loss.shape.clone()))?;
    }
    Ok(loss)
}

/// A shape with a last dimension of 1.
pub(super) fn last_dim_one(shape: &[i64]) -> Vec<i64> {
    let mut out = shape.to_vec();
    if let Some(last) = out.last_mut() {
        *last = 1;
    }
    out
}

/// How labels are read.
#[derive(Clone, Copy)]
pub(super) struct Labels {
    pub(super) classes: usize,
    pub(super) soft: bool,
    ignored: i64,
}

impl Labels {
    /// Of an op whose first input has a row of scores for each example.
    pub(super) fn new(s: &Spec<'_>) -> Result<Labels, Error> {
        let (_, classes) = s.matrix(0);
        Ok(Labels { classes, soft: s.op.bool("soft_label")?, ignored: s.op.int("ignore_index")? })
    }

    /// The class of a row; nothing if it is ignored.
    pub(super) fn class(&self, label: i64, example: usize) -> Result<Option<usize>, KernelError> {
        if label == self.ignored {
            return Ok(None);
        }
        class(label, self.classes, example).map(Some)
    }

    /// The soft labels of a row.
    pub(super) fn soft<'a>(&self, labels: &'a [f32], row: usize) -> &'a [f32] {
        &labels[row * self.classes..(row + 1) * self.classes]
    }
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
    let labels = Labels::new(s)?;
    Ok(Box::new(move |io, ctx| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        for (r, (p, out)) in x.chunks_exact(labels.classes).zip(out).enumerate() {
            *out = if labels.soft {
                let q = labels.soft(io.f32(1), r);
                -p.iter().zip(q).map(|(p, q)| q * floored(*p).ln()).sum::<f32>()
            } else {
                let class = labels.class(io.i64(1)[r], ctx.first_example + r)?;
                class.map_or(0.0, |c| -floored(p[c]).ln())
            };
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let labels = Labels::new(s)?;
    Ok(Box::new(move |io, ctx| {
        let (x, d, dx) = (io.f32(0), io.f32(2), io.out_f32(0));
        let rows = x.chunks_exact(labels.classes).zip(d);
        for (r, ((p, &d), dx)) in rows.zip(dx.chunks_exact_mut(labels.classes)).enumerate() {
            if labels.soft {
                let q = labels.soft(io.f32(1), r);
                for ((dx, &p), &q) in dx.iter_mut().zip(p).zip(q) {
                    *dx = -d * q / floored(p);
                }
            } else {
                dx.fill(0.0);
                if let Some(c) = labels.class(io.i64(1)[r], ctx.first_example + r)? {
                    dx[c] = -d / floored(p[c]);
                }
            }
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let p = || spread(&[3, 4], 0.2, 0.9);
    let labels = |shape: &[usize]| Tensor::from_i64(shape, vec![2, 0, 3]).expect("lengths agree");
    vec![
        Sample::x("hard labels", p()).with("Label", labels(&[3, 1])),
        Sample::x("flat labels", p()).with("Label", labels(&[3])),
        Sample::x("one ignored", p()).with("Label", labels(&[3, 1])).attr("ignore_index", 0),
        Sample::x("soft labels", p())
            .with("Label", spread(&[3, 4], 0.1, 0.5))
            .fix("Label")
            .attr("soft_label", true),
    ]
}
