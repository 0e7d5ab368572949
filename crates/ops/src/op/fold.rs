//! Further reductions over some dimensions: `reduce_prod` (floats or integers), `reduce_all` and
//! `reduce_any` (1 or 0), `logsumexp` and `p_norm`.
//!
//! `p_norm` takes any `p` from 0 (how many are not 0) to infinity (the largest absolute value).

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Schema, VarType};
use regatta_tensor::{DType, Tensor};

use super::reduce::{
    ATTRS, batch_of_dims, belonging, fold, forward_schema, infer_by_dims, map_back, samples,
};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

const NORM: &[AttrDef] =
    &[("dims", AttrKind::Ints), ("keep_dim", AttrKind::Bool(false)), ("p", AttrKind::Float(2.0))];

const fn def(
    schema: Schema,
    infer: fn(&Infer<'_>) -> Result<Vec<VarType>, Error>,
    grad: Grad,
    kernel: fn(&Spec<'_>) -> Result<Kernel, Error>,
    samples: fn() -> Vec<Sample>,
) -> OpDef {
    OpDef { schema, infer, grad, kernel, batch: batch_of_dims, samples }
}

const fn grad_def(
    kind: &'static str,
    attrs: &'static [AttrDef],
    kernel: fn(&Spec<'_>) -> Result<Kernel, Error>,
) -> OpDef {
    let (inputs, outputs) =
        (const { &[one("X"), one("Out"), one("dOut")] }, const { &[one("dX")] });
    let schema = Schema { kind, inputs, outputs, attrs };
    def(schema, |i| Ok(vec![i.floats("X")?.clone()]), NO_SECOND, kernel, no_samples)
}

const BY_RESULT: Grad = Grad::Rule(|g| Ok(g.unary(&["X", "Out"])));
const STEPS: Grad = Grad::None("its result is a whole number and has steps only");

pub(crate) static DEFS: &[OpDef] = &[
    def(
        forward_schema("reduce_prod"),
        |i| infer_by_dims(i, i.numbers("X")?),
        BY_RESULT,
        |s| match s.ins[0].dtype {
            DType::I64 => fold(s, 1, i64::wrapping_mul),
            _ => fold(s, 1.0, |a: f32, b: f32| a * b),
        },
        products,
    ),
    grad_def("reduce_prod_grad", ATTRS, prod_grad),
    def(forward_schema("reduce_all"), infer_truth, STEPS, all, no_samples),
    def(forward_schema("reduce_any"), infer_truth, STEPS, any, no_samples),
    def(
        forward_schema("logsumexp"),
        |i| infer_by_dims(i, i.floats("X")?),
        BY_RESULT,
        log_sum_exp,
        samples,
    ),
    grad_def("logsumexp_grad", ATTRS, |s| map_back(s, |x, out, d| d * (x - out).exp())),
    def(
        Schema { kind: "p_norm", inputs: &[one("X")], outputs: &[one("Out")], attrs: NORM },
        |i| {
            if i.op.float("p")?.is_nan() || i.op.float("p")? < 0.0 {
                return Err(i.bad_attr("p", "should not be negative"));
            }
            infer_by_dims(i, i.floats("X")?)
        },
        BY_RESULT,
        norm,
        norms,
    ),
    grad_def("p_norm_grad", NORM, norm_grad),
];

/// The product of the others, also where some factors are 0.
fn prod_grad(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = belonging(s)?;
    let n_outs = s.ins[1].numel().unwrap_or(0);
    let (mut zeros, mut rest) = (vec![0u32; n_outs], vec![0.0f32; n_outs]);
    Ok(Box::new(move |io, _| {
        let (x, d, dx) = (io.f32(0), io.f32(2), io.out_f32(0));
        if x.is_empty() {
            return Ok(());
        }
        zeros.fill(0);
        rest.fill(1.0);
        let (n, _, step) = walk.inner;
        walk.for_each_run(|_, at, to| {
            for (i, &x) in x[at..at + n].iter().enumerate() {
                if x == 0.0 {
                    zeros[to + i * step] += 1;
                } else {
                    rest[to + i * step] *= x;
                }
            }
        });
        walk.for_each_run(|_, at, to| {
            for i in 0..n {
                let to = to + i * step;
                let others = match (x[at + i] == 0.0, zeros[to]) {
                    (true, 1) => rest[to],
                    (false, 0) => rest[to] / x[at + i],
                    _ => 0.0,
                };
                dx[at + i] = d[to] * others;
            }
        });
        Ok(())
    }))
}

fn infer_truth(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let mut types = infer_by_dims(i, i.numbers("X")?)?;
    types[0].dtype = DType::I64;
    Ok(types)
}

fn all(s: &Spec<'_>) -> Result<Kernel, Error> {
    match s.ins[0].dtype {
        DType::F32 => fold(s, 1, |all: i64, x: f32| all & i64::from(x != 0.0)),
        _ => fold(s, 1, |all: i64, x: i64| all & i64::from(x != 0)),
    }
}

fn any(s: &Spec<'_>) -> Result<Kernel, Error> {
    match s.ins[0].dtype {
        DType::F32 => fold(s, 0, |any: i64, x: f32| any | i64::from(x != 0.0)),
        _ => fold(s, 0, |any: i64, x: i64| any | i64::from(x != 0)),
    }
}

fn log_sum_exp(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = belonging(s)?;
    let mut largest = vec![0.0f32; s.outs[0].numel().unwrap_or(0)];
    Ok(Box::new(move |io, _| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        largest.fill(f32::NEG_INFINITY);
        out.fill(0.0);
        if !x.is_empty() {
            let (n, _, step) = walk.inner;
            walk.for_each_run(|_, at, to| {
                for (i, &x) in x[at..at + n].iter().enumerate() {
                    largest[to + i * step] = largest[to + i * step].max(x);
                }
            });
            // Infinities are their own result, and must not meet themselves in a difference.
            largest.iter_mut().filter(|x| x.is_infinite()).for_each(|x| *x = 0.0);
            walk.for_each_run(|_, at, to| {
                for (i, &x) in x[at..at + n].iter().enumerate() {
                    let to = to + i * step;
                    out[to] += (x - largest[to]).exp();
                }
            });
        }
        out.iter_mut().zip(&largest).for_each(|(o, max)| *o = o.ln() + max);
        Ok(())
    }))
}

fn norm(s: &Spec<'_>) -> Result<Kernel, Error> {
    let p = s.op.float("p")? as f32;
    if p == f32::INFINITY {
        return fold(s, 0.0, |a: f32, x: f32| if x.abs() > a || x.is_nan() { x.abs() } else { a });
    }
    if p == 0.0 {
        return fold(s, 0.0, |a: f32, x: f32| a + f32::from(x != 0.0));
    }
    if p == 1.0 {
        return fold(s, 0.0, |a: f32, x: f32| a + x.abs());
    }
    let walk = belonging(s)?;
    Ok(Box::new(move |io, _| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        out.fill(0.0);
        let (n, _, step) = walk.inner;
        if !x.is_empty() {
            walk.for_each_run(|_, at, to| {
                for (i, &x) in x[at..at + n].iter().enumerate() {
                    out[to + i * step] += if p == 2.0 { x * x } else { x.abs().powf(p) };
                }
            });
        }
        let root = |sum: f32| if p == 2.0 { sum.sqrt() } else { sum.powf(1.0 / p) };
        out.iter_mut().for_each(|o| *o = root(*o));
        Ok(())
    }))
}

fn norm_grad(s: &Spec<'_>) -> Result<Kernel, Error> {
    let p = s.op.float("p")? as f32;
    let sign = |x: f32| if x == 0.0 { 0.0 } else { x.signum() };
    if p == f32::INFINITY {
        return map_back(s, move |x, out, d| if x.abs() == out { d * sign(x) } else { 0.0 });
    }
    if p == 0.0 {
        return map_back(s, |_, _, _| 0.0);
    }
    if p == 2.0 {
        return map_back(s, |x, out, d| if out == 0.0 { 0.0 } else { d * x / out });
    }
    map_back(s, move |x, out, d| {
        // At 0 there is no slope; below p = 1 it would be infinite.
        if x == 0.0 { 0.0 } else { d * sign(x) * (x.abs() / out).powf(p - 1.0) }
    })
}

fn products() -> Vec<Sample> {
    let of = |name, values: &[f32], dims: Vec<i64>| {
        let x = Tensor::from_f32(&[3, 3], values.to_vec()).expect("lengths agree");
        Sample::x(name, x.into()).attr("dims", dims)
    };
    let some = [1.5, -0.5, 2.0, 0.7, 1.1, -1.3, 0.4, 0.9, 1.2];
    let one_zero = [1.5, 0.0, 2.0, 0.7, 1.1, -1.3, 0.4, 0.9, 0.0];
    vec![
        of("rows", &some, vec![1]),
        of("all", &some, vec![]),
        of("a zero in a column", &one_zero, vec![0]),
        of("two zeros", &one_zero, vec![]),
        Sample::x("in the middle", spread(&[2, 3, 2], 0.5, 1.5)).attr("dims", vec![1]),
    ]
}

fn norms() -> Vec<Sample> {
    let of = |name, p: f64, dims: Vec<i64>| {
        let x = Tensor::from_f32(&[2, 3], vec![1.5, -0.5, 2.0, 0.7, -1.1, 0.3]);
        Sample::x(name, x.expect("lengths agree").into()).attr("p", p).attr("dims", dims)
    };
    vec![
        of("two", 2.0, vec![1]),
        of("one", 1.0, vec![0]),
        of("three, all", 3.0, vec![]),
        of("largest", f64::INFINITY, vec![1]),
        of("a root", 0.5, vec![1]),
        of("count", 0.0, vec![1]),
    ]
}
