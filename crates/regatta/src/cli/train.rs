//! `regatta train`: trains the model of a PaddleRec configuration file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use regatta_checkpoint::try_file;
use regatta_cluster::{Env, Place, names};
use regatta_launch::ThisProgram;
use regatta_rec::{Config, Error};
use regatta_train::remote::is_remote;

use super::Outcome;
use super::job::{self, JobKind, Work};
use super::job_args::{PsArgs, RankArgs};
use super::runs::folder::{Choice, Claim};

/// Trains a model as a PaddleRec configuration file says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    ps: PsArgs,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    ranks: RankArgs,
    /// Let the system choose where processes run. Without this, every rank of --ranks, and every
    /// worker of --workers in sync mode, has its own processor cores, if there are enough.
    #[arg(long, conflicts_with = "rank")]
    no_bind: bool,
    /// What the run is called; else its model. Its folder is runs/<time>-<name>.
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    name: Option<String>,
}

/// A name that is part of a name of a folder.
fn run_name(text: &str) -> Result<String, String> {
    let is_good = |c: char| c.is_alphanumeric() || "-_.+".contains(c);
    match !text.is_empty() && text.len() <= 100 && text.chars().all(is_good) {
        true => Ok(text.to_string()),
        false => Err("it must be up to 100 letters, digits and -_.+".into()),
    }
}

/// Checkpoints, by the flags that stand for keys of `runner.checkpoint`.
#[derive(Debug, clap::Args)]
struct CheckpointArgs {
    /// Make checkpoints here (a directory or the address of a remote store), and resume from the
    /// newest one when the command is started again.
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// Batches between two checkpoints.
    #[arg(long, value_name = "N")]
    checkpoint_steps: Option<u64>,
    /// Newest checkpoints that are kept.
    #[arg(long, value_name = "N")]
    checkpoint_keep: Option<u64>,
    /// Every N-th checkpoint is whole; those between hold the rows that changed.
    #[arg(long, value_name = "N")]
    checkpoint_full_every: Option<u64>,
    /// What to resume from: auto, latest, none or the path of a checkpoint.
    #[arg(long, value_name = "auto|latest|PATH|none")]
    resume: Option<String>,
}

impl CheckpointArgs {
    /// The flags as values of keys.
    fn overrides(&self) -> anyhow::Result<Vec<String>> {
        // Paths of flags start from here, those of the file from its folder.
        let from_here = |path: &PathBuf| match is_remote(path) {
            true => Ok(path.clone()),
            false => std::path::absolute(path),
        };
        let dir = self.checkpoint_dir.as_ref().map(from_here).transpose()?;
        let resume = match self.resume.as_deref() {
            Some(path) if is_remote(Path::new(path)) => anyhow::bail!(
                "--resume {path}: a run resumes from what is in its checkpoint directory; set \
                 --checkpoint-dir to the folder of that checkpoint"
            ),
            Some(path) if !["auto", "latest", "none"].contains(&path) => {
                Some(std::path::absolute(path)?.to_string_lossy().into_owned())
            }
            other => other.map(str::to_string),
        };
        let set = |key: &str, value: Option<String>| {
            value.map(|value| format!("runner.checkpoint.{key}={value}"))
        };
        let all = [
            set("dir", dir.map(|dir| dir.to_string_lossy().into_owned())),
            set("step_interval", self.checkpoint_steps.map(|n| n.to_string())),
            set("keep", self.checkpoint_keep.map(|n| n.to_string())),
            set("full_every", self.checkpoint_full_every.map(|n| n.to_string())),
            set("resume", resume),
        ];
        Ok(all.into_iter().flatten().collect())
    }
}

/// What training and evaluation have in common.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunArgs {
    /// The YAML file; paths in it are relative to its folder.
    #[arg(short = 'm', long = "config", alias = "config_yaml", value_name = "CONFIG")]
    config: PathBuf,
    /// Values that override the file.
    #[arg(short = 'o', long = "opt", value_name = "section.key=value", num_args = 1..)]
    overrides: Vec<String>,
    /// Write a JSON report.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write curves for TensorBoard here, rather than into the folder of the run.
    #[arg(long, value_name = "DIR")]
    logdir: Option<PathBuf>,
    /// The folder of the run: train writes there, and resumes if checkpoints are there; infer
    /// evaluates its epochs. Without this, train makes runs/<time>-<name>.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// What the run is called.
    #[arg(skip)]
    name: Option<String>,
    /// Print the resolved configuration as YAML and stop.
    #[arg(long)]
    print_config: bool,
    /// Threads that share each batch; the same as -o runner.thread_num=N.
    #[arg(long, value_name = "N", value_parser = super::threads)]
    threads: Option<usize>,
    /// An error where the file says use_gpu and no device computes, instead of a warning.
    #[arg(long)]
    require_gpu: bool,
}

pub(crate) fn run(args: &Args, this: &ThisProgram) -> anyhow::Result<Outcome> {
    let mut run = RunArgs { name: args.name.clone(), ..args.run.clone() };
    run.overrides.extend(args.checkpoint.overrides()?);
    if let Some(dir) = &run.run_dir {
        let dir = if is_remote(dir) { dir.clone() } else { std::path::absolute(dir)? };
        run.overrides.push(format!("runner.run_dir={}", dir.display()));
    }
    if run.print_config {
        return print_config(&run);
    }
    let env = args.ranks.place(Env::process())?;
    let place = Place::from_env(&env)?;
    if !matches!(place, Place::Collective(_)) && args.ranks.ranks.is_none() {
        args.ranks.check_without_ranks()?;
    }
    let starts_job = args.ps.is_wanted() || args.ranks.starts_job();
    if args.no_bind && !starts_job {
        anyhow::bail!("--no-bind is for jobs that this command starts: set --ranks or --workers");
    }
    match place {
        Place::Local => run_here(&mut run, args, this),
        place if starts_job => anyhow::bail!(
            "this process is already {place} of a job (the environment says so); --servers, \
             --workers and --ranks start a new job"
        ),
        place => job::run_place(Work::Train, &run, &args.ps, args.ranks.transport, &place, &env),
    }
}

/// Trains in this process or in those that it starts.
fn run_here(run: &mut RunArgs, args: &Args, this: &ThisProgram) -> anyhow::Result<Outcome> {
    let claim = match Claim::make(&Choice::of(run)?, run) {
        Ok(claim) => claim,
        // What the disk refuses is no mistake in the flags.
        Err(error) => return job::finish(Err(error.downcast::<Error>()?)),
    };
    let start = |kind| job::supervise(Work::Train, run, &args.ps, kind, !args.no_bind, this);
    let outcome = match (args.ps.is_wanted(), args.ranks.ranks) {
        (true, _) => start(args.ps.kind()),
        (_, Some(ranks)) => start(JobKind::Ranks { ranks, carrier: args.ranks.transport }),
        _ => job::run_alone(Work::Train, run),
    };
    claim.release();
    outcome
}

/// Prints the configuration, and where a run would be written.
fn print_config(run: &RunArgs) -> anyhow::Result<Outcome> {
    let choice = Choice::of(run)?;
    let mut out = io::stdout();
    writeln!(out, "# {}", choice.describe()?)?;
    job::run_alone(Work::Train, run)
}

impl RunArgs {
    /// The configuration with everything that the flags override.
    pub(super) fn load(&self) -> Result<Config, Error> {
        Config::load(&self.config, &self.all_overrides())
    }

    /// Whether the file or a flag says something about a key.
    pub(super) fn has(&self, key: &str) -> Result<bool, Error> {
        Config::is_written(&self.config, &self.all_overrides(), key)
    }

    fn all_overrides(&self) -> Vec<String> {
        // What is written on the command line counts more than Paddle's flag in the environment.
        let flag = Env::process().get(names::CHECK_NAN_INF).map(str::to_string);
        let checked = flag.filter(|text| !text.trim().is_empty());
        let mut overrides: Vec<String> = checked
            .map(|text| format!("runner.check_nan_inf={}", text.trim()))
            .into_iter()
            .collect();
        overrides.extend(self.overrides.iter().cloned());
        overrides.extend(self.threads.map(|n| format!("runner.thread_num={n}")));
        overrides.extend(self.require_gpu.then(|| "runner.require_gpu=True".to_string()));
        overrides
    }

    /// The same with another value of a key.
    pub(super) fn with(&self, setting: &str) -> RunArgs {
        let mut changed = self.clone();
        changed.overrides.push(setting.to_string());
        changed
    }

    /// Tries whether the report can be written: found out before training, not after it.
    pub(super) fn try_report(&self) -> Result<(), Error> {
        Ok(self.report().map_or(Ok(()), try_file)?)
    }

    /// Where the report goes.
    pub(super) fn report(&self) -> Option<&Path> {
        self.report.as_deref()
    }

    /// Where curves go, if a flag says it.
    pub(super) fn logdir(&self) -> Option<&Path> {
        self.logdir.as_deref()
    }

    /// The folder of the run, if a flag says it.
    pub(super) fn run_dir(&self) -> Option<&Path> {
        self.run_dir.as_deref()
    }

    /// What the run is called, if a flag says it.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether only the configuration is to be shown.
    pub(super) fn is_printing(&self) -> bool {
        self.print_config
    }

    /// The arguments of every process of a job.
    pub(super) fn child_args(&self, command: &str) -> Vec<String> {
        let mut args =
            vec![command.to_string(), "-m".into(), self.config.to_string_lossy().into_owned()];
        for value in &self.overrides {
            args.extend(["-o".into(), value.clone()]);
        }
        if let Some(threads) = self.threads {
            args.extend(["--threads".into(), threads.to_string()]);
        }
        args.extend(self.require_gpu.then(|| "--require-gpu".to_string()));
        if let Some(dir) = &self.logdir {
            args.extend(["--logdir".into(), dir.to_string_lossy().into_owned()]);
        }
        args
    }
}
