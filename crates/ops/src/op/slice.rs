//! `slice`: `X[.., start..end, ..]` along one dimension; negative positions count from the end.
//!
//! An end beyond the dimension is its end. Dimensions of unknown size, the batch included, can be
//! sliced where it is clear what that means once their size is known.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Schema, VarType};

use super::element::{Element, around, batch_from_end, by_dtype, copy_blocks, say_zero};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, Infer, Kernel, OpDef, Sample, Spec};

const ATTRS: &[AttrDef] =
    &[("axis", AttrKind::Int(0)), ("start", AttrKind::RequiredInt), ("end", AttrKind::RequiredInt)];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema { kind: "slice", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X"]))),
        kernel: |s| by_dtype!(s.ins[0], forward(s)),
        // Examples of the whole batch, not of parts of it.
        batch: |op| if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::Linear },
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "slice_grad",
            inputs: &[one("X"), one("dOut")],
            outputs: &[one("dX")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: backward,
        batch: |op| if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::PerExample },
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let axis = i.axis("axis", x.shape.len())?;
    let size = x.shape[axis];
    let (start, end) = (i.op.int("start")?, i.op.int("end")?);
    if size < 0 {
        let given = i.op.int("axis")?;
        if batch_from_end(x, given, axis) {
            return Err(say_zero(i, "axis", given));
        }
        let mut out = x.clone();
        out.shape[axis] = open_size(start, end).ok_or_else(|| {
            i.wrong("X", &format!("a dense array with a known size of dimension {axis}"))
        })?;
        return Ok(vec![out]);
    }
    // There may be less than what is asked for.
    let (from, to) = (position(start, size), position(end, size).min(size));
    if !(0 <= from && from < to && to <= size) {
        let reason = format!("makes {start}..{end} no part of dimension {axis} of {x}");
        return Err(i.bad_attr(if (0..size).contains(&from) { "end" } else { "start" }, reason));
    }
    let mut out = x.clone();
    out.shape[axis] = to - from;
    Ok(vec![out])
}

/// How much of a dimension of unknown size is taken: -2 if the program has to run to know it.
fn open_size(start: i64, end: i64) -> Option<i64> {
    match (start, end) {
        (..0, ..0) => Some(end - start).filter(|n| *n > 0),
        // To the end, however far that is.
        (..0, TO_THE_END..) => Some(-start),
        (0.., _) if end > start || end < 0 => Some(-2),
        _ => None,
    }
}

/// An end beyond anything.
const TO_THE_END: i64 = i32::MAX as i64;

fn position(at: i64, size: i64) -> i64 {
    if at < 0 { at + size } else { at }
}

/// In elements of a block of X: where the slice begins, how long it is, and how long the block.
fn place(s: &Spec<'_>) -> Result<(usize, usize, usize), Error> {
    let dims = s.dims(0);
    let axis = resolve_axis(s.op.int("axis")?, dims.len()).unwrap_or(0);
    let (_, step) = around(&dims, axis);
    let size = dims[axis] as i64;
    let from = position(s.op.int("start")?, size) as usize;
    let to = position(s.op.int("end")?, size).min(size) as usize;
    Ok((from * step, (to - from) * step, dims[axis] * step))
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (from, width, total) = place(s)?;
    Ok(Box::new(move |io, _| {
        copy_blocks(T::input(io, 0), T::output(io, 0), (from, 0), (total, width), width);
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (from, width, total) = place(s)?;
    Ok(Box::new(move |io, _| {
        let (d, dx) = (io.f32(1), io.out_f32(0));
        for (dx, d) in dx.chunks_exact_mut(total).zip(d.chunks_exact(width)) {
            dx[..from].fill(0.0);
            dx[from..from + width].copy_from_slice(d);
            dx[from + width..].fill(0.0);
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let cut = |name, shape: &[usize], axis: i64, start: i64, end: i64| {
        let sample = Sample::x(name, spread(shape, -1.0, 1.0)).attr("axis", axis);
        sample.attr("start", start).attr("end", end)
    };
    vec![
        cut("rows", &[5, 2], 0, 1, 3),
        cut("columns from the end", &[2, 5], -1, -3, 4),
        cut("in the middle", &[2, 4, 3], 1, 2, 4),
    ]
}
