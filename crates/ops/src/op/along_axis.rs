//! `take_along_axis`: elements of X that an index of the same rank names along one dimension;
//! `put_along_axis`: X with values written there (`reduce` is `assign`) or added (`add`). In the
//! other dimensions X, index and values broadcast. Of values written to one place the last stays.

use regatta_ir::schema::{AttrDef, AttrKind, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::Tensor;

use super::broadcast::broadcast_shape;
use super::element::{Element, around, batch_from_end, by_dtype, say_zero};
use super::index::{indices, position};
use super::walk::{Strides, Walk, step_to};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, Infer, Kernel, KernelError, OpDef, Sample, Spec};

const TAKE: &[AttrDef] = &[("axis", AttrKind::RequiredInt)];
const PUT: &[AttrDef] = &[("axis", AttrKind::RequiredInt), ("reduce", AttrKind::Str("assign"))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "take_along_axis",
            inputs: &[one("X"), one("Index")],
            outputs: &[one("Out")],
            attrs: TAKE,
        },
        infer: |i| {
            let shape = shape(i)?;
            Ok(vec![VarType::dense(i.ty("X").dtype, shape)])
        },
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Index"]))),
        kernel: |s| by_dtype!(s.ins[0], take(s)),
        batch,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "take_along_axis_grad",
            inputs: &[one("X"), one("Index"), one("dOut")],
            outputs: &[one("dX")],
            attrs: TAKE,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: take_grad,
        batch,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "put_along_axis",
            inputs: &[one("X"), one("Index"), one("Value")],
            outputs: &[one("Out")],
            attrs: PUT,
        },
        infer: infer_put,
        grad: Grad::Rule(|g| Ok(g.several(&["X", "Index", "Value"], "Out", &["X", "Value"]))),
        kernel: |s| by_dtype!(s.ins[0], put(s)),
        batch,
        samples: samples_put,
    },
    OpDef {
        schema: Schema {
            kind: "put_along_axis_grad",
            inputs: &[one("X"), one("Index"), one("Value"), one("dOut")],
            outputs: &[optional("dX"), optional("dValue")],
            attrs: PUT,
        },
        infer: |i| Ok(i.op.outputs.iter().map(|(slot, _)| i.ty(&slot[1..]).clone()).collect()),
        grad: NO_SECOND,
        kernel: put_grad,
        batch,
        samples: no_samples,
    },
];

fn batch(op: &Op) -> Batch {
    if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::PerExample }
}

/// What X and the index broadcast to, with the size of the index along the dimension.
fn shape(i: &Infer<'_>) -> Result<Vec<i64>, Error> {
    let (x, index) = (i.dense("X")?, indices(i, "Index")?);
    let rank = x.shape.len();
    let (axis, given) = (i.axis("axis", rank)?, i.op.int("axis")?);
    if batch_from_end(x, given, axis) || batch_from_end(index, given, axis) {
        return Err(say_zero(i, "axis", given));
    }
    let misfit = || {
        let wanted = format!("i64 that broadcasts with {:?} but for dimension {axis}", x.shape);
        i.wrong("Index", &wanted)
    };
    if index.shape.len() != rank {
        return Err(misfit());
    }
    let mut others = x.shape.clone();
    others[axis] = index.shape[axis];
    broadcast_shape(&others, &index.shape).ok_or_else(misfit)
}

fn infer_put(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let (x, places, value) = (i.dense("X")?, shape(i)?, i.dense("Value")?);
    let reduce = i.op.str("reduce")?;
    if !["assign", "add"].contains(&reduce) {
        let reason = format!("is \"{reduce}\", but should be \"assign\" or \"add\"");
        return Err(i.bad_attr("reduce", reason));
    }
    if reduce == "add" {
        i.numbers("X")?;
    }
    let axis = i.axis("axis", x.shape.len())?;
    if (0..places.len()).any(|d| d != axis && places[d] != x.shape[d]) {
        return Err(i.wrong("Index", &format!("i64 that broadcasts to {x} but for one dimension")));
    }
    let fits = broadcast_shape(&places, &value.shape).is_some_and(|shape| shape == places);
    if !fits || value.dtype != x.dtype {
        return Err(i.wrong("Value", &format!("{} that broadcasts to {places:?}", x.dtype)));
    }
    Ok(vec![x.clone()])
}

/// A walk over the named places; array 0 is a dense one of their shape or the values, array 1 the
/// index and array 2 is X at position 0 of the dimension.
struct Places {
    walk: Walk<3>,
    axis: usize,
    size: usize,
    step: isize,
}

impl Places {
    /// Array 0 has `dims`, or those of the places if there are none.
    fn new(s: &Spec<'_>, dims: Option<Vec<usize>>) -> Result<Places, Error> {
        let (x, index) = (s.dims(0), s.dims(1));
        let axis = resolve_axis(s.op.int("axis")?, x.len()).unwrap_or(0);
        let mut shape = Vec::with_capacity(x.len());
        for (d, (&in_x, &in_index)) in x.iter().zip(&index).enumerate() {
            shape.push(if d == axis || in_x == 1 { in_index } else { in_x });
        }
        let mut of_x = Strides::broadcast(&x, x.len());
        of_x.steps[axis] = 0;
        let first = dims.unwrap_or_else(|| shape.clone());
        let arrays = [
            Strides::broadcast(&first, shape.len()),
            Strides::broadcast(&index, shape.len()),
            of_x,
        ];
        let step = around(&x, axis).1 as isize;
        Ok(Places { walk: Walk::new(&shape, arrays), axis, size: x[axis], step })
    }

    /// Calls `f` with the positions in array 0 and in X, in order.
    fn for_each(&self, index: &[i64], mut f: impl FnMut(usize, usize)) -> Result<(), KernelError> {
        let mut wrong = None;
        self.walk.for_each(|[first, at, x]| match position(index[at], self.size, self.axis) {
            Ok(i) => f(first, step_to(x, self.step, i)),
            Err(e) => wrong = Some(e),
        });
        wrong.map_or(Ok(()), Err)
    }
}

fn take<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let places = Places::new(s, None)?;
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), T::output(io, 0));
        places.for_each(io.i64(1), |to, from| out[to] = x[from])
    }))
}

fn take_grad(s: &Spec<'_>) -> Result<Kernel, Error> {
    let places = Places::new(s, None)?;
    Ok(Box::new(move |io, _| {
        let (d, dx) = (io.f32(2), io.out_f32(0));
        dx.fill(0.0);
        places.for_each(io.i64(1), |from, to| dx[to] += d[from])
    }))
}

fn put<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let places = Places::new(s, Some(s.dims(2)))?;
    let adds = s.op.str("reduce")? == "add";
    Ok(Box::new(move |io, _| {
        let (value, out) = (T::input(io, 2), T::output(io, 0));
        out.copy_from_slice(T::input(io, 0));
        if adds {
            places.for_each(io.i64(1), |from, to| out[to] = out[to].plus(value[from]))
        } else {
            places.for_each(io.i64(1), |from, to| out[to] = value[from])
        }
    }))
}

fn put_grad(s: &Spec<'_>) -> Result<Kernel, Error> {
    let places = Places::new(s, Some(s.dims(2)))?;
    let adds = s.op.str("reduce")? == "add";
    let (dx, dvalue) = (s.out_at("dX"), s.out_at("dValue"));
    Ok(Box::new(move |io, _| {
        let (index, d) = (io.i64(1), io.f32(3));
        if let Some(dx) = dx {
            let dx = io.out_f32(dx);
            dx.copy_from_slice(d);
            if !adds {
                places.for_each(index, |_, at| dx[at] = 0.0)?;
            }
        }
        if let Some(dvalue) = dvalue {
            let dvalue = io.out_f32(dvalue);
            dvalue.fill(0.0);
            places.for_each(index, |to, at| dvalue[to] += d[at])?;
        }
        Ok(())
    }))
}

fn index(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_i64(shape, values.to_vec()).expect("lengths agree")
}

fn samples() -> Vec<Sample> {
    let of = |name, x: &[usize], axis: i64, at: Tensor| {
        Sample::x(name, spread(x, -1.0, 1.0)).with("Index", at).attr("axis", axis)
    };
    vec![
        of("columns", &[2, 4], 1, index(&[2, 3], &[0, 3, 3, -1, 1, 1])),
        of("rows", &[3, 2], 0, index(&[1, 2], &[2, 0])),
        of("one index for all rows", &[3, 4], -1, index(&[1, 2], &[1, 3])),
        of("one row for all indices", &[1, 4], 1, index(&[2, 2], &[1, 3, 1, 0])),
        of("in the middle", &[2, 3, 2], 1, index(&[2, 1, 2], &[0, 2, 1, 1])),
    ]
}

fn samples_put() -> Vec<Sample> {
    let of = |name, reduce: &str, axis: i64, at: Tensor, value: &[usize]| {
        let sample = Sample::x(name, spread(&[3, 4], -1.0, 1.0)).with("Index", at);
        sample.with("Value", spread(value, 1.0, 2.0)).attr("axis", axis).attr("reduce", reduce)
    };
    let columns = || index(&[3, 2], &[0, 3, 1, 0, -1, 2]);
    vec![
        of("written", "assign", 1, columns(), &[3, 2]),
        of("one value", "assign", 1, columns(), &[1]),
        of("added", "add", 1, columns(), &[3, 2]),
        of("added to one place", "add", 0, index(&[2, 4], &[0, 1, 1, 2, 0, 1, 0, 2]), &[2, 1]),
        of("one index for all rows", "assign", 1, index(&[1, 2], &[2, 0]), &[3, 2]),
    ]
}
