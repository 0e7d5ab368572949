//! A configuration becomes a run: alone, as a worker of parameter servers, or as a rank.

use regatta_checkpoint::Resume;
use regatta_collective::Group;
use regatta_data::Schema;
use regatta_device::Device;
use regatta_exec::{MemoryShortage, Options, Scope, check_memory, run_startup};
use regatta_fleet::DistributedStrategy;
use regatta_fleet::collective::{optimizer_for, plan_ranks};
use regatta_ir::Program;
use regatta_passes::{Optimizer, learning_rate, split_trainer};
use regatta_ps::message::ServerStats;
use regatta_ps::{Client, Mode, Server};
use regatta_train::job::{client_config, server_config, worker_startup};
use regatta_train::metrics::Meter;
use regatta_train::observe::{Event, Observer};
use regatta_train::report::{EpochReport, Report};
use regatta_train::tier::refuse_without_servers;
use regatta_train::{
    Backend, Family, Farewell, Geo, GpuBox, Job, Local, Ranks, RunReports, RunSpec, Servers,
    Session, leave,
};

use crate::arriving::Arriving;
use crate::arriving_saves::{StreamSaves, check_without_servers};
use crate::config::Arrivals;
use crate::data::Data;
use crate::donefile::{DoneFiles, LastModel};
use crate::gpubox;
use crate::infer::{Validator, check_metric};
use crate::learn::with_learned;
use crate::memory::large_tables;
use crate::network::Network;
use crate::save::{Export, Files};
use crate::{Config, Error, HyperValue};

/// Who trains: this process in its job.
pub enum Place<'a> {
    /// One process.
    Alone,
    /// A worker of a job with parameter servers.
    Worker(&'a Job, usize),
    /// A rank of a group.
    Rank(Group),
}

/// What a run comes to.
pub struct Outcome {
    /// Over all workers or ranks.
    pub report: Report,
    /// This process's epochs.
    pub own: Vec<EpochReport>,
    /// Numbers about the servers; worker 0 requests them.
    pub servers: Vec<ServerStats>,
    /// Workers that were lost and did not come back, and how. Others have trained their data.
    pub lost: Vec<String>,
}

impl Place<'_> {
    /// This process among those that train, and how many there are.
    pub(crate) fn index(&self) -> (usize, usize) {
        match self {
            Place::Alone => (0, 1),
            Place::Worker(job, worker) => (*worker, job.workers),
            Place::Rank(group) => (group.rank(), group.size()),
        }
    }
}

/// Trains the model of a configuration in one process and saves every epoch. With checkpoints, it
/// resumes from the newest one.
///
/// # Errors
/// As [`train_as`].
pub fn train(config: &Config, observer: &mut dyn Observer) -> Result<Report, Error> {
    Ok(train_as(config, Place::Alone, observer)?.report)
}

/// Trains as one process of a job, or alone. The first one saves, and its report counts all.
///
/// # Errors
/// If the configuration cannot be used after all, the data cannot be read, a step or an exchange
/// fails, or an epoch cannot be saved. What was saved before stays, and nothing is half-written.
pub fn train_as(
    config: &Config,
    place: Place<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    if let (Place::Alone, Some(_)) = (&place, &config.runner.distributed.gpubox) {
        return gpubox::train_in_process(config, observer);
    }
    let config = &with_learned(config, &place, observer)?;
    let root = config.runner.save_path()?;
    let devices = gpubox::open_devices(config, &place, observer)?;
    let strategy = match &place {
        Place::Rank(_) => Some(strategy(config)?),
        _ => None,
    };
    let network = match &strategy {
        Some(strategy) => {
            Network::build_with(config, &optimizer_for(&config.optimizer, strategy)?)?
        }
        None => Network::build(config)?,
    };
    check_metric(config, &network)?;
    let whole_tables = match &place {
        Place::Worker(job, _) => matches!(job.mode, Mode::Geo { .. }),
        Place::Alone | Place::Rank(_) => true,
    };
    if !matches!(place, Place::Worker(..)) {
        refuse_without_servers(&config.runner.distributed.tiers)?;
    }
    let schema = network.checked_schema(whole_tables)?;
    let is_first = place.index().0 == 0;
    let TrainData { mut data, last, notes } = open_data(config, &schema, &place)?;
    notes.iter().filter(|_| is_first).for_each(|note| observer.event(&Event::Note(note)));
    if let Some(warning) = config.runner.gpu_warning.as_ref().filter(|_| is_first) {
        observer.event(&Event::Note(&format!("warning: {warning}")));
    }
    if let (Place::Worker(job, 0), true) = (&place, config.runner.check_memory) {
        for warning in large_tables(&network, job)? {
            observer.event(&Event::Note(&warning));
        }
    }
    if is_first && !moves(config) {
        let key = "hyper_parameters.optimizer.learning_rate";
        observer.event(&Event::Note(&format!("warning: {key} is 0: nothing will be learned")));
    }
    let mut note = |text: &str| observer.event(&Event::Note(text));
    let export = config.runner.inference.as_ref().filter(|_| is_first);
    let export = export.map(|wanted| Export::new(&network, wanted, &mut note)).transpose()?;
    let family = match place {
        Place::Worker(..) => Family::Servers,
        Place::Alone | Place::Rank(_) => Family::Whole,
    };
    let session = Session::open(spec(config, &network), family, is_first, observer)?;
    let mut scope = Scope::new();
    let how = (strategy.as_ref(), devices.as_slice());
    let mut backend = backend(config, &network, place, how, &mut scope)?;
    let validator = is_first.then(|| Validator::new(config, &network)).transpose()?.flatten();
    let stream = StreamSaves::default();
    let mut files = Files { config, network: &network, root, export, validator, last, stream };
    let trained = session.train(&mut *backend, &mut scope, &mut *data, &mut files, observer)?;
    let Farewell { servers, lost } = leave(&mut *backend)?;
    let RunReports { report, own } = trained;
    Ok(Outcome { report, own, servers, lost })
}

/// What is trained.
struct TrainData {
    data: Box<dyn regatta_train::Data>,
    /// The model that training by days continues with, unless there is a checkpoint.
    last: Option<LastModel>,
    /// For the user.
    notes: Vec<String>,
}

/// The training data of this process.
fn open_data(config: &Config, schema: &Schema, place: &Place<'_>) -> Result<TrainData, Error> {
    let Some(arrivals) = &config.runner.arrivals else {
        let data = Data::open_for(config, &config.runner.train, schema, place)?;
        let notes = data.note.iter().cloned().collect();
        return Ok(TrainData { data: Box::new(data), last: None, notes });
    };
    let mut notes = Vec::new();
    if !matches!(place, Place::Worker(..)) {
        notes.extend(check_without_servers(config)?);
    }
    let begins_anew =
        config.runner.checkpoint.as_ref().is_some_and(|wanted| wanted.resume == Resume::None);
    let last = match arrivals {
        Arrivals::Days(days) if !begins_anew => {
            DoneFiles::new(config.runner.save_path()?).last(days.passes_per_day)?
        }
        _ => None,
    };
    let after = last.as_ref().map(|last| &last.after);
    let data = Arriving::open(config, arrivals, schema, place, after)?;
    Ok(TrainData { data: Box::new(data), last, notes })
}

/// Runs server `index` of a job until all workers have left; `ready` hears where it listens.
///
/// # Errors
/// If it cannot listen, or a worker is lost in a mode that waits for it.
pub fn serve(
    config: &Config,
    job: &Job,
    index: usize,
    ready: impl FnOnce(&str),
) -> Result<ServerStats, Error> {
    let split = split_trainer(&Network::build(config)?.train)?;
    let server = Server::start(server_config(&split, job, index)?)?;
    ready(&server.endpoint());
    Ok(server.run()?)
}

/// The strategy that a configuration names for ranks; the default one if it names none.
///
/// # Errors
/// If the file cannot be read, or it or the configuration asks for what collective training does
/// not have.
pub fn strategy(config: &Config) -> Result<DistributedStrategy, Error> {
    gpubox::check_ranks(config)?;
    let strategy = match &config.runner.distributed.strategy {
        Some(path) => DistributedStrategy::load(path)?,
        None => DistributedStrategy::default(),
    };
    strategy.check(regatta_fleet::strategy::Use::Collective)?;
    strategy.check_rule(&config.optimizer.rule)?;
    Ok(strategy)
}

/// Settings without which a run that resumes would be another one.
const FIXED: &[&str] = &[
    "runner.seed",
    "runner.train_data_dir",
    "runner.train_batch_size",
    "hyper_parameters.optimizer.class",
    "hyper_parameters.optimizer.learning_rate",
    "features",
];

fn spec(config: &Config, network: &Network) -> RunSpec {
    RunSpec {
        model: config.model.name.to_string(),
        program: network.train.main.clone(),
        epochs: config.runner.epochs,
        fetch: network.fetches().iter().map(|name| name.to_string()).collect(),
        heads: true,
        meters: network.meters(Meter::new),
        reset_meters: config.runner.use_auc,
        allow_non_finite_loss: config.runner.allow_non_finite_loss,
        print_interval: config.runner.print_interval,
        seed: config.runner.seed,
        learning_rate: learning_rate(&network.train).ok(),
        settings: config.to_json(),
        fixed: FIXED.to_vec(),
        folders: config
            .runner
            .run_dir
            .iter()
            .chain(&config.runner.model_save_path)
            .cloned()
            .collect(),
        validation: config.runner.validation.as_ref().map(|(_, how)| how.clone()),
        checkpoint: config.runner.checkpoint.clone(),
    }
}

/// Whether parameters are ever moved. A schedule that does has a rate above 0 at one of these
/// steps.
fn moves(config: &Config) -> bool {
    let Optimizer { schedule, learning_rate, .. } = &config.optimizer;
    [0, 1, 10, 1000, 100_000].iter().any(|step| schedule.lr(*learning_rate, *step) != 0.0)
}

/// How steps are computed.
pub fn options(config: &Config) -> Options {
    Options {
        threads: config.runner.thread_num,
        check_nan_inf: config.runner.check_nan_inf,
        offload_dir: config.runner.offload_dir.clone(),
        ..Options::default()
    }
}

/// Connects this process, and makes its initial values.
fn backend(
    config: &Config,
    network: &Network,
    place: Place<'_>,
    (strategy, devices): (Option<&DistributedStrategy>, &[Device]),
    scope: &mut Scope,
) -> Result<Box<dyn Backend>, Error> {
    let (programs, options) = (&network.train, options(config));
    match place {
        Place::Alone => {
            initial_values(config, &programs.startup, scope)?;
            Ok(Box::new(Local::new(programs.main.clone(), options)?))
        }
        Place::Worker(job, worker) => {
            let split = split_trainer(programs)?;
            let client = Client::connect(client_config(&split, job, worker))?;
            if let Mode::Geo { every } = job.mode {
                initial_values(config, &programs.startup, scope)?;
                return Ok(Box::new(Geo::new(programs, &split, every, client, options)?));
            }
            initial_values(config, &worker_startup(&programs.startup, &split), scope)?;
            if let Some(device) = devices.first() {
                let arenas = gpubox::arenas(config, &split, device)?;
                let others = gpubox::join_workers(job, &client)?;
                return Ok(Box::new(GpuBox::new(&split, client, devices, &arenas, others)?));
            }
            Ok(Box::new(Servers::new(&split, job.mode, client, options)?))
        }
        Place::Rank(group) => {
            let strategy = strategy.cloned().unwrap_or_default();
            let plan = plan_ranks(programs, &strategy, group.rank(), group.size())?;
            initial_values(config, &plan.each.startup, scope)?;
            let (loss, settings) = (&network.loss, strategy.to_yaml());
            Ok(Box::new(Ranks::new(programs, plan, group, options, loss, &settings)?))
        }
    }
}

/// Makes the initial values of a process, if there is memory for them.
fn initial_values(config: &Config, startup: &Program, scope: &mut Scope) -> Result<(), Error> {
    if config.runner.check_memory {
        check_memory(startup).map_err(|e| match e {
            regatta_exec::Error::Memory(shortage) => too_large(config, &shortage),
            other => other.into(),
        })?;
    }
    Ok(run_startup(startup, scope)?)
}

/// Says which hyper-parameter makes the largest variable as large as it is.
fn too_large(config: &Config, shortage: &MemoryShortage) -> Error {
    let is_dim = |value: &HyperValue, dim: i64| match value {
        HyperValue::Int(n) => *n == dim,
        HyperValue::Ints(list) => list.contains(&dim),
        _ => false,
    };
    let mut dims = shortage.shape.clone();
    dims.sort_by_key(|dim| std::cmp::Reverse(*dim));
    let key = dims.iter().find_map(|dim| config.hyper.iter().find(|(_, v)| is_dim(v, *dim)));
    let key = key.map(|(name, value)| format!("hyper_parameters.{name}={value}: "));
    Error::Memory(format!(
        "{}{shortage}; make it smaller, divide the tables between servers (`regatta plan` says how \
         many), or try all the same with -o runner.check_memory=False",
        key.unwrap_or_default()
    ))
}
