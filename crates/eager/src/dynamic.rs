//! Results whose shape depends on values: programs cannot have them, tensors can.

use regatta_ops::dynamic;
use regatta_tensor::DType;

use crate::template::Template;
use crate::{Error, Result, Tensor};

/// What [`Tensor::unique`] finds.
#[derive(Debug)]
pub struct Unique {
    /// The different elements, in ascending order.
    pub values: Tensor,
    /// Where each was first.
    pub index: Tensor,
    /// For each element, which of the values it is.
    pub inverse: Tensor,
    /// How often each was there.
    pub counts: Tensor,
}

fn plain(tensor: regatta_tensor::Tensor) -> Result<Tensor> {
    let shape = tensor.shape().to_vec();
    Tensor::new(&shape, tensor.into_data())
}

impl Tensor {
    /// Positions of the elements that are not 0: `i64[n, dimensions]` in row-major order.
    ///
    /// # Errors
    /// None for dense tensors.
    pub fn nonzero(&self) -> Result<Tensor> {
        plain(dynamic::nonzero(&self.to_tensor()))
    }

    /// The elements where a mask of the same shape is not 0. Gradients flow to those elements.
    ///
    /// ```
    /// # use regatta_eager::Tensor;
    /// let x = Tensor::from_f32(&[3], vec![1.0, 2.0, 3.0]).unwrap().trainable();
    /// let mask = Tensor::from_i64(&[3], vec![1, 0, 1]).unwrap();
    /// let chosen = x.masked_select(&mask).unwrap();
    /// assert_eq!(chosen.to_f32(), [1.0, 3.0]);
    /// chosen.op("mean", &[]).unwrap().backward(None, false).unwrap();
    /// assert_eq!(x.grad().unwrap().to_f32(), [0.5, 0.0, 0.5]);
    /// ```
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        if mask.shape() != self.shape() || mask.dtype() != DType::I64 {
            return Err(Error::Mismatch(format!(
                "a mask of {:?} should be i64 of the same shape, but is {:?}",
                self.var_type(),
                mask.var_type()
            )));
        }
        let count = dynamic::count_nonzero(&mask.to_tensor()) as i64;
        let slots = [("X", 1), ("Mask", 1)];
        let select = Template::new("masked_select", &slots, &[("count", count.into())], &[])?;
        Ok(select.call(&[self, mask])?.remove(0))
    }

    /// The different elements.
    ///
    /// # Errors
    /// None for dense tensors.
    pub fn unique(&self) -> Result<Unique> {
        let flat = self.op("reshape", &[("shape", vec![-1].into())])?;
        let found = dynamic::unique(&flat.to_tensor());
        Ok(Unique {
            values: plain(found.values)?,
            index: plain(found.index)?,
            inverse: plain(found.inverse)?,
            counts: plain(found.counts)?,
        })
    }
}
