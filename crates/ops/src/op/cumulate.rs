//! `cumsum` and `cumprod` along a dimension. A sum may leave out its own element (`exclusive`) and
//! begin at the end (`reverse`).

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::{DType, Tensor};

use super::element::{Element, around, batch_from_end, say_zero};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

const SUM: &[AttrDef] = &[
    ("axis", AttrKind::RequiredInt),
    ("exclusive", AttrKind::Bool(false)),
    ("reverse", AttrKind::Bool(false)),
];
const PROD: &[AttrDef] = &[("axis", AttrKind::RequiredInt)];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema { kind: "cumsum", inputs: &[one("X")], outputs: &[one("Out")], attrs: SUM },
        infer,
        grad: Grad::Rule(sum_back),
        kernel: |s| match s.ins[0].dtype {
            DType::I64 => sum::<i64>(s),
            _ => sum::<f32>(s),
        },
        batch,
        samples: sums,
    },
    OpDef {
        schema: Schema {
            kind: "cumprod",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: PROD,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Out"]))),
        kernel: |s| match s.ins[0].dtype {
            DType::I64 => prod(s, i64::wrapping_mul),
            _ => prod(s, |a: f32, b: f32| a * b),
        },
        batch,
        samples: prods,
    },
    OpDef {
        schema: Schema {
            kind: "cumprod_grad",
            inputs: &[one("X"), one("Out"), one("dOut")],
            outputs: &[one("dX")],
            attrs: PROD,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: prod_grad,
        batch,
        samples: no_samples,
    },
];

fn batch(op: &Op) -> Batch {
    if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::PerExample }
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.numbers("X")?;
    let (axis, given) = (i.axis("axis", x.shape.len())?, i.op.int("axis")?);
    if batch_from_end(x, given, axis) {
        return Err(say_zero(i, "axis", given));
    }
    Ok(vec![x.clone()])
}

/// What goes back through a sum from one end is a sum from the other.
fn sum_back(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
    let mut op = Op::new("cumsum");
    op.attrs = g.op.attrs.clone();
    let op = op.attr("reverse", !g.op.bool("reverse")?);
    Ok(vec![op.input("X", &dout).output("Out", &dx)])
}

/// Elements that follow each other, and elements from one of them to the next.
fn sizes(s: &Spec<'_>) -> Result<(usize, usize), Error> {
    let dims = s.dims(0);
    let axis = resolve_axis(s.op.int("axis")?, dims.len()).unwrap_or(0);
    Ok((dims[axis], around(&dims, axis).1))
}

fn sum<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (size, step) = sizes(s)?;
    let (exclusive, reverse) = (s.op.bool("exclusive")?, s.op.bool("reverse")?);
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), T::output(io, 0));
        if x.is_empty() {
            return Ok(());
        }
        for (x, out) in x.chunks_exact(size * step).zip(out.chunks_exact_mut(size * step)) {
            for column in 0..step {
                let mut sum = T::default();
                for n in 0..size {
                    let at = column + step * if reverse { size - 1 - n } else { n };
                    let next = sum.plus(x[at]);
                    out[at] = if exclusive { sum } else { next };
                    sum = next;
                }
            }
        }
        Ok(())
    }))
}

fn prod<T: Element>(
    s: &Spec<'_>,
    times: impl Fn(T, T) -> T + Send + 'static,
) -> Result<Kernel, Error> {
    let (size, step) = sizes(s)?;
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), T::output(io, 0));
        if x.is_empty() {
            return Ok(());
        }
        for (x, out) in x.chunks_exact(size * step).zip(out.chunks_exact_mut(size * step)) {
            out[..step].copy_from_slice(&x[..step]);
            for at in step..size * step {
                out[at] = times(out[at - step], x[at]);
            }
        }
        Ok(())
    }))
}

fn prod_grad(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (size, step) = sizes(s)?;
    Ok(Box::new(move |io, _| {
        let (x, out, d, dx) = (io.f32(0), io.f32(1), io.f32(2), io.out_f32(0));
        if x.is_empty() {
            return Ok(());
        }
        for block in (0..x.len()).step_by(size * step) {
            for column in block..block + step {
                let mut after = 0.0;
                for n in (0..size).rev() {
                    let at = column + n * step;
                    after += d[at] * out[at];
                    let last = column + (size - 1) * step;
                    let of_zero = || others(x, out, d, (column, at, last), step);
                    dx[at] = if x[at] == 0.0 { of_zero() } else { after / x[at] };
                }
            }
        }
        Ok(())
    }))
}

/// The gradient of a factor that is 0: what the products were without it.
fn others(
    x: &[f32],
    out: &[f32],
    d: &[f32],
    (first, at, last): (usize, usize, usize),
    step: usize,
) -> f32 {
    let mut product = if at == first { 1.0 } else { out[at - step] };
    let mut sum = d[at] * product;
    for later in (at + step..=last).step_by(step) {
        product *= x[later];
        sum += d[later] * product;
    }
    sum
}

fn sums() -> Vec<Sample> {
    let of = |name, shape: &[usize], axis: i64, exclusive: bool, reverse: bool| {
        let sample = Sample::x(name, spread(shape, -1.0, 1.0)).attr("axis", axis);
        sample.attr("exclusive", exclusive).attr("reverse", reverse)
    };
    vec![
        of("rows", &[3, 4], 0, false, false),
        of("columns, from the end", &[3, 4], -1, false, true),
        of("in the middle, exclusive", &[2, 3, 2], 1, true, false),
        of("exclusive, from the end", &[5], 0, true, true),
    ]
}

fn prods() -> Vec<Sample> {
    let values = vec![1.5, -0.5, 2.0, 0.7, 0.0, -1.3, 0.0, 0.9, 0.0];
    let zeros = Tensor::from_f32(&[3, 3], values).expect("lengths agree");
    vec![
        Sample::x("columns", spread(&[2, 4], 0.5, 1.5)).attr("axis", 1),
        Sample::x("in the middle", spread(&[2, 3, 2], 0.5, 1.5)).attr("axis", 1),
        Sample::x("zeros in rows", zeros.clone().into()).attr("axis", 1),
        Sample::x("zeros in columns", zeros.into()).attr("axis", 0),
    ]
}
