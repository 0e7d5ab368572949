//! `gather`: the slices of X along a dimension that an index names, in its order; the dimensions of
//! the index take the place of that dimension. `gather_nd`: the last dimension of the index names
//! positions in the first dimensions of X. Gradients add up where an index repeats.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::Tensor;

use super::element::{Element, around, batch_from_end, by_dtype, say_zero};
use super::index::{indices, position};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, Infer, Kernel, KernelError, OpDef, Sample, Spec};

const AXIS: &[AttrDef] = &[("axis", AttrKind::Int(0))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "gather",
            inputs: &[one("X"), one("Index")],
            outputs: &[one("Out")],
            attrs: AXIS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Index"]))),
        kernel: |s| by_dtype!(s.ins[0], forward(s)),
        batch,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "gather_grad",
            inputs: &[one("X"), one("Index"), one("dOut")],
            outputs: &[one("dX")],
            attrs: AXIS,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: backward,
        batch,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "gather_nd",
            inputs: &[one("X"), one("Index")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: infer_nd,
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Index"]))),
        kernel: |s| by_dtype!(s.ins[0], forward_nd(s)),
        batch: |_| Batch::RowsOf(&["Index"]),
        samples: samples_nd,
    },
    OpDef {
        schema: Schema {
            kind: "gather_nd_grad",
            inputs: &[one("X"), one("Index"), one("dOut")],
            outputs: &[one("dX")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: backward_nd,
        batch: |_| Batch::RowsOf(&["Index", "dOut"]),
        samples: no_samples,
    },
];

/// Rows of X that all examples share go to the examples of the index; along any other dimension
/// each example of X has its own.
fn batch(op: &Op) -> Batch {
    let slots: &[&str] = if op.int("axis") == Ok(0) { &["Index", "dOut"] } else { &["X", "dOut"] };
    Batch::RowsOf(slots)
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let (x, index) = (i.dense("X")?, indices(i, "Index")?);
    let (axis, given) = (i.axis("axis", x.shape.len())?, i.op.int("axis")?);
    if batch_from_end(x, given, axis) {
        return Err(say_zero(i, "axis", given));
    }
    if axis > 0 && index.shape.contains(&-1) {
        let wanted = format!("i64 of known size for dimension {axis}; the batch must stay first");
        return Err(i.wrong("Index", &wanted));
    }
    let shape = [&x.shape[..axis], &index.shape, &x.shape[axis + 1..]].concat();
    Ok(vec![VarType::dense(x.dtype, shape)])
}

/// How X and its index lie in memory.
struct Slices {
    axis: usize,
    /// Size of the dimension.
    size: usize,
    /// Elements of a slice in one block.
    step: usize,
    /// Positions that the index means; written by each run.
    at: Vec<usize>,
}

impl Slices {
    fn new(s: &Spec<'_>) -> Result<Slices, Error> {
        let dims = s.dims(0);
        let axis = resolve_axis(s.op.int("axis")?, dims.len()).unwrap_or(0);
        let n = s.dims(1).iter().product();
        Ok(Slices { axis, size: dims[axis], step: around(&dims, axis).1, at: vec![0; n] })
    }

    fn resolve(&mut self, index: &[i64]) -> Result<(), KernelError> {
        for (at, &index) in self.at.iter_mut().zip(index) {
            *at = position(index, self.size, self.axis)?;
        }
        Ok(())
    }
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let mut slices = Slices::new(s)?;
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), T::output(io, 0));
        slices.resolve(io.i64(1))?;
        let Slices { size, step, at, .. } = &slices;
        if out.is_empty() {
            return Ok(());
        }
        let blocks = out.chunks_exact_mut(at.len() * step).zip(x.chunks_exact(size * step));
        for (out, x) in blocks {
            for (out, at) in out.chunks_exact_mut(*step).zip(at) {
                out.copy_from_slice(&x[at * step..(at + 1) * step]);
            }
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let mut slices = Slices::new(s)?;
    Ok(Box::new(move |io, _| {
        let (d, dx) = (io.f32(2), io.out_f32(0));
        slices.resolve(io.i64(1))?;
        dx.fill(0.0);
        let Slices { size, step, at, .. } = &slices;
        if d.is_empty() {
            return Ok(());
        }
        let blocks = d.chunks_exact(at.len() * step).zip(dx.chunks_exact_mut(size * step));
        for (d, dx) in blocks {
            for (d, at) in d.chunks_exact(*step).zip(at) {
                let dx = &mut dx[at * step..(at + 1) * step];
                dx.iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
            }
        }
        Ok(())
    }))
}

fn infer_nd(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let (x, index) = (i.dense("X")?, indices(i, "Index")?);
    let shape = nd_shape(i, x, index, "Index")?;
    Ok(vec![VarType::dense(x.dtype, shape)])
}

/// The shape of what an index of positions names.
pub(super) fn nd_shape(
    i: &Infer<'_>,
    x: &VarType,
    index: &VarType,
    slot: &str,
) -> Result<Vec<i64>, Error> {
    let depth = index.shape.last().and_then(|&d| usize::try_from(d).ok());
    let Some(depth) = depth.filter(|&d| d <= x.shape.len()) else {
        let wanted = format!("i64[.., depth] with a depth of at most {} for {x}", x.shape.len());
        return Err(i.wrong(slot, &wanted));
    };
    let leading = &index.shape[..index.shape.len() - 1];
    Ok([leading, &x.shape[depth..]].concat())
}

/// Positions that are named by several numbers each.
pub(super) struct Positions {
    /// Size and step of the dimensions that are named.
    dims: Vec<(usize, usize)>,
    /// Elements at a position.
    pub(super) step: usize,
    /// How many there are.
    pub(super) count: usize,
}

impl Positions {
    /// In an array, by an index of positions.
    pub(super) fn new(x: &[usize], index: &[usize]) -> Positions {
        let (depth, leading) = index.split_last().map_or((0, &[][..]), |(d, rest)| (*d, rest));
        let dims = (0..depth).map(|d| (x[d], around(x, d).1)).collect();
        let step = x[depth..].iter().product();
        Positions { dims, step, count: leading.iter().product() }
    }

    /// Where position `n` begins.
    pub(super) fn at(&self, index: &[i64], n: usize) -> Result<usize, KernelError> {
        let depth = self.dims.len();
        let mut at = 0;
        for (d, &(size, step)) in self.dims.iter().enumerate() {
            at += position(index[n * depth + d], size, d)? * step;
        }
        Ok(at)
    }
}

fn forward_nd<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let places = Positions::new(&s.dims(0), &s.dims(1));
    Ok(Box::new(move |io, _| {
        let (x, index, out) = (T::input(io, 0), io.i64(1), T::output(io, 0));
        let step = places.step;
        for n in 0..places.count {
            let at = places.at(index, n)?;
            out[n * step..(n + 1) * step].copy_from_slice(&x[at..at + step]);
        }
        Ok(())
    }))
}

fn backward_nd(s: &Spec<'_>) -> Result<Kernel, Error> {
    let places = Positions::new(&s.dims(0), &s.dims(1));
    Ok(Box::new(move |io, _| {
        let (index, d, dx) = (io.i64(1), io.f32(2), io.out_f32(0));
        dx.fill(0.0);
        let step = places.step;
        for n in 0..places.count {
            let at = places.at(index, n)?;
            let d = &d[n * step..(n + 1) * step];
            dx[at..at + step].iter_mut().zip(d).for_each(|(dx, d)| *dx += d);
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, shape: &[usize], axis: i64, index: &[usize], values: &[i64]| {
        let index = Tensor::from_i64(index, values.to_vec()).expect("lengths agree");
        Sample::x(name, spread(shape, -1.0, 1.0)).with("Index", index).attr("axis", axis)
    };
    vec![
        of("rows, one twice", &[4, 3], 0, &[3], &[2, 0, 2]),
        of("columns from the end", &[2, 4], -1, &[2], &[-1, 1]),
        of("in the middle", &[2, 3, 2], 1, &[4], &[0, 2, 1, 1]),
        of("a matrix of indices", &[3, 2], 0, &[2, 2], &[0, 1, 2, 0]),
        of("one index", &[3, 2], 0, &[], &[1]),
        of("of a vector", &[5], 0, &[2], &[4, 0]),
    ]
}

fn samples_nd() -> Vec<Sample> {
    let of = |name, shape: &[usize], index: &[usize], values: &[i64]| {
        let index = Tensor::from_i64(index, values.to_vec()).expect("lengths agree");
        Sample::x(name, spread(shape, -1.0, 1.0)).with("Index", index)
    };
    vec![
        of("elements", &[3, 4], &[3, 2], &[0, 1, 2, 3, 0, 1]),
        of("rows", &[3, 4], &[2, 1], &[2, -3]),
        of("a matrix of positions", &[2, 3, 2], &[2, 2, 2], &[0, 0, 1, 2, 1, 1, 0, 0]),
        of("the whole", &[2, 2], &[2, 0], &[]),
    ]
}
