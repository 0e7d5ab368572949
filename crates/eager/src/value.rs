//! Values of tensors: shared, and copied when one of several owners changes them.

use std::sync::Arc;

use regatta_ir::{Layout, VarType};
use regatta_tensor::{DType, Data, Ragged, RowSparse};

use crate::buffer::Block;

/// A type with a number of its own, so that types are compared and hashed as numbers. Equal types
/// nearly always have equal numbers; they must not be relied on for more than finding prepared ops.
#[derive(Debug)]
pub(crate) struct Type {
    pub(crate) id: u64,
    pub(crate) var: VarType,
    pub(crate) dims: Box<[usize]>,
    pub(crate) numel: usize,
}

impl Type {
    pub(crate) fn new(id: u64, var: VarType) -> Type {
        let dims: Box<[usize]> = var.shape.iter().map(|&d| d.max(0) as usize).collect();
        let numel = dims.iter().product();
        Type { id, var, dims, numel }
    }
}

/// The elements of a tensor.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// A rectangular array.
    Dense(Dense),
    /// Some rows of a matrix: the gradient of a table.
    Rows(Arc<RowSparse>),
    /// A variable number of ids per example.
    Ragged(Arc<Ragged>),
}

/// A range of a buffer, which other values may share.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    block: Arc<Block>,
    offset: usize,
    len: usize,
}

impl Value {
    /// Room for a value of a type. Dense elements are whatever was there before.
    pub(crate) fn room(ty: &Type) -> Value {
        match ty.var.layout {
            Layout::Rows => Value::Rows(Arc::new(RowSparse {
                height: ty.dims[0],
                width: ty.dims[1],
                ..RowSparse::default()
            })),
            _ => Value::Dense(Dense::room(ty.var.dtype, ty.numel)),
        }
    }

    pub(crate) fn dense(&self) -> Option<&Dense> {
        match self {
            Value::Dense(dense) => Some(dense),
            _ => None,
        }
    }

    /// The same elements in a buffer of their own.
    pub(crate) fn copied(&self) -> Value {
        match self {
            Value::Dense(dense) => Value::Dense(dense.copied()),
            Value::Rows(rows) => Value::Rows(Arc::new((**rows).clone())),
            Value::Ragged(ragged) => Value::Ragged(ragged.clone()),
        }
    }

    /// The value, copied if somebody else has it as well.
    pub(crate) fn own(&mut self) {
        let shared = match self {
            Value::Dense(dense) => Arc::get_mut(&mut dense.block).is_none(),
            Value::Rows(rows) => Arc::get_mut(rows).is_none(),
            Value::Ragged(_) => false,
        };
        if shared {
            *self = self.copied();
        }
    }
}

impl Dense {
    pub(crate) fn room(dtype: DType, len: usize) -> Dense {
        Dense { block: Arc::new(Block::new(dtype, len)), offset: 0, len }
    }

    pub(crate) fn of(data: Data) -> Dense {
        let len = data.len();
        Dense { block: Arc::new(Block::of(data)), offset: 0, len }
    }

    /// A copy of a slice, in a buffer of the pool.
    pub(crate) fn copy_of(data: &Data, range: std::ops::Range<usize>) -> Dense {
        let mut dense = Dense::room(data.dtype(), range.len());
        match (dense.data_mut().expect("just made"), data) {
            (Data::F32(to), Data::F32(from)) => to[..range.len()].copy_from_slice(&from[range]),
            (Data::I64(to), Data::I64(from)) => to[..range.len()].copy_from_slice(&from[range]),
            (Data::U64(to), Data::U64(from)) => to[..range.len()].copy_from_slice(&from[range]),
            (Data::F16(to), Data::F16(from)) | (Data::BF16(to), Data::BF16(from)) => {
                to[..range.len()].copy_from_slice(&from[range]);
            }
            _ => unreachable!("the buffer was made for this type"),
        }
        dense
    }

    fn copied(&self) -> Dense {
        Dense::copy_of(self.block.data(), self.range())
    }

    /// `len` elements from `offset` on, in the same buffer.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Dense {
        assert!(offset + len <= self.len, "a part lies inside the whole");
        Dense { block: self.block.clone(), offset: self.offset + offset, len }
    }

    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The whole buffer; the elements of this value are in [`Dense::range`].
    pub(crate) fn data(&self) -> &Data {
        self.block.data()
    }

    /// The whole buffer to write, if nobody else has it.
    pub(crate) fn data_mut(&mut self) -> Option<&mut Data> {
        Arc::get_mut(&mut self.block).map(Block::data_mut)
    }

    /// The floats.
    ///
    /// # Panics
    /// If it holds something else.
    pub(crate) fn f32(&self) -> &[f32] {
        match self.block.data() {
            Data::F32(all) => &all[self.range()],
            other => panic!("expected f32, this value holds {}", other.dtype()),
        }
    }

    /// The floats to write, if nobody else has them.
    pub(crate) fn f32_mut(&mut self) -> Option<&mut [f32]> {
        let range = self.range();
        match self.data_mut()? {
            Data::F32(all) => Some(&mut all[range]),
            other => panic!("expected f32, this value holds {}", other.dtype()),
        }
    }

    /// The elements in a vector.
    pub(crate) fn to_data(&self) -> Data {
        let range = self.range();
        match self.block.data() {
            Data::F32(v) => Data::F32(v[range].to_vec()),
            Data::F16(v) => Data::F16(v[range].to_vec()),
            Data::BF16(v) => Data::BF16(v[range].to_vec()),
            Data::I64(v) => Data::I64(v[range].to_vec()),
            Data::U64(v) => Data::U64(v[range].to_vec()),
        }
    }
}
