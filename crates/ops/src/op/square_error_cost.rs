//! `square_error_cost`: `(X - Label)^2` per element.

use regatta_ir::Schema;
use regatta_ir::schema::{one, optional};

use crate::def::{no_samples, per_example, spread};
use crate::{Grad, Kernel, OpDef, Sample};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "square_error_cost",
            inputs: &[one("X"), one("Label")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| {
            let x = i.floats("X")?;
            i.expect("Label", x)?;
            Ok(vec![x.clone()])
        },
        grad: Grad::Rule(|g| {
            let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
            let mut op = g
                .grad_op()
                .input("X", &g.op.ins("X")[0])
                .input("Label", &g.op.ins("Label")[0])
                .input("dOut", &dout);
            for (slot, out) in [("X", "dX"), ("Label", "dLabel")] {
                if let Some(d) = g.din(slot) {
                    op = op.output(out, &d);
                }
            }
            Ok(if op.outputs.is_empty() { vec![] } else { vec![op] })
        }),
        kernel: |_| {
            let kernel: Kernel = Box::new(move |io, _| {
                let (x, y) = (io.f32(0), io.f32(1));
                for ((o, &x), &y) in io.out_f32(0).iter_mut().zip(x).zip(y) {
                    *o = (x - y) * (x - y);
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: per_example,
        samples: || {
            vec![
                Sample::x("column", spread(&[4, 1], -1.0, 1.0))
                    .with("Label", spread(&[4, 1], 0.0, 1.0)),
            ]
        },
    },
    OpDef {
        schema: Schema {
            kind: "square_error_cost_grad",
            inputs: &[one("X"), one("Label"), one("dOut")],
            outputs: &[optional("dX"), optional("dLabel")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone(); i.op.outputs.len()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: |s| {
            let wanted = [(s.out_at("dX"), 2.0), (s.out_at("dLabel"), -2.0f32)];
            let kernel: Kernel = Box::new(move |io, _| {
                let (x, y, d) = (io.f32(0), io.f32(1), io.f32(2));
                for (at, factor) in wanted {
                    let Some(at) = at else { continue };
                    for (i, g) in io.out_f32(at).iter_mut().enumerate() {
                        *g = factor * (x[i] - y[i]) * d[i];
                    }
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: per_example,
        samples: no_samples,
    },
];
