//! `scale`: `scale * X + bias`, of floats or, by whole numbers, of integers (which wrap around).

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Op, Schema};
use regatta_tensor::DType;

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
    infer: |i| {
        let x = i.numbers("X")?;
        for name in ["scale", "bias"] {
            let value = i.op.float(name)?;
            if x.dtype == DType::I64 && value.fract() != 0.0 {
                let reason = format!("is {value}, but integers take whole numbers only");
                return Err(i.bad_attr(name, reason));
            }
        }
        Ok(vec![x.clone()])
    },
    grad: Grad::Rule(|g| {
        let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
        let factor = g.op.float("scale")?;
        Ok(vec![Op::new("scale").input("X", &dout).attr("scale", factor).output("Out", &dx)])
    }),
    kernel: |s| {
        let (factor, bias) = (s.op.float("scale")?, s.op.float("bias")?);
        if s.ins[0].dtype == DType::I64 {
            return Ok(scale_ints(factor as i64, bias as i64));
        }
        let (factor, bias) = (factor as f32, bias as f32);
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

fn scale_ints(factor: i64, bias: i64) -> Kernel {
    Box::new(move |io, _| {
        for (o, x) in io.out_i64(0).iter_mut().zip(io.i64(0)) {
            *o = x.wrapping_mul(factor).wrapping_add(bias);
        }
        Ok(())
    })
}
