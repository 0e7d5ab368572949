//! What makes an op of a function of one element; `unary.rs`, `activation.rs` and `elementary.rs`
//! hold the functions.

use regatta_ir::{Error, Op, VarType};
use regatta_tensor::DType;

use crate::{Infer, Kernel, Spec};

/// Up to two float attributes of an element-wise function, in the order of its schema.
pub(super) type Params = [f32; 2];

/// The function on integers, with the attributes as they were given.
pub(super) type OnInts = fn(i64, [f64; 2]) -> i64;

fn params(op: &Op, names: &[&str]) -> Result<[f64; 2], Error> {
    let mut values = [0.0; 2];
    for (value, name) in values.iter_mut().zip(names) {
        *value = op.float(name)?;
    }
    Ok(values)
}

fn on_ints(f: OnInts, params: [f64; 2]) -> Kernel {
    Box::new(move |io, _| {
        let (x, out) = (io.i64(0), io.out_i64(0));
        out.iter_mut().zip(x).for_each(|(o, &x)| *o = f(x, params));
        Ok(())
    })
}

/// `y = f(x)` for each element.
#[inline(always)]
pub(super) fn map(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x));
}

/// `dx = f(saved, d)` for each element.
#[inline(always)]
pub(super) fn map_back(saved: &[f32], d: &[f32], dx: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for ((dx, &saved), &d) in dx.iter_mut().zip(saved).zip(d) {
        *dx = f(saved, d);
    }
}

pub(super) fn same_numbers(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    Ok(vec![i.numbers("X")?.clone()])
}

pub(super) fn same_type(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    Ok(vec![i.floats("X")?.clone()])
}

/// The gradient has the type of `dOut`, whichever forward variable the rule uses.
pub(super) fn grad_type(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    Ok(vec![i.floats("dOut")?.clone()])
}

/// The kernel of `f(x, params, out)`, or of the function on integers.
pub(super) fn forward(
    s: &Spec<'_>,
    names: &[&str],
    f: fn(&[f32], Params, &mut [f32]),
    ints: Option<OnInts>,
) -> Result<Kernel, Error> {
    let given = params(s.op, names)?;
    if let (DType::I64, Some(f)) = (s.ins[0].dtype, ints) {
        return Ok(on_ints(f, given));
    }
    let p = given.map(|p| p as f32);
    Ok(Box::new(move |io, _| {
        f(io.f32(0), p, io.out_f32(0));
        Ok(())
    }))
}

/// The kernel of `df(saved, dout, params, dx)`.
pub(super) fn backward(
    s: &Spec<'_>,
    names: &[&str],
    df: fn(&[f32], &[f32], Params, &mut [f32]),
) -> Result<Kernel, Error> {
    let p = params(s.op, names)?.map(|p| p as f32);
    Ok(Box::new(move |io, _| {
        df(io.f32(0), io.f32(1), p, io.out_f32(0));
        Ok(())
    }))
}

/// A forward and a gradient definition from: kind, attributes, which variable the derivative
/// needs, `f(x, params, out)`, `df(saved, dout, params, dx)`, the samples, and, if there is one,
/// the function on integers.
macro_rules! unary {
    ($kind:literal, $grad_kind:literal, [$($attr:literal = $default:expr),*], $saved:literal,
     $forward:expr, $backward:expr, $samples:expr $(, ints $ints:expr)?) => {{
        use regatta_ir::schema::{AttrDef, one};
        use $crate::op::function;
        const ATTRS: &[AttrDef] = &[$(($attr, regatta_ir::schema::AttrKind::Float($default))),*];
        const INTS: Option<function::OnInts> = {
            let _ints: Option<function::OnInts> = None;
            $(let _ints: Option<function::OnInts> = Some($ints);)?
            _ints
        };
        [
            $crate::OpDef {
                schema: regatta_ir::Schema {
                    kind: $kind,
                    inputs: &[one("X")],
                    outputs: &[one("Out")],
                    attrs: ATTRS,
                },
                infer: if INTS.is_some() { function::same_numbers } else { function::same_type },
                grad: $crate::Grad::Rule(|g: &$crate::GradCtx<'_>| Ok(g.unary(&[$saved]))),
                kernel: |s| function::forward(s, &[$($attr),*], $forward, INTS),
                batch: $crate::def::per_example,
                samples: $samples,
            },
            $crate::OpDef {
                schema: regatta_ir::Schema {
                    kind: $grad_kind,
                    inputs: &[one($saved), one("dOut")],
                    outputs: &[one("dX")],
                    attrs: ATTRS,
                },
                infer: function::grad_type,
                grad: $crate::def::NO_SECOND,
                kernel: |s| function::backward(s, &[$($attr),*], $backward),
                batch: $crate::def::per_example,
                samples: $crate::def::no_samples,
            },
        ]
    }};
}
pub(super) use unary;
