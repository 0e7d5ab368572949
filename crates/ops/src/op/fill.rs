//! Constants and random first values: `fill_constant`, `fill_like`, `uniform_random`,
//! `gaussian_random`, `truncated_gaussian_random`.
//!
//! Random values depend on the seed, the name of the variable and the position only, so the order
//! of layers, the number of processes and the machine do not change them.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Schema, VarType};
use regatta_kernels::half::{bf16_from_f32, f16_from_f32};
use regatta_kernels::simd;
use regatta_tensor::{DType, Rng};

use crate::def::{no_samples, per_example};
use crate::{Grad, Infer, Kernel, OpDef, Spec};

const NO_INPUT: Grad = Grad::None("it has no input");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "fill_constant",
            inputs: &[],
            outputs: &[one("Out")],
            attrs: &[
                ("shape", AttrKind::RequiredInts),
                ("value", AttrKind::RequiredFloat),
                ("dtype", AttrKind::Str("f32")),
            ],
        },
        infer: |i| {
            let dtype = i.op.str("dtype")?.parse().map_err(|e: String| i.bad_attr("dtype", e))?;
            Ok(vec![VarType::dense(dtype, shape(i)?)])
        },
        grad: NO_INPUT,
        kernel: |s| fill(s, s.outs[0].dtype),
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "fill_like",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: &[("value", AttrKind::RequiredFloat)],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: Grad::None("its value does not depend on its input"),
        kernel: |s| fill(s, DType::F32),
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "uniform_random",
            inputs: &[],
            outputs: &[one("Out")],
            attrs: &[
                ("shape", AttrKind::RequiredInts),
                ("low", AttrKind::Float(-1.0)),
                ("high", AttrKind::Float(1.0)),
                ("seed", AttrKind::Int(0)),
            ],
        },
        infer: |i| {
            if i.op.float("low")? > i.op.float("high")? {
                return Err(i.bad_attr("low", "is larger than 'high'"));
            }
            Ok(vec![VarType::f32(shape(i)?)])
        },
        grad: NO_INPUT,
        kernel: |s| {
            let (low, high) = (s.op.float("low")?, s.op.float("high")?);
            random(s, move |rng, values| uniform(rng, low, high, values))
        },
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: gaussian_schema("gaussian_random"),
        infer: infer_gaussian,
        grad: NO_INPUT,
        kernel: |s| {
            let (mean, std) = (s.op.float("mean")?, s.op.float("std")?);
            random(s, each(move |rng, i| mean + std * rng.normal(i)))
        },
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: gaussian_schema("truncated_gaussian_random"),
        infer: infer_gaussian,
        grad: NO_INPUT,
        kernel: |s| {
            let (mean, std) = (s.op.float("mean")?, s.op.float("std")?);
            random(s, each(move |rng, i| mean + std * truncated_normal(rng, i)))
        },
        batch: per_example,
        samples: no_samples,
    },
];

const fn gaussian_schema(kind: &'static str) -> Schema {
    Schema {
        kind,
        inputs: &[],
        outputs: const { &[one("Out")] },
        attrs: &[
            ("shape", AttrKind::RequiredInts),
            ("mean", AttrKind::Float(0.0)),
            ("std", AttrKind::Float(1.0)),
            ("seed", AttrKind::Int(0)),
        ],
    }
}

fn infer_gaussian(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    if i.op.float("std")? < 0.0 {
        return Err(i.bad_attr("std", "is negative"));
    }
    Ok(vec![VarType::f32(shape(i)?)])
}

fn shape(i: &Infer<'_>) -> Result<Vec<i64>, Error> {
    let shape = i.op.ints("shape")?;
    if shape.iter().any(|&d| d < 0) {
        return Err(i.bad_attr("shape", format!("{shape:?} has a negative dimension")));
    }
    Ok(shape)
}

fn fill(s: &Spec<'_>, dtype: DType) -> Result<Kernel, Error> {
    let value = s.op.float("value")?;
    Ok(Box::new(move |io, _| {
        match dtype {
            DType::F32 => io.out_f32(0).fill(value as f32),
            DType::F16 => io.out_half(0).fill(f16_from_f32(value as f32)),
            DType::BF16 => io.out_half(0).fill(bf16_from_f32(value as f32)),
            DType::I64 => io.out_i64(0).fill(value as i64),
            DType::U64 => io.out_u64(0).fill(value as u64),
        }
        Ok(())
    }))
}

/// `draw` fills the values of a variable.
fn random(s: &Spec<'_>, draw: impl Fn(&Rng, &mut [f32]) + Send + 'static) -> Result<Kernel, Error> {
    let rng = Rng::named(s.op.int("seed")? as u64, &s.op.outs("Out")[0]);
    Ok(Box::new(move |io, _| {
        draw(&rng, io.out_f32(0));
        Ok(())
    }))
}

/// Fills one value after the other.
fn each(value: impl Fn(&Rng, u64) -> f64) -> impl Fn(&Rng, &mut [f32]) {
    move |rng, values| {
        for (i, x) in (0..).zip(values) {
            *x = value(rng, i) as f32;
        }
    }
}

simd! {
    fn uniform(rng: &Rng, low: f64, high: f64, values: &mut [f32]) {
        for (i, x) in values.iter_mut().enumerate() {
            *x = (low + (high - low) * f64::from(rng.unit_f32(i as u64))) as f32;
        }
    }
}

/// Redraws beyond two standard deviations; each position has its own sequence of draws.
fn truncated_normal(rng: &Rng, i: u64) -> f64 {
    let own = Rng::new(rng.u64(i), i);
    (0..64).map(|draw| own.normal(draw)).find(|x| x.abs() <= 2.0).unwrap_or(0.0)
}
