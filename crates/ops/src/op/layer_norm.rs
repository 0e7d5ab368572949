//! `layer_norm`: each row of the last dimension to mean 0 and variance 1, then scaled and shifted
//! by learned vectors. `Mean` and `InvStd` are kept for the gradient.

use regatta_ir::schema::{AttrKind, one, optional};
use regatta_ir::{Error, Schema, VarType};
use regatta_kernels::{simd, vector};

use super::cross_entropy::last_dim_one;
use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "layer_norm",
            inputs: &[one("X"), one("Scale"), one("Bias")],
            outputs: &[one("Y"), one("Mean"), one("InvStd")],
            attrs: &[("epsilon", AttrKind::Float(1e-5))],
        },
        infer,
        grad: Grad::Rule(|g| {
            Ok(g.several(&["X", "Scale", "Mean", "InvStd"], "Y", &["X", "Scale", "Bias"]))
        }),
        kernel: forward,
        batch: per_example,
        samples: || {
            let of = |name, shape: &[usize], width| {
                Sample::x(name, spread(shape, -2.0, 2.0))
                    .with("Scale", spread(&[width], 0.5, 1.5))
                    .with("Bias", spread(&[width], -0.5, 0.5))
                    .ignore("Mean")
                    .ignore("InvStd")
            };
            vec![of("rows", &[3, 6], 6), of("three dimensions", &[2, 2, 5], 5)]
        },
    },
    OpDef {
        schema: Schema {
            kind: "layer_norm_grad",
            inputs: &[one("X"), one("Scale"), one("Mean"), one("InvStd"), one("dY")],
            outputs: &[optional("dX"), optional("dScale"), optional("dBias")],
            attrs: &[("epsilon", AttrKind::Float(1e-5))],
        },
        infer: |i| {
            let of = |slot: &str| if slot == "dX" { i.ty("X") } else { i.ty("Scale") };
            Ok(i.op.outputs.iter().map(|(slot, _)| of(slot).clone()).collect())
        },
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    let width = match x.shape[..] {
        [.., d] if d > 0 => d,
        _ => return Err(i.wrong("X", "f32[.., width] with a known width")),
    };
    i.expect("Scale", &VarType::f32([width]))?;
    i.expect("Bias", &VarType::f32([width]))?;
    let stat = VarType::f32(last_dim_one(&x.shape));
    Ok(vec![x.clone(), stat.clone(), stat])
}

simd! {
    fn shift(x: &[f32], by: f32, y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x - by;
        }
    }
}

simd! {
    /// `y = y * inv * scale + bias`.
    fn stretch(y: &mut [f32], inv: f32, scale: &[f32], bias: &[f32]) {
        for ((y, scale), bias) in y.iter_mut().zip(scale).zip(bias) {
            *y = *y * inv * scale + bias;
        }
    }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, width) = s.matrix(0);
    let epsilon = s.op.float("epsilon")? as f32;
    let share = 1.0 / width as f32;
    Ok(Box::new(move |io, _| {
        let (x, scale, bias) = (io.f32(0), io.f32(1), io.f32(2));
        let (y, mean, inv_std) = (io.out_f32(0), io.out_f32(1), io.out_f32(2));
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
        for ((x, y), (mean, inv)) in rows.zip(mean.iter_mut().zip(inv_std)) {
            *mean = vector::sum(x) * share;
            shift(x, *mean, y);
            *inv = 1.0 / (vector::sum_of_squares(y) * share + epsilon).sqrt();
            stretch(y, *inv, scale, bias);
        }
        Ok(())
    }))
}

simd! {
    /// The normalised row, and the gradient that reaches it.
    fn normalised(
        x: &[f32],
        mean: f32,
        inv: f32,
        scale: &[f32],
        d: &[f32],
        hat: &mut [f32],
        g: &mut [f32],
    ) {
        for (hat, x) in hat.iter_mut().zip(x) {
            *hat = (x - mean) * inv;
        }
        for ((g, d), scale) in g.iter_mut().zip(d).zip(scale) {
            *g = d * scale;
        }
    }
}

simd! {
    fn row_grad(hat: &[f32], g: &[f32], mean_g: f32, mean_gh: f32, inv: f32, dx: &mut [f32]) {
        for ((dx, hat), g) in dx.iter_mut().zip(hat).zip(g) {
            *dx = inv * (g - mean_g - hat * mean_gh);
        }
    }
}

simd! {
    fn add_products(x: &[f32], y: &[f32], sums: &mut [f32]) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, width) = s.matrix(0);
    let share = 1.0 / width as f32;
    let (dx, dscale, dbias) = (s.out_at("dX"), s.out_at("dScale"), s.out_at("dBias"));
    let (mut hat, mut g) = (vec![0.0; width], vec![0.0; width]);
    Ok(Box::new(move |io, _| {
        let (x, scale, mean, inv_std, d) = (io.f32(0), io.f32(1), io.f32(2), io.f32(3), io.f32(4));
        if let Some(at) = dbias {
            regatta_kernels::rows::column_sums(d, false, io.out_f32(at));
        }
        let mut dx = dx.map(|at| io.out_f32(at).chunks_exact_mut(width));
        let mut dscale = dscale.map(|at| io.out_f32(at));
        if let Some(dscale) = &mut dscale {
            dscale.fill(0.0);
        }
        let rows = x.chunks_exact(width).zip(d.chunks_exact(width));
        for ((x, d), (&mean, &inv)) in rows.zip(mean.iter().zip(inv_std)) {
            normalised(x, mean, inv, scale, d, &mut hat, &mut g);
            if let Some(dscale) = &mut dscale {
                add_products(d, &hat, dscale);
            }
            if let Some(dx) = dx.as_mut().and_then(Iterator::next) {
                let mean_g = vector::sum(&g) * share;
                let mean_gh = vector::dot(&g, &hat) * share;
                row_grad(&hat, &g, mean_g, mean_gh, inv, dx);
            }
        }
        Ok(())
    }))
}
