//! `one_hot`: ids `[batch, 1]` to rows of `depth` zeros with a one at the position of the id. An id
//! that is not below `depth` stops the run.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::DType;

use super::element::Element;
use crate::def::{no_samples, per_example};
use crate::{Grad, Infer, Kernel, KernelError, OpDef, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "one_hot",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[("depth", AttrKind::RequiredInt)],
    },
    infer,
    grad: Grad::None("ids have no gradient"),
    kernel: |s| match s.ins[0].dtype {
        DType::U64 => forward::<u64>(s, |x| usize::try_from(x).ok()),
        _ => forward::<i64>(s, |x| usize::try_from(x).ok()),
    },
    batch: per_example,
    samples: no_samples,
}];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.ty("X");
    let fits = x.dtype != DType::F32
        && x.layout == Layout::Dense
        && x.shape.len() >= 2
        && x.shape.last() == Some(&1);
    if !fits {
        return Err(i.wrong("X", "i64 or u64 with a last dimension of 1"));
    }
    let depth = i.op.int("depth")?;
    if depth < 1 {
        return Err(i.bad_attr("depth", format!("is {depth}, but should be above 0")));
    }
    let mut shape = x.shape.clone();
    shape.pop();
    shape.push(depth);
    Ok(vec![VarType::f32(shape)])
}

fn forward<T: Element + std::fmt::Display>(
    s: &Spec<'_>,
    index: impl Fn(T) -> Option<usize> + Send + 'static,
) -> Result<Kernel, Error> {
    let depth = s.op.int("depth")? as usize;
    Ok(Box::new(move |io, ctx| {
        let (x, out) = (T::input(io, 0), io.out_f32(0));
        out.fill(0.0);
        for (r, (&x, row)) in x.iter().zip(out.chunks_exact_mut(depth)).enumerate() {
            let at = index(x).filter(|&at| at < depth).ok_or_else(|| {
                let row = ctx.first_example + r;
                KernelError(format!("id {x} in row {row} is not below the depth {depth}"))
            })?;
            row[at] = 1.0;
        }
        Ok(())
    }))
}
