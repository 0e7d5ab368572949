//! The processes of a job, whatever its kind: started and supervised together; and each of them,
//! whose place the environment says.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_cluster::{CollectivePlace, Env, JobIdentity, Place, PsPlace, PsRole, Tls};
use regatta_collective::Group;
use regatta_launch::status::{Reporter, Status};
use regatta_launch::{
    JobFolder, LISTENING, Options, Outcome as Ended, Report as Ran, Spec, Supervisor, ThisProgram,
    cores, plan,
};
use regatta_ps::message::TierStats;
use regatta_ps::{Mode, Notice};
use regatta_rec::run::{Outcome as Done, Place as In, serve, strategy, train_as};
use regatta_rec::{Config, Error, infer, infer_worker, with_learned};
use regatta_train::observe::{Event, Observer};
use regatta_train::report::write_json;
use regatta_train::{Farewell, Job};
use serde_json::{Value, json};

use super::console::Console;
use super::job_args::{Carrier, PsArgs};
use super::runs::folder::{self, RunLog};
use super::train::RunArgs;
use super::{Outcome, plural, scores};

/// What the processes of a job do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work<'a> {
    Train,
    /// With the file that scores go to, if they are wanted.
    Infer(Option<&'a Path>),
}

/// Which processes a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobKind {
    Servers { servers: usize, workers: usize },
    Ranks { ranks: usize, carrier: Carrier },
}

impl Work<'_> {
    /// The command that every process of the job runs.
    fn command(self) -> &'static str {
        match self {
            Work::Train => "train",
            Work::Infer(_) => "infer",
        }
    }

    fn load(self, run: &RunArgs) -> Result<Config> {
        let mut config = run.load()?;
        if let Work::Infer(Some(_)) = self {
            scores::prepare(&mut config)?;
        }
        Ok(config)
    }

    /// Nobody pushes in an evaluation, so nobody has to wait for anybody.
    fn mode(self, config: &Config) -> Mode {
        match self {
            Work::Train => config.runner.distributed.mode,
            Work::Infer(_) => Mode::default(),
        }
    }
}

impl JobKind {
    /// Processes that train or evaluate.
    fn workers(self) -> usize {
        match self {
            JobKind::Servers { workers, .. } => workers,
            JobKind::Ranks { ranks, .. } => ranks,
        }
    }

    fn plan(self, job: &JobIdentity) -> Result<plan::Plan> {
        Ok(match self {
            JobKind::Servers { servers, workers } => {
                plan::local_parameter_server(servers, workers, job, None)?
            }
            JobKind::Ranks { ranks, .. } => plan::local_collective(ranks, job)?,
        })
    }

    /// What the job is, for the user.
    fn describe(self, work: Work<'_>, config: &Config) -> String {
        let examples = config.runner.train.batch_size.unwrap_or(0) * self.workers();
        match (self, work) {
            (JobKind::Servers { servers, workers }, Work::Train) => format!(
                "{}, {}, mode {}; {examples} examples in a step of all workers",
                plural(workers, "worker"),
                plural(servers, "server"),
                mode_name(config)
            ),
            (JobKind::Servers { servers, workers }, Work::Infer(_)) => {
                let (workers, servers) = (plural(workers, "worker"), plural(servers, "server"));
                format!("evaluation: {workers}, {servers}")
            }
            (JobKind::Ranks { ranks, .. }, _) => {
                format!("{}; {examples} examples in a step of all ranks", plural(ranks, "rank"))
            }
        }
    }

    /// Whether workers get their own cores: those that wait for each other in every step.
    fn binds(self, work: Work<'_>, config: &Config) -> bool {
        match self {
            JobKind::Servers { .. } => work == Work::Train && work.mode(config).is_sync(),
            JobKind::Ranks { .. } => true,
        }
    }

    /// Whether the job need not continue without a lost worker: it waits for all of them, would
    /// leave examples out, or can be started again from a checkpoint.
    fn waits(self, work: Work<'_>, config: &Config, args: &PsArgs) -> bool {
        let waits = match (self, work) {
            (JobKind::Servers { .. }, Work::Train) => work.mode(config).staleness().is_some(),
            _ => true,
        };
        (waits || args.max_restart > 0) && !args.allow_worker_loss
    }
}

/// The word for the mode, as the user wrote it.
fn mode_name(config: &Config) -> &'static str {
    let settings = &config.runner.distributed;
    if settings.gpubox.is_some() { "gpubox" } else { settings.mode.name() }
}

/// Starts the processes and waits for them; starts the job again from its newest checkpoint when it
/// fails, up to `max_restart` times.
pub(super) fn supervise(
    work: Work<'_>,
    run: &RunArgs,
    args: &PsArgs,
    kind: JobKind,
    bind: bool,
    this: &ThisProgram,
) -> Result<Outcome> {
    let started = Instant::now();
    let config = work.load(run)?;
    if let JobKind::Ranks { ranks, carrier } = kind {
        // What is wrong with the strategy is said once, before anything starts.
        strategy(&config)?;
        if carrier == Carrier::Mpi {
            anyhow::bail!(
                "--transport mpi needs ranks that mpirun has started; use: mpirun -n {ranks} \
                 regatta train --transport mpi ..., without --ranks"
            );
        }
    }
    if args.max_restart > 0 && config.runner.checkpoint.is_none() {
        anyhow::bail!("--max-restart needs checkpoints to resume from: set --checkpoint-dir");
    }
    if let Err(error) = run.try_report() {
        return finish(Err(error));
    }
    println!("{}", kind.describe(work, &config));
    let bind = bind && kind.binds(work, &config);
    let cores = bind.then(|| cores::shares(kind.workers(), config.runner.thread_num)).flatten();
    let waits = kind.waits(work, &config, args);
    let mut run = run.clone();
    // What features need from the data is learned once, for all processes.
    let learned = match work {
        Work::Train => hand_over_learned(&config)?,
        Work::Infer(_) => None,
    };
    if let Some((_, file)) = &learned {
        run = run.with(&format!("runner.features_learned={}", file.display()));
    }
    for restart in 0..=args.max_restart {
        let start = (work, &run, &config);
        let report = run_job(start, args, kind, cores.as_deref(), waits, (this, started))?;
        match &report.outcome {
            Ended::Failed(failure) if restart < args.max_restart => {
                eprintln!("error: {}", failure.message);
                let (n, of) = (restart + 1, args.max_restart);
                eprintln!("starting the job again from its newest checkpoint ({n} of {of})");
                // Whatever the job began with, it resumes from what it has done since.
                run = run.with("runner.checkpoint.resume=auto");
            }
            outcome => return Ok(failed(outcome).unwrap_or(Outcome::Done)),
        }
    }
    Ok(Outcome::GoalMissed)
}

/// A file with what the features of a configuration need from the data, if they need anything.
fn hand_over_learned(config: &Config) -> Result<Option<(JobFolder, PathBuf)>> {
    let mut note = |event: &Event<'_>| {
        if let Event::Note(text) = event {
            println!("note: {text}");
        }
    };
    let config = with_learned(config, &In::Alone, &mut note)?;
    let set = config.features.as_ref().filter(|set| set.features.are_learned());
    let Some(set) = set else { return Ok(None) };
    let folder = JobFolder::new()?;
    let file = folder.path().join("features.json");
    std::fs::write(&file, serde_json::to_vec(&set.learned)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Some((folder, file)))
}

/// Starts the processes once and waits for them; writes the report if all is well. `cores` are
/// those of every worker, if they have their own.
fn run_job(
    (work, run, config): (Work<'_>, &RunArgs, &Config),
    args: &PsArgs,
    kind: JobKind,
    cores: Option<&[Vec<usize>]>,
    waits: bool,
    (this, started): (&ThisProgram, Instant),
) -> Result<Ran> {
    let reports = JobFolder::new()?;
    let token = Some(regatta_launch::random_token()?);
    let tls = Tls::from_env(&Env::process())?;
    let plan = kind.plan(&JobIdentity { token, tls, ..JobIdentity::default() })?;
    let program = this.program()?;
    let spec = |place: &Place| {
        let mut spec = Spec::new(place, program.clone());
        spec.args = run.child_args(work.command());
        if args.allow_worker_loss {
            spec.args.push("--allow-worker-loss".into());
        }
        if let Work::Infer(Some(out)) = work {
            spec.args.extend(["--out".into(), out.to_string_lossy().into_owned()]);
        }
        if let JobKind::Ranks { carrier, .. } = kind {
            spec.args.extend(["--transport".into(), carrier.name()]);
        }
        if let Some(worker) = worker_of(place) {
            let file = part_report(reports.path(), worker).to_string_lossy().into_owned();
            spec.args.extend(["--part-report".into(), file]);
            // Nobody can do what the first worker does: save the model, make checkpoints.
            spec.is_dispensable = !waits && worker != 0;
            spec.cores = cores.map(|shares| shares[worker].clone()).unwrap_or_default();
        }
        spec
    };
    let specs = plan.places.iter().map(spec).collect();
    let options = Options { folder: Some(reports.path().into()), ..Options::new(this, started) };
    let report = Supervisor::new(specs, options)?.run()?;
    let paths = reports_of(work, run, config);
    if matches!(report.outcome, Ended::Done) && !paths.is_empty() {
        write_report(reports.path(), kind, &paths)?;
    }
    Ok(report)
}

/// The number of a process that trains or evaluates.
fn worker_of(place: &Place) -> Option<usize> {
    match place {
        Place::ParameterServer(PsPlace { role: PsRole::Worker(i), .. }) => Some(*i),
        Place::Collective(CollectivePlace { rank, .. }) => Some(*rank),
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

/// Trains or evaluates in this process alone; with `runner.use_fleet`, as the only rank, unless the
/// mode has servers.
pub(super) fn run_alone(work: Work<'_>, run: &RunArgs) -> Result<Outcome> {
    let config = work.load(run)?;
    if run.is_printing() {
        write!(io::stdout(), "{}", config.to_yaml())?;
        return Ok(Outcome::Done);
    }
    let settings = &config.runner.distributed;
    let is_rank = settings.use_fleet && settings.gpubox.is_none() && work == Work::Train;
    let place = match is_rank {
        true => In::Rank(Group::in_memory(1)?.remove(0)),
        false => In::Alone,
    };
    let reporter = Reporter::new(&Env::default(), "rank 0");
    finish(run_process(work, &config, run, None, place, &reporter))
}

/// Runs the process of a job that this one is.
pub(super) fn run_place(
    work: Work<'_>,
    run: &RunArgs,
    args: &PsArgs,
    carrier: Carrier,
    place: &Place,
    env: &Env,
) -> Result<Outcome> {
    let config = work.load(run)?;
    if work == Work::Train {
        folder::check_named(&config)?;
    }
    let part = args.part_report.as_deref();
    finish(match place {
        Place::Local => return run_alone(work, run),
        Place::ParameterServer(place) => {
            let reporter = Reporter::new(env, &place.role.to_string());
            let mut job = job(work, &config, args, place)?;
            match place.role {
                PsRole::Server(i) => {
                    job.notices = Arc::new(move |notice| report_notice(notice, &reporter));
                    serve_until_done(&config, &job, i)
                }
                PsRole::Worker(i) => {
                    run_process(work, &config, run, part, In::Worker(&job, i), &reporter)
                }
            }
        }
        Place::Collective(place) => {
            let reporter = Reporter::new(env, &format!("rank {}", place.rank));
            let group = regatta_fleet::collective::join(place, carrier.transport());
            group
                .map_err(Error::from)
                .and_then(|group| run_process(work, &config, run, part, In::Rank(group), &reporter))
        }
    })
}

/// The outcome of a run; a mistake in what was written is an error.
pub(super) fn finish(outcome: Result<(), Error>) -> Result<Outcome> {
    match outcome {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_usage() => Err(error.into()),
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Outcome::GoalMissed)
        }
    }
}

/// A job with servers, as the environment, flags and configuration say.
fn job(work: Work<'_>, config: &Config, args: &PsArgs, place: &PsPlace) -> Result<Job> {
    let token = regatta_fleet::job_token(&place.job, &place.servers)?;
    let mut job = Job::new(place.servers.clone(), place.workers, work.mode(config), token);
    job.allow_worker_loss = args.allow_worker_loss;
    job.start_timeout = place.job.start_timeout;
    job.admission = config.runner.distributed.entry.clone();
    job.wire = config.runner.distributed.wire;
    job.tiers = config.runner.distributed.tiers.clone();
    job.observer = Arc::new(|event| regatta_fleet::notify(event));
    Ok(job)
}

/// Says what a server notices of workers, to the user and to the launcher.
fn report_notice(notice: &Notice, reporter: &Reporter) {
    regatta_fleet::notify(notice);
    match notice.clone() {
        // The launcher sees how its process ends.
        Notice::Lost { has_ended: true, .. } => {}
        Notice::Lost { worker, reason, .. } => reporter.say(Status::LostWorker { worker, reason }),
        Notice::Rejoined { worker } => reporter.say(Status::RejoinedWorker { worker }),
    }
}

fn serve_until_done(config: &Config, job: &Job, index: usize) -> Result<(), Error> {
    let stats = serve(config, job, index, |endpoint| println!("{LISTENING}{endpoint}"))?;
    let rows: u64 = stats.tables.values().map(|t| t.rows).sum();
    for (name, table) in &stats.tables {
        if let Some(tier) = &table.tier {
            println!("{}", tier_line(name, tier));
        }
    }
    println!("{} updates, {rows} rows; all workers are done", stats.steps);
    Ok(Farewell::check(&stats.lost)?)
}

/// What rows on disk meant for a table.
fn tier_line(table: &str, tier: &TierStats) -> String {
    format!(
        "table {table}: {} rows on disk in {:.1} MB, hit rate {:.4}, {} rows read, {} waits of \
         {:.3} s together",
        tier.cold,
        tier.disk_bytes as f64 / 1e6,
        tier.hit_rate,
        tier.cold_reads,
        tier.waits,
        tier.wait_seconds
    )
}

/// Trains or evaluates as one process. The first one speaks for all; what others have to say are
/// notes.
fn run_process(
    work: Work<'_>,
    config: &Config,
    run: &RunArgs,
    part: Option<&Path>,
    place: In<'_>,
    reporter: &Reporter,
) -> Result<(), Error> {
    let index = match &place {
        In::Alone => 0,
        In::Worker(_, worker) => *worker,
        In::Rank(group) => group.rank(),
    };
    if index == 0 {
        run.try_report()?;
    }
    let mut log = match work {
        Work::Train if index == 0 => RunLog::open(config, run.name())?,
        _ => None,
    };
    let curves = run.logdir().map(Path::to_path_buf);
    let curves = curves.or_else(|| log.as_ref().map(RunLog::curves));
    let mut console = Console::for_run(curves.as_deref(), config, index == 0)?;
    let mut has_stepped = false;
    let mut observer = |event: &Event<'_>| {
        match event {
            // Nobody waits for a process that was started again.
            Event::Begin { .. } => reporter.say(Status::CannotResume),
            Event::Batch(_) if !has_stepped => {
                has_stepped = true;
                reporter.say(Status::FirstStep);
            }
            _ => {}
        }
        if let Some(log) = &mut log {
            log.event(event);
        }
        if index == 0 || matches!(event, Event::Note(_) | Event::BadLines(_)) {
            console.event(event);
        }
    };
    let done = do_work(work, config, place, &mut observer)?;
    console.check()?;
    log.map_or(Ok(()), RunLog::check)?;
    match part {
        Some(path) => {
            let own = json!({ "epochs": done.own, "peak_rss_mb": done.report.peak_rss_mb });
            let all = json!({ "report": done.report, "own": own, "servers": done.servers });
            write_json(&all, path)?;
        }
        None if index == 0 => {
            // The epochs count all workers; what belongs to each of them stays with them.
            let mut all = json!(done.report);
            if !done.servers.is_empty() {
                all["servers"] = json!(done.servers);
            }
            let paths = reports_of(work, run, config);
            paths.iter().try_for_each(|path| write_json(&all, path))?;
        }
        None => {}
    }
    // The model is complete, but something is wrong with the job.
    Ok(Farewell::check(&done.lost)?)
}

fn do_work(
    work: Work<'_>,
    config: &Config,
    place: In<'_>,
    observer: &mut dyn Observer,
) -> Result<Done, Error> {
    match (work, place) {
        (Work::Train, place) => train_as(config, place, observer),
        (Work::Infer(out), In::Worker(job, worker)) => {
            let out = out.map(|path| scores::part(path, worker, job.workers));
            scores::written(out.as_deref(), observer, |observer| {
                infer_worker(config, job, worker, observer)
            })
        }
        // One process, or a rank that evaluates on its own.
        (Work::Infer(out), _) => scores::written(out, observer, |observer| {
            let report = infer(config, observer)?;
            Ok(Done { report, own: vec![], servers: vec![], lost: vec![] })
        }),
    }
}

/// The report of the whole job: that of all workers together, with each worker and server beside.
fn write_report(dir: &Path, kind: JobKind, paths: &[PathBuf]) -> Result<()> {
    let mut parts = Vec::new();
    for i in 0..kind.workers() {
        let text = std::fs::read_to_string(part_report(dir, i))
            .with_context(|| format!("worker {i} has left no report"))?;
        parts.push(serde_json::from_str::<Value>(&text)?);
    }
    let mut report = parts[0]["report"].clone();
    let own: Value = parts.iter().map(|p| p["own"].clone()).collect();
    match kind {
        JobKind::Servers { .. } => {
            report["workers"] = own;
            report["servers"] = parts[0]["servers"].clone();
        }
        JobKind::Ranks { .. } => report["ranks"] = own,
    }
    Ok(paths.iter().try_for_each(|path| write_json(&report, path))?)
}

/// Where the report of a job goes.
fn reports_of(work: Work<'_>, run: &RunArgs, config: &Config) -> Vec<PathBuf> {
    match work {
        Work::Train => folder::reports(run, config),
        Work::Infer(_) => run.report().map(Path::to_path_buf).into_iter().collect(),
    }
}

fn part_report(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("worker-{worker}.json"))
}
