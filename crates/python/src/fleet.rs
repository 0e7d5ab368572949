//! Jobs: what this process is, and its part of the training.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use regatta_exec::{Options, Scope as Values};
use regatta_fleet::{
    DistributedStrategy, Error, FleetExecutor, PaddleCloudRoleMaker, ReduceOp, Role, RoleMaker,
    UserDefinedRoleMaker,
};
use regatta_ir::{Program as Ir, Programs};
use regatta_passes::{Backward, split_server};
use regatta_tensor::{Tensor, Value};
use regatta_train::Feed;
use regatta_train::job::server_partitions;

use crate::array::{read_feeds, to_numpy};
use crate::dataset::{Counts, Dataset, Raised, Steps};
use crate::error::{own, raise, wrong};
use crate::lane::{Interrupt, Lane};
use crate::program::Program;
use crate::scope::{Scope, lock};
use crate::strategy::Strategy;
use crate::training::{Updates, both, put, read_optimizer};

/// This process and its job. Everything that waits for other processes runs on one thread.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Fleet {
    fleet: regatta_fleet::Fleet,
    given: Option<DistributedStrategy>,
    job: Mutex<JobState>,
    lane: Lane,
    /// A signal has ended a call; what it did is not known.
    interrupted: AtomicBool,
}

/// What is known of the program.
#[derive(Default)]
struct JobState {
    loss: String,
    strategy: Option<DistributedStrategy>,
    /// Numbers of the states of the programs that this process was prepared for.
    versions: Option<(u64, u64)>,
    /// What this process runs first.
    startup: Option<Ir>,
    startup_all: Option<Ir>,
    feeds: Vec<(String, Value)>,
}

#[pymethods]
impl Fleet {
    #[new]
    #[pyo3(signature = (role, is_collective, strategy = None))]
    fn new(
        role: Option<&Bound<'_, PyDict>>,
        is_collective: bool,
        strategy: Option<&Strategy>,
    ) -> PyResult<Fleet> {
        let role = role.map_or_else(|| Ok(PaddleCloudRoleMaker::new().into()), read_role)?;
        let given = strategy.map(|s| s.strategy.clone());
        let fleet =
            regatta_fleet::Fleet::init(role, is_collective, given.clone()).map_err(raise)?;
        let (job, lane) = (Mutex::default(), Lane::default());
        Ok(Fleet { fleet, given, job, lane, interrupted: AtomicBool::new(false) })
    }

    fn place(&self) -> String {
        self.fleet.place().to_string()
    }

    fn is_server(&self) -> bool {
        self.fleet.is_server()
    }

    fn is_worker(&self) -> bool {
        self.fleet.is_worker()
    }

    fn is_first_worker(&self) -> bool {
        self.fleet.is_first_worker()
    }

    fn is_collective(&self) -> bool {
        self.fleet.is_collective()
    }

    fn worker_index(&self) -> usize {
        self.fleet.worker_index()
    }

    fn worker_num(&self) -> usize {
        self.fleet.worker_num()
    }

    fn server_index(&self) -> usize {
        self.fleet.server_index()
    }

    fn server_num(&self) -> usize {
        self.fleet.server_num()
    }

    fn worker_endpoints(&self) -> Vec<String> {
        self.fleet.worker_endpoints().to_vec()
    }

    fn server_endpoints(&self) -> Vec<String> {
        self.fleet.server_endpoints().to_vec()
    }

    #[pyo3(signature = (main, startup, loss, optimizer, strategy = None, parameters = None,
        no_grad = vec![]))]
    fn minimize(
        &self,
        main: &Program,
        startup: &Program,
        loss: &str,
        optimizer: &Bound<'_, PyDict>,
        strategy: Option<&Strategy>,
        parameters: Option<Vec<String>>,
        no_grad: Vec<String>,
    ) -> PyResult<Updates> {
        let optimizer = read_optimizer(optimizer)?;
        let strategy = strategy.map(|s| s.strategy.clone()).or_else(|| self.given.clone());
        let distributed = self.fleet.distributed_optimizer(optimizer, strategy).map_err(raise)?;
        let what = Backward { parameters, no_grad_set: no_grad };
        let minimized = distributed.append(&both(main, startup), loss, &what).map_err(raise)?;
        let mut job = self.job();
        job.loss = loss.to_string();
        job.strategy = Some(distributed.strategy().clone());
        Ok(put(main, startup, minimized))
    }

    #[pyo3(signature = (main, startup, loss = None))]
    fn prepare(&self, main: &Program, startup: &Program, loss: Option<String>) -> PyResult<()> {
        let ((main, main_version), (startup, startup_version)) =
            (main.with_version(), startup.with_version());
        let versions = Some((main_version, startup_version));
        let mut job = self.job();
        if job.versions == versions {
            return Ok(());
        }
        if let Some(loss) = loss {
            job.loss = loss;
        }
        let strategy = job.strategy.clone().or_else(|| self.given.clone()).unwrap_or_default();
        let programs = Programs { main: Ir::clone(&main), startup: Ir::clone(&startup) };
        let own = self.fleet.adopt(&programs, &job.loss, &strategy).map_err(raise)?;
        (job.startup, job.startup_all) = (Some(own), Some(programs.startup));
        job.versions = versions;
        Ok(())
    }

    fn run_startup(&self, py: Python<'_>, scope: &Scope) -> PyResult<()> {
        let startup = self.job().startup.clone();
        let startup = startup.ok_or_else(|| wrong("run_startup: nothing was prepared"))?;
        let values = scope.shared.clone();
        self.lane
            .run(py, move || regatta_exec::run_startup(&startup, &mut lock(&values)))?
            .map_err(raise)
    }

    fn worker_program_text(&self) -> PyResult<String> {
        let split = self.fleet.split().ok_or_else(|| wrong("this job has no servers"))?;
        Ok(split.to_string())
    }

    fn server_program_texts(&self, index: usize) -> PyResult<(String, String)> {
        let split = self.fleet.split().ok_or_else(|| wrong("this job has no servers"))?;
        let startup = self.job().startup_all.clone().unwrap_or_else(|| Ir::new("startup"));
        let servers = self.fleet.server_num();
        if index >= servers {
            return Err(wrong(format!("server {index}: this job has {servers} servers")));
        }
        let partitions = server_partitions(&split, servers, index);
        let programs = split_server(&split, &startup, &partitions).map_err(raise)?;
        Ok((programs.main.to_string(), programs.startup.to_string()))
    }

    fn init_worker(&self, py: Python<'_>, scope: &Scope) -> PyResult<()> {
        self.on(py, scope, |fleet, scope| fleet.init_worker(scope))
    }

    fn run<'py>(
        &self,
        py: Python<'py>,
        scope: &Scope,
        feed: &Bound<'py, PyDict>,
        fetch: Vec<String>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut feeds = std::mem::take(&mut self.job().feeds);
        read_feeds(feed, &mut feeds)?;
        let done = self.on(py, scope, move |fleet, scope| {
            let named: Vec<(&str, &Value)> = feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
            let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
            let fetched = FleetExecutor::of(fleet).run(scope, &named, &fetch)?.to_vec();
            Ok((fetched, feeds))
        })?;
        let (fetched, feeds): (Vec<Tensor>, _) = done;
        self.job().feeds = feeds;
        fetched.iter().map(|tensor| to_numpy(py, tensor)).collect()
    }

    fn train(
        &self,
        py: Python<'_>,
        scope: &Scope,
        dataset: &Dataset,
        fetch: Vec<String>,
        every: u64,
        on_step: Option<Py<PyAny>>,
    ) -> PyResult<(u64, u64)> {
        let batches = dataset.open(py, &self.lane)?;
        let (interrupt, counts) = (Interrupt::default(), Arc::new(Counts::default()));
        let mut steps = Steps::new(batches, every, on_step, interrupt.clone(), counts.clone());
        let values = scope.shared.clone();
        self.alone_until(py, &interrupt, move |fleet| {
            let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
            let steps = &mut steps as &mut dyn Feed;
            FleetExecutor::of(fleet).train_feed(&mut lock(&values), &fetch, steps)
        })?;
        Ok(counts.get())
    }

    fn set_options(&self, threads: usize, check_nan_inf: bool) -> PyResult<()> {
        let options = Options { threads, check_nan_inf, ..Options::default() };
        self.fleet.executor(options).map(|_| ()).map_err(raise)
    }

    #[pyo3(signature = (dir = None, names = vec![]))]
    fn init_server(&self, py: Python<'_>, dir: Option<String>, names: Vec<String>) -> PyResult<()> {
        self.alone(py, move |fleet| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            fleet.init_server(dir.as_deref(), &names)
        })
    }

    fn run_server(&self, py: Python<'_>) -> PyResult<()> {
        let interrupt = Interrupt::default();
        let seen = interrupt.clone();
        self.alone_until(py, &interrupt, move |fleet| fleet.run_server_unless(seen.flag()))
    }

    fn stop_worker(&self, py: Python<'_>, scope: &Scope) -> PyResult<()> {
        self.on(py, scope, |fleet, scope| fleet.stop_worker(scope))
    }

    fn barrier_worker(&self, py: Python<'_>) -> PyResult<()> {
        self.alone(py, regatta_fleet::Fleet::barrier_worker)
    }

    fn all_reduce(&self, py: Python<'_>, values: Vec<f64>, op: &str) -> PyResult<Vec<f64>> {
        let op = match op {
            "sum" => ReduceOp::Sum,
            "max" => ReduceOp::Max,
            "min" => ReduceOp::Min,
            _ => return Err(wrong(format!("'{op}' is not sum, max or min"))),
        };
        self.alone(py, move |fleet| fleet.util().all_reduce(&values, op))
    }

    fn all_gather(&self, py: Python<'_>, values: Vec<f64>) -> PyResult<Vec<Vec<f64>>> {
        self.alone(py, move |fleet| fleet.util().all_gather(&values))
    }

    fn begin_pass(&self, py: Python<'_>) -> PyResult<()> {
        self.alone(py, regatta_fleet::Fleet::begin_pass)
    }

    fn end_pass(&self, py: Python<'_>) -> PyResult<()> {
        self.alone(py, regatta_fleet::Fleet::end_pass)
    }

    fn pull_parameters(&self, py: Python<'_>, scope: &Scope) -> PyResult<()> {
        self.on(py, scope, |fleet, scope| fleet.pull_parameters(scope))
    }

    fn pull_tables(&self, py: Python<'_>, scope: &Scope) -> PyResult<()> {
        self.on(py, scope, |fleet, scope| fleet.pull_tables(scope))
    }

    fn save_persistables(&self, py: Python<'_>, scope: &Scope, dir: String) -> PyResult<()> {
        self.on(py, scope, move |fleet, scope| fleet.save_persistables(scope, dir))
    }

    fn load_model(&self, py: Python<'_>, scope: &Scope, dir: String) -> PyResult<()> {
        self.on(py, scope, move |fleet, scope| fleet.load_model(scope, dir))
    }

    fn save_inference_model(
        &self,
        py: Python<'_>,
        scope: &Scope,
        dir: String,
        feeds: Vec<String>,
        fetches: Vec<String>,
    ) -> PyResult<()> {
        self.on(py, scope, move |fleet, scope| {
            let feeds: Vec<&str> = feeds.iter().map(String::as_str).collect();
            let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
            fleet.save_inference_model(scope, dir, &feeds, &fetches)
        })
    }

    fn shrink(&self, py: Python<'_>, scope: &Scope, max_unseen_days: u32) -> PyResult<u64> {
        self.on(py, scope, move |fleet, scope| fleet.shrink(scope, max_unseen_days))
    }
}

impl Fleet {
    fn job(&self) -> MutexGuard<'_, JobState> {
        self.job.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A call that waits for other processes.
    pub(crate) fn alone<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&regatta_fleet::Fleet) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        self.alone_until(py, &Interrupt::default(), work)
    }

    /// The same, for work that ends when a signal comes.
    fn alone_until<T: Send + 'static>(
        &self,
        py: Python<'_>,
        interrupt: &Interrupt,
        work: impl FnOnce(&regatta_fleet::Fleet) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        if self.interrupted.load(Ordering::Relaxed) {
            let message = "an earlier call was interrupted, and this process cannot continue";
            return Err(own("RegattaError", message.to_string()));
        }
        let fleet = self.fleet.clone();
        let done = self.lane.run_until(py, interrupt, move || work(&fleet));
        if done.is_err() {
            self.interrupted.store(true, Ordering::Relaxed);
        }
        done?.map_err(job_error)
    }

    /// The same with the values of a scope.
    fn on<T: Send + 'static>(
        &self,
        py: Python<'_>,
        scope: &Scope,
        work: impl FnOnce(&regatta_fleet::Fleet, &mut Values) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let values: Arc<Mutex<Values>> = scope.shared.clone();
        self.alone(py, move |fleet| work(fleet, &mut lock(&values)))
    }
}

/// The exception of a failed call: that of a callback, if it has raised one.
fn job_error(error: Error) -> PyErr {
    match error {
        Error::Train(e) => match *e {
            regatta_train::Error::Front(e) => match e.downcast::<Raised>() {
                Ok(raised) => raised.0,
                Err(e) => raise(regatta_train::Error::Front(e)),
            },
            other => raise(Error::Train(Box::new(other))),
        },
        other => raise(other),
    }
}

/// A role that the program knows.
fn read_role(role: &Bound<'_, PyDict>) -> PyResult<RoleMaker> {
    let get = |key: &str| role.get_item(key);
    let list = |key: &str| -> PyResult<Option<Vec<String>>> {
        get(key)?.filter(|v| !v.is_none()).map(|v| v.extract()).transpose()
    };
    let number = |key: &str| -> PyResult<usize> {
        let value = get(key)?.ok_or_else(|| wrong(format!("a role needs {key}")))?;
        value.extract()
    };
    let servers = list("server_endpoints")?.unwrap_or_default();
    let current_id = number("current_id")?;
    let maker = if servers.is_empty() {
        let workers = list("worker_endpoints")?.unwrap_or_default();
        let workers: Vec<&str> = workers.iter().map(String::as_str).collect();
        UserDefinedRoleMaker::collective(current_id, &workers).map_err(raise)?
    } else {
        let is = get("role")?.map(|v| v.extract::<String>()).transpose()?;
        let role = match is.as_deref() {
            Some("server") => Role::Server,
            Some("worker") => Role::Worker,
            other => return Err(wrong(format!("role should be worker or server, not {other:?}"))),
        };
        let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
        let workers = number("worker_num")?;
        UserDefinedRoleMaker::new(current_id, role, workers, &servers).map_err(raise)?
    };
    let token =
        get("token")?.filter(|v| !v.is_none()).map(|v| v.extract::<String>()).transpose()?;
    Ok(match token {
        Some(token) => maker.with_token(&token).into(),
        None => maker.into(),
    })
}
