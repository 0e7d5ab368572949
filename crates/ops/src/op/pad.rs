//! `pad`: X with a constant around it; `paddings` has two sizes, before and after, for each
//! dimension. `roll`: elements moved along dimensions, those beyond an end coming in at the other.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::half::{bf16_from_f32, f16_from_f32};
use regatta_tensor::DType;

use super::element::{Element, by_dtype};
use super::walk::{Strides, Walk};
use crate::def::{NO_SECOND, linear, linear_in_dout, no_samples, spread};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

const PAD: &[AttrDef] = &[("paddings", AttrKind::RequiredInts), ("value", AttrKind::Float(0.0))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema { kind: "pad", inputs: &[one("X")], outputs: &[one("Out")], attrs: PAD },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X"]))),
        kernel: forward,
        batch: |op| match op.float("value") {
            Ok(0.0) => Batch::Linear,
            _ => Batch::PerExample,
        },
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "pad_grad",
            inputs: &[one("X"), one("dOut")],
            outputs: &[one("dX")],
            attrs: PAD,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: |s| {
            let x = s.dims(0);
            let walk = Walk::new(&x, [Strides::dense(&x), inside(s.op, &x)?]);
            let kernel: Kernel = Box::new(move |io, _| {
                walk.copy(io.out_f32(0), io.f32(1));
                Ok(())
            });
            Ok(kernel)
        },
        batch: linear_in_dout,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "roll",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: &[("shifts", AttrKind::RequiredInts), ("axes", AttrKind::RequiredInts)],
        },
        infer: infer_roll,
        grad: Grad::Rule(roll_back),
        kernel: |s| by_dtype!(s.ins[0], roll(s)),
        batch: linear,
        samples: rolls,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let paddings = i.op.ints("paddings")?;
    let refuse = |reason: &str| Err(i.bad_attr("paddings", format!("{paddings:?} {reason}, {x}")));
    if paddings.len() != 2 * x.shape.len() {
        return refuse("should be two sizes for each dimension of X");
    }
    if paddings.iter().any(|&n| n < 0) {
        return refuse("should not be negative; slice X");
    }
    let mut shape = x.shape.clone();
    for (d, around) in shape.iter_mut().zip(paddings.chunks_exact(2)) {
        if *d >= 0 {
            *d += around[0] + around[1];
        } else if around != [0, 0] {
            return refuse("pads a dimension of unknown size of X");
        }
    }
    Ok(vec![VarType::dense(x.dtype, shape)])
}

/// Where the elements of X are in the padded array.
fn inside(op: &Op, x: &[usize]) -> Result<Strides, Error> {
    let paddings = op.ints("paddings")?;
    let around = paddings.chunks_exact(2);
    let padded: Vec<usize> =
        x.iter().zip(around.clone()).map(|(d, n)| d + (n[0] + n[1]) as usize).collect();
    let mut strides = Strides::dense(&padded);
    strides.start =
        around.zip(&strides.steps).map(|(n, step)| n[0] as usize * *step as usize).sum();
    Ok(strides)
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let value = s.op.float("value")?;
    let x = s.dims(0);
    let walk = Walk::new(&x, [inside(s.op, &x)?, Strides::dense(&x)]);
    Ok(match s.ins[0].dtype {
        DType::F32 => place(walk, value as f32),
        DType::F16 => place(walk, f16_from_f32(value as f32)),
        DType::BF16 => place(walk, bf16_from_f32(value as f32)),
        DType::I64 => place(walk, value as i64),
        DType::U64 => place(walk, value as u64),
    })
}

fn place<T: Element>(walk: Walk<2>, value: T) -> Kernel {
    Box::new(move |io, _| {
        let out = T::output(io, 0);
        out.fill(value);
        walk.copy(out, T::input(io, 0));
        Ok(())
    })
}

fn infer_roll(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let (shifts, axes) = (i.op.ints("shifts")?, i.op.ints("axes")?);
    if shifts.len() != axes.len() {
        return Err(i.bad_attr("shifts", "should be as many as axes"));
    }
    for axis in axes {
        let Some(at) = resolve_axis(axis, x.shape.len()) else {
            return Err(i.bad_attr("axes", format!("has {axis}, which is no dimension of {x}")));
        };
        if x.shape[at] < 0 {
            return Err(i.wrong("X", &format!("an array with a known size of dimension {at}")));
        }
    }
    Ok(vec![x.clone()])
}

fn roll_back(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
    let shifts: Vec<i64> = g.op.ints("shifts")?.iter().map(|n| -n).collect();
    let op = Op::new("roll").attr("shifts", shifts).attr("axes", g.op.ints("axes")?);
    Ok(vec![op.input("X", &dout).output("Out", &dx)])
}

/// In each rolled dimension there are two parts that move as one; all combinations of them.
fn roll<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let dims = s.dims(0);
    let mut shift = vec![0; dims.len()];
    for (n, axis) in s.op.ints("shifts")?.iter().zip(s.op.ints("axes")?) {
        let at = resolve_axis(axis, dims.len()).unwrap_or(0);
        shift[at] = (shift[at] + n).rem_euclid((dims[at] as i64).max(1));
    }
    let dense = Strides::dense(&dims);
    // Sizes of a part and its beginning in the result and in X.
    let mut parts = vec![(dims.clone(), dense.clone(), dense)];
    for (d, &n) in shift.iter().enumerate().filter(|(_, n)| **n != 0) {
        let (n, size) = (n as usize, dims[d]);
        let halves = parts.into_iter().flat_map(|(sizes, to, from)| {
            let step = to.steps[d] as usize;
            let (mut head, mut tail) =
                ((sizes.clone(), to.clone(), from.clone()), (sizes, to, from));
            head.0[d] = n;
            head.2.start += (size - n) * step;
            tail.0[d] = size - n;
            tail.1.start += n * step;
            [head, tail]
        });
        parts = halves.collect();
    }
    let walks: Vec<_> =
        parts.into_iter().map(|(sizes, to, from)| Walk::new(&sizes, [to, from])).collect();
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), T::output(io, 0));
        walks.iter().for_each(|walk| walk.copy(out, x));
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, shape: &[usize], paddings: Vec<i64>| {
        Sample::x(name, spread(shape, -1.0, 1.0)).attr("paddings", paddings).attr("value", 0.5)
    };
    vec![
        of("all around", &[2, 3], vec![1, 2, 0, 1]),
        of("nothing", &[2], vec![0, 0]),
        of("images", &[1, 2, 2, 2], vec![0, 0, 0, 0, 1, 1, 2, 0]),
    ]
}

fn rolls() -> Vec<Sample> {
    let of = |name, shape: &[usize], shifts: Vec<i64>, axes: Vec<i64>| {
        Sample::x(name, spread(shape, -1.0, 1.0)).attr("shifts", shifts).attr("axes", axes)
    };
    vec![
        of("a vector", &[5], vec![2], vec![0]),
        of("backwards", &[3, 4], vec![-1], vec![1]),
        of("two dimensions, beyond the size", &[3, 4, 2], vec![4, -5], vec![0, 1]),
        of("not at all", &[3], vec![3], vec![0]),
    ]
}
