//! `dropout`: while training, zeroes a share `prob` of the elements and scales the others up by
//! `1 / (1 - prob)`; with `is_test`, a copy.
//!
//! Which elements are dropped depends on the seed, the step, the example's position in the whole
//! batch and the element's position in the example, and on nothing else: splitting the batch over
//! threads or computing the op again gives the same. Layers of one program should have different
//! seeds. `Mask` holds the factor of each element, so the gradient is a product with it.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Op, Schema};
use regatta_tensor::Rng;

use crate::def::{per_example, spread};
use crate::{Grad, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "dropout",
        inputs: &[one("X")],
        outputs: &[one("Out"), one("Mask")],
        attrs: &[
            ("prob", AttrKind::Float(0.5)),
            ("seed", AttrKind::Int(0)),
            ("is_test", AttrKind::Bool(false)),
        ],
    },
    infer: |i| {
        let prob = i.op.float("prob")?;
        if !(0.0..1.0).contains(&prob) {
            return Err(i.bad_attr("prob", format!("is {prob}, but should be in [0, 1)")));
        }
        let x = i.floats("X")?;
        Ok(vec![x.clone(), x.clone()])
    },
    grad: Grad::Rule(|g| {
        let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
        let mask = &g.op.outs("Mask")[0];
        Ok(vec![Op::new("elementwise_mul").input("X", &dout).input("Y", mask).output("Out", &dx)])
    }),
    kernel: forward,
    batch: per_example,
    samples: || {
        let x = || spread(&[4, 5], -1.0, 1.0);
        vec![
            Sample::x("half", x()).attr("prob", 0.5).attr("seed", 3).ignore("Mask"),
            Sample::x("for test", x()).attr("is_test", true).ignore("Mask"),
        ]
    },
}];

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let prob = s.op.float("prob")? as f32;
    let seed = s.op.int("seed")? as u64;
    let is_test = s.op.bool("is_test")?;
    let batched = s.batched(0);
    Ok(Box::new(move |io, ctx| {
        let (x, out, mask) = (io.f32(0), io.out_f32(0), io.out_f32(1));
        if is_test {
            out.copy_from_slice(x);
            mask.fill(1.0);
            return Ok(());
        }
        let rng = Rng::new(seed, ctx.step);
        let split = batched && ctx.rows > 0;
        let first = if split { x.len() * ctx.first_example / ctx.rows } else { 0 };
        let keep = 1.0 / (1.0 - prob);
        for (i, mask) in mask.iter_mut().enumerate() {
            *mask = if rng.unit_f32((first + i) as u64) < prob { 0.0 } else { keep };
        }
        regatta_kernels::vector::mul(x, mask, out);
        Ok(())
    }))
}
