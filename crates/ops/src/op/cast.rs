//! `cast`: converts the element type.
//!
//! Between floats it rounds to the nearest, ties to even; what is too large for 16 bits becomes an
//! infinity.
//! Integers become the nearest float; floats become integers by dropping the fraction, as in C.
//! What has no counterpart stops the run: NaN and infinities as integers, negative numbers as
//! unsigned ones, and numbers beyond the range of the new type. Only a cast from float to float
//! passes a gradient on, in the type of its input.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::half::{self, Half};
use regatta_tensor::DType;

use super::element::Element;
use crate::def::spread;
use crate::half::format;
use crate::{Batch, Grad, Kernel, KernelError, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "cast",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[("dtype", AttrKind::RequiredStr)],
    },
    infer: |i| {
        let dtype = i.op.str("dtype")?.parse().map_err(|e: String| i.bad_attr("dtype", e))?;
        Ok(vec![VarType::dense(dtype, i.dense("X")?.shape.clone())])
    },
    grad: Grad::Rule(|g| {
        let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
        let from = (g.ty)(&g.op.ins("X")[0]).dtype;
        if !from.is_float() || !is_float(g.op) {
            return Ok(vec![]);
        }
        let back = Op::new("cast").attr("dtype", from.to_string());
        Ok(vec![back.input("X", &dout).output("Out", &dx)])
    }),
    kernel,
    // To f32 nothing is rounded, so summands can be converted before they are added.
    batch: |op| if op.str("dtype") == Ok("f32") { Batch::Linear } else { Batch::PerExample },
    samples: || vec![Sample::x("float to float", spread(&[2, 3], -1.0, 1.0)).attr("dtype", "f32")],
}];

/// 2 to the 63rd and 64th as floats: the first numbers that no longer fit.
const END_I64: f32 = 9_223_372_036_854_775_808.0;
const END_U64: f32 = 18_446_744_073_709_551_616.0;

fn kernel(s: &Spec<'_>) -> Result<Kernel, Error> {
    use DType::{BF16, F16, F32, I64, U64};
    Ok(match (s.ins[0].dtype, s.outs[0].dtype) {
        (F32, to @ (F16 | BF16)) => narrow(format(to)),
        (from @ (F16 | BF16), F32) => widen(format(from)),
        (from @ (F16 | BF16), to @ (F16 | BF16)) if from == to => {
            convert("16 bits", |x: u16| Some(x))
        }
        (from, to) if from.is_half() || to.is_half() => return through_f32(s),
        (F32, F32) => convert("f32", |x: f32| Some(x)),
        (I64, I64) => convert("i64", |x: i64| Some(x)),
        (U64, U64) => convert("u64", |x: u64| Some(x)),
        (I64, F32) => convert("f32", |x: i64| Some(x as f32)),
        (U64, F32) => convert("f32", |x: u64| Some(x as f32)),
        (F32, I64) => convert("i64", to_i64),
        (F32, U64) => convert("u64", to_u64),
        (I64, U64) => convert("u64", |x: i64| u64::try_from(x).ok()),
        (U64, I64) => convert("i64", |x: u64| i64::try_from(x).ok()),
        (F16 | BF16, _) | (_, F16 | BF16) => unreachable!("handled above"),
    })
}

fn is_float(op: &Op) -> bool {
    op.str("dtype").ok().and_then(|t| t.parse().ok()).is_some_and(DType::is_float)
}

/// Between 16-bit floats and what is neither that nor f32, in two steps.
fn through_f32(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (from, to) = (s.ins[0].dtype, s.outs[0].dtype);
    let mut wide = vec![0.0; s.ins[0].numel().unwrap_or(0)];
    Ok(Box::new(move |io, _| {
        match from {
            DType::I64 => wide.iter_mut().zip(io.i64(0)).for_each(|(w, &x)| *w = x as f32),
            DType::U64 => wide.iter_mut().zip(io.u64(0)).for_each(|(w, &x)| *w = x as f32),
            _ => half::widen(format(from), io.half(0), &mut wide),
        }
        match to {
            DType::I64 => convert_into("i64", &wide, io.out_i64(0), to_i64),
            DType::U64 => convert_into("u64", &wide, io.out_u64(0), to_u64),
            _ => {
                half::narrow(format(to), &wide, io.out_half(0));
                Ok(())
            }
        }
    }))
}

fn to_i64(x: f32) -> Option<i64> {
    (-END_I64..END_I64).contains(&x).then_some(x as i64)
}

/// Down to, but without, -1: the fraction is dropped.
fn to_u64(x: f32) -> Option<u64> {
    (x > -1.0 && x < END_U64).then_some(x as u64)
}

fn narrow(to: Half) -> Kernel {
    Box::new(move |io, _| {
        half::narrow(to, io.f32(0), io.out_half(0));
        Ok(())
    })
}

fn widen(from: Half) -> Kernel {
    Box::new(move |io, _| {
        half::widen(from, io.half(0), io.out_f32(0));
        Ok(())
    })
}

fn convert<A: Element + std::fmt::Display, B: Element>(
    to: &'static str,
    f: impl Fn(A) -> Option<B> + Send + 'static,
) -> Kernel {
    Box::new(move |io, _| convert_into(to, A::input(io, 0), B::output(io, 0), &f))
}

fn convert_into<A: Copy + std::fmt::Display, B>(
    to: &str,
    x: &[A],
    out: &mut [B],
    f: impl Fn(A) -> Option<B>,
) -> Result<(), KernelError> {
    for (o, &x) in out.iter_mut().zip(x) {
        *o = f(x).ok_or_else(|| KernelError(format!("{x} has no counterpart in {to}")))?;
    }
    Ok(())
}
