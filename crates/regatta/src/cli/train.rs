//! `regatta train`: trains the model of a PaddleRec configuration file.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use regatta_cluster::{Env, Place};
use regatta_rec::events::EventWriter;
use regatta_rec::observe::{Event, Interval, Observer};
use regatta_rec::remote::is_remote;
use regatta_rec::report::EpochReport;
use regatta_rec::{Config, Error, Report};

use super::Outcome;
use super::collective::{self, CollectiveArgs};
use super::ps::{PsArgs, Work};

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
    collective: CollectiveArgs,
    /// Let the system choose where processes run. Without this, every rank of --ranks, and every worker of
    /// --workers in sync mode, has its own share of the processor cores, if there are enough.
    #[arg(long, conflicts_with = "rank")]
    no_bind: bool,
}

/// Checkpoints, by the flags that stand for keys of `runner.checkpoint`.
#[derive(Debug, clap::Args)]
struct CheckpointArgs {
    /// Make checkpoints here (a directory or the address of a remote store), and go on from the newest one when the command is started again.
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// Batches between two checkpoints.
    #[arg(long, value_name = "N")]
    checkpoint_steps: Option<u64>,
    /// Newest checkpoints that are kept.
    #[arg(long, value_name = "N")]
    checkpoint_keep: Option<u64>,
    /// Every how many checkpoints one is whole; those between hold the rows that changed.
    #[arg(long, value_name = "N")]
    checkpoint_full_every: Option<u64>,
    /// What to go on from: auto, latest, none or the path of a checkpoint.
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
                "--resume {path}: a run goes on from what is in its checkpoint directory; set \
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
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut run = args.run.clone();
    run.overrides.extend(args.checkpoint.overrides()?);
    if run.print_config {
        return run_with(&run, regatta_rec::train);
    }
    let env = args.collective.place(Env::process())?;
    let place = Place::from_env(&env)?;
    if !matches!(place, Place::Collective(_)) && args.collective.ranks.is_none() {
        args.collective.check_without_ranks()?;
    }
    if args.no_bind && !args.ps.is_wanted() && !args.collective.starts_job() {
        anyhow::bail!("--no-bind is for jobs that this command starts: set --ranks or --workers");
    }
    let bind = !args.no_bind;
    match place {
        Place::Local if args.ps.is_wanted() => super::ps::supervise(&run, &args.ps, bind),
        Place::Local => match args.collective.ranks {
            Some(ranks) => {
                collective::supervise(&run, &args.collective, ranks, bind, args.ps.max_restart)
            }
            None if run.load()?.runner.distributed.use_fleet => collective::run_alone(&run),
            None => run_with(&run, regatta_rec::train),
        },
        place if args.ps.is_wanted() || args.collective.starts_job() => anyhow::bail!(
            "the environment says that this is {place} of a job, so --servers, --workers and --ranks \
             have no place here"
        ),
        Place::ParameterServer(place) => {
            super::ps::run_place(Work::Train, &run, &args.ps, &place, &env)
        }
        Place::Collective(place) => {
            let part_report = args.ps.part_report.as_deref();
            collective::run_place(&run, &args.collective, part_report, &place, &env)
        }
    }
}

impl RunArgs {
    /// The configuration with everything that the flags override.
    pub(super) fn load(&self) -> Result<Config, Error> {
        let mut overrides = self.overrides.clone();
        overrides.extend(self.threads.map(|n| format!("runner.thread_num={n}")));
        Config::load(&self.config, &overrides)
    }

    /// The same with another value of a key.
    pub(super) fn with(&self, setting: &str) -> RunArgs {
        let mut changed = self.clone();
        changed.overrides.push(setting.to_string());
        changed
    }

    /// Where the report goes.
    pub(super) fn report(&self) -> Option<&Path> {
        self.report.as_deref()
    }

    /// Whether only the configuration is to be shown.
    pub(super) fn is_printing(&self) -> bool {
        self.print_config
    }

    /// What every process of a job is told to do.
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

/// Loads the configuration, runs, and writes what was asked for.
pub(crate) fn run_with(
    args: &RunArgs,
    work: impl FnOnce(&Config, &mut dyn Observer) -> Result<Report, Error>,
) -> anyhow::Result<Outcome> {
    run_loaded(&args.load()?, args, work)
}

/// The same with a configuration that is already loaded.
pub(super) fn run_loaded(
    config: &Config,
    args: &RunArgs,
    work: impl FnOnce(&Config, &mut dyn Observer) -> Result<Report, Error>,
) -> anyhow::Result<Outcome> {
    if args.print_config {
        write!(io::stdout(), "{}", config.to_yaml())?;
        return Ok(Outcome::Done);
    }
    match run_config(config, args, work) {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_usage() => Err(error.into()),
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Outcome::GoalMissed)
        }
    }
}

fn run_config(
    config: &Config,
    args: &RunArgs,
    work: impl FnOnce(&Config, &mut dyn Observer) -> Result<Report, Error>,
) -> Result<(), Error> {
    let mut console = Console::for_run(args, config, true)?;
    let report = work(config, &mut console)?;
    console.check()?;
    if let Some(path) = &args.report {
        report.write(path)?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "curves are drawn over the time of day")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Lines on standard output; on a terminal a bar on standard error in the place of most of them.
pub(super) struct Console {
    bar: Option<ProgressBar>,
    drawn: Instant,
    epochs: u64,
    /// Examples of earlier passes.
    before: u64,
    /// Examples of a pass, as far as known.
    total: Option<u64>,
    events: Option<EventWriter>,
    stages: bool,
    failed: Option<Error>,
}

impl Console {
    pub(super) fn new(events: Option<EventWriter>, stages: bool) -> Console {
        let bar = io::stderr().is_terminal().then(ProgressBar::no_length);
        let (drawn, failed) = (Instant::now(), None);
        Console { bar, drawn, epochs: 0, before: 0, total: None, events, stages, failed }
    }

    /// With the curves and details that flags and configuration ask for, if this process speaks for
    /// the job.
    pub(super) fn for_run(run: &RunArgs, config: &Config, speaks: bool) -> Result<Console, Error> {
        let logdir = run.logdir.as_deref().filter(|_| speaks);
        let events = logdir.map(|dir| EventWriter::create(dir, now)).transpose()?;
        let console = Console::new(events, config.runner.dataset_debug);
        if speaks {
            console.line(config.to_string().trim_end());
        }
        Ok(console)
    }

    /// Tells if curves could not be written.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn line(&self, text: &str) {
        // Training goes on when nobody reads its lines any more.
        let write = || {
            let _ = writeln!(io::stdout(), "{text}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn set_total(&mut self) {
        if let (Some(bar), Some(total)) = (&self.bar, self.total) {
            // The whole run, so that what is left is the time until its end.
            bar.set_length(total * self.epochs);
            let template = "{prefix} {bar:30} {percent}%  {msg}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
        } else if let Some(bar) = &self.bar
            && let Ok(style) = ProgressStyle::with_template("{prefix} {pos} examples  {msg}")
        {
            bar.set_style(style);
        }
    }

    fn interval(&mut self, interval: &Interval) {
        let Some(bar) = &self.bar else {
            self.line(&interval.to_string());
            return self.curves(interval);
        };
        let loss = interval.loss.map(|x| format!(", loss {x:.4}")).unwrap_or_default();
        let metrics: String =
            interval.metrics.iter().map(|(n, v)| format!(", {n} {v:.4}")).collect();
        bar.set_message(format!("{:.0} examples/s{loss}{metrics}", interval.examples_per_sec()));
        self.curves(interval);
    }

    fn curves(&mut self, interval: &Interval) {
        let named: Vec<(String, f64)> = interval
            .loss
            .map(|x| ("loss".to_string(), f64::from(x)))
            .into_iter()
            .chain(interval.metrics.iter().cloned())
            .chain([("examples_per_sec".to_string(), interval.examples_per_sec())])
            .map(|(name, value)| (format!("batch/{name}"), value))
            .collect();
        self.write_curves(interval.step, &named);
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.line(&report.to_string());
        if self.stages {
            let stages: Vec<String> =
                report.stages.iter().map(|(name, s)| format!("{name} {s:.4} s")).collect();
            self.line(&format!("epoch: {} stages: {}", report.epoch, stages.join(", ")));
        }
        let named: Vec<(String, f64)> = [("loss", report.loss), ("auc", report.auc)]
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_string(), value?)))
            .chain(report.metrics.iter().map(|(n, v)| (n.clone(), *v)))
            .chain([("examples_per_sec".to_string(), report.examples_per_sec)])
            .map(|(name, value)| (format!("epoch/{name}"), value))
            .collect();
        self.write_curves(report.epoch, &named);
        self.total = Some(report.examples);
        self.before += report.examples;
        self.set_total();
    }

    fn write_curves(&mut self, step: u64, values: &[(String, f64)]) {
        let Some(events) = &mut self.events else { return };
        let values: Vec<(&str, f64)> = values.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let written = events.scalars(step, &values).and_then(|()| events.flush());
        if let Err(error) = written {
            self.failed.get_or_insert(error);
            self.events = None;
        }
    }
}

impl Observer for Console {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Begin { model, parameters, epochs, examples } => {
                self.line(&format!("model {model}, {parameters} parameters"));
                (self.epochs, self.total) = (*epochs, *examples);
                self.set_total();
            }
            Event::Batch(batch) => {
                if let Some(bar) = &self.bar
                    && self.drawn.elapsed() > Duration::from_millis(100)
                {
                    bar.set_prefix(format!("epoch {}/{}", batch.epoch + 1, self.epochs));
                    bar.set_position(self.before + batch.examples);
                    self.drawn = Instant::now();
                }
            }
            Event::Interval(interval) => self.interval(interval),
            Event::Epoch(report) => self.epoch(report),
            Event::BadLines(bad) => {
                self.line(&format!("skipped {} malformed lines, among them:", bad.count));
                bad.first.iter().for_each(|line| self.line(&format!("  {line}")));
            }
            Event::Saved(path) => self.line(&format!("saved {}", path.display())),
            Event::Checkpoint(report) => self.line(&report.to_string()),
            Event::Note(text) => self.line(&format!("note: {text}")),
            _ => {}
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
