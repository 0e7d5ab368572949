//! `scatter`: X with rows replaced by updates; with `overwrite` the last update of a row stays,
//! otherwise the updates of a row are added up. `scatter_nd_add`: updates added to the positions
//! that the last dimension of the index names.

use regatta_ir::schema::{AttrDef, AttrKind, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::Tensor;

use super::element::Element;
use super::gather::{Positions, nd_shape};
use super::index::{indices, position};
use crate::def::{NO_SECOND, no_samples, spread, whole};
use crate::infer::dims_agree;
use crate::{Grad, GradCtx, Infer, Kernel, KernelError, OpDef, Sample, Spec};

const ATTRS: &[AttrDef] = &[("overwrite", AttrKind::Bool(true))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "scatter",
            inputs: &[one("X"), one("Ids"), one("Updates")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.several(&["X", "Ids", "Updates"], "Out", &["X", "Updates"]))),
        kernel: |s| match s.ins[0].dtype {
            regatta_tensor::DType::I64 => forward::<i64>(s),
            _ => forward::<f32>(s),
        },
        batch: whole,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "scatter_grad",
            inputs: &[one("X"), one("Ids"), one("Updates"), one("dOut")],
            outputs: &[optional("dX"), optional("dUpdates")],
            attrs: ATTRS,
        },
        infer: |i| Ok(i.op.outputs.iter().map(|(slot, _)| i.ty(&slot[1..]).clone()).collect()),
        grad: NO_SECOND,
        kernel: backward,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "scatter_nd_add",
            inputs: &[one("X"), one("Index"), one("Updates")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: infer_nd,
        grad: Grad::Rule(grad_nd),
        kernel: |s| match s.ins[0].dtype {
            regatta_tensor::DType::I64 => forward_nd::<i64>(s),
            _ => forward_nd::<f32>(s),
        },
        batch: whole,
        samples: samples_nd,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let (x, ids, updates) = (i.numbers("X")?, indices(i, "Ids")?, i.dense("Updates")?);
    let [n] = ids.shape[..] else { return Err(i.wrong("Ids", "i64 with one dimension")) };
    if x.shape.is_empty() {
        return Err(i.wrong("X", "an array with at least one dimension"));
    }
    let wanted = VarType::dense(x.dtype, [&[n], &x.shape[1..]].concat());
    let fits = updates.shape.len() == wanted.shape.len()
        && updates.shape.iter().zip(&wanted.shape).all(|(&a, &b)| dims_agree(a, b));
    if !fits || updates.dtype != x.dtype {
        return Err(i.wrong("Updates", &wanted.to_string()));
    }
    Ok(vec![x.clone()])
}

/// Rows of X and elements of one.
fn rows(s: &Spec<'_>) -> (usize, usize) {
    let dims = s.dims(0);
    (dims[0], dims[1..].iter().product())
}

/// Calls `f` with the number of each update and the place of its row.
fn each(
    ids: &[i64],
    (rows, width): (usize, usize),
    mut f: impl FnMut(usize, usize),
) -> Result<(), KernelError> {
    for (n, &id) in ids.iter().enumerate() {
        f(n * width, position(id, rows, 0)? * width);
    }
    Ok(())
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let size = rows(s);
    let width = size.1;
    let overwrite = s.op.bool("overwrite")?;
    Ok(Box::new(move |io, _| {
        let (ids, updates, out) = (io.i64(1), T::input(io, 2), T::output(io, 0));
        out.copy_from_slice(T::input(io, 0));
        if overwrite {
            return each(ids, size, |from, to| {
                out[to..to + width].copy_from_slice(&updates[from..from + width]);
            });
        }
        each(ids, size, |_, to| out[to..to + width].fill(T::default()))?;
        each(ids, size, |from, to| add(&mut out[to..to + width], &updates[from..from + width]))
    }))
}

fn add<T: Element>(to: &mut [T], from: &[T]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = to.plus(from));
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let size = rows(s);
    let width = size.1;
    let (dx, dupdates) = (s.out_at("dX"), s.out_at("dUpdates"));
    Ok(Box::new(move |io, _| {
        let (ids, d) = (io.i64(1), io.f32(3));
        if let Some(dx) = dx {
            let dx = io.out_f32(dx);
            dx.copy_from_slice(d);
            each(ids, size, |_, at| dx[at..at + width].fill(0.0))?;
        }
        if let Some(dupdates) = dupdates {
            let dupdates = io.out_f32(dupdates);
            each(ids, size, |to, at| {
                dupdates[to..to + width].copy_from_slice(&d[at..at + width]);
            })?;
        }
        Ok(())
    }))
}

fn infer_nd(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let (x, index) = (i.numbers("X")?, indices(i, "Index")?);
    let shape = nd_shape(i, x, index, "Index")?;
    i.expect("Updates", &VarType::dense(x.dtype, shape))?;
    Ok(vec![x.clone()])
}

fn grad_nd(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
    let mut ops = Vec::new();
    if let Some(dx) = g.din("X") {
        ops.push(Op::new("assign").input("X", &dout).output("Out", &dx));
    }
    if let Some(d) = g.din("Updates") {
        let gather = Op::new("gather_nd").input("X", &dout).input("Index", &g.op.ins("Index")[0]);
        ops.push(gather.output("Out", &d));
    }
    Ok(ops)
}

fn forward_nd<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let places = Positions::new(&s.dims(0), &s.dims(1));
    Ok(Box::new(move |io, _| {
        let (index, updates, out) = (io.i64(1), T::input(io, 2), T::output(io, 0));
        out.copy_from_slice(T::input(io, 0));
        let step = places.step;
        for n in 0..places.count {
            let at = places.at(index, n)?;
            add(&mut out[at..at + step], &updates[n * step..(n + 1) * step]);
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, ids: &[i64], overwrite: bool| {
        let n = ids.len();
        Sample::x(name, spread(&[4, 3], -1.0, 1.0))
            .with("Ids", Tensor::from_i64(&[n], ids.to_vec()).expect("lengths agree"))
            .with("Updates", spread(&[n, 3], 1.0, 2.0))
            .attr("overwrite", overwrite)
    };
    vec![of("rows replaced", &[2, 0], true), of("added up", &[3, 1, 3], false)]
}

fn samples_nd() -> Vec<Sample> {
    let of = |name, index: &[usize], values: &[i64], updates: &[usize]| {
        Sample::x(name, spread(&[3, 2], -1.0, 1.0))
            .with("Index", Tensor::from_i64(index, values.to_vec()).expect("lengths agree"))
            .with("Updates", spread(updates, 1.0, 2.0))
    };
    vec![
        of("elements, one twice", &[3, 2], &[0, 1, 2, 0, 0, 1], &[3]),
        of("rows", &[2, 1], &[2, 2], &[2, 2]),
    ]
}
