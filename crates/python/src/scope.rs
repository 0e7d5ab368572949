//! Values that outlive a run, and their files.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use regatta::io;

use crate::array::{tensor_of, to_numpy};
use crate::error::raise;
use crate::program::Program;

/// A scope that Python and running steps share.
pub(crate) type SharedScope = Arc<Mutex<regatta_exec::Scope>>;

/// Takes the lock; a step that panicked leaves values, and they can be read.
pub(crate) fn lock(scope: &SharedScope) -> MutexGuard<'_, regatta_exec::Scope> {
    scope.lock().unwrap_or_else(|e| e.into_inner())
}

/// Values by name.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Scope {
    pub(crate) shared: SharedScope,
}

#[pymethods]
impl Scope {
    #[new]
    fn new() -> Scope {
        Scope { shared: SharedScope::default() }
    }

    fn get<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = py.detach(|| lock(&self.shared).get(name).cloned());
        value.map(|tensor| to_numpy(py, &tensor)).transpose()
    }

    fn set(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = tensor_of(name, value)?;
        py.detach(|| lock(&self.shared).set(name, tensor));
        Ok(())
    }

    fn has(&self, py: Python<'_>, name: &str) -> bool {
        py.detach(|| lock(&self.shared).get(name).is_some())
    }

    fn names(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| lock(&self.shared).names().into_iter().map(str::to_string).collect())
    }
}

/// Saves what a program keeps, to the bit.
#[pyfunction]
pub(crate) fn save_persistables(
    py: Python<'_>,
    program: &Program,
    scope: &Scope,
    dir: String,
) -> PyResult<()> {
    let program = program.get();
    py.detach(|| io::save_persistables(&program, &lock(&scope.shared), dir).map_err(raise))
}

/// Loads what [`save_persistables`] wrote.
#[pyfunction]
pub(crate) fn load_persistables(
    py: Python<'_>,
    program: &Program,
    scope: &Scope,
    dir: String,
) -> PyResult<()> {
    let program = program.get();
    py.detach(|| io::load_persistables(&program, &mut lock(&scope.shared), dir).map_err(raise))
}

/// Saves the part of a program that makes `fetches` from `feeds`, with its parameters.
#[pyfunction]
pub(crate) fn save_inference_model(
    py: Python<'_>,
    dir: String,
    program: &Program,
    feeds: Vec<String>,
    fetches: Vec<String>,
    scope: &Scope,
) -> PyResult<()> {
    let program = program.get();
    let feeds: Vec<&str> = feeds.iter().map(String::as_str).collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let scope = &scope.shared;
    py.detach(|| {
        io::save_inference_model(dir, &program, &feeds, &fetches, &lock(scope)).map_err(raise)
    })
}
