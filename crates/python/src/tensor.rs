//! Tensors that compute at once. Element types that the engine does not store (bool, int32, float64
//! and the like) are names here, beside the type that stores them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyList, PyTuple};
use regatta_eager as eager;
use regatta_eager::Room;
use regatta_tensor::{DType, Data};

use crate::array::{tensor_of, to_numpy};
use crate::error::wrong;

/// An element type as Python names it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(u8)]
pub(crate) enum Logical {
    Float32,
    Float64,
    Float16,
    BFloat16,
    Int64,
    Int32,
    Int16,
    Int8,
    UInt8,
    UInt64,
    Bool,
}

const LOGICALS: [(Logical, &str, DType); 11] = [
    (Logical::Float32, "float32", DType::F32),
    (Logical::Float64, "float64", DType::F32),
    (Logical::Float16, "float16", DType::F16),
    (Logical::BFloat16, "bfloat16", DType::BF16),
    (Logical::Int64, "int64", DType::I64),
    (Logical::Int32, "int32", DType::I64),
    (Logical::Int16, "int16", DType::I64),
    (Logical::Int8, "int8", DType::I64),
    (Logical::UInt8, "uint8", DType::I64),
    (Logical::UInt64, "uint64", DType::U64),
    (Logical::Bool, "bool", DType::I64),
];

impl Logical {
    pub(crate) fn named(name: &str) -> PyResult<Logical> {
        let found = LOGICALS.iter().find(|(_, known, _)| *known == name);
        found.map(|(logical, _, _)| *logical).ok_or_else(|| {
            PyTypeError::new_err(format!("'{name}' is not an element type of tensors"))
        })
    }

    fn name(self) -> &'static str {
        LOGICALS[self as usize].1
    }

    fn stored(self) -> DType {
        LOGICALS[self as usize].2
    }

    /// Whether values of this type are stored so.
    pub(crate) fn is_stored_as(self, dtype: DType) -> bool {
        self.stored() == dtype
    }

    /// The name of a type that was computed.
    fn of(dtype: DType) -> Logical {
        match dtype {
            DType::F32 => Logical::Float32,
            DType::F16 => Logical::Float16,
            DType::BF16 => Logical::BFloat16,
            DType::I64 => Logical::Int64,
            DType::U64 => Logical::UInt64,
        }
    }
}

/// A tensor; `python/regatta/tensor` gives it its methods.
#[pyclass(frozen, subclass, dict, weakref, module = "regatta._core")]
pub(crate) struct Tensor {
    pub(crate) inner: eager::Tensor,
    logical: AtomicU8,
}

impl Tensor {
    pub(crate) fn of(inner: eager::Tensor, logical: Logical) -> Tensor {
        Tensor { inner, logical: AtomicU8::new(logical as u8) }
    }

    pub(crate) fn plain(inner: eager::Tensor) -> Tensor {
        let logical = Logical::of(inner.dtype());
        Tensor::of(inner, logical)
    }

    pub(crate) fn logical(&self) -> Logical {
        LOGICALS[self.logical.load(Ordering::Relaxed) as usize].0
    }
}

#[pymethods]
impl Tensor {
    #[new]
    #[pyo3(signature = (value, dtype = None, stop_gradient = true))]
    fn new(value: &Bound<'_, PyAny>, dtype: Option<&str>, stop_gradient: bool) -> PyResult<Tensor> {
        let wanted = dtype.map(Logical::named).transpose()?;
        let made = match value.cast::<Tensor>() {
            Ok(tensor) => {
                let tensor = tensor.get();
                Tensor::of(tensor.inner.detach(), tensor.logical())
            }
            Err(_) => from_array(value)?,
        };
        let made = match wanted {
            Some(wanted) if wanted != made.logical() => made.cast(wanted)?,
            _ => made,
        };
        made.inner.set_stop_gradient(stop_gradient);
        Ok(made)
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.inner.shape()
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.inner.ndim()
    }

    #[getter]
    fn size(&self) -> usize {
        self.inner.numel()
    }

    #[getter]
    fn _dtype(&self) -> &'static str {
        self.logical().name()
    }

    #[getter]
    fn _stored(&self) -> String {
        self.inner.dtype().to_string()
    }

    #[getter]
    fn _id(&self) -> u64 {
        self.inner.id()
    }

    /// The same values under another name of their type.
    fn _as(&self, logical: &str) -> PyResult<Tensor> {
        let logical = Logical::named(logical)?;
        if logical.stored() != self.inner.dtype() {
            return Err(PyTypeError::new_err(format!(
                "{} is not stored as {}: cast it",
                self.logical().name(),
                logical.name()
            )));
        }
        let dims = self.inner.shape().iter().map(|&d| d as i64).collect::<Vec<i64>>();
        let same = self.inner.op("reshape", &[("shape", dims.into())]).map_err(raise)?;
        Ok(Tensor::of(same, logical))
    }

    #[getter]
    fn stop_gradient(&self) -> bool {
        self.inner.stop_gradient()
    }

    #[setter]
    fn set_stop_gradient(&self, stop: bool) {
        self.inner.set_stop_gradient(stop);
    }

    #[getter]
    fn is_leaf(&self) -> bool {
        self.inner.is_leaf()
    }

    #[getter]
    fn _version(&self) -> u64 {
        self.inner.version()
    }

    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let array = to_numpy(py, &self.inner.to_tensor())?;
        match self.logical() {
            Logical::Float32 | Logical::Int64 | Logical::UInt64 | Logical::BFloat16 => Ok(array),
            other => array.call_method1("astype", (other.name(),)),
        }
    }

    /// Changes the values in place.
    fn _set(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let other = match value.cast::<Tensor>() {
            Ok(tensor) => tensor.get().inner.detach(),
            Err(_) => from_array(value)?.inner,
        };
        let other = match other.dtype() == self.inner.dtype() {
            true => other,
            false => Tensor::plain(other).cast(self.logical())?.inner,
        };
        if other.shape() != self.inner.shape() {
            return Err(PyValueError::new_err(format!(
                "a tensor of shape {:?} cannot be set to values of shape {:?}",
                self.inner.shape(),
                other.shape()
            )));
        }
        self.inner.set(&other).map_err(raise)
    }

    /// Becomes what another tensor is.
    fn _share(&self, other: &Tensor) {
        self.inner.become_(&other.inner);
        self.logical.store(other.logical() as u8, Ordering::Relaxed);
    }

    #[getter]
    fn grad(&self) -> Option<Tensor> {
        self.inner.grad().map(Tensor::plain)
    }

    #[setter]
    fn set_grad(&self, grad: Option<&Bound<'_, Tensor>>) -> PyResult<()> {
        self.inner.set_grad(grad.map(|grad| &grad.get().inner)).map_err(raise)
    }

    #[getter]
    fn _has_grad(&self) -> bool {
        self.inner.has_grad()
    }

    fn _clear_grad(&self, set_to_zero: bool) {
        self.inner.clear_grad(set_to_zero);
    }

    fn _add_grad(&self, grad: &Tensor) -> PyResult<()> {
        self.inner.add_grad(&grad.inner).map_err(raise)
    }

    #[getter]
    fn _is_rows(&self) -> bool {
        self.inner.is_rows()
    }

    /// Ids and values of a row-sparse gradient.
    fn _rows<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let rows = self.inner.to_rows().ok_or_else(|| wrong("the tensor is not row-sparse"))?;
        let ids: Vec<i64> = rows.rows.iter().map(|id| *id as i64).collect();
        let made = |shape: &[usize], data| {
            regatta_tensor::Tensor::new(shape, data).map_err(crate::error::raise)
        };
        let n = ids.len();
        let ids = to_numpy(py, &made(&[n], Data::I64(ids))?)?;
        let values = made(&[n, rows.width], Data::F32(rows.values.clone()))?;
        Ok((ids, to_numpy(py, &values)?))
    }

    #[pyo3(signature = (grad = None, retain_graph = false))]
    fn _backward(
        &self,
        py: Python<'_>,
        grad: Option<&Bound<'_, Tensor>>,
        retain_graph: bool,
    ) -> PyResult<()> {
        let grad = grad.map(|grad| grad.get().inner.clone());
        py.detach(|| self.inner.backward(grad.as_ref(), retain_graph)).map_err(raise)
    }

    fn detach(&self) -> Tensor {
        Tensor::of(self.inner.detach(), self.logical())
    }

    fn _hook(&self, hook: Py<PyAny>) -> u64 {
        self.inner.hook(Arc::new(move |gradient| call_hook(&hook, gradient)))
    }

    /// Calls a function without arguments after every backward that has changed the gradient.
    fn _on_ready(&self, ready: Py<PyAny>) -> u64 {
        self.inner.on_ready(Arc::new(move || {
            let done = Python::attach(|py| ready.call0(py).map(|_| ()));
            done.map_err(|e| eager::Error::Hook(Box::new(e)))
        }))
    }

    fn _unhook(&self, id: u64) {
        self.inner.unhook(id);
    }

    fn _retain_grads(&self) {
        self.inner.retain_grads();
    }

    /// `len` rows of the first dimension, which share memory with this tensor.
    fn _leading(&self, first: usize, len: usize) -> PyResult<Tensor> {
        let part = self.inner.leading(first, len).map_err(raise)?;
        Ok(Tensor::of(part, self.logical()))
    }

    /// The only element as a number.
    fn _number<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.inner.numel() != 1 {
            let shape = self.inner.shape();
            let message = format!("a tensor of shape {shape:?} is not one number");
            return Err(PyValueError::new_err(message));
        }
        let logical = self.logical();
        let found = match self.inner.to_data() {
            Data::F32(v) => v[0].into_pyobject(py)?.into_any(),
            Data::I64(v) if logical == Logical::Bool => {
                (v[0] != 0).into_pyobject(py)?.to_owned().into_any()
            }
            Data::I64(v) => v[0].into_pyobject(py)?.into_any(),
            Data::U64(v) => v[0].into_pyobject(py)?.into_any(),
            Data::F16(_) | Data::BF16(_) => {
                let array = to_numpy(py, &self.inner.to_tensor())?;
                array.call_method0("item")?
            }
        };
        Ok(found)
    }
}

impl Tensor {
    /// The values as another type; on the tape where both are floats.
    fn cast(&self, to: Logical) -> PyResult<Tensor> {
        let same_name = to.stored() == self.inner.dtype();
        if same_name && to != Logical::Bool {
            return Ok(Tensor::of(self.inner.detach(), to));
        }
        if to == Logical::Bool {
            let data = self.inner.to_data();
            let is_set = |i: usize| match &data {
                Data::F32(v) => v[i] != 0.0,
                Data::F16(v) | Data::BF16(v) => v[i] & 0x7fff != 0,
                Data::I64(v) => v[i] != 0,
                Data::U64(v) => v[i] != 0,
            };
            let values = (0..data.len()).map(|i| i64::from(is_set(i))).collect();
            let made = eager::Tensor::from_i64(&self.inner.shape(), values).map_err(raise)?;
            return Ok(Tensor::of(made, to));
        }
        let attrs = [("dtype", to.stored().to_string().into())];
        let cast = eager::no_grad(|| self.inner.op("cast", &attrs)).map_err(raise)?;
        Ok(Tensor::of(cast, to))
    }
}

/// A tensor of an array, or of anything that numpy makes one of. The name of its type is numpy's.
fn from_array(value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Some(tensor) = quickly(value) {
        return Ok(tensor);
    }
    let numpy = value.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (value,))?;
    if let Some(tensor) = quickly(&array) {
        return Ok(tensor);
    }
    let name: String = array.getattr("dtype")?.getattr("name")?.extract()?;
    let logical = match name.as_str() {
        "uint16" | "uint32" => Logical::Int64,
        "float128" | "longdouble" => Logical::Float64,
        name => Logical::named(name)?,
    };
    let wanted = match logical.stored() {
        DType::U64 => "uint64",
        DType::I64 => "int64",
        DType::F32 | DType::F16 | DType::BF16 => "float32",
    };
    let order = [("order", "C")].into_py_dict(array.py())?;
    let array = array.call_method("astype", (wanted,), Some(&order))?;
    let tensor = match quickly(&array) {
        Some(tensor) => tensor,
        None => {
            let tensor = tensor_of("value", &array)?;
            let shape = tensor.shape().to_vec();
            Tensor::plain(eager::Tensor::new(&shape, tensor.into_data()).map_err(raise)?)
        }
    };
    match logical.stored() == tensor.inner.dtype() {
        true => Ok(Tensor::of(tensor.inner, logical)),
        false => tensor.cast(logical),
    }
}

/// Copies arrays of the two usual types straight into a buffer of the pool.
fn quickly(value: &Bound<'_, PyAny>) -> Option<Tensor> {
    macro_rules! copy {
        ($type:ty, $dtype:ident, $room:ident) => {
            if let Ok(array) = value.cast::<PyArrayDyn<$type>>() {
                if !array.is_c_contiguous() {
                    return None;
                }
                let readonly = array.try_readonly().ok()?;
                let from = readonly.as_slice().ok()?;
                let made = eager::Tensor::filled(DType::$dtype, array.shape(), |room| {
                    if let Room::$room(to) = room {
                        to.copy_from_slice(from);
                    }
                });
                return Some(Tensor::plain(made));
            }
        };
    }
    copy!(f32, F32, F32);
    copy!(i64, I64, I64);
    None
}

fn call_hook(hook: &Py<PyAny>, gradient: &eager::Tensor) -> eager::Result<Option<eager::Tensor>> {
    let called = Python::attach(|py| {
        let tensor = Py::new(py, Tensor::plain(gradient.clone()))?;
        let result = hook.call1(py, (tensor,))?;
        match result.is_none(py) {
            true => Ok(None),
            false => {
                let bound = result.bind(py);
                let changed = bound.cast::<Tensor>().map_err(|_| {
                    let name = bound.get_type().to_string();
                    PyTypeError::new_err(format!("a hook returns a Tensor or None, not {name}"))
                })?;
                Ok(Some(changed.get().inner.clone()))
            }
        }
    });
    called.map_err(|e: PyErr| eager::Error::Hook(Box::new(e)))
}

/// An error of the engine as an exception.
pub(crate) fn raise(error: eager::Error) -> PyErr {
    match error {
        eager::Error::Hook(inner) => match inner.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(other) => PyRuntimeError::new_err(other.to_string()),
        },
        eager::Error::Freed { .. } | eager::Error::NoGraph(_) => {
            PyRuntimeError::new_err(error.to_string())
        }
        eager::Error::NoGradient { .. }
        | eager::Error::Unused { .. }
        | eager::Error::Diverged { .. } => PyRuntimeError::new_err(error.to_string()),
        other => PyValueError::new_err(other.to_string()),
    }
}

/// Gradients of several tensors at once.
#[pyfunction]
pub(crate) fn backward_many(
    py: Python<'_>,
    tensors: Vec<Bound<'_, Tensor>>,
    grads: Vec<Option<Bound<'_, Tensor>>>,
    retain_graph: bool,
) -> PyResult<()> {
    let tensors: Vec<eager::Tensor> = tensors.iter().map(|t| t.get().inner.clone()).collect();
    let grads: Vec<Option<eager::Tensor>> =
        grads.iter().map(|g| g.as_ref().map(|g| g.get().inner.clone())).collect();
    py.detach(|| {
        let tensors: Vec<&eager::Tensor> = tensors.iter().collect();
        let grads: Vec<Option<&eager::Tensor>> = grads.iter().map(Option::as_ref).collect();
        eager::backward(&tensors, &grads, retain_graph)
    })
    .map_err(raise)
}

/// Gradients of outputs by inputs.
#[pyfunction]
#[pyo3(signature = (outputs, inputs, grad_outputs = None, retain_graph = false,
    allow_unused = false))]
pub(crate) fn grad(
    py: Python<'_>,
    outputs: Vec<Bound<'_, Tensor>>,
    inputs: Vec<Bound<'_, Tensor>>,
    grad_outputs: Option<Vec<Option<Bound<'_, Tensor>>>>,
    retain_graph: bool,
    allow_unused: bool,
) -> PyResult<Vec<Option<Tensor>>> {
    let inner = |t: &Bound<'_, Tensor>| t.get().inner.clone();
    let outputs: Vec<eager::Tensor> = outputs.iter().map(inner).collect();
    let inputs: Vec<eager::Tensor> = inputs.iter().map(inner).collect();
    let grads: Vec<Option<eager::Tensor>> = match grad_outputs {
        Some(grads) => grads.iter().map(|g| g.as_ref().map(inner)).collect(),
        None => vec![None; outputs.len()],
    };
    let found = py.detach(|| {
        let outputs: Vec<&eager::Tensor> = outputs.iter().collect();
        let inputs: Vec<&eager::Tensor> = inputs.iter().collect();
        let grads: Vec<Option<&eager::Tensor>> = grads.iter().map(Option::as_ref).collect();
        eager::grad(&outputs, &inputs, &grads, retain_graph)
    });
    let found = found.map_err(raise)?;
    if let Some(at) = found.iter().position(Option::is_none)
        && !allow_unused
    {
        return Err(PyValueError::new_err(format!(
            "input {at} was not used to compute the outputs; pass allow_unused=True to get None"
        )));
    }
    Ok(found.into_iter().map(|found| found.map(Tensor::plain)).collect())
}

#[pyfunction]
pub(crate) fn is_grad_enabled() -> bool {
    eager::is_grad_enabled()
}

#[pyfunction]
pub(crate) fn set_grad_enabled(enabled: bool) -> bool {
    eager::set_grad_enabled(enabled)
}

#[pyfunction]
pub(crate) fn seed_eager(seed: u64) {
    eager::seed(seed);
}

#[pyfunction]
pub(crate) fn set_num_threads(n: usize) -> PyResult<()> {
    if n == 0 {
        return Err(wrong("set_num_threads: at least 1 thread computes"));
    }
    eager::set_threads(n);
    Ok(())
}

#[pyfunction]
pub(crate) fn get_num_threads() -> usize {
    eager::threads()
}

/// Sets automatic casts: `None`, or a 16-bit type and two lists of ops. Returns those before.
#[pyfunction]
#[pyo3(signature = (dtype = None, white = vec![], black = vec![]))]
pub(crate) fn set_autocast<'py>(
    py: Python<'py>,
    dtype: Option<&str>,
    white: Vec<String>,
    black: Vec<String>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let autocast = match dtype {
        None => None,
        Some(name) => {
            let dtype = crate::program::dtype_of(name)?;
            if !dtype.is_half() {
                return Err(wrong(format!("casts are to f16 or bf16, not {name}")));
            }
            let (white, black) = (white.into_iter().collect(), black.into_iter().collect());
            Some(Arc::new(eager::Autocast { dtype, white, black }))
        }
    };
    let before = eager::set_autocast(autocast);
    let Some(before) = before else { return Ok(None) };
    let white = PyList::new(py, before.white.iter())?;
    let black = PyList::new(py, before.black.iter())?;
    Ok(Some((before.dtype.to_string(), white, black).into_pyobject(py)?))
}

pub(crate) fn add_to(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Tensor>()?;
    m.add_class::<crate::eager_op::Op>()?;
    m.add_class::<crate::eager_optimizer::EagerOptimizer>()?;
    m.add_function(wrap_pyfunction!(crate::eager_op::eager_op, m)?)?;
    m.add_function(wrap_pyfunction!(crate::eager_optimizer::unscale, m)?)?;
    m.add_function(wrap_pyfunction!(backward_many, m)?)?;
    m.add_function(wrap_pyfunction!(grad, m)?)?;
    m.add_function(wrap_pyfunction!(is_grad_enabled, m)?)?;
    m.add_function(wrap_pyfunction!(set_grad_enabled, m)?)?;
    m.add_function(wrap_pyfunction!(seed_eager, m)?)?;
    m.add_function(wrap_pyfunction!(set_autocast, m)?)?;
    m.add_function(wrap_pyfunction!(set_num_threads, m)?)?;
    m.add_function(wrap_pyfunction!(get_num_threads, m)?)?;
    Ok(())
}
