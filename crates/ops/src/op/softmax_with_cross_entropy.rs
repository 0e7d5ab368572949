//! `softmax_with_cross_entropy`: the loss of logits in one stable op.

use regatta_ir::schema::one;
use regatta_ir::{Schema, VarType};
use regatta_tensor::{DType, Tensor};

use super::cross_entropy::{class, last_dim_one};
use crate::def::{no_samples, per_example, spread};
use crate::{Grad, Kernel, OpDef, Sample};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "softmax_with_cross_entropy",
            inputs: &[one("Logits"), one("Label")],
            outputs: &[one("Loss"), one("Softmax")],
            attrs: &[],
        },
        infer: |i| {
            let x = i.floats("Logits")?;
            let out = last_dim_one(&x.shape);
            i.expect("Label", &VarType::dense(DType::I64, out.clone()))?;
            Ok(vec![VarType::f32(out), x.clone()])
        },
        grad: Grad::Rule(|g| {
            if g.dout("Softmax").is_some() {
                return Err(regatta_ir::Error::Pass {
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
        kernel: |s| {
            let (_, classes) = s.matrix(0);
            let kernel: Kernel = Box::new(move |io, ctx| {
                let (x, labels) = (io.f32(0), io.i64(1));
                let (loss, softmax) = (io.out_f32(0), io.out_f32(1));
                regatta_kernels::rows::softmax(x, classes, softmax);
                for (r, (x, loss)) in x.chunks_exact(classes).zip(loss).enumerate() {
                    let c = class(labels[r], classes, ctx.first_example + r)?;
                    // From the logits, not from the softmax: exact where that underflows.
                    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let sum: f32 = x.iter().map(|&v| (v - max).exp()).sum();
                    *loss = sum.ln() + max - x[c];
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: per_example,
        samples: || {
            let labels = Tensor::from_i64(&[3, 1], vec![2, 0, 3]).expect("lengths agree");
            vec![Sample {
                name: "logits",
                inputs: vec![
                    ("Logits", vec![spread(&[3, 4], -2.0, 2.0)]),
                    ("Label", vec![labels.into()]),
                ],
                ignored_outputs: vec!["Softmax"],
                ..Sample::default()
            }]
        },
    },
    OpDef {
        schema: Schema {
            kind: "softmax_with_cross_entropy_grad",
            inputs: &[one("Softmax"), one("Label"), one("dLoss")],
            outputs: &[one("dLogits")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("Softmax")?.clone()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: |s| {
            let (_, classes) = s.matrix(0);
            let kernel: Kernel = Box::new(move |io, ctx| {
                let (p, labels, d, dx) = (io.f32(0), io.i64(1), io.f32(2), io.out_f32(0));
                let rows = p.chunks_exact(classes).zip(dx.chunks_exact_mut(classes)).zip(d);
                for (r, ((p, dx), &d)) in rows.enumerate() {
                    for (dx, &p) in dx.iter_mut().zip(p) {
                        *dx = d * p;
                    }
                    dx[class(labels[r], classes, ctx.first_example + r)?] -= d;
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: per_example,
        samples: no_samples,
    },
];
