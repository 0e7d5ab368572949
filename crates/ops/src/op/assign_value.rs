//! `assign_value`: values that the program gives, in row-major order. In a startup program they are
//! initial values.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Attr, Error, Op, Schema, VarType};
use regatta_tensor::{DType, Data};

use super::fill::shape;
use crate::def::{no_samples, per_example};
use crate::{Grad, Infer, Kernel, OpDef, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "assign_value",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[
            ("shape", AttrKind::RequiredInts),
            ("dtype", AttrKind::Str("f32")),
            ("values", AttrKind::Floats),
        ],
    },
    infer,
    grad: Grad::None("it has no input"),
    kernel,
    batch: per_example,
    samples: no_samples,
}];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let dtype: DType = i.op.str("dtype")?.parse().map_err(|e: String| i.bad_attr("dtype", e))?;
    let ty = VarType::dense(dtype, shape(i)?);
    let given = values(i.op, dtype)?.len();
    if ty.numel() != Some(given) {
        return Err(i.bad_attr("values", format!("are {given}, but {ty} is to be filled")));
    }
    Ok(vec![ty])
}

/// The values as elements of a type.
fn values(op: &Op, dtype: DType) -> Result<Data, Error> {
    let bad =
        |attr: &str, reason: String| Error::Attr { op: op.kind.clone(), attr: attr.into(), reason };
    let ints = || match op.attrs.get("values") {
        Some(Attr::Ints(x)) => Ok(x.clone()),
        _ => op
            .floats("values")?
            .into_iter()
            .map(|x| whole(x).ok_or(x))
            .collect::<Result<_, _>>()
            .map_err(|x| bad("values", format!("have {x}, which is no {dtype}"))),
    };
    Ok(match dtype {
        DType::F32 => Data::F32(op.floats("values")?.into_iter().map(|x| x as f32).collect()),
        DType::I64 => Data::I64(ints()?),
        DType::U64 => {
            let unsigned = |x: i64| {
                u64::try_from(x).map_err(|_| bad("values", format!("have {x}, which is no u64")))
            };
            Data::U64(ints()?.into_iter().map(unsigned).collect::<Result<_, Error>>()?)
        }
        DType::F16 | DType::BF16 => {
            return Err(bad("dtype", format!("is {dtype}, but should be f32, i64 or u64")));
        }
    })
}

/// A float as an integer, if it is one that floats can tell from its neighbours.
fn whole(x: f64) -> Option<i64> {
    (x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0).then_some(x as i64)
}

fn kernel(s: &Spec<'_>) -> Result<Kernel, Error> {
    let values = values(s.op, s.outs[0].dtype)?;
    Ok(Box::new(move |io, _| {
        match &values {
            Data::F32(x) => io.out_f32(0).copy_from_slice(x),
            Data::I64(x) => io.out_i64(0).copy_from_slice(x),
            Data::U64(x) => io.out_u64(0).copy_from_slice(x),
            Data::F16(x) | Data::BF16(x) => io.out_half(0).copy_from_slice(x),
        }
        Ok(())
    }))
}
