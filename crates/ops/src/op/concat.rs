//! `concat`: joins arrays along a dimension. Its gradient takes the parts out again.

use regatta_ir::schema::{AttrKind, many, one};
use regatta_ir::{Error, Layout, Op, Schema, VarType, grad_name};

use super::element::{Element, around, batch_from_end, by_dtype, copy_blocks, say_zero};
use crate::def::{NO_SECOND, no_samples, spread, whole};
use crate::infer::resolve_axis;
use crate::{Batch, Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "concat",
            inputs: &[many("X")],
            outputs: &[one("Out")],
            attrs: &[("axis", AttrKind::Int(0))],
        },
        infer,
        grad: Grad::Rule(grad),
        kernel: |s| by_dtype!(s.ins[0], forward(s)),
        // Joining along the batch puts whole batches after each other, not parts of them.
        batch: |op| if op.int("axis") == Ok(0) { Batch::Whole } else { Batch::Linear },
        samples,
    },
    OpDef {
        // For sizes that are not known before the run: only then are the inputs themselves needed.
        schema: Schema {
            kind: "concat_grad",
            inputs: &[many("X"), one("dOut")],
            outputs: &[one("dX")],
            attrs: &[("axis", AttrKind::Int(0)), ("index", AttrKind::RequiredInt)],
        },
        infer: |i| {
            let index = i.op.int("index")?;
            let ty = usize::try_from(index).ok().and_then(|n| i.many("X").get(n));
            let ty = ty.ok_or_else(|| i.bad_attr("index", format!("{index} is no input")))?;
            Ok(vec![ty.clone()])
        },
        grad: NO_SECOND,
        kernel: backward,
        batch: whole,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let first = i.dense("X")?;
    let axis = i.axis("axis", first.shape.len())?;
    let given = i.op.int("axis")?;
    if batch_from_end(first, given, axis) {
        return Err(say_zero(i, "axis", given));
    }
    let mut out = first.clone();
    for (n, ty) in i.many("X").iter().enumerate().skip(1) {
        let fits = ty.layout == Layout::Dense
            && ty.dtype == first.dtype
            && ty.shape.len() == first.shape.len()
            && (0..ty.shape.len()).all(|d| d == axis || ty.shape[d] == first.shape[d]);
        if !fits {
            return Err(i.wrong_nth("X", n, &format!("{first} (dimension {axis} may differ)")));
        }
        let (a, b) = (out.shape[axis], ty.shape[axis]);
        out.shape[axis] = match (a, b) {
            (-1, _) | (_, -1) => -1,
            (..0, _) | (_, ..0) => -2,
            _ => a + b,
        };
    }
    Ok(vec![out])
}

fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
    let given = g.op.int("axis")?;
    let vars = g.op.ins("X");
    let size = |v: &String| {
        let shape = (g.ty)(v).shape;
        resolve_axis(given, shape.len()).map_or(-1, |axis| shape[axis])
    };
    let sizes: Vec<i64> = vars.iter().map(size).collect();
    let all_known = sizes.iter().all(|&n| n >= 0);
    let mut ops = Vec::new();
    let mut start = 0;
    for (n, (var, size)) in vars.iter().zip(&sizes).enumerate() {
        let end = start + size;
        if (g.has_grad)(var) {
            let op = if all_known {
                let op = Op::new("slice").input("X", &dout).attr("axis", given);
                op.attr("start", start).attr("end", end).output("Out", &grad_name(var))
            } else {
                let op = g.grad_op().inputs("X", vars.iter().map(String::as_str));
                let op = op.input("dOut", &dout).attr("index", n as i64);
                op.output("dX", &grad_name(var))
            };
            ops.push(op);
        }
        start = end;
    }
    Ok(ops)
}

/// Sizes of the parts along the axis in elements of one block, and of all together.
fn widths(s: &Spec<'_>, pieces: usize) -> Result<(Vec<usize>, usize), Error> {
    let rank = s.ins[0].shape.len();
    let axis = resolve_axis(s.op.int("axis")?, rank).unwrap_or(0);
    let width = |i| {
        let dims = s.dims(i);
        dims[axis] * around(&dims, axis).1
    };
    let widths: Vec<usize> = (0..pieces).map(width).collect();
    let total = widths.iter().sum();
    Ok((widths, total))
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (widths, total) = widths(s, s.ins.len())?;
    Ok(Box::new(move |io, _| {
        let out = T::output(io, 0);
        let mut to = 0;
        for (i, &width) in widths.iter().enumerate() {
            copy_blocks(T::input(io, i), out, (0, to), (width, total), width);
            to += width;
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let index = s.op.int("index")? as usize;
    let pieces = s.ins.len() - 1;
    let (widths, total) = widths(s, pieces)?;
    let from = widths[..index].iter().sum();
    let width = widths[index];
    Ok(Box::new(move |io, _| {
        copy_blocks(io.f32(pieces), io.out_f32(0), (from, 0), (total, width), width);
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let join = |name, axis: i64, shapes: [&[usize]; 3]| Sample {
        name,
        inputs: vec![("X", shapes.iter().map(|s| spread(s, -1.0, 1.0)).collect())],
        attrs: vec![("axis", axis.into())],
        ..Sample::default()
    };
    vec![
        join("rows", 0, [&[2, 3], &[1, 3], &[4, 3]]),
        join("columns", -1, [&[2, 3], &[2, 1], &[2, 4]]),
        join("in the middle", 1, [&[2, 3, 2], &[2, 1, 2], &[2, 2, 2]]),
    ]
}
