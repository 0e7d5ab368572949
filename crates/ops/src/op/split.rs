//! `split`: divides an array along a dimension into parts of given sizes. Its gradient joins the
//! gradients of the parts, zeros standing for those that nothing depends on.

use regatta_ir::schema::{AttrKind, many, one};
use regatta_ir::{Error, Op, Schema, VarType, grad_name};

use super::element::{Element, around, by_dtype, copy_blocks};
use crate::def::{linear, spread};
use crate::infer::resolve_axis;
use crate::{Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

/// As many outputs as an op may have.
const MOST: usize = 64;

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "split",
        inputs: &[one("X")],
        outputs: &[many("Out")],
        attrs: &[("sections", AttrKind::RequiredInts), ("axis", AttrKind::Int(0))],
    },
    infer,
    grad: Grad::Rule(grad),
    kernel: |s| by_dtype!(s.ins[0], forward(s)),
    // A batch has no known size and is refused, so a part is never sliced along it.
    batch: linear,
    samples,
}];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let axis = i.axis("axis", x.shape.len())?;
    let sections = i.op.ints("sections")?;
    let n_outs = i.op.outs("Out").len();
    if sections.len() != n_outs || n_outs > MOST {
        let reason = format!("has {} sizes for {n_outs} outputs (at most {MOST})", sections.len());
        return Err(i.bad_attr("sections", reason));
    }
    let size = x.shape[axis];
    if size < 0 {
        return Err(i.wrong("X", &format!("a dense array with a known size of dimension {axis}")));
    }
    if sections.iter().any(|&n| n <= 0) || sections.iter().sum::<i64>() != size {
        let reason = format!("{sections:?} does not add up to {size}, dimension {axis} of {x}");
        return Err(i.bad_attr("sections", reason));
    }
    let part = |&n: &i64| {
        let mut ty = x.clone();
        ty.shape[axis] = n;
        ty
    };
    Ok(sections.iter().map(part).collect())
}

fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let outs = g.op.outs("Out");
    let Some(dx) = g.din("X") else { return Ok(vec![]) };
    if !outs.iter().any(|v| (g.has_grad)(v)) {
        return Ok(vec![]);
    }
    let mut ops: Vec<Op> = outs
        .iter()
        .filter(|v| !(g.has_grad)(v))
        .map(|v| Op::new("fill_like").input("X", v).attr("value", 0.0).output("Out", &grad_name(v)))
        .collect();
    let grads: Vec<String> = outs.iter().map(|v| grad_name(v)).collect();
    ops.push(
        Op::new("concat")
            .inputs("X", grads.iter().map(String::as_str))
            .attr("axis", g.op.int("axis")?)
            .output("Out", &dx),
    );
    Ok(ops)
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let dims = s.dims(0);
    let axis = resolve_axis(s.op.int("axis")?, dims.len()).unwrap_or(0);
    let (_, step) = around(&dims, axis);
    let total = dims[axis] * step;
    let widths: Vec<usize> = s.op.ints("sections")?.iter().map(|&n| n as usize * step).collect();
    Ok(Box::new(move |io, _| {
        let x = T::input(io, 0);
        let mut from = 0;
        for (i, &width) in widths.iter().enumerate() {
            copy_blocks(x, T::output(io, i), (from, 0), (total, width), width);
            from += width;
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let cut = |name, shape: &[usize], axis: i64, sections: Vec<i64>| {
        let n = sections.len();
        let sample = Sample::x(name, spread(shape, -1.0, 1.0)).outs("Out", n);
        sample.attr("axis", axis).attr("sections", sections)
    };
    vec![
        cut("rows", &[5, 2], 0, vec![2, 3]),
        cut("columns", &[2, 6], -1, vec![1, 2, 3]),
        cut("in the middle", &[2, 4, 3], 1, vec![3, 1]),
    ]
}
