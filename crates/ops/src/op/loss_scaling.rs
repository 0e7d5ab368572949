//! What mixed precision does with gradients: `check_finite` looks for NaN and infinities in all of
//! them, `unscale` divides one by the factor on the loss, and `update_loss_scaling` changes that
//! factor. Dense and row-sparse gradients alike.

use regatta_ir::schema::{AttrKind, any, many, one};
use regatta_ir::{Error, Layout, Op, Schema, VarType};
use regatta_optim::{LossScaling, ScaleState};
use regatta_tensor::DType;

use super::optimizer::{expect_flags, flags, skips};
use crate::def::{no_samples, whole};
use crate::{Grad, Infer, Io, Kernel, OpDef, Spec};

const NOT_DIFFERENTIATED: Grad = Grad::None("it works on gradients");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        // 1 if any element of any input is NaN or infinite, else 0.
        schema: Schema {
            kind: "check_finite",
            inputs: &[many("X")],
            outputs: &[one("FoundInf")],
            attrs: &[],
        },
        infer: |i| {
            for n in 0..i.many("X").len() {
                gradient(i, n)?;
            }
            Ok(vec![VarType::f32([1])])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let n = s.ins.len();
            let kernel: Kernel = Box::new(move |io, _| {
                let found = !(0..n).all(|i| all_finite(values(io, i)));
                io.out_f32(0)[0] = f32::from(u8::from(found));
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "unscale",
            inputs: &[one("X"), one("Scale")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| {
            i.expect("Scale", &VarType::f32([1]))?;
            Ok(vec![gradient(i, 0)?.clone()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |_| {
            let kernel: Kernel = Box::new(move |io, _| {
                let scale = io.f32(1)[0];
                if io.is_rows(0) {
                    let (from, to) = (io.rows(0), io.out_rows(0));
                    (to.width, to.height) = (from.width, from.height);
                    to.rows.clone_from(&from.rows);
                    to.values.resize(from.values.len(), 0.0);
                    divide(&from.values, scale, &mut to.values);
                } else {
                    divide(io.f32(0), scale, io.out_f32(0));
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
            kind: "update_loss_scaling",
            inputs: &[
                one("FoundInf"),
                one("Scale"),
                one("GoodSteps"),
                one("BadSteps"),
                any("Skip"),
            ],
            outputs: &[one("ScaleOut"), one("GoodStepsOut"), one("BadStepsOut")],
            attrs: &[
                ("incr_every_n_steps", AttrKind::RequiredInt),
                ("decr_every_n_nan_or_inf", AttrKind::RequiredInt),
                ("incr_ratio", AttrKind::RequiredFloat),
                ("decr_ratio", AttrKind::RequiredFloat),
            ],
        },
        infer: |i| {
            let (scale, count) = (VarType::f32([1]), VarType::dense(DType::I64, [1]));
            i.expect("FoundInf", &scale)?;
            i.expect("Scale", &scale)?;
            i.expect("GoodSteps", &count)?;
            i.expect("BadSteps", &count)?;
            expect_flags(i)?;
            let how = setting(i.op)?;
            how.validate().map_err(|e| i.bad_attr("incr_every_n_steps", e.to_string()))?;
            Ok(vec![scale, count.clone(), count])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: update,
        batch: whole,
        samples: no_samples,
    },
];

fn gradient<'a>(i: &Infer<'a>, n: usize) -> Result<&'a VarType, Error> {
    let ty = &i.many("X")[n];
    match ty.dtype == DType::F32 && ty.layout != Layout::Ragged {
        true => Ok(ty),
        false => Err(i.wrong_nth("X", n, "a gradient of f32")),
    }
}

fn values<'a>(io: &Io<'a>, i: usize) -> &'a [f32] {
    if io.is_rows(i) { &io.rows(i).values } else { io.f32(i) }
}

regatta_kernels::simd! {
    /// Whether no value is NaN or infinite.
    fn all_finite(x: &[f32]) -> bool {
        // Whole blocks without a branch, so that eight values are looked at together.
        x.chunks(1024).all(|block| block.iter().fold(true, |ok, x| ok & x.is_finite()))
    }
}

regatta_kernels::simd! {
    /// `y = x / by`.
    fn divide(x: &[f32], by: f32, y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x / by;
        }
    }
}

fn setting(op: &Op) -> Result<LossScaling, Error> {
    let count = |name: &str| {
        let n = op.int(name)?;
        u32::try_from(n).map_err(|_| Error::Attr {
            op: op.kind.clone(),
            attr: name.to_string(),
            reason: format!("is {n}, but should be at least 1"),
        })
    };
    Ok(LossScaling {
        dynamic: true,
        incr_every_n_steps: count("incr_every_n_steps")?,
        decr_every_n_nan_or_inf: count("decr_every_n_nan_or_inf")?,
        incr_ratio: op.float("incr_ratio")? as f32,
        decr_ratio: op.float("decr_ratio")? as f32,
        ..LossScaling::default()
    })
}

fn update(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (how, flags) = (setting(s.op)?, flags(s));
    Ok(Box::new(move |io, _| {
        if skips(io, flags.clone()) {
            return Ok(());
        }
        let finite = io.f32(0)[0] == 0.0;
        let (scale, good, bad) = (io.out_f32(0), io.out_i64(1), io.out_i64(2));
        let before = ScaleState { scale: scale[0], good_steps: good[0], bad_steps: bad[0] };
        let after = how.after(before, finite);
        (scale[0], good[0], bad[0]) = (after.scale, after.good_steps, after.bad_steps);
        Ok(())
    }))
}
