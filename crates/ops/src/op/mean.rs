//! `mean`: the mean of all elements, of shape `[1]`. Over a part of the batch it gives the part's
//! share of the whole mean, so that the parts add up.

use regatta_ir::schema::one;
use regatta_ir::{Schema, VarType};

use crate::def::{linear, linear_in_dout, no_samples, spread};
use crate::{Grad, Kernel, OpDef, Sample};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema { kind: "mean", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
        infer: |i| {
            i.floats("X")?;
            Ok(vec![VarType::f32([1])])
        },
        grad: Grad::Rule(|g| Ok(g.unary(&["X"]))),
        kernel: |s| {
            let batched = s.batched(0);
            let kernel: Kernel = Box::new(move |io, ctx| {
                let x = io.f32(0);
                let count = if batched { ctx.whole_count(x.len()) } else { x.len() };
                // f64: a mean of many losses should not depend on their order in the 6th digit.
                let sum: f64 = x.iter().map(|&v| f64::from(v)).sum();
                io.out_f32(0)[0] = (sum / count as f64) as f32;
                Ok(())
            });
            Ok(kernel)
        },
        batch: linear,
        samples: || vec![Sample::x("matrix", spread(&[3, 4], -1.0, 1.0))],
    },
    OpDef {
        schema: Schema {
            kind: "mean_grad",
            inputs: &[one("X"), one("dOut")],
            outputs: &[one("dX")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: |s| {
            let batched = s.batched(0);
            let kernel: Kernel = Box::new(move |io, ctx| {
                let dx = io.out_f32(0);
                let count = if batched { ctx.whole_count(dx.len()) } else { dx.len() };
                dx.fill(io.f32(1)[0] / count as f32);
                Ok(())
            });
            Ok(kernel)
        },
        batch: linear_in_dout,
        samples: no_samples,
    },
];
