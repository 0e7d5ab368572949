//! Updates of tensors.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use regatta_eager as eager;
use regatta_ir::Regularizer;
use regatta_passes::Clip;

use crate::array::{tensor_of, to_numpy};
use crate::eager_op::tensors_of;
use crate::error::wrong;
use crate::program::regularizer_of;
use crate::tensor::{Tensor, raise};
use crate::training::read_optimizer;

/// A tensor with its own settings.
struct Bound_ {
    tensor: eager::Tensor,
    lr_scale: f64,
    regularizer: Option<Regularizer>,
    clip: bool,
}

struct State {
    optimizer: eager::Optimizer,
    params: Vec<Bound_>,
}

/// An update rule with the tensors that it updates and their states.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct EagerOptimizer {
    state: Mutex<State>,
}

impl EagerOptimizer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[pymethods]
impl EagerOptimizer {
    #[new]
    #[pyo3(signature = (spec, lazy = true))]
    fn new(spec: &Bound<'_, PyDict>, lazy: bool) -> PyResult<EagerOptimizer> {
        let read = read_optimizer(spec)?;
        let clip = read.clip.map(|clip| match clip {
            Clip::Value { min, max } => eager::Clip::Value { min, max },
            Clip::Norm(norm) => eager::Clip::Norm(norm),
            Clip::GlobalNorm(norm) => eager::Clip::GlobalNorm(norm),
        });
        let optimizer = eager::Optimizer::new(read.rule).clip(clip);
        let optimizer = optimizer.regularizer(read.regularizer).lazy(lazy);
        Ok(EagerOptimizer { state: Mutex::new(State { optimizer, params: vec![] }) })
    }

    /// Says which tensors are updated, and their own factors of the rate, regularization and
    /// whether they are clipped.
    #[pyo3(signature = (params, scales = None, regularizers = None, clips = None))]
    fn bind(
        &self,
        params: &Bound<'_, PyList>,
        scales: Option<Vec<f64>>,
        regularizers: Option<Vec<Option<(String, f64)>>>,
        clips: Option<Vec<bool>>,
    ) -> PyResult<()> {
        let tensors = tensors_of(params)?;
        let n = tensors.len();
        let lengths = [scales.as_ref().map(Vec::len), regularizers.as_ref().map(Vec::len)];
        if lengths.into_iter().chain([clips.as_ref().map(Vec::len)]).flatten().any(|len| len != n) {
            return Err(wrong("bind: one setting for each tensor"));
        }
        let mut bound = Vec::with_capacity(n);
        for (i, tensor) in tensors.iter().enumerate() {
            let regularizer = regularizers.as_ref().and_then(|all| all[i].clone());
            bound.push(Bound_ {
                tensor: tensor.get().inner.clone(),
                lr_scale: scales.as_ref().map_or(1.0, |all| all[i]),
                regularizer: regularizer.map(regularizer_of).transpose()?,
                clip: clips.as_ref().is_none_or(|all| all[i]),
            });
        }
        self.lock().params = bound;
        Ok(())
    }

    /// Updates the tensors that have a gradient.
    fn step(&self, py: Python<'_>, lr: f64) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.lock();
            let State { optimizer, params } = &mut *state;
            let params: Vec<eager::Param<'_>> = params.iter().map(Bound_::param).collect();
            optimizer.step(&params, lr)
        })
        .map_err(raise)
    }

    /// Forgets the gradients of the tensors, or makes them zero.
    fn clear_grad(&self, set_to_zero: bool) {
        self.lock().params.iter().for_each(|param| param.tensor.clear_grad(set_to_zero));
    }

    /// The states of a tensor by name; empty before its first update.
    fn state<'py>(&self, py: Python<'py>, param: &Tensor) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in self.lock().optimizer.state(&param.inner).unwrap_or_default() {
            dict.set_item(name, to_numpy(py, &value.to_tensor())?)?;
        }
        Ok(dict)
    }

    /// Sets states of a tensor, which must be one of the bound ones.
    fn set_state(&self, param: &Tensor, values: &Bound<'_, PyDict>) -> PyResult<()> {
        let mut read: Vec<(String, eager::Tensor)> = Vec::new();
        for (name, value) in values.iter() {
            let name: String = name.extract()?;
            let tensor = tensor_of(&name, &value)?;
            let shape = tensor.shape().to_vec();
            let tensor = eager::Tensor::new(&shape, tensor.into_data()).map_err(raise)?;
            read.push((name, tensor));
        }
        let values: Vec<(&str, eager::Tensor)> =
            read.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let mut state = self.lock();
        let State { optimizer, params } = &mut *state;
        let bound = params.iter().find(|bound| bound.tensor.id() == param.inner.id());
        let bound = bound.ok_or_else(|| wrong("set_state: the tensor is not bound"))?;
        optimizer.set_state(&bound.param(), &values).map_err(raise)
    }
}

impl Bound_ {
    fn param(&self) -> eager::Param<'_> {
        eager::Param {
            tensor: &self.tensor,
            lr_scale: self.lr_scale,
            regularizer: self.regularizer,
            clip: self.clip,
        }
    }
}

/// Multiplies the gradients of tensors by a factor. Returns whether one of them is not finite.
#[pyfunction]
pub(crate) fn unscale(py: Python<'_>, params: &Bound<'_, PyList>, factor: f32) -> PyResult<bool> {
    let tensors: Vec<eager::Tensor> =
        tensors_of(params)?.iter().map(|t| t.get().inner.clone()).collect();
    py.detach(|| eager::unscale(&tensors, factor)).map_err(raise)
}
