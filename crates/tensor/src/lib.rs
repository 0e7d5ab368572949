//! Values that flow through a program: dense tensors, ragged slots and row-sparse gradients.
//!
//! This crate knows nothing of programs, files or networks.
//!
//! ```
//! use regatta_tensor::Tensor;
//! let x = Tensor::from_f32(&[2, 3], vec![1.0; 6]).unwrap();
//! assert_eq!(x.shape(), &[2, 3]);
//! assert_eq!(x.f32()[0], 1.0);
//! ```
//!
//! Reading order: [`DType`], [`Tensor`], [`Ragged`], [`RowSparse`], [`RowIndex`], [`Value`],
//! [`Rng`].

mod dense;
mod dtype;
mod ragged;
pub mod rng;
mod row_index;
mod row_sparse;

pub use dense::{Data, Tensor};
pub use dtype::DType;
pub use ragged::Ragged;
pub use rng::Rng;
pub use row_index::RowIndex;
pub use row_sparse::RowSparse;

/// What a caller feeds into a program or a reader puts into a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A rectangular array.
    Dense(Tensor),
    /// A variable number of values per example.
    Ragged(Ragged),
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Self {
        Value::Dense(t)
    }
}

impl From<Ragged> for Value {
    fn from(r: Ragged) -> Self {
        Value::Ragged(r)
    }
}

impl Value {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Value::Dense(t) => t.dtype(),
            Value::Ragged(r) => r.values().dtype(),
        }
    }

    /// Number of examples: the first dimension, or the number of ragged rows.
    pub fn rows(&self) -> usize {
        match self {
            Value::Dense(t) => t.shape().first().copied().unwrap_or(1),
            Value::Ragged(r) => r.rows(),
        }
    }

    /// The integers as ids, or nothing if it holds floats. A negative one of signed integers has
    /// the bits of 2^63 or more.
    pub fn ids(&self) -> Option<&[u64]> {
        match self.data() {
            Data::U64(ids) => Some(ids),
            Data::I64(ids) => Some(bytemuck::cast_slice(ids)),
            Data::F32(_) | Data::F16(_) | Data::BF16(_) => None,
        }
    }

    /// The elements, of all rows end to end where it is ragged.
    pub fn data(&self) -> &Data {
        match self {
            Value::Dense(t) => t.data(),
            Value::Ragged(r) => r.values(),
        }
    }

    /// The dense tensor, if this is one.
    pub fn as_dense(&self) -> Option<&Tensor> {
        match self {
            Value::Dense(t) => Some(t),
            Value::Ragged(_) => None,
        }
    }
}

/// Why a value could not be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of elements does not match the shape.
    #[error("shape {shape:?} holds {expected} values, but {actual} were given")]
    Length {
        /// The wanted shape.
        shape: Vec<usize>,
        /// Elements the shape holds.
        expected: usize,
        /// Elements given.
        actual: usize,
    },
    /// Offsets of a ragged value are not a rising sequence from 0 to the number of values.
    #[error("ragged offsets must rise from 0 to {values}, but {reason}")]
    Offsets {
        /// Number of values.
        values: usize,
        /// What is wrong.
        reason: String,
    },
}
