//! `regatta train --ranks N`: the processes of a collective job; and each of them, whose place the
//! environment says.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_cluster::{CollectivePlace, Env, JobIdentity, Place, names};
use regatta_collective::{Group, Transport};
use regatta_launch::status::{Reporter, Status};
use regatta_launch::{Options, Outcome as Ended, Program, Report, Spec, Supervisor, cores, plan};
use regatta_rec::observe::{Event, Observer};
use regatta_rec::{Config, Error, collective};
use serde_json::json;

use super::Outcome;
use super::ps::{TempDir, restarting};
use super::train::{Console, RunArgs};

/// Flags of collective jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct CollectiveArgs {
    /// Train with so many ranks, each a process of its own, that add up their gradients.
    #[arg(long, value_name = "N", value_parser = ranks, conflicts_with_all = ["servers", "workers"])]
    pub(super) ranks: Option<usize>,
    /// Be this rank of --ranks, instead of starting all of them: the others are started elsewhere and
    /// meet this one at --master.
    #[arg(long, value_name = "R", requires_all = ["ranks", "master"])]
    rank: Option<usize>,
    /// What carries gradients between ranks. MPI needs ranks that mpirun has started.
    #[arg(long, value_enum, default_value_t)]
    transport: Carrier,
    /// Where ranks meet: rank 0 listens there.
    #[arg(long, value_name = "HOST:PORT", requires = "rank")]
    master: Option<String>,
}

/// As [`Transport`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Carrier {
    /// Shared memory on one machine, else the fastest sockets.
    #[default]
    Auto,
    Memory,
    Unix,
    Tcp,
    Mpi,
}

impl Carrier {
    fn transport(self) -> Transport {
        match self {
            Carrier::Auto => Transport::Auto,
            Carrier::Memory => Transport::SharedMemory,
            Carrier::Unix => Transport::Unix,
            Carrier::Tcp => Transport::Tcp,
            Carrier::Mpi => Transport::Mpi,
        }
    }

    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |v| v.get_name().into())
    }
}

impl CollectiveArgs {
    /// Whether flags ask this process to start a job, not to be a part of one.
    pub(super) fn starts_job(&self) -> bool {
        self.ranks.is_some() && self.rank.is_none()
    }

    /// Refuses flags that need ranks.
    pub(super) fn check_without_ranks(&self) -> Result<()> {
        if self.transport == Carrier::Auto {
            return Ok(());
        }
        anyhow::bail!("--transport is for ranks: use --ranks, or a launcher with several processes")
    }

    /// The environment with what flags say about the place of this process.
    pub(super) fn place(&self, env: Env) -> Result<Env> {
        let (Some(rank), Some(ranks), Some(master)) = (self.rank, self.ranks, &self.master) else {
            return Ok(env);
        };
        if env.get(names::TRAINER_ENDPOINTS).is_some() {
            anyhow::bail!(
                "{} is set, which already says where the ranks are; --rank and --master have no \
                 place here",
                names::TRAINER_ENDPOINTS
            );
        }
        let env = env.with(names::TRAINER_ID, rank).with(names::TRAINERS_NUM, ranks);
        Ok(env.with(names::MASTER, master))
    }
}

fn ranks(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=64).contains(&n) => Ok(n),
        _ => Err("it must be a whole number from 1 to 64; use several machines beyond that".into()),
    }
}

/// Starts the ranks and waits for them.
pub(super) fn supervise(
    run: &RunArgs,
    args: &CollectiveArgs,
    ranks: usize,
    bind: bool,
    max_restart: u32,
) -> Result<Outcome> {
    let started = Instant::now();
    let config = run.load()?;
    // What is wrong with the strategy is said once, before anything starts.
    collective::strategy(&config)?;
    println!(
        "{ranks} ranks; {} examples in a step of all ranks",
        config.runner.train.batch_size.unwrap_or(0) * ranks
    );
    let cores = bind.then(|| cores::shares(ranks, config.runner.thread_num)).flatten();
    if args.transport == Carrier::Mpi {
        anyhow::bail!(
            "--transport mpi needs ranks that mpirun has started; use: mpirun -n {ranks} regatta train \
             --transport mpi ..., without --ranks"
        );
    }
    restarting(run, &config, max_restart, |run| {
        run_job(run, args.transport, ranks, cores.as_deref(), started)
    })
}

/// Starts the ranks once and waits for them; writes the report if all is well.
fn run_job(
    run: &RunArgs,
    transport: Carrier,
    ranks: usize,
    cores: Option<&[Vec<usize>]>,
    started: Instant,
) -> Result<Report> {
    let reports = TempDir::new()?;
    let token = Some(regatta_launch::random_hex()?);
    let job = JobIdentity { token, ..JobIdentity::default() };
    let plan = plan::local_collective(ranks, &job)?;
    let this = std::env::current_exe().context("cannot find this program")?;
    let spec = |(rank, place): (usize, &Place)| {
        let mut spec = Spec::new(place, Program::binary(&this));
        spec.cores = cores.map(|shares| shares[rank].clone()).unwrap_or_default();
        spec.args = run.child_args("train");
        let file = rank_report(&reports.0, rank).to_string_lossy().into_owned();
        spec.args.extend(["--part-report".into(), file]);
        spec.args.extend(["--transport".into(), transport.name()]);
        spec
    };
    let specs = plan.places.iter().enumerate().map(spec).collect();
    let report = Supervisor::new(specs, Options::new(started))?.run()?;
    if let (Ended::Done, Some(path)) = (&report.outcome, run.report()) {
        write_report(&reports.0, ranks, path)?;
    }
    Ok(report)
}

/// Runs the rank of a job that this process is.
pub(super) fn run_place(
    run: &RunArgs,
    args: &CollectiveArgs,
    part_report: Option<&Path>,
    place: &CollectivePlace,
    env: &Env,
) -> Result<Outcome> {
    let config = run.load()?;
    let reporter = Reporter::new(env, &format!("rank {}", place.rank));
    let joined =
        regatta_fleet::collective::join(place, args.transport.transport()).map_err(Error::from);
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
