//! `reduce_sum` and `reduce_mean` over some dimensions; without any given over all of them, which
//! makes shape `[1]`. What all reductions share is here too.
//!
//! Over the batch, a sum or mean of a part of the batch gives the part's share of the whole, so
//! that the parts add up. Sums are of floats or of signed integers, which wrap around.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::{simd, vector};
use regatta_tensor::DType;

use super::broadcast::Broadcast;
use super::element::{Element, batch_from_end, say_zero};
use crate::def::{NO_SECOND, linear, linear_in_dout, no_samples, spread};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, Infer, Kernel, OpDef, Sample, Spec, StepCtx};

pub(super) const ATTRS: &[AttrDef] =
    &[("dims", AttrKind::Ints), ("keep_dim", AttrKind::Bool(false))];

pub(super) const fn forward_schema(kind: &'static str) -> Schema {
    Schema { kind, inputs: const { &[one("X")] }, outputs: const { &[one("Out")] }, attrs: ATTRS }
}

const fn grad_schema(kind: &'static str) -> Schema {
    Schema {
        kind,
        inputs: const { &[one("X"), one("dOut")] },
        outputs: const { &[one("dX")] },
        attrs: ATTRS,
    }
}

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: forward_schema("reduce_sum"),
        infer: |i| infer_of(i, i.numbers("X")?),
        grad: Grad::Rule(|g| Ok(g.unary(&["X"]))),
        kernel: |s| match s.ins[0].dtype {
            DType::I64 => fold(s, 0, i64::wrapping_add),
            _ => sum(s, false),
        },
        batch: linear,
        samples,
    },
    OpDef {
        schema: grad_schema("reduce_sum_grad"),
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: |s| sum_grad(s, false),
        batch: linear_in_dout,
        samples: no_samples,
    },
    OpDef {
        schema: forward_schema("reduce_mean"),
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X"]))),
        kernel: |s| sum(s, true),
        batch: linear,
        samples,
    },
    OpDef {
        schema: grad_schema("reduce_mean_grad"),
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: |s| sum_grad(s, true),
        batch: linear_in_dout,
        samples: no_samples,
    },
];

/// For reductions whose parts do not add up.
pub(super) fn batch_of_dims(op: &Op) -> Batch {
    let dims = op.ints("dims").unwrap_or_default();
    if dims.is_empty() || dims.contains(&0) { Batch::Whole } else { Batch::PerExample }
}

/// For each dimension, whether it is reduced; nothing if one is named twice or not there.
fn reduced(op: &Op, rank: usize) -> Result<Option<Vec<bool>>, Error> {
    let dims = op.ints("dims")?;
    let mut reduced = vec![dims.is_empty(); rank];
    for given in dims {
        match resolve_axis(given, rank) {
            Some(d) if !reduced[d] => reduced[d] = true,
            _ => return Ok(None),
        }
    }
    Ok(Some(reduced))
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    infer_of(i, i.floats("X")?)
}

/// For reductions whose parts do not add up: the batch must be named as dimension 0.
pub(super) fn infer_by_dims(i: &Infer<'_>, x: &VarType) -> Result<Vec<VarType>, Error> {
    for given in i.op.ints("dims")? {
        if resolve_axis(given, x.shape.len()).is_some_and(|d| batch_from_end(x, given, d)) {
            return Err(say_zero(i, "dims", given));
        }
    }
    infer_of(i, x)
}

fn infer_of(i: &Infer<'_>, x: &VarType) -> Result<Vec<VarType>, Error> {
    let reduced = reduced(i.op, x.shape.len())?.ok_or_else(|| {
        let dims = i.op.ints("dims").unwrap_or_default();
        i.bad_attr("dims", format!("{dims:?} are not different dimensions of {x}"))
    })?;
    let keep = i.op.bool("keep_dim")?;
    let dims = x.shape.iter().zip(&reduced);
    let mut shape: Vec<i64> = dims
        .filter(|(_, reduced)| keep || !**reduced)
        .map(|(&d, &reduced)| if reduced { 1 } else { d })
        .collect();
    if shape.is_empty() {
        shape.push(1);
    }
    Ok(vec![VarType::dense(x.dtype, shape)])
}

/// How the elements of X lie with respect to those of the result.
enum Walk {
    /// `[.., r, c]` to `[.., c]`.
    Middle { r: usize, c: usize },
    /// Any other way.
    Any(Broadcast),
}

/// The dimensions of X with reduced ones as 1.
fn kept_dims(dims: &[usize], reduced: &[bool]) -> Vec<usize> {
    dims.iter().zip(reduced).map(|(&d, &reduced)| if reduced { 1 } else { d }).collect()
}

fn reduced_of(s: &Spec<'_>) -> Result<(Vec<usize>, Vec<bool>), Error> {
    let dims = s.dims(0);
    let reduced = reduced(s.op, dims.len())?.unwrap_or_default();
    Ok((dims, reduced))
}

impl Walk {
    fn new(dims: &[usize], reduced: &[bool]) -> Walk {
        // Neighbours of one sort are one dimension.
        let mut sorts: Vec<(usize, bool)> = Vec::new();
        for (&d, &reduced) in dims.iter().zip(reduced).filter(|(d, _)| **d != 1) {
            match sorts.last_mut() {
                Some(last) if last.1 == reduced => last.0 *= d,
                _ => sorts.push((d, reduced)),
            }
        }
        match sorts[..] {
            [] | [(_, false)] => Walk::Middle { r: 1, c: 1 },
            [(r, true)] | [(_, false), (r, true)] => Walk::Middle { r, c: 1 },
            [(r, true), (c, false)] | [(_, false), (r, true), (c, false)] => Walk::Middle { r, c },
            _ => Walk::Any(Broadcast::new(dims, &kept_dims(dims, reduced))),
        }
    }
}

/// What a sum over the reduced dimensions is multiplied by.
struct Factor {
    mean: bool,
    /// Elements per result, in this part of the batch.
    count: usize,
    over_batch: bool,
}

impl Factor {
    fn new(s: &Spec<'_>, mean: bool, dims: &[usize], reduced: &[bool]) -> Factor {
        let count = dims.iter().zip(reduced).filter(|(_, r)| **r).map(|(d, _)| d).product();
        Factor { mean, count, over_batch: s.batched(0) && reduced[0] }
    }

    fn get(&self, ctx: &StepCtx) -> f32 {
        if !self.mean {
            return 1.0;
        }
        let count = if self.over_batch { ctx.whole_count(self.count) } else { self.count };
        1.0 / count.max(1) as f32
    }
}

simd! {
    /// Sums `r` rows of `c` values each.
    fn sum_rows(x: &[f32], r: usize, c: usize, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(r * c).zip(out.chunks_exact_mut(c)) {
            for row in x.chunks_exact(c) {
                for (o, x) in out.iter_mut().zip(row) {
                    *o += x;
                }
            }
        }
    }
}

simd! {
    /// The gradient of each of `r` rows of `c` values is that of their sum times a factor.
    fn repeat_rows(d: &[f32], r: usize, c: usize, factor: f32, dx: &mut [f32]) {
        for (d, dx) in d.chunks_exact(c).zip(dx.chunks_exact_mut(r * c)) {
            for row in dx.chunks_exact_mut(c) {
                for (dx, d) in row.iter_mut().zip(d) {
                    *dx = d * factor;
                }
            }
        }
    }
}

/// Values that are added before the sum moves to a wider type: long sums stay exact to the last
/// digits.
const BLOCK: usize = 4096;

/// Rows shorter than this are not worth a call.
const NARROW: usize = 16;

fn long_sum(x: &[f32]) -> f32 {
    match x.len() {
        0..NARROW => x.iter().sum(),
        NARROW..=BLOCK => vector::sum(x),
        _ => x.chunks(BLOCK).map(|x| f64::from(vector::sum(x))).sum::<f64>() as f32,
    }
}

fn sum(s: &Spec<'_>, mean: bool) -> Result<Kernel, Error> {
    let (dims, reduced) = reduced_of(s)?;
    let factor = Factor::new(s, mean, &dims, &reduced);
    let walk = Walk::new(&dims, &reduced);
    Ok(Box::new(move |io, ctx| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        out.fill(0.0);
        match &walk {
            _ if x.is_empty() => {}
            Walk::Middle { r, c: 1 } => {
                x.chunks_exact(*r).zip(&mut *out).for_each(|(x, o)| *o = long_sum(x));
            }
            Walk::Middle { r, c } => sum_rows(x, *r, *c, out),
            Walk::Any(walk) => {
                let (n, _, step) = walk.inner;
                walk.for_each_run(|_, from, to| {
                    let x = &x[from..from + n];
                    if step == 0 {
                        out[to] += long_sum(x);
                    } else {
                        vector::add_assign(&mut out[to..to + n], x);
                    }
                });
            }
        }
        if mean {
            vector::scale(factor.get(ctx), out);
        }
        Ok(())
    }))
}

fn sum_grad(s: &Spec<'_>, mean: bool) -> Result<Kernel, Error> {
    let (dims, reduced) = reduced_of(s)?;
    let factor = Factor::new(s, mean, &dims, &reduced);
    let walk = Walk::new(&dims, &reduced);
    Ok(Box::new(move |io, ctx| {
        let (d, dx) = (io.f32(1), io.out_f32(0));
        let factor = factor.get(ctx);
        match &walk {
            _ if dx.is_empty() => {}
            Walk::Middle { r, c: 1 } => {
                dx.chunks_exact_mut(*r).zip(d).for_each(|(dx, d)| dx.fill(d * factor));
            }
            Walk::Middle { r, c } => repeat_rows(d, *r, *c, factor, dx),
            Walk::Any(walk) => {
                let (n, _, step) = walk.inner;
                walk.for_each_run(|_, to, from| {
                    let dx = &mut dx[to..to + n];
                    if step == 0 {
                        dx.fill(d[from] * factor);
                    } else {
                        let d = &d[from..from + n];
                        dx.iter_mut().zip(d).for_each(|(dx, d)| *dx = d * factor);
                    }
                });
            }
        }
        Ok(())
    }))
}

/// Which element of the result each element of X belongs to.
pub(super) fn belonging(s: &Spec<'_>) -> Result<Broadcast, Error> {
    let (dims, reduced) = reduced_of(s)?;
    Ok(Broadcast::new(&dims, &kept_dims(&dims, &reduced)))
}

/// The kernel that folds the elements of X into those of the result, beginning with `first`.
pub(super) fn fold<T: Element, O: Element>(
    s: &Spec<'_>,
    first: O,
    f: impl Fn(O, T) -> O + Copy + Send + 'static,
) -> Result<Kernel, Error> {
    let walk = belonging(s)?;
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), O::output(io, 0));
        out.fill(first);
        if x.is_empty() {
            return Ok(());
        }
        let (n, _, step) = walk.inner;
        walk.for_each_run(|_, from, to| {
            let x = &x[from..from + n];
            if step == 0 {
                out[to] = x.iter().fold(out[to], |out, &x| f(out, x));
            } else {
                out[to..to + n].iter_mut().zip(x).for_each(|(o, &x)| *o = f(*o, x));
            }
        });
        Ok(())
    }))
}

/// The kernel of a gradient `dX = f(x, out, dout)` from X, Out and dOut.
pub(super) fn map_back(
    s: &Spec<'_>,
    f: impl Fn(f32, f32, f32) -> f32 + Copy + Send + 'static,
) -> Result<Kernel, Error> {
    let walk = belonging(s)?;
    Ok(Box::new(move |io, _| {
        let (x, out, d, dx) = (io.f32(0), io.f32(1), io.f32(2), io.out_f32(0));
        if x.is_empty() {
            return Ok(());
        }
        let (n, _, step) = walk.inner;
        walk.for_each_run(|_, at, to| {
            for (i, (dx, &x)) in dx[at..at + n].iter_mut().zip(&x[at..at + n]).enumerate() {
                *dx = f(x, out[to + i * step], d[to + i * step]);
            }
        });
        Ok(())
    }))
}

pub(super) fn samples() -> Vec<Sample> {
    // Far apart and all different, so that no step of the check changes which one is largest.
    let apart = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        let values = (0..n).map(|i| (i * 7 % 29) as f32 * 0.25 - 3.0).collect();
        regatta_tensor::Tensor::from_f32(shape, values).expect("lengths agree").into()
    };
    let over = |name, shape: &[usize], dims: Vec<i64>, keep: bool| {
        Sample::x(name, apart(shape)).attr("dims", dims).attr("keep_dim", keep)
    };
    let mut samples = vec![
        over("all", &[3, 4], vec![], false),
        over("all, kept", &[3, 4], vec![], true),
        over("rows", &[3, 4], vec![0], false),
        over("columns", &[3, 4], vec![-1], true),
        over("in the middle", &[2, 3, 4], vec![1], false),
        over("first and last", &[2, 3, 4], vec![0, 2], false),
        over("all but the middle of five", &[2, 1, 3, 2, 2], vec![0, 3], true),
        over("every dimension named", &[3, 2], vec![1, 0], false),
        over("of size one", &[3, 1], vec![1], false),
    ];
    samples.push(Sample::x("all different", spread(&[2, 3], -2.0, 2.0)).attr("dims", vec![1]));
    samples
}
