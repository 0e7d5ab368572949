//! `masked_select`: the elements of X at which a mask of the same shape is not 0, one after the
//! other. How many that are depends on values, so the op must say it: `count` for all, or `per_row`
//! for each row of the first dimension. A mask that selects another number stops the run.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_tensor::{DType, Tensor};

use super::element::{Element, by_dtype};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::{Batch, Grad, Infer, Kernel, KernelError, OpDef, Sample, Spec};

const ATTRS: &[AttrDef] = &[("count", AttrKind::Int(-1)), ("per_row", AttrKind::Int(-1))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "masked_select",
            inputs: &[one("X"), one("Mask")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Mask"]))),
        kernel: |s| by_dtype!(s.ins[0], forward(s)),
        batch,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "masked_select_grad",
            inputs: &[one("X"), one("Mask"), one("dOut")],
            outputs: &[one("dX")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: backward,
        batch,
        samples: no_samples,
    },
];

fn batch(op: &Op) -> Batch {
    if op.int("per_row").is_ok_and(|n| n >= 0) { Batch::PerExample } else { Batch::Whole }
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    i.expect("Mask", &VarType::dense(DType::I64, x.shape.clone()))?;
    let n = match (i.op.int("count")?, i.op.int("per_row")?) {
        (count @ 0.., ..0) => count,
        (..0, per_row @ 0..) => match x.shape.first() {
            Some(&rows) if rows < 0 => rows,
            rows => rows.copied().unwrap_or(1) * per_row,
        },
        _ => {
            let reason = "or 'per_row' must say how many elements the mask selects: a program \
                          cannot have a shape that depends on values";
            return Err(i.bad_attr("count", reason));
        }
    };
    Ok(vec![VarType::dense(x.dtype, [n])])
}

/// Elements that are selected together, and how many of them there must be.
fn sizes(s: &Spec<'_>) -> Result<(usize, usize), Error> {
    let dims = s.dims(0);
    let all: usize = dims.iter().product();
    let (count, per_row) = (s.op.int("count")?, s.op.int("per_row")?);
    if per_row < 0 {
        return Ok((all, count as usize));
    }
    let rows = dims.first().copied().unwrap_or(1);
    Ok((all.checked_div(rows).unwrap_or(0), per_row as usize))
}

fn check(mask: &[i64], (len, count): (usize, usize)) -> Result<(), KernelError> {
    if len == 0 {
        return Ok(());
    }
    for (row, mask) in mask.chunks_exact(len).enumerate() {
        let found = mask.iter().filter(|&&m| m != 0).count();
        if found != count {
            let reason = format!("the mask selects {found} elements of row {row}, not {count}");
            return Err(KernelError(reason));
        }
    }
    Ok(())
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let sizes = sizes(s)?;
    Ok(Box::new(move |io, _| {
        let (x, mask, out) = (T::input(io, 0), io.i64(1), T::output(io, 0));
        check(mask, sizes)?;
        let selected = x.iter().zip(mask).filter(|(_, m)| **m != 0);
        out.iter_mut().zip(selected).for_each(|(o, (x, _))| *o = *x);
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let sizes = sizes(s)?;
    Ok(Box::new(move |io, _| {
        let (mask, d, dx) = (io.i64(1), io.f32(2), io.out_f32(0));
        check(mask, sizes)?;
        let mut d = d.iter();
        for (dx, mask) in dx.iter_mut().zip(mask) {
            *dx = if *mask != 0 { d.next().copied().unwrap_or(0.0) } else { 0.0 };
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, mask: &[i64], attr: &'static str, n: i64| {
        let mask = Tensor::from_i64(&[2, 3], mask.to_vec()).expect("lengths agree");
        Sample::x(name, spread(&[2, 3], -1.0, 1.0)).with("Mask", mask).attr(attr, n)
    };
    vec![
        of("as many as there are", &[1, 0, 0, 1, 1, 0], "count", 3),
        of("two of each row", &[1, 0, 1, 0, 1, 1], "per_row", 2),
    ]
}
