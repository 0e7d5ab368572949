//! `softmax` over the last dimension.

use regatta_ir::Schema;
use regatta_ir::schema::one;

use crate::def::{no_samples, per_example, spread};
use crate::{Grad, Kernel, OpDef, Sample};

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
        schema: Schema { kind: "softmax", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
        infer: |i| {
            let x = i.floats("X")?;
            match x.shape.last() {
                Some(&d) if d > 0 => Ok(vec![x.clone()]),
                _ => Err(i.wrong("X", "f32[.., classes] with a known number of classes")),
            }
        },
        grad: Grad::Rule(|g| Ok(g.unary(&["Out"]))),
        kernel: |s| {
            let (_, width) = s.matrix(0);
            let kernel: Kernel = Box::new(move |io, _| {
                regatta_kernels::rows::softmax(io.f32(0), width, io.out_f32(0));
                Ok(())
            });
            Ok(kernel)
        },
        batch: per_example,
        samples: || vec![Sample::x("rows", spread(&[3, 5], -2.0, 2.0))],
    },
    OpDef {
        schema: Schema {
            kind: "softmax_grad",
            inputs: &[one("Out"), one("dOut")],
            outputs: &[one("dX")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("Out")?.clone()]),
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: |s| {
            let (_, width) = s.matrix(0);
            let kernel: Kernel = Box::new(move |io, _| {
                softmax_grad(io.f32(0), io.f32(1), width, io.out_f32(0));
                Ok(())
            });
            Ok(kernel)
        },
        batch: per_example,
        samples: no_samples,
    },
];
