//! `scale`: `scale * X + bias`.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Op, Schema};

use crate::def::spread;
use crate::{Batch, Grad, Kernel, OpDef, Sample};

regatta_kernels::simd! {
    fn scale(x: &[f32], scale: f32, bias: f32, out: &mut [f32]) {
        for (o, &x) in out.iter_mut().zip(x) {
            *o = scale * x + bias;
        }
    }
}

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "scale",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[("scale", AttrKind::Float(1.0)), ("bias", AttrKind::Float(0.0))],
    },
    infer: |i| Ok(vec![i.floats("X")?.clone()]),
    grad: Grad::Rule(|g| {
        let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
        let factor = g.op.float("scale")?;
        Ok(vec![Op::new("scale").input("X", &dout).attr("scale", factor).output("Out", &dx)])
    }),
    kernel: |s| {
        let (factor, bias) = (s.op.float("scale")? as f32, s.op.float("bias")? as f32);
        let kernel: Kernel = Box::new(move |io, _| {
            scale(io.f32(0), factor, bias, io.out_f32(0));
            Ok(())
        });
        Ok(kernel)
    },
    batch: |op| match op.float("bias") {
        Ok(0.0) => Batch::Linear,
        _ => Batch::PerExample,
    },
    samples: || {
        vec![Sample::x("both", spread(&[2, 3], -1.0, 1.0)).attr("scale", -1.5).attr("bias", 0.25)]
    },
}];
