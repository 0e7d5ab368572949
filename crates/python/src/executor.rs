//! Runs programs on numpy arrays, and keeps what it has prepared for each.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use regatta_exec::{Error, Options, Scope as Values};
use regatta_ir::Program as Ir;
use regatta_tensor::{DType, RowSparse, Tensor, Value};
use regatta_train::{Backend, Local, run_feed};

use crate::array::{read_feeds, to_numpy};
use crate::dataset::{Counts, Dataset, Steps, step_error};
use crate::error::raise;
use crate::lane::{Interrupt, Lane};
use crate::program::Program;
use crate::scope::{Scope, lock};

/// Programs whose preparation is kept.
const KEPT: usize = 32;

/// A step that takes longer runs where a signal does not have to wait for it.
const LONG: Duration = Duration::from_millis(50);

/// Runs programs.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Executor {
    options: Options,
    prepared: Mutex<Vec<Prepared>>,
    lane: Lane,
}

#[pymethods]
impl Executor {
    #[new]
    #[pyo3(signature = (threads = 1, check_nan_inf = false))]
    fn new(threads: usize, check_nan_inf: bool) -> Executor {
        let options = Options { threads, check_nan_inf, ..Options::default() };
        Executor { options, prepared: Mutex::default(), lane: Lane::default() }
    }

    fn run<'py>(
        &self,
        py: Python<'py>,
        program: &Program,
        scope: &Scope,
        feed: &Bound<'py, PyDict>,
        fetch: Vec<String>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut prepared = self.take(program)?;
        read_feeds(feed, &mut prepared.feeds)?;
        let values = scope.shared.clone();
        let is_short = prepared.took.is_some_and(|took| took < LONG);
        let work = move || {
            let done = prepared.run(&mut lock(&values), &fetch);
            (prepared, done)
        };
        let (prepared, done) = if is_short { py.detach(work) } else { self.lane.run(py, work)? };
        let fetched = done.map_err(raise).and_then(|()| prepared.fetched(py));
        self.keep(prepared);
        fetched
    }

    fn train(
        &self,
        py: Python<'_>,
        program: &Program,
        scope: &Scope,
        dataset: &Dataset,
        fetch: Vec<String>,
        every: u64,
        on_step: Option<Py<PyAny>>,
    ) -> PyResult<(u64, u64)> {
        let mut prepared = self.take(program)?;
        let (values, options) = (scope.shared.clone(), self.options.clone());
        let begin = prepared.executor.step();
        let ir = Ir::clone(&prepared.program);
        let batches = dataset.open(py, &self.lane)?;
        let (interrupt, counts) = (Interrupt::default(), Arc::new(Counts::default()));
        let mut steps = Steps::new(batches, every, on_step, interrupt.clone(), counts.clone());
        let work = move || {
            let mut local = Local::new(ir, options)?;
            local.set_step(begin);
            local.set_fetch(&fetch.iter().map(String::as_str).collect::<Vec<_>>());
            run_feed(&mut local, &mut lock(&values), &mut steps)
        };
        let done = self.lane.run_until(py, &interrupt, work);
        // The steps that were made count, whatever ended the pass.
        prepared.executor.set_step(begin + counts.get().0);
        self.keep(prepared);
        done?.map(|()| counts.get()).map_err(step_error)
    }

    fn set_step(&self, program: &Program, step: u64) -> PyResult<()> {
        let mut prepared = self.take(program)?;
        prepared.executor.set_step(step);
        self.keep(prepared);
        Ok(())
    }

    fn close(&self) {
        self.kept().clear();
    }
}

impl Executor {
    fn kept(&self) -> MutexGuard<'_, Vec<Prepared>> {
        self.prepared.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What was prepared for this state of the program, taken out: two threads that run the same
    /// program at once prepare it twice.
    fn take(&self, program: &Program) -> PyResult<Prepared> {
        let (ir, version) = program.with_version();
        let mut kept = self.kept();
        if let Some(at) = kept.iter().rposition(|p| p.version == version) {
            return Ok(kept.remove(at));
        }
        drop(kept);
        Prepared::new(ir, version, &self.options).map_err(raise)
    }

    fn keep(&self, prepared: Prepared) {
        let mut kept = self.kept();
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(prepared);
    }
}

/// A state of a program, ready to run.
struct Prepared {
    version: u64,
    program: Arc<Ir>,
    executor: regatta_exec::Executor,
    feeds: Vec<(String, Value)>,
    /// What it keeps between runs and writes before it reads it.
    made: Vec<(String, DType, Vec<usize>)>,
    /// It has no inputs and makes nothing but values that are kept.
    is_startup: bool,
    /// How long the last run took; none before the first.
    took: Option<Duration>,
}

impl Prepared {
    fn new(program: Arc<Ir>, version: u64, options: &Options) -> Result<Prepared, Error> {
        let executor = regatta_exec::Executor::new(Ir::clone(&program), options.clone())?;
        let (made, is_startup) = (made(&program), is_startup(&program));
        let (feeds, took) = (Vec::new(), None);
        Ok(Prepared { version, program, executor, feeds, made, is_startup, took })
    }

    fn run(&mut self, scope: &mut Values, fetch: &[String]) -> Result<(), Error> {
        let begin = Instant::now();
        self.feeds.iter_mut().for_each(|(name, value)| column(&self.program, name, value));
        if self.is_startup && self.feeds.is_empty() {
            regatta_exec::run_startup(&self.program, scope)?;
            if fetch.is_empty() {
                return Ok(());
            }
        }
        for (name, dtype, shape) in &self.made {
            if scope.get(name).is_none() {
                scope.set(name, Tensor::zeros(*dtype, shape));
            }
        }
        let feeds: Vec<(&str, &Value)> = self.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
        self.executor.run(scope, &feeds, &fetch)?;
        self.took = Some(begin.elapsed());
        Ok(())
    }

    /// What the last run fetched.
    fn fetched<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let fetched = self.executor.fetched().iter().enumerate();
        let array = |(i, tensor): (usize, &Tensor)| match self.executor.fetched_rows(i) {
            Some(rows) => to_numpy(py, &dense(rows)),
            None => to_numpy(py, tensor),
        };
        fetched.map(array).collect()
    }
}

/// One number per example is a column where an input has one: `[n]` becomes `[n, 1]`.
fn column(program: &Ir, name: &str, value: &mut Value) {
    let Value::Dense(tensor) = value else { return };
    let Some(var) = program.block().vars.get(name) else { return };
    if var.ty.shape.last() == Some(&1) && var.ty.shape.len() == tensor.shape().len() + 1 {
        let shape = [tensor.shape(), &[1]].concat();
        let empty = Tensor::zeros(tensor.dtype(), &[0]);
        let data = std::mem::replace(tensor, empty).into_data();
        *tensor = Tensor::new(&shape, data).expect("as many elements as before");
    }
}

/// The rows of a row-sparse value, where they are; zeros elsewhere, up to the last one.
fn dense(sparse: &RowSparse) -> Tensor {
    let height = sparse.rows.iter().max().map_or(0, |row| *row as usize + 1);
    let dim = if sparse.rows.is_empty() { 0 } else { sparse.values.len() / sparse.rows.len() };
    let mut tensor = Tensor::zeros(DType::F32, &[height, dim]);
    let to = tensor.f32_mut();
    for (row, values) in sparse.rows.iter().zip(sparse.values.chunks_exact(dim.max(1))) {
        let at = *row as usize * dim;
        to[at..at + dim].iter_mut().zip(values).for_each(|(to, value)| *to += value);
    }
    tensor
}

/// The values that a program keeps between runs and writes whole before any op reads them.
fn made(program: &Ir) -> Vec<(String, DType, Vec<usize>)> {
    let mut seen = HashSet::new();
    let mut made = Vec::new();
    for op in &program.block().ops {
        seen.extend(op.input_vars());
        for name in op.output_vars() {
            let var = program.block().vars.get(name);
            if let Some(var) = var.filter(|v| v.is_persistable())
                && seen.insert(name)
            {
                let shape = var.ty.shape.iter().map(|&d| d.max(0) as usize).collect();
                made.push((name.to_string(), var.ty.dtype, shape));
            }
        }
    }
    made
}

fn is_startup(program: &Ir) -> bool {
    let ops = &program.block().ops;
    let kept = |name: &str| program.block().vars.get(name).is_some_and(|v| v.is_persistable());
    !ops.is_empty()
        && ops.iter().all(|op| op.input_vars().count() == 0 && op.output_vars().all(kept))
}
