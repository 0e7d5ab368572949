//! `regatta train`: trains the model of a PaddleRec configuration file.

use std::path::{Path, PathBuf};

use regatta_checkpoint::try_file;
use regatta_cluster::{Env, Place, names};
use regatta_launch::ThisProgram;
use regatta_rec::{Config, Error};
use regatta_train::remote::is_remote;

use super::Outcome;
use super::job::{self, JobKind, Work};
use super::job_args::{PsArgs, RankArgs};

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
    /// Write curves for TensorBoard.
    #[arg(long, value_name = "DIR")]
    logdir: Option<PathBuf>,
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
    let mut run = args.run.clone();
    run.overrides.extend(args.checkpoint.overrides()?);
    if run.print_config {
        return job::run_alone(Work::Train, &run);
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
    let start = |kind| job::supervise(Work::Train, &run, &args.ps, kind, !args.no_bind, this);
    match place {
        Place::Local => match (args.ps.is_wanted(), args.ranks.ranks) {
            (true, _) => start(args.ps.kind()),
            (_, Some(ranks)) => start(JobKind::Ranks { ranks, carrier: args.ranks.transport }),
            _ => job::run_alone(Work::Train, &run),
        },
        place if starts_job => anyhow::bail!(
            "this process is already {place} of a job (the environment says so); --servers, \
             --workers and --ranks start a new job"
        ),
        place => job::run_place(Work::Train, &run, &args.ps, args.ranks.transport, &place, &env),
    }
}

impl RunArgs {
    /// The configuration with everything that the flags override.
    pub(super) fn load(&self) -> Result<Config, Error> {
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
        Config::load(&self.config, &overrides)
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

    /// Where curves go.
    pub(super) fn logdir(&self) -> Option<&Path> {
        self.logdir.as_deref()
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
        if let Some(dir) = &self.logdir {
            args.extend(["--logdir".into(), dir.to_string_lossy().into_owned()]);
        }
        args
    }
}
