//! `set_value`: X with a value written into a slice of it; the value broadcasts to the slice. The
//! gradient of X is 0 where it was overwritten; what went there is the gradient of the value.

use regatta_ir::schema::{one, optional};
use regatta_ir::{Error, Schema, VarType};

use super::broadcast::broadcast_shape;
use super::element::{Element, by_dtype};
use super::span;
use super::walk::{Strides, Walk};
use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "set_value",
            inputs: &[one("X"), one("Value")],
            outputs: &[one("Out")],
            attrs: span::ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.several(&["X", "Value"], "Out", &["X", "Value"]))),
        kernel: |s| by_dtype!(s.ins[0], forward(s)),
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "set_value_grad",
            inputs: &[one("X"), one("Value"), one("dOut")],
            outputs: &[optional("dX"), optional("dValue")],
            attrs: span::ATTRS,
        },
        infer: |i| Ok(i.op.outputs.iter().map(|(slot, _)| i.ty(&slot[1..]).clone()).collect()),
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let slice = &span::infer(i)?[0];
    let value = i.dense("Value")?;
    let to = broadcast_shape(&slice.shape, &value.shape);
    if value.dtype != slice.dtype || to.is_none_or(|to| to != slice.shape) {
        return Err(i.wrong("Value", &format!("{} that broadcasts to {slice}", slice.dtype)));
    }
    Ok(vec![i.ty("X").clone()])
}

/// Over the slice: its places in X (array 0) and the value (array 1).
fn walk(s: &Spec<'_>) -> Result<Walk<2>, Error> {
    let x = s.dims(0);
    let sizes = span::sizes(s.op, &x)?;
    Ok(Walk::new(&sizes, [span::spans(s.op, &x)?, Strides::broadcast(&s.dims(1), x.len())]))
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = walk(s)?;
    Ok(Box::new(move |io, _| {
        let out = T::output(io, 0);
        out.copy_from_slice(T::input(io, 0));
        walk.copy(out, T::input(io, 1));
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let walk = walk(s)?;
    let (dx, dvalue) = (s.out_at("dX"), s.out_at("dValue"));
    Ok(Box::new(move |io, _| {
        let d = io.f32(2);
        if let Some(dx) = dx {
            let dx = io.out_f32(dx);
            dx.copy_from_slice(d);
            walk.for_each(|[at, _]| dx[at] = 0.0);
        }
        if let Some(dvalue) = dvalue {
            let dvalue = io.out_f32(dvalue);
            dvalue.fill(0.0);
            walk.add_back(dvalue, d);
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let put = |name, cuts: &[(i64, i64, i64, i64)], value: &[usize]| {
        let of = |f: fn(&(i64, i64, i64, i64)) -> i64| cuts.iter().map(f).collect::<Vec<i64>>();
        Sample::x(name, spread(&[4, 3], -1.0, 1.0))
            .with("Value", spread(value, 1.0, 2.0))
            .attr("axes", of(|c| c.0))
            .attr("starts", of(|c| c.1))
            .attr("ends", of(|c| c.2))
            .attr("strides", of(|c| c.3))
    };
    vec![
        put("rows", &[(0, 1, 3, 1)], &[2, 3]),
        put("a row to several", &[(0, 0, 4, 2)], &[3]),
        put("one number", &[(0, 1, 2, 1), (1, -2, 3, 1)], &[1]),
        put("backwards", &[(0, -1, -5, -1), (1, 0, 1, 1)], &[4, 1]),
        put("everything", &[], &[4, 3]),
    ]
}
