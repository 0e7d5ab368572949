//! Files that become batches in threads of their own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::prelude::*;
use regatta_data::{
    BadLines, Batch, Batches, Dataset as _, Format, InMemoryDataset, MemoryOptions, QueueDataset,
    QueueOptions, Schema, Slot, Source, Stages,
};
use regatta_tensor::Tensor;
use regatta_train::{Error, Feed};

use crate::array::to_numpy;
use crate::error::{raise, wrong};
use crate::lane::{Interrupt, Lane};

/// Files that become batches.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Dataset {
    state: Arc<Mutex<State>>,
    lane: Lane,
}

struct State {
    kind: Kind,
    /// The number of the next data pass.
    pass: u64,
}

enum Kind {
    Queue(QueueDataset),
    Memory(InMemoryDataset),
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|e| e.into_inner())
}

#[pymethods]
impl Dataset {
    #[new]
    #[pyo3(signature = (slots, files, batch_size, kind = "queue", pipe_command = None, threads = 1,
        drop_last = false, seed = 0, pipe_timeout = None))]
    fn new(
        slots: Vec<(String, String, usize)>,
        files: Vec<String>,
        batch_size: usize,
        kind: &str,
        pipe_command: Option<String>,
        threads: usize,
        drop_last: bool,
        seed: u64,
        pipe_timeout: Option<f64>,
    ) -> PyResult<Dataset> {
        let _ = seed;
        let slots = slots.into_iter().map(slot).collect::<PyResult<Vec<_>>>()?;
        let schema = Schema::new(slots).map_err(raise)?;
        let files = files.into_iter().map(PathBuf::from).collect();
        let mut source = Source::files(schema, Format::MultiSlot, files).map_err(raise)?;
        if let Some(command) = pipe_command {
            source = source.with_pipe_command(&command).map_err(raise)?;
        }
        if let Some(seconds) = pipe_timeout {
            source = source.with_pipe_timeout(Duration::from_secs_f64(seconds));
        }
        let kind = match kind {
            "queue" => {
                let options = QueueOptions {
                    thread_num: threads,
                    drop_last,
                    ..QueueOptions::new(batch_size)
                };
                Kind::Queue(QueueDataset::new(source, options).map_err(raise)?)
            }
            "memory" => {
                let options = MemoryOptions {
                    thread_num: threads,
                    drop_last,
                    ..MemoryOptions::new(batch_size)
                };
                Kind::Memory(InMemoryDataset::new(source, options).map_err(raise)?)
            }
            _ => return Err(wrong(format!("'{kind}' is no kind of dataset (queue, memory)"))),
        };
        let state = Arc::new(Mutex::new(State { kind, pass: 0 }));
        Ok(Dataset { state, lane: Lane::default() })
    }

    fn load(&self, py: Python<'_>) -> PyResult<()> {
        self.in_memory(py, "load", |data, interrupt| {
            data.preload_into_memory();
            data.wait_preload_unless(interrupt.flag())
        })?
        .map_err(raise)
    }

    fn preload(&self, py: Python<'_>) -> PyResult<()> {
        self.in_memory(py, "preload", |data, _| data.preload_into_memory())
    }

    fn wait_preload(&self, py: Python<'_>) -> PyResult<()> {
        let wait = |data: &mut InMemoryDataset, interrupt: &Interrupt| {
            data.wait_preload_unless(interrupt.flag())
        };
        self.in_memory(py, "wait_preload", wait)?.map_err(raise)
    }

    fn local_shuffle(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        self.in_memory(py, "local_shuffle", move |data, _| data.local_shuffle(seed))?.map_err(raise)
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.in_memory(py, "release", |data, _| data.release_memory())
    }

    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        self.in_memory(py, "size", |data, _| data.memory_data_size())
    }
}

impl Dataset {
    /// Starts the next data pass.
    pub(crate) fn open(&self, py: Python<'_>, lane: &Lane) -> PyResult<Batches> {
        let state = self.state.clone();
        let open = move || {
            let mut state = lock(&state);
            let pass = state.pass;
            state.pass += 1;
            match &state.kind {
                Kind::Queue(data) => data.pass(pass),
                Kind::Memory(data) => data.pass(pass),
            }
        };
        lane.run(py, open)?.map_err(raise)
    }

    /// Does something with data in memory.
    fn in_memory<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: &'static str,
        work: impl FnOnce(&mut InMemoryDataset, &Interrupt) -> T + Send + 'static,
    ) -> PyResult<T> {
        let (state, interrupt) = (self.state.clone(), Interrupt::default());
        let seen = interrupt.clone();
        let done = self.lane.run_until(py, &interrupt, move || match &mut lock(&state).kind {
            Kind::Memory(data) => Some(work(data, &seen)),
            Kind::Queue(_) => None,
        })?;
        done.ok_or_else(|| {
            wrong(format!("{call}: a queue dataset reads while it trains and holds nothing"))
        })
    }
}

fn slot((name, kind, n): (String, String, usize)) -> PyResult<Slot> {
    Ok(match (kind.as_str(), n) {
        ("ints", 1) => Slot::label(name),
        ("ints", n) => Slot::ints(name, n),
        ("floats", n) => Slot::dense(name, n),
        ("ids", _) => Slot::ids(name),
        _ => return Err(wrong(format!("slot '{name}': '{kind}' is not ints, floats or ids"))),
    })
}

/// How often a data pass that waits for a batch looks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How far a data pass has come.
#[derive(Default)]
pub(crate) struct Counts {
    steps: AtomicU64,
    examples: AtomicU64,
}

impl Counts {
    /// Steps and examples so far.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.steps.load(Ordering::Relaxed), self.examples.load(Ordering::Relaxed))
    }
}

/// Batches of a data pass whose steps Python may follow. An interrupt ends it between two steps.
pub(crate) struct Steps {
    batches: Batches,
    every: u64,
    on_step: Option<Py<PyAny>>,
    interrupt: Interrupt,
    counts: Arc<Counts>,
}

impl Steps {
    /// Every N steps `on_step` gets the number of the step and what was fetched.
    pub(crate) fn new(
        batches: Batches,
        every: u64,
        on_step: Option<Py<PyAny>>,
        interrupt: Interrupt,
        counts: Arc<Counts>,
    ) -> Steps {
        Steps { batches, every: every.max(1), on_step, interrupt, counts }
    }
}

impl Feed for Steps {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        loop {
            if self.interrupt.is_requested() {
                return Err(Error::front(Interrupted));
            }
            match self.batches.next_within(LOOK_EVERY) {
                Err(regatta_data::Error::Timeout { timeout, .. }) if timeout == LOOK_EVERY => {}
                read => return Ok(read?),
            }
        }
    }

    fn ready(&mut self) -> Result<Option<Batch>, Error> {
        Ok(self.batches.ready()?)
    }

    fn done(&mut self, batch: Batch, fetched: &[Tensor]) -> Result<(), Error> {
        let step = self.counts.steps.fetch_add(1, Ordering::Relaxed) + 1;
        self.counts.examples.fetch_add(batch.examples() as u64, Ordering::Relaxed);
        self.batches.recycle(batch);
        let Some(on_step) = self.on_step.as_ref().filter(|_| step.is_multiple_of(self.every))
        else {
            return Ok(());
        };
        let called = Python::attach(|py| {
            let arrays = fetched.iter().map(|t| to_numpy(py, t)).collect::<PyResult<Vec<_>>>()?;
            on_step.call1(py, (step, arrays)).map(|_| ())
        });
        called.map_err(|error| Error::front(Raised(error)))
    }

    fn stages(&self) -> Stages {
        self.batches.stages()
    }

    fn bad_lines(&self) -> BadLines {
        self.batches.bad_lines()
    }
}

/// A data pass that a signal has ended; the exception of the signal's handler is raised.
#[derive(Debug)]
struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// An exception that a callback raised, on its way through the loop.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) PyErr);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Raised {}

/// The exception of a failed data pass: that of the callback, if it has raised one.
pub(crate) fn step_error(error: Error) -> PyErr {
    match error {
        Error::Front(e) => match e.downcast::<Raised>() {
            Ok(raised) => raised.0,
            Err(e) => raise(Error::Front(e)),
        },
        other => raise(other),
    }
}
