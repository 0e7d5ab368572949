//! `transpose`: reorders the dimensions; dimension `i` of the result is dimension `perm[i]` of `X`.
//! Its gradient is the transpose by the inverse permutation.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};

use super::element::{Element, by_dtype};
use crate::def::spread;
use crate::infer::resolve_axis;
use crate::{Batch, Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

/// Side of the squares that are transposed at a time: two of them fit the first level of cache.
const SIDE: usize = 16;

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "transpose",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[("perm", AttrKind::RequiredInts)],
    },
    infer,
    grad: Grad::Rule(grad),
    kernel: |s| by_dtype!(s.ins[0], forward(s)),
    batch: |op| match op.ints("perm").unwrap_or_default().first() {
        Some(0) => Batch::Linear,
        // The examples end up next to each other in rows: no part has such a row.
        _ => Batch::Whole,
    },
    samples: || {
        let turn = |name, shape: &[usize], perm: Vec<i64>| {
            Sample::x(name, spread(shape, -1.0, 1.0)).attr("perm", perm)
        };
        vec![
            turn("matrix", &[3, 4], vec![1, 0]),
            turn("matrices", &[2, 3, 4], vec![0, 2, 1]),
            turn("rows move", &[2, 3, 4], vec![1, 0, 2]),
            turn("turned round", &[2, 3, 4], vec![1, 2, 0]),
            turn("four dimensions", &[2, 3, 2, 3], vec![0, -1, 1, 2]),
        ]
    },
}];

/// The permutation with dimensions counted from the front, if it is one.
fn permutation(op: &Op, rank: usize) -> Result<Option<Vec<usize>>, Error> {
    let given = op.ints("perm")?;
    let perm: Option<Vec<usize>> = given.iter().map(|&p| resolve_axis(p, rank)).collect();
    Ok(perm.filter(|p| p.len() == rank && (0..rank).all(|d| p.contains(&d))))
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let perm = permutation(i.op, x.shape.len())?.ok_or_else(|| {
        let given = i.op.ints("perm").unwrap_or_default();
        i.bad_attr("perm", format!("{given:?} is no order of the dimensions of {x}"))
    })?;
    Ok(vec![VarType::dense(x.dtype, perm.iter().map(|&p| x.shape[p]).collect::<Vec<_>>())])
}

fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
    let rank = (g.ty)(&g.op.ins("X")[0]).shape.len();
    let perm = permutation(g.op, rank)?.unwrap_or_default();
    let mut inverse = vec![0; rank];
    for (to, &from) in perm.iter().enumerate() {
        inverse[from] = to as i64;
    }
    Ok(vec![Op::new("transpose").input("X", &dout).attr("perm", inverse).output("Out", &dx)])
}

/// Sizes of the result with the distance in X of neighbours along each; dimensions that stay
/// together are one.
fn strides(s: &Spec<'_>) -> Result<Vec<(usize, usize)>, Error> {
    let dims = s.dims(0);
    let mut steps = vec![1; dims.len()];
    for d in (1..dims.len()).rev() {
        steps[d - 1] = steps[d] * dims[d];
    }
    let perm = permutation(s.op, dims.len())?.unwrap_or_default();
    let mut walk: Vec<(usize, usize)> = Vec::new();
    for (size, step) in perm.iter().map(|&p| (dims[p], steps[p])).filter(|(size, _)| *size != 1) {
        match walk.last_mut() {
            Some(last) if last.1 == step * size => *last = (last.0 * size, step),
            _ => walk.push((size, step)),
        }
    }
    Ok(walk)
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = strides(s)?;
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), T::output(io, 0));
        if !out.is_empty() {
            reorder(x, out, &walk);
        }
        Ok(())
    }))
}

/// Writes `out` in order, reading along `walk` from the start of `x`.
fn reorder<T: Copy>(x: &[T], out: &mut [T], walk: &[(usize, usize)]) {
    match walk {
        [] => out[0] = x[0],
        [(n, 1)] => out.copy_from_slice(&x[..*n]),
        [(_, step)] => out.iter_mut().zip(x.iter().step_by(*step)).for_each(|(o, x)| *o = *x),
        [rows, cols] if cols.1 != 1 => squares(x, out, *rows, *cols),
        [(n, step), rest @ ..] => {
            let len = out.len() / n;
            for (i, out) in out.chunks_exact_mut(len).enumerate() {
                reorder(&x[i * step..], out, rest);
            }
        }
    }
}

/// A matrix of which neither order of reading is the order of writing, in squares.
fn squares<T: Copy>(
    x: &[T],
    out: &mut [T],
    (rows, row_step): (usize, usize),
    (cols, col_step): (usize, usize),
) {
    for first_row in (0..rows).step_by(SIDE) {
        for first_col in (0..cols).step_by(SIDE) {
            let last_col = (first_col + SIDE).min(cols);
            for row in first_row..(first_row + SIDE).min(rows) {
                let out = &mut out[row * cols + first_col..row * cols + last_col];
                let x = &x[row * row_step + first_col * col_step..];
                for (o, x) in out.iter_mut().zip(x.iter().step_by(col_step)) {
                    *o = *x;
                }
            }
        }
    }
}
