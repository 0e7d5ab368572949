//! Gradients of several steps become one: `accumulate` adds a gradient to what is kept between
//! steps, `take_merged` takes the sum or the mean and begins again. Dense or row-sparse.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::{DType, RowIndex};

use crate::def::{no_samples, whole};
use crate::{Grad, Infer, Kernel, OpDef};

const NOT_DIFFERENTIATED: Grad = Grad::None("it works on gradients");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "accumulate",
            inputs: &[one("X"), one("Sum")],
            outputs: &[one("SumOut")],
            attrs: &[],
        },
        infer: |i| {
            let sum = gradient(i, "Sum")?;
            i.expect("X", sum)?;
            Ok(vec![sum.clone()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |_| {
            let mut index = RowIndex::default();
            let kernel: Kernel = Box::new(move |io, ctx| {
                if io.is_rows(0) {
                    let (x, sum) = (io.rows(0), io.out_rows(0));
                    // Rows of a batch that does not count must not be touched by updates.
                    if ctx.peers.share == 0.0 {
                        return Ok(());
                    }
                    index.clear(sum.rows.len() + x.rows.len());
                    sum.rows.iter().for_each(|&row| {
                        index.insert(row);
                    });
                    sum.add_rows(x, &mut index);
                } else {
                    regatta_kernels::vector::axpy(1.0, io.f32(0), io.out_f32(0));
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "take_merged",
            inputs: &[one("Sum"), one("Count")],
            outputs: &[one("Out"), one("SumOut")],
            attrs: &[("avg", AttrKind::Bool(true))],
        },
        infer: |i| {
            i.expect("Count", &VarType::f32([1]))?;
            let sum = gradient(i, "Sum")?;
            Ok(vec![sum.clone(), sum.clone()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let (avg, rows) = (s.op.bool("avg")?, s.ins[0].layout == Layout::Rows);
            let shape = s.ins[0].shape.clone();
            let kernel: Kernel = Box::new(move |io, _| {
                let count = io.f32(1)[0];
                let factor = if avg && count > 0.0 { 1.0 / count } else { 1.0 };
                if rows {
                    let (out, sum) = (io.out_rows(0), io.out_rows(1));
                    std::mem::swap(out, sum);
                    (out.height, out.width) = (shape[0] as usize, shape[1] as usize);
                    sum.clear();
                    out.values.iter_mut().for_each(|x| *x *= factor);
                } else {
                    let (out, sum) = (io.out_f32(0), io.out_f32(1));
                    out.iter_mut().zip(sum.iter()).for_each(|(o, x)| *o = x * factor);
                    sum.fill(0.0);
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
];

fn gradient<'a>(i: &Infer<'a>, slot: &str) -> Result<&'a VarType, Error> {
    let ty = i.ty(slot);
    if ty.dtype != DType::F32 || ty.layout == Layout::Ragged {
        return Err(i.wrong(slot, "a gradient of floats"));
    }
    Ok(ty)
}
