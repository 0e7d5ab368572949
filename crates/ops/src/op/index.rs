//! Indices that come as values: what the ops that gather and scatter share.

use regatta_ir::{Error, VarType};
use regatta_tensor::DType;

use crate::{Infer, KernelError};

/// The position that an index means in a dimension; a negative one counts from the end.
#[inline(always)]
pub(super) fn position(index: i64, size: usize, dim: usize) -> Result<usize, KernelError> {
    let at = if index < 0 { index + size as i64 } else { index };
    if (0..size as i64).contains(&at) { Ok(at as usize) } else { Err(outside(index, size, dim)) }
}

#[cold]
fn outside(index: i64, size: usize, dim: usize) -> KernelError {
    KernelError(format!("index {index} is not in dimension {dim}, which has the size {size}"))
}

/// The type of a slot that must hold indices.
pub(super) fn indices<'a>(i: &Infer<'a>, slot: &str) -> Result<&'a VarType, Error> {
    let ty = i.dense(slot)?;
    if ty.dtype == DType::I64 { Ok(ty) } else { Err(i.wrong(slot, "dense i64")) }
}
