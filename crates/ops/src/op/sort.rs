//! `argsort` and `topk` along a dimension: values in order and their positions. Equal ones keep
//! their order; NaN counts as larger than everything. Gradients go back to where values came from.

use std::cmp::Ordering;

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::{DType, Tensor};

use super::element::{Element, around, batch_from_end, say_zero};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

const SORT: &[AttrDef] = &[("axis", AttrKind::Int(-1)), ("descending", AttrKind::Bool(false))];
const TOP: &[AttrDef] =
    &[("axis", AttrKind::Int(-1)), ("k", AttrKind::RequiredInt), ("largest", AttrKind::Bool(true))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "argsort",
            inputs: &[one("X")],
            outputs: &[one("Out"), one("Indices")],
            attrs: SORT,
        },
        infer: |i| {
            let (x, axis) = along(i)?;
            results(x, axis, x.shape[axis])
        },
        grad: Grad::Rule(back),
        kernel: |s| in_order(s, s.op.bool("descending")?),
        batch,
        samples: sorts,
    },
    OpDef {
        schema: Schema {
            kind: "topk",
            inputs: &[one("X")],
            outputs: &[one("Out"), one("Indices")],
            attrs: TOP,
        },
        infer: |i| {
            let (x, axis) = along(i)?;
            let (k, size) = (i.op.int("k")?, x.shape[axis]);
            if k < 1 || (size >= 0 && k > size) {
                let reason = format!("is {k}, but dimension {axis} of {x} has {size} elements");
                return Err(i.bad_attr("k", reason));
            }
            results(x, axis, k)
        },
        grad: Grad::Rule(back),
        kernel: |s| in_order(s, s.op.bool("largest")?),
        batch,
        samples: tops,
    },
];

fn batch(op: &Op) -> Batch {
    if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::PerExample }
}

fn along<'a>(i: &Infer<'a>) -> Result<(&'a VarType, usize), Error> {
    let x = i.numbers("X")?;
    let (axis, given) = (i.axis("axis", x.shape.len())?, i.op.int("axis")?);
    if batch_from_end(x, given, axis) {
        return Err(say_zero(i, "axis", given));
    }
    Ok((x, axis))
}

fn results(x: &VarType, axis: usize, n: i64) -> Result<Vec<VarType>, Error> {
    let mut values = x.clone();
    values.shape[axis] = n;
    Ok(vec![values.clone(), VarType { dtype: DType::I64, ..values }])
}

fn back(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
    let op = Op::new("take_along_axis_grad").attr("axis", g.op.int("axis")?);
    let op = op.input("X", &g.op.ins("X")[0]).input("Index", &g.op.outs("Indices")[0]);
    Ok(vec![op.input("dOut", &dout).output("dX", &dx)])
}

/// An order of all values.
trait Ranked: Element {
    fn rank(self, other: Self) -> Ordering;
}

impl Ranked for f32 {
    fn rank(self, other: f32) -> Ordering {
        self.partial_cmp(&other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
    }
}

impl Ranked for i64 {
    fn rank(self, other: i64) -> Ordering {
        self.cmp(&other)
    }
}

fn in_order(s: &Spec<'_>, descending: bool) -> Result<Kernel, Error> {
    match s.ins[0].dtype {
        DType::I64 => order::<i64>(s, descending),
        _ => order::<f32>(s, descending),
    }
}

fn order<T: Ranked>(s: &Spec<'_>, descending: bool) -> Result<Kernel, Error> {
    let dims = s.dims(0);
    let axis = resolve_axis(s.op.int("axis")?, dims.len()).unwrap_or(0);
    let (size, step) = (dims[axis], around(&dims, axis).1);
    let k = s.outs[0].shape[axis] as usize;
    let mut line: Vec<(T, i64)> = vec![(T::default(), 0); size];
    // Positions break ties, so that the order is that of a stable sort without its memory.
    let compare = move |a: &(T, i64), b: &(T, i64)| {
        let values = if descending { b.0.rank(a.0) } else { a.0.rank(b.0) };
        values.then(a.1.cmp(&b.1))
    };
    Ok(Box::new(move |io, _| {
        let (x, out, indices) = (T::input(io, 0), T::output(io, 0), io.out_i64(1));
        if out.is_empty() {
            return Ok(());
        }
        for (block, x) in x.chunks_exact(size * step).enumerate() {
            for column in 0..step {
                for (n, slot) in line.iter_mut().enumerate() {
                    *slot = (x[n * step + column], n as i64);
                }
                if k < size {
                    line.select_nth_unstable_by(k - 1, compare);
                }
                line[..k].sort_unstable_by(compare);
                for (n, &(value, index)) in line[..k].iter().enumerate() {
                    let to = (block * k + n) * step + column;
                    out[to] = value;
                    indices[to] = index;
                }
            }
        }
        Ok(())
    }))
}

/// Far apart and all different, so that no step of the check changes the order.
fn apart(shape: &[usize]) -> regatta_tensor::Value {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (i * 7 % 29) as f32 * 0.25 - 3.0).collect();
    Tensor::from_f32(shape, values).expect("lengths agree").into()
}

fn sorts() -> Vec<Sample> {
    let of = |name, shape: &[usize], axis: i64, descending: bool| {
        Sample::x(name, apart(shape)).attr("axis", axis).attr("descending", descending)
    };
    vec![
        of("columns", &[3, 4], -1, false),
        of("rows, largest first", &[4, 3], 0, true),
        of("in the middle", &[2, 4, 3], 1, false),
    ]
}

fn tops() -> Vec<Sample> {
    let of = |name, shape: &[usize], axis: i64, k: i64, largest: bool| {
        Sample::x(name, apart(shape)).attr("axis", axis).attr("k", k).attr("largest", largest)
    };
    vec![
        of("two largest", &[3, 5], -1, 2, true),
        of("smallest of rows", &[4, 3], 0, 1, false),
        of("all", &[2, 3], 1, 3, true),
    ]
}
