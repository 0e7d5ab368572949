//! `assign`: a copy of a variable; its gradient is a copy of the gradient.

use regatta_ir::schema::one;
use regatta_ir::{Op, Schema};
use regatta_tensor::DType;

use crate::def::{linear, spread};
use crate::{Grad, Kernel, OpDef, Sample};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema { kind: "assign", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| Ok(vec![i.ty("X").clone()]),
    grad: Grad::Rule(|g| {
        let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
        Ok(vec![Op::new("assign").input("X", &dout).output("Out", &dx)])
    }),
    kernel: |s| {
        let dtype = s.ins[0].dtype;
        let kernel: Kernel = Box::new(move |io, _| {
            if io.is_rows(0) {
                io.out_rows(0).clone_from(io.rows(0));
                return Ok(());
            }
            match dtype {
                DType::F32 => io.out_f32(0).copy_from_slice(io.f32(0)),
                DType::F16 | DType::BF16 => io.out_half(0).copy_from_slice(io.half(0)),
                DType::I64 => io.out_i64(0).copy_from_slice(io.i64(0)),
                DType::U64 => io.out_u64(0).copy_from_slice(io.u64(0)),
            }
            Ok(())
        });
        Ok(kernel)
    },
    batch: linear,
    samples: || vec![Sample::x("copy", spread(&[2, 3], -1.0, 1.0))],
}];
