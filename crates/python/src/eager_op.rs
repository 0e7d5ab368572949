//! Ops on tensors: by name with dictionaries, or prepared once and called many times.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use regatta_eager as eager;

use crate::program::read_attr;
use crate::tensor::{Logical, Tensor, raise};

/// Inputs of more elements than this are computed without the interpreter's lock.
const LARGE: usize = 1 << 16;

/// Runs an op. Inputs by slot: a tensor or a list of tensors.
#[pyfunction]
#[pyo3(signature = (kind, inputs, attrs = None, counts = None, logical = None))]
pub(crate) fn eager_op<'py>(
    py: Python<'py>,
    kind: &str,
    inputs: &Bound<'py, PyDict>,
    attrs: Option<&Bound<'py, PyDict>>,
    counts: Option<&Bound<'py, PyDict>>,
    logical: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let (mut slots, mut tensors) = (Vec::new(), Vec::new());
    for (slot, value) in inputs.iter() {
        let count = match value.cast::<Tensor>() {
            Ok(tensor) => {
                tensors.push(tensor.clone());
                1
            }
            Err(_) => several(kind, &slot, &value, &mut tensors)?,
        };
        if count > 0 {
            slots.push((slot.cast_into::<PyString>()?, count));
        }
    }
    let names = slots.iter().map(|(slot, _)| slot.to_cow()).collect::<PyResult<Vec<_>>>()?;
    let named: Vec<(&str, usize)> =
        names.iter().zip(&slots).map(|(name, (_, count))| (&**name, *count)).collect();
    let template = template(kind, &named, attrs, counts)?;
    let logical = logical.map(Logical::named).transpose()?;
    call(py, &template, &tensors, logical)
}

/// The tensors of a slot that holds none or several.
fn several<'py>(
    kind: &str,
    slot: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    into: &mut Vec<Bound<'py, Tensor>>,
) -> PyResult<usize> {
    if value.is_none() {
        return Ok(0);
    }
    let not_tensors = || {
        let found = value.get_type();
        PyTypeError::new_err(format!("{kind}: {slot} should be tensors, but is {found}"))
    };
    let before = into.len();
    for item in value.try_iter().map_err(|_| not_tensors())? {
        into.push(item?.cast_into::<Tensor>().map_err(|_| not_tensors())?);
    }
    Ok(into.len() - before)
}

fn template(
    kind: &str,
    slots: &[(&str, usize)],
    attrs: Option<&Bound<'_, PyDict>>,
    counts: Option<&Bound<'_, PyDict>>,
) -> PyResult<Arc<eager::Template>> {
    let mut read = Vec::new();
    if let Some(attrs) = attrs {
        for (name, value) in attrs.iter() {
            let name: String = name.extract()?;
            let value = read_attr(&name, &value)?;
            read.push((name, value));
        }
        read.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    let attrs: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let mut asked: Vec<(String, usize)> = Vec::new();
    if let Some(counts) = counts {
        for (slot, count) in counts.iter() {
            asked.push((slot.extract()?, count.extract()?));
        }
    }
    let counts: Vec<_> = asked.iter().map(|(slot, count)| (slot.as_str(), *count)).collect();
    eager::Template::new(kind, slots, &attrs, &counts).map_err(raise)
}

/// Runs a template; one result, or a tuple of several.
fn call<'py>(
    py: Python<'py>,
    template: &Arc<eager::Template>,
    tensors: &[Bound<'py, Tensor>],
    logical: Option<Logical>,
) -> PyResult<Bound<'py, PyAny>> {
    let given: Vec<&eager::Tensor> = tensors.iter().map(|t| &t.get().inner).collect();
    let is_large = given.iter().map(|t| t.numel()).sum::<usize>() > LARGE;
    let outs = match is_large {
        true => py.detach(|| template.call(&given)),
        false => template.call(&given),
    };
    let outs = outs.map_err(raise)?;
    let first = tensors.first().map(|t| t.get().logical());
    let made = |out: eager::Tensor| {
        let stored = out.dtype();
        let logical = [logical, first].into_iter().flatten().find(|l| l.is_stored_as(stored));
        match logical {
            Some(logical) => Py::new(py, Tensor::of(out, logical)),
            None => Py::new(py, Tensor::plain(out)),
        }
    };
    let mut outs = outs.into_iter();
    match outs.len() {
        1 => Ok(made(outs.next().expect("there is one"))?.into_bound(py).into_any()),
        _ => {
            let all = outs.map(made).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, all)?.into_any())
        }
    }
}

/// An op without its tensors; called with one tensor for each of its slots.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Op {
    template: Arc<eager::Template>,
    logical: Option<Logical>,
}

#[pymethods]
impl Op {
    #[new]
    #[pyo3(signature = (kind, slots, attrs = None, counts = None, logical = None))]
    fn new(
        kind: &str,
        slots: Vec<String>,
        attrs: Option<&Bound<'_, PyDict>>,
        counts: Option<&Bound<'_, PyDict>>,
        logical: Option<&str>,
    ) -> PyResult<Op> {
        let slots: Vec<(&str, usize)> = slots.iter().map(|slot| (slot.as_str(), 1)).collect();
        let template = template(kind, &slots, attrs, counts)?;
        Ok(Op { template, logical: logical.map(Logical::named).transpose()? })
    }

    #[pyo3(signature = (*tensors))]
    fn __call__<'py>(&self, tensors: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let py = tensors.py();
        let given: Result<Vec<Bound<'py, Tensor>>, _> =
            tensors.iter().map(|t| t.cast_into::<Tensor>()).collect();
        match given {
            Ok(given) => call(py, &self.template, &given, self.logical),
            Err(_) => {
                let types: Vec<String> = tensors.iter().map(|t| t.get_type().to_string()).collect();
                Err(PyTypeError::new_err(format!(
                    "{} takes tensors, not {}",
                    self.template.kind(),
                    types.join(", ")
                )))
            }
        }
    }

    fn __repr__(&self) -> String {
        format!("<op {}>", self.template.kind())
    }
}

/// A list of tensors, where one is expected to be.
pub(crate) fn tensors_of<'py>(list: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, Tensor>>> {
    list.iter().map(|item| Ok(item.cast_into::<Tensor>()?)).collect()
}
