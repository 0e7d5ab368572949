//! `softmax_with_cross_entropy`: the loss of logits in one stable op, with the labels of
//! `cross_entropy`.

use regatta_ir::schema::one;
use regatta_ir::{Error, Schema};
use regatta_tensor::{Tensor, Value};

use super::cross_entropy::{ATTRS, Labels, loss_type};
use crate::def::{no_samples, per_example, spread};
use crate::{Grad, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "softmax_with_cross_entropy",
            inputs: &[one("Logits"), one("Label")],
            outputs: &[one("Loss"), one("Softmax")],
            attrs: ATTRS,
        },
        infer: |i| {
            let x = i.floats("Logits")?;
            Ok(vec![loss_type(i, x)?, x.clone()])
        },
        grad: Grad::Rule(|g| {
            if g.dout("Softmax").is_some() {
                return Err(Error::Pass {
                    pass: "backward".into(),
                    reason: "the Softmax output of softmax_with_cross_entropy has no gradient; \
                             use softmax and cross_entropy to differentiate it"
                        .into(),
                });
            }
            let (Some(dx), Some(d)) = (g.din("Logits"), g.dout("Loss")) else { return Ok(vec![]) };
            Ok(vec![
                g.grad_op()
                    .input("Softmax", &g.op.outs("Softmax")[0])
                    .input("Label", &g.op.ins("Label")[0])
                    .input("dLoss", &d)
                    .output("dLogits", &dx),
            ])
        }),
        kernel: forward,
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "softmax_with_cross_entropy_grad",
            inputs: &[one("Softmax"), one("Label"), one("dLoss")],
            outputs: &[one("dLogits")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("Softmax")?.clone()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let labels = Labels::new(s)?;
    Ok(Box::new(move |io, ctx| {
        let x = io.f32(0);
        let (loss, softmax) = (io.out_f32(0), io.out_f32(1));
        regatta_kernels::rows::softmax(x, labels.classes, softmax);
        for (r, (x, loss)) in x.chunks_exact(labels.classes).zip(loss).enumerate() {
            // From the logits, not from the softmax: exact where that underflows.
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = x.iter().map(|&v| (v - max).exp()).sum();
            *loss = if labels.soft {
                let q = labels.soft(io.f32(1), r);
                x.iter().zip(q).map(|(x, q)| q * (sum.ln() + max - x)).sum()
            } else {
                let class = labels.class(io.i64(1)[r], ctx.first_example + r)?;
                class.map_or(0.0, |c| sum.ln() + max - x[c])
            };
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let labels = Labels::new(s)?;
    Ok(Box::new(move |io, ctx| {
        let (p, d, dx) = (io.f32(0), io.f32(2), io.out_f32(0));
        let rows = p.chunks_exact(labels.classes).zip(dx.chunks_exact_mut(labels.classes)).zip(d);
        for (r, ((p, dx), &d)) in rows.enumerate() {
            if labels.soft {
                let q = labels.soft(io.f32(1), r);
                let sum: f32 = q.iter().sum();
                for ((dx, &p), &q) in dx.iter_mut().zip(p).zip(q) {
                    *dx = d * (p * sum - q);
                }
                continue;
            }
            let Some(c) = labels.class(io.i64(1)[r], ctx.first_example + r)? else {
                dx.fill(0.0);
                continue;
            };
            for (dx, &p) in dx.iter_mut().zip(p) {
                *dx = d * p;
            }
            dx[c] -= d;
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, label: Value| Sample {
        name,
        inputs: vec![("Logits", vec![spread(&[3, 4], -2.0, 2.0)]), ("Label", vec![label])],
        ignored_outputs: vec!["Softmax"],
        fixed: vec!["Label"],
        ..Sample::default()
    };
    let hard =
        |shape: &[usize]| Tensor::from_i64(shape, vec![2, 0, 3]).expect("lengths agree").into();
    vec![
        of("logits", hard(&[3, 1])),
        of("flat labels", hard(&[3])),
        of("one ignored", hard(&[3, 1])).attr("ignore_index", 3),
        of("soft labels", spread(&[3, 4], 0.1, 0.5)).attr("soft_label", true),
    ]
}
