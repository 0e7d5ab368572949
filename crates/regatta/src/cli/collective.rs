//! `regatta train --ranks N`: the processes of a collective job; and each of them, whose place the
//! environment says.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_cluster::{CollectivePlace, Env, JobIdentity, Place};
use regatta_collective::{Group, GroupConfig};
use regatta_launch::status::{Reporter, Status};
use regatta_launch::{Options, Program, Spec, Supervisor, plan};
use regatta_ps::JobToken;
use regatta_rec::observe::{Event, Observer};
use regatta_rec::{Config, Error, collective};
use serde_json::json;

use super::Outcome;
use super::ps::{TempDir, failed};
use super::train::{Console, RunArgs};

/// Flags of collective jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct CollectiveArgs {
    /// Train with so many ranks, each a process of its own, that add up their gradients.
    #[arg(long, value_name = "N", value_parser = ranks, conflicts_with_all = ["servers", "workers"])]
    pub(super) ranks: Option<usize>,
}

fn ranks(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=64).contains(&n) => Ok(n),
        _ => Err("it must be a whole number from 1 to 64; use several machines beyond that".into()),
    }
}

/// Starts the ranks and waits for them.
pub(super) fn supervise(run: &RunArgs, ranks: usize) -> Result<Outcome> {
    let started = Instant::now();
    let config = run.load()?;
    // What is wrong with the strategy is said once, before anything starts.
    collective::strategy(&config)?;
    println!(
        "{ranks} ranks; {} examples in a step of all ranks",
        config.runner.train.batch_size.unwrap_or(0) * ranks
    );
    let reports = TempDir::new()?;
    let token = Some(regatta_launch::random_hex()?);
    let job = JobIdentity { token, ..JobIdentity::default() };
    let plan = plan::local_collective(ranks, &job)?;
    let this = std::env::current_exe().context("cannot find this program")?;
    let spec = |(rank, place): (usize, &Place)| {
        let mut spec = Spec::new(place, Program::binary(&this));
        spec.args = run.child_args();
        let file = rank_report(&reports.0, rank).to_string_lossy().into_owned();
        spec.args.extend(["--part-report".into(), file]);
        spec
    };
    let specs = plan.places.iter().enumerate().map(spec).collect();
    let report = Supervisor::new(specs, Options::new(started))?.run()?;
    if let Some(outcome) = failed(&report.outcome) {
        return Ok(outcome);
    }
    if let Some(path) = run.report() {
        write_report(&reports.0, ranks, path)?;
    }
    Ok(Outcome::Done)
}

/// Runs the rank of a job that this process is.
pub(super) fn run_place(
    run: &RunArgs,
    part_report: Option<&Path>,
    place: &CollectivePlace,
    env: &Env,
) -> Result<Outcome> {
    let config = run.load()?;
    let token = JobToken::new(place.job.secret(&place.endpoints)?);
    let mut group = GroupConfig::new(place.rank, place.endpoints.clone(), token);
    group.job.clone_from(&place.job.id);
    group.start_timeout = place.job.start_timeout;
    group.observer = Arc::new(|event| {
        let _ = writeln!(std::io::stderr(), "{event}");
    });
    let reporter = Reporter::new(env, &format!("rank {}", place.rank));
    let joined = Group::connect(group).map_err(|e| Error::from(regatta_fleet::Error::from(e)));
    let outcome = joined.and_then(|group| train(&config, run, part_report, group, &reporter));
    finish(outcome)
}

/// `runner.use_fleet` without a launcher: one rank, in this process.
pub(super) fn run_alone(run: &RunArgs) -> Result<Outcome> {
    let config = run.load()?;
    let group = Group::in_memory(1)?.remove(0);
    finish(train(&config, run, None, group, &Reporter::new(&Env::default(), "rank 0")))
}

fn finish(outcome: Result<(), Error>) -> Result<Outcome> {
    match outcome {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_usage() => Err(error.into()),
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Outcome::GoalMissed)
        }
    }
}

fn train(
    config: &Config,
    run: &RunArgs,
    part_report: Option<&Path>,
    group: Group,
    reporter: &Reporter,
) -> Result<(), Error> {
    let rank = group.rank();
    let mut console = Console::for_run(run, config, rank == 0)?;
    let mut has_stepped = false;
    // The first rank speaks for all; what others have to say are notes.
    let mut observer = |event: &Event<'_>| {
        match event {
            // The others do not wait for a rank that was started anew.
            Event::Begin { .. } => reporter.say(Status::CannotResume),
            Event::Batch(_) if !has_stepped => {
                has_stepped = true;
                reporter.say(Status::FirstStep);
            }
            _ => {}
        }
        if rank == 0 || matches!(event, Event::Note(_) | Event::BadLines(_)) {
            console.event(event);
        }
    };
    let done = collective::train_rank(config, group, &mut observer)?;
    console.check()?;
    if let Some(path) = part_report {
        let own = json!({ "epochs": done.own, "peak_rss_mb": done.report.peak_rss_mb });
        let all = json!({ "report": done.report, "own": own });
        return std::fs::write(path, all.to_string())
            .map_err(|source| Error::Write { path: path.to_path_buf(), source });
    }
    match run.report() {
        // The epochs count all ranks.
        Some(path) if rank == 0 => regatta_rec::report::write_json(&json!(done.report), path),
        _ => Ok(()),
    }
}

/// The report of the whole job: that of all ranks together, with each rank beside.
fn write_report(dir: &Path, ranks: usize, path: &Path) -> Result<()> {
    let mut parts = Vec::new();
    for rank in 0..ranks {
        let text = std::fs::read_to_string(rank_report(dir, rank))
            .with_context(|| format!("rank {rank} has left no report"))?;
        parts.push(serde_json::from_str::<serde_json::Value>(&text)?);
    }
    let mut report = parts[0]["report"].clone();
    report["ranks"] = parts.iter().map(|p| p["own"].clone()).collect();
    regatta_rec::report::write_json(&report, path)?;
    Ok(())
}

fn rank_report(dir: &Path, rank: usize) -> PathBuf {
    dir.join(format!("rank-{rank}.json"))
}
