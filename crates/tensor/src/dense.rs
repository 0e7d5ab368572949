//! Rectangular arrays in row-major order.

use crate::{DType, Error};

/// The elements of a tensor, typed.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Floats.
    F32(Vec<f32>),
    /// The bits of 16-bit IEEE floats.
    F16(Vec<u16>),
    /// The bits of 16-bit floats with a wide exponent.
    BF16(Vec<u16>),
    /// Signed integers.
    I64(Vec<i64>),
    /// Unsigned integers.
    U64(Vec<u64>),
}

impl Data {
    /// `len` zeros of the given type.
    pub fn zeros(dtype: DType, len: usize) -> Data {
        match dtype {
            DType::F32 => Data::F32(vec![0.0; len]),
            DType::F16 => Data::F16(vec![0; len]),
            DType::BF16 => Data::BF16(vec![0; len]),
            DType::I64 => Data::I64(vec![0; len]),
            DType::U64 => Data::U64(vec![0; len]),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::BF16(_) => DType::BF16,
            Data::I64(_) => DType::I64,
            Data::U64(_) => DType::U64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(v) => v.len(),
            Data::F16(v) | Data::BF16(v) => v.len(),
            Data::I64(v) => v.len(),
            Data::U64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A dense array: shape and elements in row-major order. An empty shape is a scalar.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    data: Data,
}

impl Tensor {
    /// A tensor of the given elements.
    ///
    /// # Errors
    /// If the shape does not hold exactly that many elements.
    pub fn new(shape: &[usize], data: Data) -> Result<Tensor, Error> {
        let expected: usize = shape.iter().product();
        if expected != data.len() {
            return Err(Error::Length { shape: shape.to_vec(), expected, actual: data.len() });
        }
        Ok(Tensor { shape: shape.to_vec(), data })
    }

    /// All zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Tensor {
        Tensor { shape: shape.to_vec(), data: Data::zeros(dtype, shape.iter().product()) }
    }

    /// Floats.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn from_f32(shape: &[usize], data: Vec<f32>) -> Result<Tensor, Error> {
        Tensor::new(shape, Data::F32(data))
    }

    /// Signed integers.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn from_i64(shape: &[usize], data: Vec<i64>) -> Result<Tensor, Error> {
        Tensor::new(shape, Data::I64(data))
    }

    /// Unsigned integers.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn from_u64(shape: &[usize], data: Vec<u64>) -> Result<Tensor, Error> {
        Tensor::new(shape, Data::U64(data))
    }

    /// A single float of shape `[1]`.
    pub fn scalar(x: f32) -> Tensor {
        Tensor { shape: vec![1], data: Data::F32(vec![x]) }
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.data.len()
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements, to change in place.
    pub fn data_mut(&mut self) -> &mut Data {
        &mut self.data
    }

    /// The elements by value.
    pub fn into_data(self) -> Data {
        self.data
    }

    /// The floats.
    ///
    /// # Panics
    /// If the element type is another one; check [`Tensor::dtype`] first for foreign data.
    pub fn f32(&self) -> &[f32] {
        match &self.data {
            Data::F32(v) => v,
            other => panic!("expected f32, this tensor holds {}", other.dtype()),
        }
    }

    /// The floats, to change in place.
    ///
    /// # Panics
    /// As [`Tensor::f32`].
    pub fn f32_mut(&mut self) -> &mut [f32] {
        match &mut self.data {
            Data::F32(v) => v,
            other => panic!("expected f32, this tensor holds {}", other.dtype()),
        }
    }

    /// The signed integers.
    ///
    /// # Panics
    /// As [`Tensor::f32`].
    pub fn i64(&self) -> &[i64] {
        match &self.data {
            Data::I64(v) => v,
            other => panic!("expected i64, this tensor holds {}", other.dtype()),
        }
    }

    /// The unsigned integers.
    ///
    /// # Panics
    /// As [`Tensor::f32`].
    pub fn u64(&self) -> &[u64] {
        match &self.data {
            Data::U64(v) => v,
            other => panic!("expected u64, this tensor holds {}", other.dtype()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_and_length_must_agree() {
        let e = Tensor::from_f32(&[2, 2], vec![0.0; 3]).unwrap_err();
        assert_eq!(e.to_string(), "shape [2, 2] holds 4 values, but 3 were given");
    }

    #[test]
    fn a_scalar_has_one_element() {
        assert_eq!(Tensor::zeros(DType::I64, &[]).numel(), 1);
    }
}
