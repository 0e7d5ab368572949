//! `sequence_pad`: any number of ids per example to `u64[batch, len]`. Short sequences are filled
//! up with `value` at the end; of long ones the last `len` ids are kept, which are the newest of a
//! history.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::DType;

use crate::def::{no_samples, per_example};
use crate::{Grad, Infer, Kernel, OpDef, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "sequence_pad",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[("len", AttrKind::RequiredInt), ("value", AttrKind::Int(0))],
    },
    infer,
    grad: Grad::None("ids have no gradient"),
    kernel: forward,
    batch: per_example,
    samples: no_samples,
}];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.ty("X");
    if x.dtype != DType::U64 || x.layout != Layout::Ragged {
        return Err(i.wrong("X", "ragged u64[batch]"));
    }
    for (attr, least) in [("len", 1), ("value", 0)] {
        let is = i.op.int(attr)?;
        if is < least {
            return Err(i.bad_attr(attr, format!("is {is}, but should be at least {least}")));
        }
    }
    Ok(vec![VarType::dense(DType::U64, [x.shape[0], i.op.int("len")?])])
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (len, value) = (s.op.int("len")? as usize, s.op.int("value")? as u64);
    Ok(Box::new(move |io, _| {
        let (ids, offsets) = io.ragged_u64(0);
        let rows = io.out_u64(0).chunks_exact_mut(len);
        for (row, range) in rows.zip(offsets.windows(2)) {
            let ids = &ids[range[0] as usize..range[1] as usize];
            let kept = &ids[ids.len().saturating_sub(len)..];
            row[..kept.len()].copy_from_slice(kept);
            row[kept.len()..].fill(value);
        }
        Ok(())
    }))
}
