//! Automatic casts: while they are on, some ops compute in 16 bits.

use std::collections::HashSet;
use std::sync::Arc;

use regatta_tensor::DType;
use smallvec::SmallVec;

use crate::template::Template;
use crate::{Result, Tensor, global};

/// Which ops compute in which precision.
#[derive(Debug, Clone)]
pub struct Autocast {
    /// The 16-bit type.
    pub dtype: DType,
    /// Ops that take 16-bit floats.
    pub white: HashSet<String>,
    /// Ops that take 32-bit floats. Others take what comes, and 32 bits if it is mixed.
    pub black: HashSet<String>,
}

/// The inputs of an op as the casts of this thread want them; nothing if they are so already.
pub(crate) fn inputs(
    template: &Template,
    tensors: &[&Tensor],
) -> Result<Option<SmallVec<[Tensor; 4]>>> {
    let Some(autocast) = global::autocast() else { return Ok(None) };
    let kind = template.kind();
    if kind == "cast" || !template.in_place.is_empty() {
        return Ok(None);
    }
    let dtypes: SmallVec<[DType; 8]> = tensors.iter().map(|tensor| tensor.dtype()).collect();
    let floats = dtypes.iter().filter(|dtype| dtype.is_float());
    let is_mixed = floats.clone().any(|d| d.is_half()) && floats.clone().any(|d| !d.is_half());
    let wanted = match () {
        () if autocast.white.contains(kind) => autocast.dtype,
        () if autocast.black.contains(kind) || is_mixed => DType::F32,
        () => return Ok(None),
    };
    if dtypes.iter().all(|dtype| !dtype.is_float() || *dtype == wanted) {
        return Ok(None);
    }
    let attrs = [("dtype", wanted.to_string().into())];
    let cast = Template::new("cast", &[("X", 1)], &attrs, &[])?;
    let made = tensors.iter().zip(&dtypes).map(|(tensor, dtype)| {
        match dtype.is_float() && *dtype != wanted && !tensor.is_rows() {
            true => Ok(cast.call(&[tensor])?.remove(0)),
            false => Ok((*tensor).clone()),
        }
    });
    made.collect::<Result<_>>().map(Some)
}

/// Turns casts on for ops of this thread, until what is returned is dropped.
pub fn autocast(autocast: Autocast) -> AutocastGuard {
    AutocastGuard(global::set_autocast(Some(Arc::new(autocast))))
}

/// Casts are on as long as this lives.
#[derive(Debug)]
pub struct AutocastGuard(Option<Arc<Autocast>>);

impl Drop for AutocastGuard {
    fn drop(&mut self) {
        global::set_autocast(self.0.take());
    }
}
