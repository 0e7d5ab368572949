//! Ops whose result is X seen in another way: `strided_slice`, `flip`, `expand`, `expand_as` and
//! `tile`. Each says where the elements of its result are in X; gradients go back to these places
//! and add up where an element is seen more than once.

use regatta_ir::schema::{AttrDef, AttrKind, SlotDef, one};
use regatta_ir::{Error, Op, Schema, VarType};

use super::element::{Element, by_dtype};
use super::span::{self, spans};
use super::walk::{Strides, Walk};
use crate::def::{NO_SECOND, linear, linear_in_dout, no_samples, per_example, spread};
use crate::infer::resolve_axis;
use crate::{Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

/// The walk over the result (array 0) and X (array 1).
type Seen = fn(&Op, &[usize], &[usize]) -> Result<Walk<2>, Error>;

const fn forward_def(
    kind: &'static str,
    attrs: &'static [AttrDef],
    infer: fn(&Infer<'_>) -> Result<Vec<VarType>, Error>,
    kernel: fn(&Spec<'_>) -> Result<Kernel, Error>,
    samples: fn() -> Vec<Sample>,
) -> OpDef {
    let schema =
        Schema { kind, inputs: const { &[one("X")] }, outputs: const { &[one("Out")] }, attrs };
    let grad = Grad::Rule(|g| Ok(g.unary(&["X"])));
    OpDef { schema, infer, grad, kernel, batch: linear, samples }
}

const GRAD_INPUTS: &[SlotDef] = &[one("X"), one("dOut")];

const fn grad_def(
    kind: &'static str,
    attrs: &'static [AttrDef],
    kernel: fn(&Spec<'_>) -> Result<Kernel, Error>,
) -> OpDef {
    OpDef {
        schema: Schema { kind, inputs: GRAD_INPUTS, outputs: const { &[one("dX")] }, attrs },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel,
        batch: linear_in_dout,
        samples: no_samples,
    }
}

const FLIP: &[AttrDef] = &[("axes", AttrKind::RequiredInts)];
const EXPAND: &[AttrDef] = &[("shape", AttrKind::RequiredInts)];
const TILE: &[AttrDef] = &[("repeats", AttrKind::RequiredInts)];

pub(crate) static DEFS: &[OpDef] = &[
    forward_def("strided_slice", span::ATTRS, span::infer, |s| forward(s, sliced), slices),
    grad_def("strided_slice_grad", span::ATTRS, |s| backward(s, sliced)),
    OpDef {
        grad: Grad::Rule(turn_back),
        ..forward_def("flip", FLIP, infer_flip, |s| forward(s, flipped), flips)
    },
    forward_def("expand", EXPAND, infer_expand, |s| forward(s, expanded), expansions),
    grad_def("expand_grad", EXPAND, |s| backward(s, expanded)),
    OpDef {
        schema: Schema {
            kind: "expand_as",
            inputs: &[one("X"), one("Y")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| {
            let shape = broadcast_to(i, &i.dense("Y")?.shape)?;
            Ok(vec![VarType::dense(i.ty("X").dtype, shape)])
        },
        grad: Grad::Rule(|g| {
            let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
            let op = Op::new("expand_grad").attr("shape", (g.ty)(&g.op.ins("Y")[0]).shape);
            Ok(vec![op.input("X", &g.op.ins("X")[0]).input("dOut", &dout).output("dX", &dx)])
        }),
        kernel: |s| forward(s, expanded),
        batch: per_example,
        samples: || {
            let sample = Sample::x("a row for each", spread(&[1, 4], -1.0, 1.0));
            vec![sample.with("Y", spread(&[3, 4], 0.0, 1.0)).fix("Y")]
        },
    },
    forward_def("tile", TILE, infer_tile, |s| forward(s, tiled), tilings),
    grad_def("tile_grad", TILE, |s| backward(s, tiled)),
];

fn out_dims(ty: &VarType) -> Vec<usize> {
    ty.shape.iter().map(|&d| d as usize).collect()
}

fn forward(s: &Spec<'_>, seen: Seen) -> Result<Kernel, Error> {
    let walk = seen(s.op, &s.dims(0), &out_dims(&s.outs[0]))?;
    by_dtype!(s.ins[0], copy(walk))
}

fn copy<T: Element>(walk: Walk<2>) -> Result<Kernel, Error> {
    Ok(Box::new(move |io, _| {
        walk.copy(T::output(io, 0), T::input(io, 0));
        Ok(())
    }))
}

fn backward(s: &Spec<'_>, seen: Seen) -> Result<Kernel, Error> {
    let walk = seen(s.op, &s.dims(0), &s.dims(1))?;
    Ok(Box::new(move |io, _| {
        let (d, dx) = (io.f32(1), io.out_f32(0));
        dx.fill(0.0);
        walk.add_back(dx, d);
        Ok(())
    }))
}

fn sliced(op: &Op, x: &[usize], out: &[usize]) -> Result<Walk<2>, Error> {
    Ok(Walk::new(out, [Strides::dense(out), spans(op, x)?]))
}

/// The dimensions to turn, if all are there and different.
fn axes(op: &Op, rank: usize) -> Result<Option<Vec<usize>>, Error> {
    let axes: Option<Vec<usize>> =
        op.ints("axes")?.iter().map(|&axis| resolve_axis(axis, rank)).collect();
    Ok(axes.filter(|axes| (1..axes.len()).all(|i| !axes[..i].contains(&axes[i]))))
}

fn infer_flip(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let axes = axes(i.op, x.shape.len())?.ok_or_else(|| {
        let given = i.op.ints("axes").unwrap_or_default();
        i.bad_attr("axes", format!("{given:?} are not different dimensions of {x}"))
    })?;
    if axes.contains(&0) && x.is_batched() {
        return Err(i.wrong("X", "an array of known size; the batch cannot be turned round"));
    }
    Ok(vec![x.clone()])
}

fn flipped(op: &Op, x: &[usize], _: &[usize]) -> Result<Walk<2>, Error> {
    let mut seen = Strides::dense(x);
    for axis in axes(op, x.len())?.unwrap_or_default() {
        let step = seen.steps[axis];
        seen.start += x[axis].saturating_sub(1) * step as usize;
        seen.steps[axis] = -step;
    }
    Ok(Walk::new(x, [Strides::dense(x), seen]))
}

fn turn_back(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
    let axes = g.op.ints("axes")?;
    Ok(vec![Op::new("flip").input("X", &dout).attr("axes", axes).output("Out", &dx)])
}

/// A shape to which X broadcasts; -1 keeps the dimension of X.
fn infer_expand(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let mut shape = i.op.ints("shape")?;
    let missing = shape.len().saturating_sub(x.shape.len());
    for (at, d) in shape.iter_mut().enumerate().filter(|(_, d)| **d < 0) {
        let Some(&kept) = at.checked_sub(missing).and_then(|at| x.shape.get(at)) else {
            let reason = format!("keeps dimension {at} of the result, which X, {x}, does not have");
            return Err(i.bad_attr("shape", reason));
        };
        *d = kept;
    }
    Ok(vec![VarType::dense(x.dtype, broadcast_to(i, &shape)?)])
}

fn broadcast_to(i: &Infer<'_>, shape: &[i64]) -> Result<Vec<i64>, Error> {
    let x = i.dense("X")?;
    let fits = x.shape.len() <= shape.len()
        && x.shape.iter().rev().zip(shape.iter().rev()).all(|(&d, &to)| d == 1 || d == to);
    if !fits {
        return Err(i.wrong("X", &format!("an array that broadcasts to {shape:?}")));
    }
    if shape.iter().skip(1).any(|&d| d == -1) {
        return Err(i.wrong("X", "an array whose batch stays the first dimension"));
    }
    Ok(shape.to_vec())
}

fn expanded(_: &Op, x: &[usize], out: &[usize]) -> Result<Walk<2>, Error> {
    Ok(Walk::new(out, [Strides::dense(out), Strides::broadcast(x, out.len())]))
}

/// Shape and repeats with as many dimensions as the longer one of them has.
fn aligned<T: Copy>(x: &[T], repeats: &[i64], one: T) -> (Vec<T>, Vec<i64>) {
    let rank = x.len().max(repeats.len());
    let dims = std::iter::repeat_n(one, rank - x.len()).chain(x.iter().copied()).collect();
    let repeats = std::iter::repeat_n(1, rank - repeats.len()).chain(repeats.iter().copied());
    (dims, repeats.collect())
}

fn infer_tile(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let given = i.op.ints("repeats")?;
    if let Some(n) = given.iter().find(|&&n| n < 0) {
        return Err(i.bad_attr("repeats", format!("{given:?} has {n}, which is negative")));
    }
    let (dims, repeats) = aligned(&x.shape, &given, 1);
    let sizes = dims.iter().zip(&repeats);
    let unknown = |(at, (&d, &n)): (usize, (&i64, &i64))| d < 0 && (n != 1 || (d == -1 && at > 0));
    if sizes.clone().enumerate().any(unknown) {
        let reason = format!("{given:?} repeats a dimension of {x} whose size is not known");
        return Err(i.bad_attr("repeats", reason));
    }
    let shape: Vec<i64> = sizes.map(|(d, n)| d * n).collect();
    Ok(vec![VarType::dense(x.dtype, shape)])
}

fn tiled(op: &Op, x: &[usize], _: &[usize]) -> Result<Walk<2>, Error> {
    let (dims, repeats) = aligned(x, &op.ints("repeats")?, 1);
    let own = Strides::dense(&dims).steps;
    // Every dimension is two: which repetition, and where in it.
    let both: Vec<usize> = dims.iter().zip(&repeats).flat_map(|(&d, &n)| [n as usize, d]).collect();
    let steps = own.into_iter().flat_map(|step| [0, step]).collect();
    Ok(Walk::new(&both, [Strides::dense(&both), Strides { start: 0, steps }]))
}

fn slices() -> Vec<Sample> {
    let cut = |name, shape: &[usize], cuts: &[(i64, i64, i64, i64)]| {
        let of = |f: fn(&(i64, i64, i64, i64)) -> i64| cuts.iter().map(f).collect::<Vec<i64>>();
        Sample::x(name, spread(shape, -1.0, 1.0))
            .attr("axes", of(|c| c.0))
            .attr("starts", of(|c| c.1))
            .attr("ends", of(|c| c.2))
            .attr("strides", of(|c| c.3))
    };
    vec![
        cut("every second", &[5, 2], &[(0, 0, 5, 2)]),
        cut("backwards", &[4, 3], &[(1, -1, -100, -1)]),
        cut("backwards in twos", &[7], &[(0, 5, 0, -2)]),
        cut("two dimensions", &[4, 2, 5], &[(0, 1, 3, 1), (2, -4, 100, 3)]),
    ]
}

fn flips() -> Vec<Sample> {
    let turn = |name, shape: &[usize], axes: Vec<i64>| {
        Sample::x(name, spread(shape, -1.0, 1.0)).attr("axes", axes)
    };
    vec![turn("rows", &[3, 2], vec![0]), turn("two dimensions", &[2, 3, 4], vec![-1, 1])]
}

fn expansions() -> Vec<Sample> {
    let to = |name, shape: &[usize], to: Vec<i64>| {
        Sample::x(name, spread(shape, -1.0, 1.0)).attr("shape", to)
    };
    vec![
        to("rows", &[1, 3], vec![4, 3]),
        to("columns kept", &[2, 1, 3], vec![-1, 4, -1]),
        to("more dimensions", &[3, 1], vec![2, 3, 2]),
        to("as it is", &[2, 2], vec![2, 2]),
    ]
}

fn tilings() -> Vec<Sample> {
    let of = |name, shape: &[usize], repeats: Vec<i64>| {
        Sample::x(name, spread(shape, -1.0, 1.0)).attr("repeats", repeats)
    };
    vec![
        of("rows and columns", &[2, 3], vec![2, 3]),
        of("fewer repeats than dimensions", &[2, 1, 2], vec![3]),
        of("more repeats than dimensions", &[3], vec![2, 1, 2]),
    ]
}
