//! Questions about elements, answered by 1 or 0 of type i64: `equal`, `less_than` and the other
//! comparisons and the logical functions of two operands, with broadcasting; `logical_not`,
//! `not_zero`, `isnan`, `isinf` and `isfinite` of one. `bitwise_and` and its like work on all bits
//! of integers.
//!
//! Operands are floats or integers, both of one type. For the logical functions everything but 0
//! is true, NaN too.

use regatta_ir::schema::one;
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::DType;

use super::broadcast::{broadcast_shape, map_pairs};
use super::element::Element;
use crate::def::{no_samples, per_example};
use crate::{Grad, Infer, Kernel, OpDef, Spec};

const STEPS: Grad = Grad::None("its result is a whole number and has steps only");

/// A question about two elements of any type.
trait Question: 'static {
    fn ask<T: Number>(x: T, y: T) -> bool;
}

/// What can be compared.
trait Number: Element + PartialOrd {
    fn truth(self) -> bool;
}

macro_rules! number {
    ($($t:ident: $zero:literal),*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn truth(self) -> bool {
                self != $zero
            }
        }
    )*};
}
number!(f32: 0.0, i64: 0, u64: 0);

macro_rules! questions {
    ($($name:ident($x:ident, $y:ident) = $answer:expr;)*) => {$(
        struct $name;
        impl Question for $name {
            #[inline(always)]
            fn ask<T: Number>($x: T, $y: T) -> bool {
                $answer
            }
        }
    )*};
}
questions! {
    Equal(x, y) = x == y;
    NotEqual(x, y) = x != y;
    LessThan(x, y) = x < y;
    LessEqual(x, y) = x <= y;
    GreaterThan(x, y) = x > y;
    GreaterEqual(x, y) = x >= y;
    And(x, y) = x.truth() && y.truth();
    Or(x, y) = x.truth() || y.truth();
    Xor(x, y) = x.truth() != y.truth();
}

const fn of_two(
    kind: &'static str,
    infer: fn(&Infer<'_>) -> Result<Vec<VarType>, Error>,
    kernel: fn(&Spec<'_>) -> Result<Kernel, Error>,
) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X"), one("Y")] },
            outputs: const { &[one("Out")] },
            attrs: &[],
        },
        infer,
        grad: STEPS,
        kernel,
        batch: per_example,
        samples: no_samples,
    }
}

const fn of_one(
    kind: &'static str,
    infer: fn(&Infer<'_>) -> Result<Vec<VarType>, Error>,
    kernel: fn(&Spec<'_>) -> Result<Kernel, Error>,
) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X")] },
            outputs: const { &[one("Out")] },
            attrs: &[],
        },
        infer,
        grad: STEPS,
        kernel,
        batch: per_example,
        samples: no_samples,
    }
}

pub(crate) static DEFS: &[OpDef] = &[
    of_two("equal", infer_two, compare::<Equal>),
    of_two("not_equal", infer_two, compare::<NotEqual>),
    of_two("less_than", infer_two, compare::<LessThan>),
    of_two("less_equal", infer_two, compare::<LessEqual>),
    of_two("greater_than", infer_two, compare::<GreaterThan>),
    of_two("greater_equal", infer_two, compare::<GreaterEqual>),
    of_two("logical_and", infer_two, compare::<And>),
    of_two("logical_or", infer_two, compare::<Or>),
    of_two("logical_xor", infer_two, compare::<Xor>),
    of_two("bitwise_and", infer_bits, |s| map_pairs::<i64, i64>(s, |x, y| x & y)),
    of_two("bitwise_or", infer_bits, |s| map_pairs::<i64, i64>(s, |x, y| x | y)),
    of_two("bitwise_xor", infer_bits, |s| map_pairs::<i64, i64>(s, |x, y| x ^ y)),
    of_one("bitwise_not", infer_one_bits, |_| map(|x: i64| !x)),
    of_one("logical_not", infer_one, |s| match s.ins[0].dtype {
        DType::F32 => map(|x: f32| i64::from(x == 0.0)),
        DType::U64 => map(|x: u64| i64::from(x == 0)),
        _ => map(|x: i64| i64::from(x == 0)),
    }),
    of_one("not_zero", infer_one, |s| match s.ins[0].dtype {
        DType::F32 => map(|x: f32| i64::from(x != 0.0)),
        DType::U64 => map(|x: u64| i64::from(x != 0)),
        _ => map(|x: i64| i64::from(x != 0)),
    }),
    of_one("isnan", infer_one, |s| about_floats(s, f32::is_nan, false)),
    of_one("isinf", infer_one, |s| about_floats(s, f32::is_infinite, false)),
    of_one("isfinite", infer_one, |s| about_floats(s, f32::is_finite, true)),
];

/// Operands of one type; 16-bit floats were widened before.
fn infer_two(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let (x, y) = (i.dense("X")?, i.dense("Y")?);
    let shape = broadcast_shape(&x.shape, &y.shape).filter(|_| y.dtype == x.dtype);
    let misfit = || i.wrong("Y", &format!("{} that broadcasts with {:?}", x.dtype, x.shape));
    Ok(vec![VarType::dense(DType::I64, shape.ok_or_else(misfit)?)])
}

fn infer_bits(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    integers(i)?;
    infer_two(i)
}

fn infer_one(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    Ok(vec![VarType::dense(DType::I64, i.dense("X")?.shape.clone())])
}

fn infer_one_bits(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    integers(i)?;
    infer_one(i)
}

fn integers(i: &Infer<'_>) -> Result<(), Error> {
    let x = i.ty("X");
    let fits = x.dtype == DType::I64 && x.layout == Layout::Dense;
    if fits { Ok(()) } else { Err(i.wrong("X", "dense i64")) }
}

fn compare<Q: Question>(s: &Spec<'_>) -> Result<Kernel, Error> {
    match s.ins[0].dtype {
        DType::F32 => map_pairs::<f32, i64>(s, |x, y| i64::from(Q::ask(x, y))),
        DType::U64 => map_pairs::<u64, i64>(s, |x, y| i64::from(Q::ask(x, y))),
        _ => map_pairs::<i64, i64>(s, |x, y| i64::from(Q::ask(x, y))),
    }
}

fn map<T: Element>(f: impl Fn(T) -> i64 + Send + 'static) -> Result<Kernel, Error> {
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), io.out_i64(0));
        out.iter_mut().zip(x).for_each(|(o, &x)| *o = f(x));
        Ok(())
    }))
}

/// The answer for integers is always the same.
fn about_floats(s: &Spec<'_>, f: fn(f32) -> bool, of_ints: bool) -> Result<Kernel, Error> {
    if s.ins[0].dtype == DType::F32 {
        return map(move |x: f32| i64::from(f(x)));
    }
    Ok(Box::new(move |io, _| {
        io.out_i64(0).fill(i64::from(of_ints));
        Ok(())
    }))
}
