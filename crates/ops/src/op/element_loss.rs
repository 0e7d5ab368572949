//! Losses of one prediction and one label, element by element: `log_loss`, `huber_loss`,
//! `hinge_loss`, and their gradients.

use regatta_ir::schema::{AttrDef, AttrKind, one, optional};
use regatta_ir::{Error, Schema, VarType};

use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

/// A loss with one constant: its value and its derivatives.
trait Loss: 'static {
    /// Name of the constant, if it has one.
    const PARAM: Option<&'static str>;
    /// Whether the constant must be above 0.
    const POSITIVE: bool = false;
    fn f(x: f32, label: f32, p: f32) -> f32;
    fn dx(x: f32, label: f32, p: f32) -> f32;
    fn dlabel(x: f32, label: f32, p: f32) -> f32;
}

/// Negative log likelihood of a probability; epsilon keeps the logarithms finite.
struct Log;

impl Loss for Log {
    const PARAM: Option<&'static str> = Some("epsilon");
    fn f(x: f32, label: f32, p: f32) -> f32 {
        -label * (x + p).ln() - (1.0 - label) * (1.0 - x + p).ln()
    }
    fn dx(x: f32, label: f32, p: f32) -> f32 {
        (1.0 - label) / (1.0 - x + p) - label / (x + p)
    }
    fn dlabel(x: f32, _: f32, p: f32) -> f32 {
        (1.0 - x + p).ln() - (x + p).ln()
    }
}

/// `r^2 / 2` for `r = x - label` within delta, `delta (|r| - delta / 2)` beyond.
struct Huber;

impl Loss for Huber {
    const PARAM: Option<&'static str> = Some("delta");
    const POSITIVE: bool = true;
    fn f(x: f32, label: f32, p: f32) -> f32 {
        let r = (x - label).abs();
        if r > p { p * (r - 0.5 * p) } else { 0.5 * r * r }
    }
    fn dx(x: f32, label: f32, p: f32) -> f32 {
        let r = x - label;
        if r > p {
            p
        } else if r < -p {
            -p
        } else {
            r
        }
    }
    fn dlabel(x: f32, label: f32, p: f32) -> f32 {
        -Self::dx(x, label, p)
    }
}

/// `max(0, 1 - (2 label - 1) x)` for labels 0 and 1.
struct Hinge;

impl Loss for Hinge {
    const PARAM: Option<&'static str> = None;
    fn f(x: f32, label: f32, _: f32) -> f32 {
        let loss = 1.0 - (2.0 * label - 1.0) * x;
        if loss < 0.0 { 0.0 } else { loss }
    }
    fn dx(x: f32, label: f32, p: f32) -> f32 {
        if Self::f(x, label, p) > 0.0 { 1.0 - 2.0 * label } else { 0.0 }
    }
    fn dlabel(x: f32, label: f32, p: f32) -> f32 {
        if Self::f(x, label, p) > 0.0 { -2.0 * x } else { 0.0 }
    }
}

const fn forward_def<L: Loss>(
    kind: &'static str,
    attrs: &'static [AttrDef],
    samples: fn() -> Vec<Sample>,
) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X"), one("Label")] },
            outputs: const { &[one("Out")] },
            attrs,
        },
        infer: infer::<L>,
        grad: Grad::Rule(|g: &GradCtx<'_>| Ok(g.several(&["X", "Label"], "Out", &["X", "Label"]))),
        kernel: forward::<L>,
        batch: per_example,
        samples,
    }
}

const fn grad_def<L: Loss>(kind: &'static str, attrs: &'static [AttrDef]) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X"), one("Label"), one("dOut")] },
            outputs: const { &[optional("dX"), optional("dLabel")] },
            attrs,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone(); i.op.outputs.len()]),
        grad: NO_SECOND,
        kernel: backward::<L>,
        batch: per_example,
        samples: no_samples,
    }
}

const LOG: &[AttrDef] = &[("epsilon", AttrKind::Float(1e-4))];
const HUBER: &[AttrDef] = &[("delta", AttrKind::Float(1.0))];

pub(crate) static DEFS: &[OpDef] = &[
    forward_def::<Log>("log_loss", LOG, || vec![labelled("column", spread(&[4, 1], 0.3, 0.7))]),
    grad_def::<Log>("log_loss_grad", LOG),
    forward_def::<Huber>("huber_loss", HUBER, || {
        vec![labelled("near and far", spread(&[6, 1], -2.0, 2.0)).attr("delta", 0.6)]
    }),
    grad_def::<Huber>("huber_loss_grad", HUBER),
    forward_def::<Hinge>("hinge_loss", &[], || {
        vec![labelled("both sides", spread(&[6, 1], -2.0, 2.0)).fix("Label")]
    }),
    grad_def::<Hinge>("hinge_loss_grad", &[]),
];

fn labelled(name: &'static str, x: regatta_tensor::Value) -> Sample {
    let regatta_tensor::Value::Dense(t) = &x else { unreachable!("samples are dense") };
    let labels = (0..t.numel()).map(|i| (i % 2) as f32).collect();
    let labels = regatta_tensor::Tensor::from_f32(t.shape(), labels).expect("lengths agree");
    Sample::x(name, x).with("Label", labels)
}

fn infer<L: Loss>(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    i.expect("Label", x)?;
    if let Some(name) = L::PARAM {
        let value = i.op.float(name)?;
        if !(value > 0.0 || value == 0.0 && !L::POSITIVE) {
            return Err(i.bad_attr(name, format!("is {value}, which is too small")));
        }
    }
    Ok(vec![x.clone()])
}

fn param<L: Loss>(s: &Spec<'_>) -> Result<f32, Error> {
    Ok(L::PARAM.map(|name| s.op.float(name)).transpose()?.unwrap_or(0.0) as f32)
}

fn forward<L: Loss>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let p = param::<L>(s)?;
    Ok(Box::new(move |io, _| {
        let (x, label) = (io.f32(0), io.f32(1));
        for ((o, &x), &label) in io.out_f32(0).iter_mut().zip(x).zip(label) {
            *o = L::f(x, label, p);
        }
        Ok(())
    }))
}

fn backward<L: Loss>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let p = param::<L>(s)?;
    let (dx, dlabel) = (s.out_at("dX"), s.out_at("dLabel"));
    Ok(Box::new(move |io, _| {
        let inputs = || io.f32(0).iter().zip(io.f32(1)).zip(io.f32(2));
        let inputs = (inputs(), inputs());
        if let Some(at) = dx {
            for (o, ((&x, &label), &d)) in io.out_f32(at).iter_mut().zip(inputs.0) {
                *o = d * L::dx(x, label, p);
            }
        }
        if let Some(at) = dlabel {
            for (o, ((&x, &label), &d)) in io.out_f32(at).iter_mut().zip(inputs.1) {
                *o = d * L::dlabel(x, label, p);
            }
        }
        Ok(())
    }))
}
