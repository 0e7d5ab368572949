//! Constants and random initial values: `fill_constant`, `fill_like`, `uniform_random`,
//! `gaussian_random`, `truncated_gaussian_random`.
//!
//! A shape that begins with -1 takes that dimension from the input `Like`, usually the batch.
//! Random values depend on the seed, the name of the variable and the position only, so the order
//! of layers, the number of processes and the machine do not change them.

use regatta_ir::schema::{AttrKind, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::half::{bf16_from_f32, f16_from_f32};
use regatta_kernels::simd_long;
use regatta_tensor::{DType, Rng};

use crate::def::{no_samples, per_example};
use crate::{Grad, Infer, Kernel, OpDef, Spec};

const NO_INPUT: Grad = Grad::None("it has no input");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "fill_constant",
            inputs: &[optional("Like")],
            outputs: &[one("Out")],
            attrs: &[
                ("shape", AttrKind::RequiredInts),
                ("value", AttrKind::RequiredFloat),
                ("dtype", AttrKind::Str("f32")),
            ],
        },
        infer: |i| {
            let dtype = i.op.str("dtype")?.parse().map_err(|e: String| i.bad_attr("dtype", e))?;
            Ok(vec![VarType::dense(dtype, shape_like(i)?)])
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
            attrs: &[("value", AttrKind::RequiredFloat), ("dtype", AttrKind::Str(""))],
        },
        infer: |i| {
            let x = i.dense("X")?;
            let dtype = match i.op.str("dtype")? {
                "" => x.dtype,
                given => given.parse().map_err(|e: String| i.bad_attr("dtype", e))?,
            };
            Ok(vec![VarType::dense(dtype, x.shape.clone())])
        },
        grad: Grad::None("its value does not depend on its input"),
        kernel: |s| fill(s, s.outs[0].dtype),
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
        kernel: random,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: gaussian_schema("gaussian_random"),
        infer: infer_gaussian,
        grad: NO_INPUT,
        kernel: random,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: gaussian_schema("truncated_gaussian_random"),
        infer: infer_gaussian,
        grad: NO_INPUT,
        kernel: random,
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

pub(super) fn shape(i: &Infer<'_>) -> Result<Vec<i64>, Error> {
    let shape = i.op.ints("shape")?;
    if shape.iter().any(|&d| d < 0) {
        return Err(i.bad_attr("shape", format!("{shape:?} has a negative dimension")));
    }
    Ok(shape)
}

/// As [`shape`], but a first dimension of -1 is that of the input `Like`, if there is one.
pub(super) fn shape_like(i: &Infer<'_>) -> Result<Vec<i64>, Error> {
    let (Some(like), Some(-1)) = (i.opt("Like"), i.op.ints("shape")?.first().copied()) else {
        return shape(i);
    };
    let mut shape = i.op.ints("shape")?;
    let Some(&rows) = like.shape.first() else {
        return Err(i.wrong("Like", "an array with at least one dimension"));
    };
    shape[0] = rows;
    if shape[1..].iter().any(|&d| d < 0) {
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

fn random(s: &Spec<'_>) -> Result<Kernel, Error> {
    let Some(draw) = Draw::of(s.op)? else { unreachable!("{} draws nothing", s.op.kind) };
    Ok(Box::new(move |io, _| {
        draw.fill(0, io.out_f32(0));
        Ok(())
    }))
}

/// The random values of a variable. Any part of them can be drawn by itself.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    rng: Rng,
    law: Law,
}

#[derive(Debug, Clone, Copy)]
enum Law {
    Uniform { low: f64, high: f64 },
    Gaussian { mean: f64, std: f64 },
    Truncated { mean: f64, std: f64 },
}

impl Draw {
    /// What an op draws; none if it does something else.
    ///
    /// # Errors
    /// If an attribute is missing.
    pub fn of(op: &Op) -> Result<Option<Draw>, Error> {
        let gaussian = || Ok::<_, Error>((op.float("mean")?, op.float("std")?));
        let law = match op.kind.as_str() {
            "uniform_random" => Law::Uniform { low: op.float("low")?, high: op.float("high")? },
            "gaussian_random" => gaussian().map(|(mean, std)| Law::Gaussian { mean, std })?,
            "truncated_gaussian_random" => {
                gaussian().map(|(mean, std)| Law::Truncated { mean, std })?
            }
            _ => return Ok(None),
        };
        Ok(Some(Draw { rng: Rng::named(op.int("seed")? as u64, &op.outs("Out")[0]), law }))
    }

    /// Draws the values from position `first` on.
    pub fn fill(&self, first: u64, values: &mut [f32]) {
        let rng = &self.rng;
        match self.law {
            Law::Uniform { low, high } => uniform(rng, (low, high), first, values),
            Law::Gaussian { mean, std } => gaussian(rng, (mean, std), first, values),
            Law::Truncated { mean, std } => {
                for (i, x) in (first..).zip(values) {
                    *x = (mean + std * truncated_normal(rng, i)) as f32;
                }
            }
        }
    }
}

simd_long! {
    fn uniform(rng: &Rng, range: (f64, f64), first: u64, values: &mut [f32]) {
        let (low, high) = range;
        for (i, x) in values.iter_mut().enumerate() {
            *x = (low + (high - low) * f64::from(rng.unit_f32(first + i as u64))) as f32;
        }
    }
}

simd_long! {
    fn gaussian(rng: &Rng, moments: (f64, f64), first: u64, values: &mut [f32]) {
        let (mean, std) = moments;
        for (i, x) in values.iter_mut().enumerate() {
            *x = (mean + std * rng.normal(first + i as u64)) as f32;
        }
    }
}

/// Redraws beyond two standard deviations; each position has its own sequence of draws.
fn truncated_normal(rng: &Rng, i: u64) -> f64 {
    let own = Rng::new(rng.u64(i), i);
    (0..64).map(|draw| own.normal(draw)).find(|x| x.abs() <= 2.0).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_the_whole_is() {
        let rng = Rng::named(3, "w");
        let laws = [
            Law::Uniform { low: -0.5, high: 2.0 },
            Law::Gaussian { mean: 1.0, std: 0.5 },
            Law::Truncated { mean: 0.0, std: 2.0 },
        ];
        for law in laws {
            let draw = Draw { rng, law };
            let (mut whole, mut parts) = (vec![0.0; 100], vec![0.0; 100]);
            draw.fill(0, &mut whole);
            parts.chunks_mut(33).zip(0..).for_each(|(part, i)| draw.fill(i * 33, part));
            assert_eq!(whole, parts, "{law:?}");
        }
    }
}
