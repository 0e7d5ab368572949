//! `sync_mode: gpubox`: a worker and the servers of its rows in one process, or several of each.

use std::sync::atomic::{AtomicBool, Ordering};

use regatta_passes::split_trainer;
use regatta_ps::{JobToken, Network as InProcess, Server};
use regatta_train::Job;
use regatta_train::job::server_config;
use regatta_train::observe::{Event, Observer};

use crate::config::{DeviceChoice, GpuBox};
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

/// Makes sure that there is the device of the mode, and says what computes if it is no device.
pub(crate) fn check_device(
    config: &Config,
    place: &Place<'_>,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    let Some(GpuBox { device }) = config.runner.distributed.gpubox else { return Ok(()) };
    if device != DeviceChoice::Cpu {
        return Err(no_device(device));
    }
    if place.index().0 == 0 {
        observer.event(&Event::Note(ON_CPU));
    }
    Ok(())
}

/// What a run without a device says.
const ON_CPU: &str =
    "sync_mode gpubox computes on the CPU: rows are in memory and on disk, not on a device";

fn no_device(device: DeviceChoice) -> Error {
    let key = match device {
        DeviceChoice::Auto | DeviceChoice::Cpu => "runner.use_gpu",
        DeviceChoice::Kind(..) => "runner.device",
    };
    let reason = format!(
        "no device for '{device}': this program was built without OpenCL and CUDA; train on the CPU \
         with the same tiers: -o runner.use_gpu=False runner.device=cpu"
    );
    Error::key(key, reason)
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
