//! `lower_triangle`: what lies below the diagonal of square matrices `[.., n, n]`, row by row, as
//! `[.., n (n - 1) / 2]`: of a matrix of products, every pair once.

use regatta_ir::schema::one;
use regatta_ir::{Error, Schema, VarType};

use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "lower_triangle",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X"]))),
        kernel: forward,
        batch: per_example,
        samples: || {
            vec![
                Sample::x("one matrix", spread(&[1, 3, 3], -1.0, 1.0)),
                Sample::x("several", spread(&[2, 4, 4], -1.0, 1.0)),
                Sample::x("one pair", spread(&[3, 2, 2], -1.0, 1.0)),
            ]
        },
    },
    OpDef {
        schema: Schema {
            kind: "lower_triangle_grad",
            inputs: &[one("X"), one("dOut")],
            outputs: &[one("dX")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    match x.shape[..] {
        [ref leading @ .., a, b] if !leading.is_empty() && a == b && a > 1 => {
            Ok(vec![VarType::f32([leading, &[a * (a - 1) / 2]].concat())])
        }
        _ => Err(i.wrong("X", "f32[batch, .., n, n] with a known n above 1")),
    }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, n) = s.matrix(0);
    Ok(Box::new(move |io, _| {
        let pairs = io.out_f32(0).chunks_exact_mut(n * (n - 1) / 2);
        for (x, mut out) in io.f32(0).chunks_exact(n * n).zip(pairs) {
            for (i, row) in x.chunks_exact(n).enumerate() {
                let (head, rest) = out.split_at_mut(i);
                head.copy_from_slice(&row[..i]);
                out = rest;
            }
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, n) = s.matrix(0);
    Ok(Box::new(move |io, _| {
        let pairs = io.f32(1).chunks_exact(n * (n - 1) / 2);
        for (dx, mut d) in io.out_f32(0).chunks_exact_mut(n * n).zip(pairs) {
            for (i, row) in dx.chunks_exact_mut(n).enumerate() {
                let (head, rest) = d.split_at(i);
                row[..i].copy_from_slice(head);
                row[i..].fill(0.0);
                d = rest;
            }
        }
        Ok(())
    }))
}
