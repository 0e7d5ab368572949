//! What happens to gradients before the update: clipping and regularization. All of them take dense
//! and row-sparse gradients; for the latter only the rows that are there count and change.

use regatta_ir::schema::{AttrKind, many, one};
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::DType;

use crate::def::{linear, no_samples, whole};
use crate::{Grad, Infer, Io, Kernel, OpDef, Spec};

const NOT_DIFFERENTIATED: Grad = Grad::None("it works on gradients");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "clip_by_value",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: &[("min", AttrKind::RequiredFloat), ("max", AttrKind::RequiredFloat)],
        },
        infer: |i| {
            if i.op.float("min")? > i.op.float("max")? {
                return Err(i.bad_attr("min", "is larger than 'max'"));
            }
            same_gradient(i)
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let (min, max) = (s.op.float("min")? as f32, s.op.float("max")? as f32);
            let kernel: Kernel = Box::new(move |io, _| {
                // NaN passes through; clamping must not hide it.
                map(io, |x| {
                    if x < min {
                        min
                    } else if x > max {
                        max
                    } else {
                        x
                    }
                });
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "clip_by_norm",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: &[("max_norm", AttrKind::RequiredFloat)],
        },
        infer: |i| {
            positive(i, "max_norm")?;
            same_gradient(i)
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let max_norm = s.op.float("max_norm")?;
            let kernel: Kernel = Box::new(move |io, _| {
                let factor = norm_factor(squares(io, 0), max_norm);
                map(io, |x| x * factor);
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "global_norm_factor",
            inputs: &[many("X")],
            outputs: &[one("Out")],
            attrs: &[("clip_norm", AttrKind::RequiredFloat)],
        },
        infer: |i| {
            positive(i, "clip_norm")?;
            Ok(vec![VarType::f32([1])])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let (n, clip_norm) = (s.ins.len(), s.op.float("clip_norm")?);
            let kernel: Kernel = Box::new(move |io, _| {
                let total = (0..n).map(|i| squares(io, i)).sum();
                io.out_f32(0)[0] = norm_factor(total, clip_norm);
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "scale_by",
            inputs: &[one("X"), one("Factor")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| {
            i.expect("Factor", &VarType::f32([1]))?;
            same_gradient(i)
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |_| {
            let kernel: Kernel = Box::new(move |io, _| {
                let factor = io.f32(1)[0];
                map(io, |x| x * factor);
                Ok(())
            });
            Ok(kernel)
        },
        batch: linear,
        samples: no_samples,
    },
    OpDef {
        schema: decay_schema("l2_decay"),
        infer: infer_decay,
        grad: NOT_DIFFERENTIATED,
        kernel: |s| decay(s, |w| w),
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: decay_schema("l1_decay"),
        infer: infer_decay,
        grad: NOT_DIFFERENTIATED,
        kernel: |s| decay(s, |w| if w == 0.0 { 0.0 } else { w.signum() }),
        batch: whole,
        samples: no_samples,
    },
];

fn same_gradient(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.ty("X");
    if x.dtype != DType::F32 || x.layout == Layout::Ragged {
        return Err(i.wrong("X", "a gradient of floats"));
    }
    Ok(vec![x.clone()])
}

fn positive(i: &Infer<'_>, attr: &str) -> Result<(), Error> {
    let value = i.op.float(attr)?;
    if value > 0.0 { Ok(()) } else { Err(i.bad_attr(attr, format!("is {value}, not above 0"))) }
}

fn norm_factor(squares: f64, limit: f64) -> f32 {
    let norm = squares.sqrt();
    if norm > limit { (limit / norm) as f32 } else { 1.0 }
}

fn squares(io: &Io<'_>, i: usize) -> f64 {
    let values = if io.is_rows(i) { io.rows(i).values.as_slice() } else { io.f32(i) };
    values.iter().map(|&v| f64::from(v) * f64::from(v)).sum()
}

/// Writes `f` of every element of input 0 to output 0.
fn map(io: &mut Io<'_>, f: impl Fn(f32) -> f32) {
    if io.is_rows(0) {
        let out = io.out_rows(0);
        out.clone_from(io.rows(0));
        out.values.iter_mut().for_each(|x| *x = f(*x));
    } else {
        io.out_f32(0).iter_mut().zip(io.f32(0)).for_each(|(o, x)| *o = f(*x));
    }
}

const fn decay_schema(kind: &'static str) -> Schema {
    Schema {
        kind,
        inputs: const { &[one("X"), one("Param")] },
        outputs: const { &[one("Out")] },
        attrs: &[("coeff", AttrKind::RequiredFloat)],
    }
}

fn infer_decay(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let param = i.floats("Param")?;
    if i.ty("X").shape != param.shape {
        return Err(i.wrong("X", &format!("the gradient of {param}")));
    }
    same_gradient(i)
}

/// `Out = X + coeff * penalty(Param)`, over the rows that are there.
fn decay(s: &Spec<'_>, penalty: impl Fn(f32) -> f32 + Send + 'static) -> Result<Kernel, Error> {
    let coeff = s.op.float("coeff")? as f32;
    Ok(Box::new(move |io, _| {
        let w = io.f32(1);
        if !io.is_rows(0) {
            for ((o, &x), &w) in io.out_f32(0).iter_mut().zip(io.f32(0)).zip(w) {
                *o = x + coeff * penalty(w);
            }
            return Ok(());
        }
        let out = io.out_rows(0);
        out.clone_from(io.rows(0));
        for (&row, values) in out.rows.iter().zip(out.values.chunks_exact_mut(out.width)) {
            let w = &w[row as usize * out.width..];
            values.iter_mut().zip(w).for_each(|(x, &w)| *x += coeff * penalty(w));
        }
        Ok(())
    }))
}
