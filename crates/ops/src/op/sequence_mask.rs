//! `sequence_mask`: lengths `[batch, 1]` to rows of `maxlen`: ones for the positions before the
//! length, zeros for the padding after. Lengths beyond `maxlen` give all ones, as in Paddle (the
//! sequence was cut); a negative length stops the run.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::DType;

use crate::def::{no_samples, per_example};
use crate::{Grad, Infer, Kernel, KernelError, OpDef, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "sequence_mask",
        inputs: &[one("Lengths")],
        outputs: &[one("Out")],
        attrs: &[("maxlen", AttrKind::RequiredInt)],
    },
    infer,
    grad: Grad::None("lengths have no gradient"),
    kernel: forward,
    batch: per_example,
    samples: no_samples,
}];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let lengths = i.ty("Lengths");
    if lengths.dtype != DType::I64
        || lengths.layout != Layout::Dense
        || !matches!(lengths.shape[..], [_, 1])
    {
        return Err(i.wrong("Lengths", "i64[batch, 1]"));
    }
    let maxlen = i.op.int("maxlen")?;
    if maxlen < 1 {
        return Err(i.bad_attr("maxlen", format!("is {maxlen}, but should be above 0")));
    }
    Ok(vec![VarType::f32([lengths.shape[0], maxlen])])
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let maxlen = s.op.int("maxlen")? as usize;
    Ok(Box::new(move |io, ctx| {
        let rows = io.out_f32(0).chunks_exact_mut(maxlen);
        for (r, (row, &length)) in rows.zip(io.i64(0)).enumerate() {
            let length = usize::try_from(length).map_err(|_| {
                let example = ctx.first_example + r;
                KernelError(format!("the length {length} of example {example} is negative"))
            })?;
            let (ones, zeros) = row.split_at_mut(length.min(maxlen));
            ones.fill(1.0);
            zeros.fill(0.0);
        }
        Ok(())
    }))
}
