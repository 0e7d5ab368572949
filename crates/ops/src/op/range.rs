//! Values that follow from attributes and shapes: `arange`, `linspace`, `eye`, and `shape` of a
//! variable.
//!
//! `arange` with an input `Like` counts its rows from 0: so many numbers as there are examples.

use regatta_ir::schema::{AttrDef, AttrKind, one, optional};
use regatta_ir::{Error, Schema, VarType};
use regatta_tensor::DType;

use crate::def::{no_samples, per_example, whole};
use crate::{Batch, Grad, Infer, Kernel, OpDef, Spec};

const NO_INPUT: Grad = Grad::None("its values do not depend on an input");
const DTYPE: AttrDef = ("dtype", AttrKind::Str("f32"));

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "arange",
            inputs: &[optional("Like")],
            outputs: &[one("Out")],
            attrs: &[
                ("start", AttrKind::Float(0.0)),
                ("end", AttrKind::Float(0.0)),
                ("step", AttrKind::Float(1.0)),
                ("dtype", AttrKind::Str("i64")),
            ],
        },
        infer: infer_arange,
        grad: NO_INPUT,
        kernel: arange,
        batch: |_| Batch::RowsOf(&["Like"]),
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "linspace",
            inputs: &[],
            outputs: &[one("Out")],
            attrs: &[
                ("start", AttrKind::RequiredFloat),
                ("stop", AttrKind::RequiredFloat),
                ("num", AttrKind::RequiredInt),
                DTYPE,
            ],
        },
        infer: |i| {
            let num = i.op.int("num")?;
            if num < 1 {
                return Err(i.bad_attr("num", format!("is {num}, but should be above 0")));
            }
            Ok(vec![VarType::dense(number(i)?, [num])])
        },
        grad: NO_INPUT,
        kernel: linspace,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "eye",
            inputs: &[],
            outputs: &[one("Out")],
            attrs: &[("rows", AttrKind::RequiredInt), ("cols", AttrKind::Int(-1)), DTYPE],
        },
        infer: |i| {
            let (rows, cols) = (i.op.int("rows")?, i.op.int("cols")?);
            if rows < 0 {
                return Err(i.bad_attr("rows", format!("is {rows}, which is negative")));
            }
            Ok(vec![VarType::dense(number(i)?, [rows, if cols < 0 { rows } else { cols }])])
        },
        grad: NO_INPUT,
        kernel: eye,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema { kind: "shape", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
        infer: |i| Ok(vec![VarType::dense(DType::I64, [i.dense("X")?.shape.len() as i64])]),
        grad: NO_INPUT,
        kernel: |s| {
            let shape = s.ins[0].shape.clone();
            let kernel: Kernel = Box::new(move |io, _| {
                io.out_i64(0).copy_from_slice(&shape);
                Ok(())
            });
            Ok(kernel)
        },
        // A part has fewer rows.
        batch: whole,
        samples: no_samples,
    },
];

/// The attribute `dtype`, floats or integers.
pub(super) fn number(i: &Infer<'_>) -> Result<DType, Error> {
    let dtype = i.op.str("dtype")?.parse().map_err(|e: String| i.bad_attr("dtype", e))?;
    match dtype {
        DType::F32 | DType::I64 => Ok(dtype),
        other => Err(i.bad_attr("dtype", format!("is {other}, but should be f32 or i64"))),
    }
}

fn infer_arange(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let dtype = number(i)?;
    if let Some(like) = i.opt("Like") {
        let Some(&rows) = like.shape.first() else {
            return Err(i.wrong("Like", "an array with at least one dimension"));
        };
        return Ok(vec![VarType::dense(dtype, [rows])]);
    }
    let (start, end, step) = (i.op.float("start")?, i.op.float("end")?, i.op.float("step")?);
    let n = ((end - start) / step).ceil();
    if step == 0.0 || !n.is_finite() {
        return Err(i.bad_attr("step", format!("is {step}, which leads nowhere")));
    }
    Ok(vec![VarType::dense(dtype, [n.max(0.0) as i64])])
}

fn arange(s: &Spec<'_>) -> Result<Kernel, Error> {
    let counts = s.at("Like").is_some();
    let (start, step) =
        if counts { (0.0, 1.0) } else { (s.op.float("start")?, s.op.float("step")?) };
    let batched = counts && s.batched(0);
    let ints = s.outs[0].dtype == DType::I64;
    Ok(Box::new(move |io, ctx| {
        let first = if batched { ctx.first_example } else { 0 };
        let at = |n: usize| start + step * (first + n) as f64;
        if ints {
            io.out_i64(0).iter_mut().enumerate().for_each(|(n, o)| *o = at(n) as i64);
        } else {
            io.out_f32(0).iter_mut().enumerate().for_each(|(n, o)| *o = at(n) as f32);
        }
        Ok(())
    }))
}

fn linspace(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (start, stop) = (s.op.float("start")?, s.op.float("stop")?);
    let last = s.op.int("num")? as usize - 1;
    let ints = s.outs[0].dtype == DType::I64;
    Ok(Box::new(move |io, _| {
        // From both ends, so that the last value is exactly the stop.
        let at = |n: usize| {
            let step = (stop - start) / last.max(1) as f64;
            if n <= last / 2 { start + step * n as f64 } else { stop - step * (last - n) as f64 }
        };
        if ints {
            io.out_i64(0).iter_mut().enumerate().for_each(|(n, o)| *o = at(n) as i64);
        } else {
            io.out_f32(0).iter_mut().enumerate().for_each(|(n, o)| *o = at(n) as f32);
        }
        Ok(())
    }))
}

fn eye(s: &Spec<'_>) -> Result<Kernel, Error> {
    let cols = s.outs[0].shape[1] as usize;
    let ints = s.outs[0].dtype == DType::I64;
    Ok(Box::new(move |io, _| {
        if ints {
            let out = io.out_i64(0);
            out.fill(0);
            diagonal(out, cols, 1);
        } else {
            let out = io.out_f32(0);
            out.fill(0.0);
            diagonal(out, cols, 1.0);
        }
        Ok(())
    }))
}

fn diagonal<T: Copy>(out: &mut [T], cols: usize, one: T) {
    if cols > 0 {
        for (row, out) in out.chunks_exact_mut(cols).enumerate().take(cols) {
            out[row] = one;
        }
    }
}
