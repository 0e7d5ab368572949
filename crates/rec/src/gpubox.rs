//! `sync_mode: gpubox`: a worker and the servers of its rows in one process, or several of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use regatta_collective::Group;
use regatta_device::{Api, Choice, Device, Listing};
use regatta_passes::{Split, split_trainer};
use regatta_ps::{Client, JobToken, Network as InProcess, Server};
use regatta_train::Job;
use regatta_train::job::server_config;
use regatta_train::observe::{Event, Observer};

use crate::config::{DeviceChoice, DeviceKind, GpuBox};
use crate::network::Network;
use crate::run::{Outcome, Place, train_as};
use crate::{Config, Error};

/// The name of the server that is in the process of its worker.
const OWN_SERVER: &str = "rows";

/// Trains with one worker and one server in this process: any id makes a row.
pub(crate) fn train_in_process(
    config: &Config,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let job = own_job(config);
    let split = split_trainer(&Network::build(config)?.train)?;
    let server = Server::start(server_config(&split, &job, 0)?)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let serving = threads.spawn(|| server.run_unless(&stop));
        let trained = train_as(config, Place::Worker(&job, 0), observer);
        // A server waits for a worker that has failed; this one is not to come back.
        stop.store(trained.is_err(), Ordering::Relaxed);
        let served = serving.join();
        let outcome = trained?;
        match served {
            Ok(served) => served.map(|_| outcome).map_err(Error::from),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A job that nobody outside this process can reach.
fn own_job(config: &Config) -> Job {
    let settings = &config.runner.distributed;
    let mut job = Job::new(vec![OWN_SERVER.into()], 1, settings.mode, JobToken::new(""));
    job.network = Some(InProcess::new());
    job.admission = settings.entry.clone();
    job.wire = settings.wire;
    job.tiers = settings.tiers.clone();
    job
}

/// Opens the devices of the mode, and says what computes; none if it is the processors.
pub(crate) fn open_devices(
    config: &Config,
    place: &Place<'_>,
    observer: &mut dyn Observer,
) -> Result<Vec<Device>, Error> {
    let Some(GpuBox { device, .. }) = &config.runner.distributed.gpubox else { return Ok(vec![]) };
    if *device == DeviceChoice::Cpu {
        if place.index().0 == 0 {
            observer.event(&Event::Note(ON_CPU));
        }
        return Ok(vec![]);
    }
    let open = |choice: Choice| choice.open().map_err(|e| no_device(*device, &e));
    let opened = selected(*device)?.into_iter().map(open).collect::<Result<Vec<_>, Error>>()?;
    let names: Vec<String> = opened.iter().map(|device| device.info().to_string()).collect();
    let text = format!("sync_mode gpubox computes on {}", names.join(", "));
    observer.event(&Event::Note(&text));
    Ok(opened)
}

/// What a run without a device says.
const ON_CPU: &str =
    "sync_mode gpubox computes on the CPU: rows are in memory and on disk, not on a device";

/// The device that the configuration names, or those that the environment selects of its kind.
fn selected(device: DeviceChoice) -> Result<Vec<Choice>, Error> {
    let devices = regatta_fleet::devices()?;
    let (kind, named) = match device {
        DeviceChoice::Kind(kind, named) => (Some(kind), named),
        DeviceChoice::Auto | DeviceChoice::Cpu => (None, None),
    };
    let selected = match named {
        Some(number) => vec![number],
        None => devices.selected.unwrap_or_else(|| vec![0]),
    };
    // CUDA leaves out by itself what is not visible.
    let filters = named.is_none() && kind != Some(DeviceKind::Cuda);
    let visible = devices.visible.filter(|_| filters);
    let number = |n: usize| visible.as_ref().and_then(|list| list.get(n).copied()).unwrap_or(n);
    let Some(kind) = kind else {
        let found = Choice::Auto.find(&Listing::take());
        let kind = match found.map_err(|e| no_device(device, &e))?.api {
            Api::Cuda => Choice::Cuda,
            Api::OpenCl => Choice::OpenCl,
        };
        return Ok(selected.into_iter().map(kind).collect());
    };
    let choice = |n: usize| match kind {
        DeviceKind::OpenClCpu => Choice::OpenClCpu(number(n)),
        DeviceKind::OpenCl => Choice::OpenCl(number(n)),
        DeviceKind::Cuda => Choice::Cuda(n),
    };
    Ok(selected.into_iter().map(choice).collect())
}

fn no_device(device: DeviceChoice, error: &regatta_device::Error) -> Error {
    let key = match device {
        DeviceChoice::Auto | DeviceChoice::Cpu => "runner.use_gpu",
        DeviceChoice::Kind(..) => "runner.device",
    };
    let instead = "train on the CPU with the same tiers: -o runner.use_gpu=False";
    Error::key(key, format!("{error}; {instead}"))
}

/// Bytes of the device for the rows of each table of a program.
pub(crate) fn arenas(config: &Config, split: &Split, device: &Device) -> Result<Vec<u64>, Error> {
    let none = BTreeMap::new();
    let given = config.runner.distributed.gpubox.as_ref().map_or(&none, |g| &g.device_bytes);
    let key = |table: &str| format!("table_parameters.{table}.device_mb");
    let names: Vec<&str> = split.tables.iter().map(|table| table.name.as_str()).collect();
    if let Some(table) = given.keys().find(|table| !names.contains(&table.as_str())) {
        let reason = format!("there is no table '{table}'; there are {}", names.join(", "));
        return Err(Error::key(key(table), reason));
    }
    let info = device.info();
    let share = (info.memory / 4).min(1 << 30) / names.len().max(1) as u64;
    let bytes = |name: &&str| match given.get(*name) {
        Some(bytes) if *bytes > info.max_buffer => Err(Error::key(
            key(name),
            format!("a buffer of {info} has at most {} MB", info.max_buffer >> 20),
        )),
        Some(bytes) => Ok(*bytes),
        None => Ok(share.min(info.max_buffer)),
    };
    names.iter().map(bytes).collect()
}

/// The other workers of a job with devices, if there are any: all compute every step together.
pub(crate) fn join_workers(job: &Job, client: &Client) -> Result<Option<Group>, Error> {
    if job.workers == 1 {
        return Ok(None);
    }
    if job.allow_worker_loss {
        return Err(Error::from(regatta_train::Error::Config(
            "--allow-worker-loss cannot be honoured: rows that are on the devices of a lost worker \
             are lost, too; a job that has failed resumes from its newest checkpoint"
                .into(),
        )));
    }
    let observer = Arc::new(|event: &regatta_collective::Event| regatta_fleet::notify(event));
    Ok(Some(regatta_train::job::join_workers(client, job, observer)?))
}

/// Refuses ranks: the rows of the mode are on servers.
pub(crate) fn check_ranks(config: &Config) -> Result<(), Error> {
    let reason = "gpubox trains with servers, not with ranks: leave out --ranks, or start it with \
                  fleetrun --server_num=1 --worker_num=1 --gpus=0";
    match config.runner.distributed.gpubox {
        Some(_) => Err(Error::key("runner.sync_mode", reason)),
        None => Ok(()),
    }
}
