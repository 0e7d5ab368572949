//! `regatta train --servers S --workers W`: the processes of a parameter-server job.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use regatta_fleet::ps::Job;
use regatta_ps::JobToken;
use regatta_rec::observe::{Event, Observer};
use regatta_rec::{Config, Error, ps};
use serde_json::json;

use super::Outcome;
use super::processes::{LISTENING, Processes, Role, token_from_parent};
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
    allow_worker_loss: bool,
    /// Set by the process that starts the others.
    #[arg(long, hide = true)]
    pub(super) role: Option<Role>,
    /// Set by the process that starts the others.
    #[arg(long, hide = true, value_delimiter = ',')]
    endpoints: Vec<String>,
}

fn at_most_64(text: &str) -> Result<usize, String> {
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

/// Starts the processes and waits for them.
pub(super) fn supervise(config: &Config, run: &RunArgs, args: &PsArgs) -> Result<Outcome> {
    let (servers, workers) = (args.servers.max(1), args.workers.max(1));
    let mode = ps::mode(config)?;
    println!(
        "{workers} workers, {servers} servers, mode {}; {} examples in a step of all workers",
        mode.name(),
        config.runner.train.batch_size.unwrap_or(0) * workers
    );
    let reports = tempdir()?;
    let mut processes = Processes::new()?;
    let mut common = run.child_args();
    common.extend(["--servers".into(), servers.to_string()]);
    common.extend(["--workers".into(), workers.to_string()]);
    if args.allow_worker_loss {
        common.push("--allow-worker-loss".into());
    }
    for i in 0..servers {
        processes.start(Role::Server(i), &common)?;
    }
    let endpoints = processes.endpoints(servers)?.join(",");
    for i in 0..workers {
        let mut own = common.clone();
        own.extend(["--endpoints".into(), endpoints.clone()]);
        own.extend(["--report".into(), worker_report(&reports.0, i).to_string_lossy().into()]);
        processes.start(Role::Worker(i), &own)?;
    }
    let waits = mode.staleness().is_some() && !args.allow_worker_loss;
    let survives = |role: Role| matches!(role, Role::Worker(_)) && !waits;
    if let Err(error) = processes.wait(survives) {
        eprintln!("error: {error}");
        return Ok(Outcome::GoalMissed);
    }
    if let Some(path) = run.report() {
        write_report(&reports.0, workers, path)?;
    }
    Ok(Outcome::Done)
}

/// Runs one process of the job.
pub(super) fn run_role(
    config: &Config,
    run: &RunArgs,
    args: &PsArgs,
    role: Role,
) -> Result<Outcome> {
    let token = JobToken::new(token_from_parent()?);
    let endpoints = match role {
        Role::Server(_) => vec!["127.0.0.1:0".to_string(); args.servers],
        Role::Worker(_) => args.endpoints.clone(),
    };
    let mut job = Job::new(endpoints, args.workers, ps::mode(config)?, token);
    job.allow_worker_loss = args.allow_worker_loss;
    job.observer = Arc::new(|event| {
        let _ = writeln!(std::io::stderr(), "{event}");
    });
    let outcome = match role {
        Role::Server(i) => ps::serve(config, &job, i, |endpoint| {
            println!("{LISTENING}{endpoint}");
        })
        .map(|stats| {
            let rows: u64 = stats.tables.values().map(|t| t.rows).sum();
            println!("{} updates, {rows} rows; all workers are done", stats.steps);
        }),
        Role::Worker(i) => train_worker(config, run, &job, i),
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

fn train_worker(config: &Config, run: &RunArgs, job: &Job, index: usize) -> Result<(), Error> {
    let mut console = Console::new(None, config.runner.dataset_debug);
    // The first worker speaks for all; what others have to say are notes.
    let mut observer = |event: &Event<'_>| {
        if index == 0 || matches!(event, Event::Note(_) | Event::BadLines(_)) {
            console.event(event);
        }
    };
    let done = ps::train_worker(config, job, index, &mut observer)?;
    if let Some(path) = run.report() {
        let own = json!({ "epochs": done.own, "peak_rss_mb": done.report.peak_rss_mb });
        let all = json!({ "report": done.report, "own": own, "servers": done.servers });
        std::fs::write(path, all.to_string())
            .map_err(|source| Error::Write { path: path.to_path_buf(), source })?;
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
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tempdir() -> Result<TempDir> {
    let path = std::env::temp_dir().join(format!("regatta-{}", std::process::id()));
    std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(TempDir(path))
}
