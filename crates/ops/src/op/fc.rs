//! `fc`: `act(X W + b)` over the last dimension of `X`, and its gradient.

use regatta_ir::schema::{AttrKind, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::gemm::{Act, Epilogue, Mat, gemm};
use regatta_kernels::{backward as slope, rows};

use crate::def::{no_samples, per_example, spread};
use crate::{Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "fc",
            inputs: &[one("X"), one("W"), optional("Bias")],
            outputs: &[one("Out")],
            attrs: &[("act", AttrKind::Str(""))],
        },
        infer,
        grad: Grad::Rule(grad),
        kernel: forward,
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "fc_grad",
            inputs: &[one("X"), one("W"), one("Out"), one("dOut")],
            outputs: &[optional("dX"), optional("dW"), optional("dBias")],
            attrs: &[("act", AttrKind::Str(""))],
        },
        infer: infer_grad,
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: |s| backward(s, false),
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        // As `fc_grad` where X comes out of a relu: dX is the gradient of what went into that.
        schema: Schema {
            kind: "fc_grad_through_relu",
            inputs: &[one("X"), one("W"), one("Out"), one("dOut")],
            outputs: &[one("dX"), optional("dW"), optional("dBias")],
            attrs: &[("act", AttrKind::Str(""))],
        },
        infer: infer_grad,
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: |s| backward(s, true),
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    let w = i.floats_of_rank("W", 2)?;
    let width = *x.shape.last().ok_or_else(|| i.wrong("X", "f32[.., width]"))?;
    i.expect("W", &VarType::f32([width, w.shape[1]]))?;
    if i.opt("Bias").is_some() {
        i.expect("Bias", &VarType::f32([w.shape[1]]))?;
    }
    activation(i.op)?;
    let mut shape = x.shape.clone();
    *shape.last_mut().expect("checked above") = w.shape[1];
    Ok(vec![VarType::f32(shape)])
}

fn infer_grad(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let width = *i.ty("W").shape.last().unwrap_or(&-1);
    Ok(i.op
        .outputs
        .iter()
        .map(|(slot, _)| match slot.as_str() {
            "dX" => i.ty("X").clone(),
            "dW" => i.ty("W").clone(),
            _ => VarType::f32([width]),
        })
        .collect())
}

fn activation(op: &Op) -> Result<Act, Error> {
    Ok(match op.str("act")? {
        "" => Act::None,
        "relu" => Act::Relu,
        "tanh" => Act::Tanh,
        "sigmoid" => Act::Sigmoid,
        other => {
            return Err(Error::Attr {
                op: op.kind.clone(),
                attr: "act".into(),
                reason: format!("is '{other}', but should be relu, tanh, sigmoid or nothing"),
            });
        }
    })
}

fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
    let mut op = g
        .grad_op()
        .input("X", &g.op.ins("X")[0])
        .input("W", &g.op.ins("W")[0])
        .input("Out", &g.op.outs("Out")[0])
        .input("dOut", &dout);
    for (slot, out) in [("X", "dX"), ("W", "dW"), ("Bias", "dBias")] {
        if let Some(d) = g.din(slot) {
            op = op.output(out, &d);
        }
    }
    Ok(if op.outputs.is_empty() { vec![] } else { vec![op] })
}

fn plain(data: &[f32], ld: usize) -> Mat<'_> {
    Mat { data, ld, trans: false }
}

fn transposed(data: &[f32], ld: usize) -> Mat<'_> {
    Mat { data, ld, trans: true }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (m, k) = s.matrix(0);
    let n = s.dims(1)[1];
    let act = activation(s.op)?;
    let bias = s.at("Bias");
    Ok(Box::new(move |io, ctx| {
        let epilogue = Epilogue { bias: bias.map(|b| io.f32(b)), act, open: None };
        let (x, w) = (plain(io.f32(0), k), plain(io.f32(1), n));
        gemm(m, n, k, x, w, false, io.out_f32(0), n, epilogue, &mut ctx.gemm);
        Ok(())
    }))
}

fn backward(s: &Spec<'_>, through_relu: bool) -> Result<Kernel, Error> {
    let (m, k) = s.matrix(0);
    let n = s.dims(1)[1];
    let act = activation(s.op)?;
    let (dx, dw, dbias) = (s.out_at("dX"), s.out_at("dW"), s.out_at("dBias"));
    let mut scratch = if act == Act::None { vec![] } else { vec![0.0; m * n] };
    Ok(Box::new(move |io, ctx| {
        let (x, w, out, dout) = (io.f32(0), io.f32(1), io.f32(2), io.f32(3));
        let dz: &[f32] = if act == Act::None {
            dout
        } else {
            match act {
                Act::Relu => slope::relu_backward(out, dout, &mut scratch),
                Act::Tanh => slope::tanh_backward(out, dout, &mut scratch),
                _ => slope::sigmoid_backward(out, dout, &mut scratch),
            }
            &scratch
        };
        if let Some(dbias) = dbias {
            rows::column_sums(dz, false, io.out_f32(dbias));
        }
        if let Some(dw) = dw {
            let (a, b) = (transposed(x, k), plain(dz, n));
            gemm(k, n, m, a, b, false, io.out_f32(dw), n, Epilogue::default(), &mut ctx.gemm);
        }
        if let Some(dx) = dx {
            let (a, b) = (plain(dz, n), transposed(w, n));
            let epilogue = Epilogue { open: through_relu.then_some(x), ..Epilogue::default() };
            gemm(m, k, n, a, b, false, io.out_f32(dx), k, epilogue, &mut ctx.gemm);
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let base =
        |name| Sample::x(name, spread(&[3, 4], -1.0, 1.0)).with("W", spread(&[4, 5], -1.0, 1.0));
    let bias = || spread(&[5], -0.5, 0.5);
    vec![
        base("plain"),
        base("bias").with("Bias", bias()),
        base("tanh").with("Bias", bias()).attr("act", "tanh"),
        base("sigmoid").with("Bias", bias()).attr("act", "sigmoid"),
        base("relu").with("Bias", bias()).attr("act", "relu"),
        Sample::x("three dimensions", spread(&[2, 3, 4], -1.0, 1.0))
            .with("W", spread(&[4, 2], -1.0, 1.0)),
    ]
}
