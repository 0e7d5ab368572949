//! The native module of the Python package: programs, values, training and jobs for
//! `python/regatta`. It does not speak Paddle; names and defaults of Paddle are Python code.
//!
//! In: names, numbers and numpy arrays. Out: the same. Whatever takes long runs without the
//! interpreter's lock, and ends when a signal arrives (`lane`).
//!
//! Reading order: [`program`] (programs that grow), [`array`] (numpy and back), [`scope`],
//! [`training`] (from a dictionary to a training program), [`executor`], [`dataset`], [`lane`]
//! (long calls), [`fleet`] (jobs), [`strategy`], [`tables`] (rows for programs that compute
//! elsewhere), [`group`], [`model`], [`tensor`] (values that compute at once), [`eager_op`],
//! [`eager_optimizer`], [`reducer`], [`error`].

mod array;
mod dataset;
mod eager_op;
mod eager_optimizer;
mod error;
mod executor;
mod fleet;
mod group;
mod lane;
mod model;
mod program;
mod reducer;
mod scope;
mod strategy;
mod tables;
mod tensor;
mod training;

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use regatta::cli::ThisProgram;

/// The command line. `python` is what starts it again: the interpreter and its arguments.
#[pyfunction]
fn main(py: Python<'_>, argv: Vec<OsString>, python: Vec<String>) -> PyResult<u8> {
    let mut python = python.into_iter();
    let interpreter = python.next().map(PathBuf::from);
    let interpreter = interpreter.ok_or_else(|| error::wrong("main: no interpreter is named"))?;
    let this = ThisProgram::Python { interpreter, args: python.collect() };
    Ok(py.detach(|| regatta::cli::main(argv, &this)))
}

/// The module `regatta._core`.
#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<program::Program>()?;
    m.add_class::<scope::Scope>()?;
    m.add_class::<executor::Executor>()?;
    m.add_class::<dataset::Dataset>()?;
    m.add_class::<strategy::Strategy>()?;
    m.add_class::<fleet::Fleet>()?;
    m.add_class::<tables::Tables>()?;
    m.add_class::<group::Group>()?;
    m.add_class::<reducer::Reducer>()?;
    m.add_function(wrap_pyfunction!(reducer::fingerprints, m)?)?;
    m.add_class::<model::Model>()?;
    tensor::add_to(m)?;
    m.add_function(wrap_pyfunction!(main, m)?)?;
    m.add_function(wrap_pyfunction!(program::op_kinds, m)?)?;
    m.add_function(wrap_pyfunction!(training::minimize, m)?)?;
    m.add_function(wrap_pyfunction!(training::append_backward, m)?)?;
    m.add_function(wrap_pyfunction!(scope::save_persistables, m)?)?;
    m.add_function(wrap_pyfunction!(scope::load_persistables, m)?)?;
    m.add_function(wrap_pyfunction!(scope::save_inference_model, m)?)?;
    Ok(())
}
