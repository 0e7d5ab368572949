//! `reshape`: the same elements under another shape. One dimension may be -1 (what is left), and 0
//! keeps the dimension at that position. Its gradient is a reshape back.
//!
//! The batch stays first: `[-1, 26, 9]` can become `[-1, 234]`, and `[-1, 5, 8]` can become
//! `[-1, 8]` with five rows per example, but not `[9, -1]`, whose rows would belong to no example.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};

use super::element::{Element, by_dtype};
use crate::def::{linear, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "reshape",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[("shape", AttrKind::RequiredInts)],
    },
    infer,
    grad: Grad::Rule(|g| {
        let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
        let mut shape = (g.ty)(&g.op.ins("X")[0]).shape;
        if shape.contains(&-2) {
            // Dimensions that are kept are kept on the way back as well.
            let kept = g.op.ints("shape")?;
            let unknown = shape.iter_mut().enumerate().filter(|(_, d)| **d < 0);
            unknown.for_each(|(at, d)| *d = if kept.get(at) == Some(&0) { 0 } else { -1 });
        }
        Ok(vec![Op::new("reshape").input("X", &dout).attr("shape", shape).output("Out", &dx)])
    }),
    kernel: |s| by_dtype!(s.ins[0], copy(s)),
    batch: linear,
    samples: || {
        let to = |name, shape: Vec<i64>| {
            Sample::x(name, spread(&[2, 3, 4], -1.0, 1.0)).attr("shape", shape)
        };
        vec![
            to("all given", vec![6, 4]),
            to("one left open", vec![-1, 2]),
            to("first kept", vec![0, -1]),
        ]
    },
}];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    let shape = i.op.ints("shape")?;
    let refuse = |reason: String| Err(i.bad_attr("shape", format!("{shape:?} {reason}")));
    if let Some(d) = shape.iter().find(|&&d| d < -1) {
        return refuse(format!("has the dimension {d}"));
    }
    if shape.iter().filter(|&&d| d == -1).count() > 1 {
        return refuse("leaves more than one dimension open".into());
    }
    let mut out = shape.clone();
    for (at, d) in out.iter_mut().enumerate().filter(|(_, d)| **d == 0) {
        match x.shape.get(at) {
            Some(&kept) => *d = kept,
            None => return refuse(format!("keeps dimension {at}, but X is {x}")),
        }
    }
    let open = shape.iter().position(|&d| d == -1);
    let known = |dims: &[i64]| dims.iter().filter(|&&d| d >= 0).product::<i64>();
    let (have, want) = (known(&x.shape), known(&out));
    let misfit = || refuse(format!("does not hold the elements of X, which is {x}"));
    if x.shape.iter().all(|&d| d >= 0) {
        match open {
            Some(_) if want == 0 || have % want != 0 => return misfit(),
            Some(at) => out[at] = have / want,
            None if have != want => return misfit(),
            None => {}
        }
        return Ok(vec![VarType::dense(x.dtype, out)]);
    }
    if x.shape.contains(&-2) {
        return with_open_sizes(i, x, &shape, out);
    }
    // The size of the batch is not known yet: it has to stay first in X and in the result.
    if x.shape[0] != -1 || x.shape[1..].iter().any(|&d| d < 0) {
        return Err(
            i.wrong("X", "a dense array whose only unknown dimension is the batch, the first")
        );
    }
    let kept = shape.iter().zip(&x.shape).position(|(&d, &from)| d == 0 && from == -1);
    match (kept, open) {
        // The batch is kept, so an open dimension stands for the rest of an example.
        (Some(_), Some(at)) => {
            if want == 0 || have % want != 0 {
                return misfit();
            }
            out[at] = have / want;
        }
        (Some(_), None) if have != want => return misfit(),
        (Some(_), None) => {}
        // Several rows per example, or several rows joined into one.
        (None, Some(0)) if want > 0 && (have % want == 0 || want % have.max(1) == 0) => {}
        (None, Some(0)) => return misfit(),
        (None, _) => return refuse(format!("does not keep the batch first, which X has: {x}")),
    }
    Ok(vec![VarType::dense(x.dtype, out)])
}

/// X has other unknown sizes than the batch: all but one of the unknown ones have to be kept where
/// they are, and the batch is one of those.
fn with_open_sizes(
    i: &Infer<'_>,
    x: &VarType,
    shape: &[i64],
    mut out: Vec<i64>,
) -> Result<Vec<VarType>, Error> {
    let refuse = |reason: &str| Err(i.bad_attr("shape", format!("{shape:?} {reason}: X is {x}")));
    let is_kept = |at: usize| shape.get(at) == Some(&0);
    let lost = x.shape.iter().enumerate().filter(|(at, d)| **d < 0 && !is_kept(*at));
    let lost: Vec<i64> = lost.map(|(_, d)| *d).collect();
    let known = |dims: &[i64]| dims.iter().filter(|&&d| d >= 0).product::<i64>();
    let (have, want) = (known(&x.shape), known(&out));
    match (lost.as_slice(), shape.iter().position(|&d| d == -1)) {
        ([], None) if have == want => {}
        ([], Some(at)) if want > 0 && have % want == 0 => out[at] = have / want,
        ([-2], Some(at)) if want > 0 => out[at] = -2,
        _ => return refuse("does not keep all unknown sizes but one where they are"),
    }
    Ok(vec![VarType::dense(x.dtype, out)])
}

fn copy<T: Element>(_: &Spec<'_>) -> Result<Kernel, Error> {
    Ok(Box::new(move |io, _| {
        T::output(io, 0).copy_from_slice(T::input(io, 0));
        Ok(())
    }))
}
