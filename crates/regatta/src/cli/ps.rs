//! `regatta train --servers S --workers W`, and `infer` with the same flags: the processes of a
//! parameter-server job; and each of them, whose place the environment says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_cluster::{Env, JobIdentity, Place, PsPlace, PsRole};
use regatta_fleet::ps::Job;
use regatta_launch::status::{Reporter, Status};
use regatta_launch::{
    LISTENING, Options, Outcome as Ended, Program, Report as Ran, Spec, Supervisor, cores, plan,
};
use regatta_ps::{AsyncConfig, JobToken, Mode};
use regatta_rec::observe::{Event, Observer};
use regatta_rec::{Config, Error, ps};
use serde_json::json;

use super::Outcome;
use super::scores;
use super::train::{Console, RunArgs};

/// Flags of jobs with several processes.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Train with so many parameter servers, each a process of its own.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = at_most_64)]
    pub(super) servers: usize,
    /// Train with so many workers, each a process of its own.
    #[arg(long, value_name = "W", default_value_t = 0, value_parser = at_most_64)]
    pub(super) workers: usize,
    /// In sync and bounded mode, go on without workers that are lost.
    #[arg(long)]
    pub(super) allow_worker_loss: bool,
    /// Start the job again, from its newest checkpoint, up to so many times when a process fails.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) max_restart: u32,
    /// Where a worker or rank leaves its part of the report; set by the process that starts the others.
    #[arg(long, hide = true, value_name = "FILE")]
    pub(super) part_report: Option<PathBuf>,
}

/// What the processes of a job do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work<'a> {
    Train,
    /// With the file that scores go to, if they are wanted.
    Infer(Option<&'a Path>),
}

impl Work<'_> {
    /// The command that every process of the job runs.
    fn command(self) -> &'static str {
        match self {
            Work::Train => "train",
            Work::Infer(_) => "infer",
        }
    }

    /// Nobody pushes in an evaluation, so nobody has to wait for anybody.
    fn mode(self, config: &Config) -> Result<Mode, Error> {
        match self {
            Work::Train => ps::mode(config),
            Work::Infer(_) => Ok(Mode::Async(AsyncConfig::default())),
        }
    }
}

pub(super) fn at_most_64(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if n <= 64 => Ok(n),
        _ => Err("it must be a whole number up to 64; use several machines beyond that".into()),
    }
}

impl PsArgs {
    /// Whether the job has several processes.
    pub(super) fn is_wanted(&self) -> bool {
        self.servers + self.workers > 0
    }
}

/// Starts the processes and waits for them. Workers that wait for each other in every step get their own
/// cores if `bind` says so.
pub(super) fn supervise(run: &RunArgs, args: &PsArgs, bind: bool) -> Result<Outcome> {
    let started = Instant::now();
    let config = run.load()?;
    let (servers, workers) = (args.servers.max(1), args.workers.max(1));
    let mode = ps::mode(&config)?;
    println!(
        "{workers} workers, {servers} servers, mode {}; {} examples in a step of all workers",
        mode.name(),
        config.runner.train.batch_size.unwrap_or(0) * workers
    );
    let waits = mode.staleness().is_some() || args.max_restart > 0;
    let own_cores = bind && mode.is_sync();
    let cores = own_cores.then(|| cores::shares(workers, config.runner.thread_num)).flatten();
    restarting(run, &config, args.max_restart, |run| {
        run_job(Work::Train, run, args, (servers, workers), cores.as_deref(), waits, started)
    })
}

/// Runs a job, and again from its newest checkpoint when it fails, up to `max_restart` times.
pub(super) fn restarting(
    run: &RunArgs,
    config: &Config,
    max_restart: u32,
    mut run_job: impl FnMut(&RunArgs) -> Result<Ran>,
) -> Result<Outcome> {
    if max_restart > 0 && config.runner.checkpoint.is_none() {
        anyhow::bail!("--max-restart needs checkpoints to go on from: set --checkpoint-dir");
    }
    let mut run = run.clone();
    for restart in 0..=max_restart {
        let report = run_job(&run)?;
        match &report.outcome {
            Ended::Failed(failure) if restart < max_restart => {
                eprintln!("error: {}", failure.message);
                let (n, of) = (restart + 1, max_restart);
                eprintln!("starting the job again from its newest checkpoint ({n} of {of})");
                // Whatever the job began with, it goes on from what it has done since.
                run = run.with("runner.checkpoint.resume=auto");
            }
            outcome => return Ok(failed(outcome).unwrap_or(Outcome::Done)),
        }
    }
    Ok(Outcome::GoalMissed)
}

/// Starts servers that load saved epochs and workers that evaluate them, and waits for them.
pub(super) fn supervise_infer(run: &RunArgs, args: &PsArgs, out: Option<&Path>) -> Result<Outcome> {
    let mut config = run.load()?;
    out.map_or(Ok(()), |_| scores::prepare(&mut config))?;
    let (servers, workers) = (args.servers.max(1), args.workers.max(1));
    println!("{workers} workers evaluate what {servers} servers load");
    // Without one of the workers, its examples would be left out.
    let processes = (servers, workers);
    let report = run_job(Work::Infer(out), run, args, processes, None, true, Instant::now())?;
    Ok(failed(&report.outcome).unwrap_or(Outcome::Done))
}

/// Starts the processes once and waits for them; writes the report if all is well. `cores` are those of
/// every worker, if they have their own. If the job `waits` for all workers, or can go on from a
/// checkpoint, it need not go on without one.
fn run_job(
    work: Work<'_>,
    run: &RunArgs,
    args: &PsArgs,
    (servers, workers): (usize, usize),
    cores: Option<&[Vec<usize>]>,
    waits: bool,
    started: Instant,
) -> Result<Ran> {
    let waits = waits && !args.allow_worker_loss;
    let reports = TempDir::new()?;
    let token = Some(regatta_launch::random_hex()?);
    let job = JobIdentity { token, ..JobIdentity::default() };
    let plan = plan::local_parameter_server(servers, workers, &job, None)?;
    let this = std::env::current_exe().context("cannot find this program")?;
    let spec = |place: &Place| {
        let mut spec = Spec::new(place, Program::binary(&this));
        spec.args = run.child_args(work.command());
        if args.allow_worker_loss {
            spec.args.push("--allow-worker-loss".into());
        }
        if let Work::Infer(Some(out)) = work {
            spec.args.extend(["--out".into(), out.to_string_lossy().into_owned()]);
        }
        if let Some(worker) = worker_of(place) {
            let file = worker_report(&reports.0, worker).to_string_lossy().into_owned();
            spec.args.extend(["--part-report".into(), file]);
            spec.is_dispensable = !waits;
            spec.cores = cores.map(|shares| shares[worker].clone()).unwrap_or_default();
        }
        spec
    };
    let specs = plan.places.iter().map(spec).collect();
    let report = Supervisor::new(specs, Options::new(started))?.run()?;
    if let (Ended::Done, Some(path)) = (&report.outcome, run.report()) {
        write_report(&reports.0, workers, path)?;
    }
    Ok(report)
}

fn worker_of(place: &Place) -> Option<usize> {
    match place {
        Place::ParameterServer(PsPlace { role: PsRole::Worker(i), .. }) => Some(*i),
        _ => None,
    }
}

/// Says how a job failed; nothing if it did not.
pub(super) fn failed(ended: &Ended) -> Option<Outcome> {
    match ended {
        Ended::Done => None,
        Ended::Failed(failure) => {
            eprintln!("error: {}", failure.message);
            if !failure.last_lines.is_empty() {
                eprintln!("its last lines:\n  {}", failure.last_lines.join("\n  "));
            }
            Some(Outcome::Exit(failure.code))
        }
        // As shells say it.
        Ended::Interrupted(signal) => Some(Outcome::Exit((128 + signal) as u8)),
        Ended::Stopped(reason) => {
            eprintln!("error: {reason}");
            Some(Outcome::GoalMissed)
        }
    }
}

/// Runs the process of a job that this one is.
pub(super) fn run_place(
    work: Work<'_>,
    run: &RunArgs,
    args: &PsArgs,
    place: &PsPlace,
    env: &Env,
) -> Result<Outcome> {
    let mut config = run.load()?;
    if let Work::Infer(Some(_)) = work {
        scores::prepare(&mut config)?;
    }
    let token = JobToken::new(place.job.secret(&place.servers)?);
    let mode = work.mode(&config)?;
    let mut job = Job::new(place.servers.clone(), place.workers, mode, token);
    job.allow_worker_loss = args.allow_worker_loss;
    job.start_timeout = place.job.start_timeout;
    job.admission = config.runner.distributed.entry.clone();
    job.wire = config.runner.distributed.wire;
    job.observer = Arc::new(|event| regatta_fleet::tell(event));
    let reporter = Reporter::new(env, &place.role.to_string());
    let outcome = match place.role {
        PsRole::Server(i) => ps::serve(&config, &job, i, |endpoint| {
            println!("{LISTENING}{endpoint}");
        })
        .map(|stats| {
            let rows: u64 = stats.tables.values().map(|t| t.rows).sum();
            println!("{} updates, {rows} rows; all workers are done", stats.steps);
        }),
        PsRole::Worker(i) => run_worker(work, &config, run, args, &job, i, &reporter),
    };
    match outcome {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_usage() => Err(error.into()),
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Outcome::GoalMissed)
        }
    }
}

fn run_worker(
    work: Work<'_>,
    config: &Config,
    run: &RunArgs,
    args: &PsArgs,
    job: &Job,
    index: usize,
    reporter: &Reporter,
) -> Result<(), Error> {
    let mut console = Console::new(None, config.runner.dataset_debug);
    for ignored in config.ignored.iter().filter(|_| index == 0) {
        console.event(&Event::Note(&ignored.to_string()));
    }
    let mut has_stepped = false;
    // The first worker speaks for all; what others have to say are notes.
    let mut observer = |event: &Event<'_>| {
        match event {
            // Servers do not take a worker back that was started anew.
            Event::Begin { .. } => reporter.say(Status::CannotResume),
            Event::Batch(_) if !has_stepped => {
                has_stepped = true;
                reporter.say(Status::FirstStep);
            }
            _ => {}
        }
        if index == 0 || matches!(event, Event::Note(_) | Event::BadLines(_)) {
            console.event(event);
        }
    };
    let done = match work {
        Work::Train => ps::train_worker(config, job, index, &mut observer)?,
        Work::Infer(out) => {
            let out = out.map(|path| scores::part(path, index, job.workers));
            scores::written(out.as_deref(), &mut observer, |observer| {
                regatta_rec::infer_worker(config, job, index, observer)
            })?
        }
    };
    if let Some(path) = &args.part_report {
        let own = json!({ "epochs": done.own, "peak_rss_mb": done.report.peak_rss_mb });
        let all = json!({ "report": done.report, "own": own, "servers": done.servers });
        std::fs::write(path, all.to_string())
            .map_err(|source| Error::Write { path: path.to_path_buf(), source })?;
    } else if let Some(path) = run.report()
        && index == 0
    {
        // The epochs count all workers; what belongs to each of them stays with them.
        let mut all = json!(done.report);
        all["servers"] = json!(done.servers);
        regatta_rec::report::write_json(&all, path)?;
    }
    Ok(())
}

/// The report of the whole job: that of all workers together, with each worker and server beside.
fn write_report(dir: &Path, workers: usize, path: &Path) -> Result<()> {
    let mut parts = Vec::new();
    for i in 0..workers {
        let file = worker_report(dir, i);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("worker {i} has left no report"))?;
        parts.push(serde_json::from_str::<serde_json::Value>(&text)?);
    }
    let mut report = parts[0]["report"].clone();
    report["workers"] = parts.iter().map(|p| p["own"].clone()).collect();
    report["servers"] = parts[0]["servers"].clone();
    regatta_rec::report::write_json(&report, path)?;
    Ok(())
}

fn worker_report(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("worker-{worker}.json"))
}

/// A folder that is removed again.
pub(super) struct TempDir(pub(super) PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl TempDir {
    pub(super) fn new() -> Result<TempDir> {
        let path = std::env::temp_dir().join(format!("regatta-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(TempDir(path))
    }
}
