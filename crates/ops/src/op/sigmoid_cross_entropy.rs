//! `sigmoid_cross_entropy`: the cross entropy of `sigmoid(X)` against labels in `[0, 1]`, element
//! by element, as `max(x, 0) - x label + log(1 + exp(-|x|))`, which no logit overflows.

use regatta_ir::schema::{one, optional};
use regatta_ir::{Error, Schema};
use regatta_kernels::{simd, unary};
use regatta_tensor::Tensor;

use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "sigmoid_cross_entropy",
            inputs: &[one("X"), one("Label")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| {
            let x = i.floats("X")?;
            i.expect("Label", x)?;
            Ok(vec![x.clone()])
        },
        grad: Grad::Rule(|g| Ok(g.several(&["X", "Label"], "Out", &["X", "Label"]))),
        kernel: |_| {
            let kernel: Kernel = Box::new(|io, _| {
                forward(io.f32(0), io.f32(1), io.out_f32(0));
                Ok(())
            });
            Ok(kernel)
        },
        batch: per_example,
        samples: || {
            let labels = vec![0.0, 1.0, 1.0, 0.0, 0.3, 0.8];
            let labels = Tensor::from_f32(&[6, 1], labels).expect("lengths agree");
            vec![Sample::x("column", spread(&[6, 1], -3.0, 3.0)).with("Label", labels)]
        },
    },
    OpDef {
        schema: Schema {
            kind: "sigmoid_cross_entropy_grad",
            inputs: &[one("X"), one("Label"), one("dOut")],
            outputs: &[optional("dX"), optional("dLabel")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone(); i.op.outputs.len()]),
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

/// Elements that are worked on at a time.
const BLOCK: usize = 512;

fn forward(x: &[f32], label: &[f32], out: &mut [f32]) {
    let (mut e, mut u) = ([0.0; BLOCK], [0.0; BLOCK]);
    let blocks = x.chunks(BLOCK).zip(label.chunks(BLOCK)).zip(out.chunks_mut(BLOCK));
    for ((x, label), out) in blocks {
        let (e, u) = (&mut e[..x.len()], &mut u[..x.len()]);
        negative_abs(x, e);
        unary::exp_in_place(e);
        one_more(e, u);
        unary::log(u, out);
        join(x, label, e, u, out);
    }
}

simd! {
    fn negative_abs(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = -x.abs();
        }
    }
}

simd! {
    fn one_more(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = 1.0 + x;
        }
    }
}

simd! {
    /// `out` holds `log(u)`; `(e - (u - 1)) / u` gives back what rounding `u = 1 + e` lost.
    fn join(x: &[f32], label: &[f32], e: &[f32], u: &[f32], out: &mut [f32]) {
        let rows = x.iter().zip(label).zip(e.iter().zip(u));
        for (o, ((&x, &label), (&e, &u))) in out.iter_mut().zip(rows) {
            // NaN passes through.
            let positive = if x < 0.0 { 0.0 } else { x };
            *o = positive - x * label + (*o + (e - (u - 1.0)) / u);
        }
    }
}

simd! {
    /// `dx` holds the sigmoid.
    fn slope(label: &[f32], d: &[f32], dx: &mut [f32]) {
        for ((dx, label), d) in dx.iter_mut().zip(label).zip(d) {
            *dx = d * (*dx - label);
        }
    }
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (dx, dlabel) = (s.out_at("dX"), s.out_at("dLabel"));
    Ok(Box::new(move |io, _| {
        let (x, label, d) = (io.f32(0), io.f32(1), io.f32(2));
        if let Some(at) = dx {
            let dx = io.out_f32(at);
            unary::sigmoid(x, dx);
            slope(label, d, dx);
        }
        if let Some(at) = dlabel {
            io.out_f32(at).iter_mut().zip(x).zip(d).for_each(|((o, x), d)| *o = -d * x);
        }
        Ok(())
    }))
}
