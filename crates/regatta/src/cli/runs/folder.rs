//! The folder of a run: which one it is, and what the run writes there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use regatta_checkpoint::{Resume, publish_file, publish_link};
use regatta_rec::{Config, Error};
use regatta_train::Error as TrainError;
use regatta_train::observe::Event;
use regatta_train::report::write_json;
use serde_json::json;

use super::time;
use super::{ABOUT, LATEST, METRICS, REPORT, RUNS, Run, differences, find};
use crate::cli::train::RunArgs;

/// Names of the files that a run writes, which nothing else may have in its folder.
const FILES: [&str; 4] = [ABOUT, CONFIG, METRICS, REPORT];

/// The resolved configuration, as a file that can be trained again.
const CONFIG: &str = "config.yaml";

/// The key that names the folder.
const KEY: &str = "runner.run_dir";

/// Where a run is to be written.
pub(in crate::cli) enum Choice {
    /// A new folder below `runs`, named by the time and this.
    New(String),
    /// The folder that was named.
    Named(PathBuf),
    /// The folder of a run that did not reach its end, which this one continues.
    Resumed(PathBuf),
}

impl Choice {
    /// Chooses the folder of a run that this process starts.
    ///
    /// # Errors
    /// If the configuration cannot be used, or there is no run to resume.
    pub(in crate::cli) fn of(run: &RunArgs) -> Result<Choice> {
        if run.has(KEY)? {
            let dir = run.load()?.runner.run_dir.context("a folder is named")?;
            return Ok(Choice::Named(dir));
        }
        let root = std::path::absolute(RUNS)?;
        // With any folder: what would be in it?
        let any = root.join("new");
        let config = run.with(&format!("{KEY}={}", any.display())).load()?;
        let checkpoint = config.runner.checkpoint.as_ref();
        let in_run = checkpoint.is_some_and(|checkpoint| checkpoint.config.dir.starts_with(&any));
        let resumed = match checkpoint.map(|checkpoint| &checkpoint.resume) {
            Some(Resume::None | Resume::Path(_)) | None => None,
            Some(Resume::Auto | Resume::Latest) if !in_run => find::that_made(&root, &config)?,
            Some(Resume::Auto) => find::unfinished(&root, &config)?,
            Some(Resume::Latest) => Some(find::with_checkpoints(&root, &config)?),
        };
        let name = run.name().unwrap_or(config.model.name);
        Ok(resumed.map_or(Choice::New(name.to_string()), Choice::Resumed))
    }

    /// Says where the run would be written, for people.
    pub(in crate::cli) fn describe(&self) -> Result<String> {
        Ok(match self {
            Choice::New(name) => {
                let root = std::path::absolute(RUNS)?;
                format!("a run writes to {}/<time>-{name}", root.display())
            }
            Choice::Named(dir) => format!("a run writes to {}", dir.display()),
            Choice::Resumed(dir) => format!("a run continues the one in {}", dir.display()),
        })
    }
}

/// The folder that a run of this process has.
pub(in crate::cli) struct Claim {
    dir: PathBuf,
    is_new: bool,
}

impl Claim {
    /// Makes the folder; from now on it is a setting of the run.
    ///
    /// # Errors
    /// If it cannot be made, or holds something that the run would replace.
    pub(in crate::cli) fn make(choice: &Choice, run: &mut RunArgs) -> Result<Claim> {
        let (dir, is_new) = match choice {
            Choice::New(name) => (new_folder(&std::path::absolute(RUNS)?, name)?, true),
            Choice::Named(dir) => (dir.clone(), !dir.exists()),
            Choice::Resumed(dir) => (dir.clone(), false),
        };
        if !matches!(choice, Choice::Named(_)) {
            *run = run.with(&format!("{KEY}={}", dir.display()));
        }
        let claim = Claim { dir, is_new };
        if let Err(error) = claim.describe(run) {
            claim.release();
            return Err(error);
        }
        let dir = shown(&claim.dir);
        match choice {
            Choice::Resumed(_) => {
                writeln!(io::stdout(), "continuing the run in {dir} (a new one: --resume none)")?;
            }
            Choice::New(_) | Choice::Named(_) => writeln!(io::stdout(), "run folder {dir}")?,
        }
        Ok(claim)
    }

    /// Writes what the run says about itself.
    fn describe(&self, run: &RunArgs) -> Result<()> {
        let config = run.load()?;
        check(&self.dir, &config)?;
        fs::create_dir_all(&self.dir).map_err(write_error(&self.dir))?;
        Ok(write_about(&self.dir, &config, run.name())?)
    }

    /// Removes the folder if training never began.
    pub(in crate::cli) fn release(self) {
        if self.is_new && !self.dir.join(METRICS).exists() {
            let _ = fs::remove_dir_all(&self.dir);
            let root = std::path::absolute(RUNS).ok();
            if let Some(root) = root.filter(|root| self.dir.parent() == Some(root)) {
                // If this was the first run.
                let _ = fs::remove_dir(root);
            }
        }
    }
}

/// A path as short as it can be said from here.
pub(in crate::cli) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}

/// Makes a folder that no other run has.
fn new_folder(root: &Path, name: &str) -> Result<PathBuf> {
    fs::create_dir_all(root).map_err(write_error(root))?;
    let first = format!("{}-{name}", time::compact(time::now()));
    for n in 1..10_000 {
        let dir = root.join(if n == 1 { first.clone() } else { format!("{first}-{n}") });
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(write_error(&dir)(e).into()),
        }
    }
    bail!("{}: there are 10000 runs of this second", root.join(first).display())
}

/// Refuses a folder whose contents a run would replace.
fn check(dir: &Path, config: &Config) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::key(KEY, format!("{}: {reason}", dir.display())));
    let found = Run::at(dir).map_err(|e| Error::key(KEY, format!("{e:#}")))?;
    let Some(run) = found else {
        if let Some(file) = FILES.iter().find(|file| dir.join(file).exists()) {
            return refuse(format!(
                "{file} is in the way: a run would write it, and this is no folder of a run; name \
                 another one with --run-dir"
            ));
        }
        return Ok(());
    };
    // What is there is resumed, or refused for its reasons.
    if config.runner.checkpoint.is_some() {
        return Ok(());
    }
    let instead = "name another folder with --run-dir, or leave it out for a new one";
    if run.is_done() {
        return refuse(format!("holds a run that is done; {instead}"));
    }
    match differences(&run.settings, &config.to_json()).first() {
        Some(change) => refuse(format!("holds a run of other settings: {change}; {instead}")),
        None => Ok(()),
    }
}

fn write_about(dir: &Path, config: &Config, name: Option<&str>) -> Result<(), Error> {
    let path = dir.join(ABOUT);
    if path.exists() {
        return Ok(());
    }
    let about = json!({
        "name": name.unwrap_or(config.model.name),
        "model": config.model.name,
        "config": std::path::absolute(&config.path).map_err(write_error(&config.path))?,
        "started": time::readable(time::now()),
        "epochs": config.runner.save_path()?,
        "settings": config.to_json(),
    });
    Ok(write_json(&about, &path)?)
}

fn write_error(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| TrainError::Write { path: path.clone(), source }.into()
}

/// Refuses a job whose processes were started elsewhere and do not know one folder for all.
pub(in crate::cli) fn check_named(config: &Config) -> Result<()> {
    if config.runner.model_save_path.is_some() {
        return Ok(());
    }
    bail!(
        "this process is one of a job that was started elsewhere, and its processes need one folder \
         for all: set --run-dir DIR, or -o runner.model_save_path=DIR"
    )
}

/// What the first process of a run writes into its folder while it trains.
pub(in crate::cli) struct RunLog {
    dir: PathBuf,
    config: Config,
    name: Option<String>,
    metrics: Option<File>,
    failed: Option<Error>,
}

impl RunLog {
    /// For a run that has a folder.
    ///
    /// # Errors
    /// If the run would replace what is there.
    pub(in crate::cli) fn open(
        config: &Config,
        name: Option<&str>,
    ) -> Result<Option<RunLog>, Error> {
        let Some(dir) = config.runner.run_dir.clone() else { return Ok(None) };
        check(&dir, config)?;
        let (config, name) = (config.clone(), name.map(str::to_string));
        Ok(Some(RunLog { dir, config, name, metrics: None, failed: None }))
    }

    /// Where curves go.
    pub(in crate::cli) fn curves(&self) -> PathBuf {
        self.dir.join("events")
    }

    pub(in crate::cli) fn event(&mut self, event: &Event<'_>) {
        let done = match event {
            Event::Begin { .. } => self.begin(),
            Event::Epoch(report) => self.append(&json!(report)),
            _ => return,
        };
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }

    /// Reports if something could not be written.
    pub(in crate::cli) fn check(self) -> Result<(), Error> {
        self.failed.map_or(Ok(()), Err)
    }

    /// The lock of the folder is held now.
    fn begin(&mut self) -> Result<(), Error> {
        let (dir, config) = (&self.dir, &self.config);
        write_about(dir, config, self.name.as_deref())?;
        let text = config.without_run().to_yaml();
        let path = dir.join(CONFIG);
        publish_file(&path, |file| file.write_all(text.as_bytes()))?;
        let report = dir.join(REPORT);
        if report.exists() {
            fs::remove_file(&report).map_err(write_error(&report))?;
        }
        let resumes = config.runner.checkpoint.as_ref().is_some_and(|c| c.resume != Resume::None);
        let path = dir.join(METRICS);
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(resumes).truncate(!resumes);
        self.metrics = Some(options.open(&path).map_err(write_error(&path))?);
        let root = std::path::absolute(RUNS).map_err(write_error(dir))?;
        if let (Some(name), true) = (dir.file_name(), dir.parent() == Some(&root)) {
            publish_link(&root.join(LATEST), &name.to_string_lossy())?;
        }
        Ok(())
    }

    /// Adds a line. One that a killed process has left unfinished is ended first.
    fn append(&mut self, line: &serde_json::Value) -> Result<(), Error> {
        let Some(file) = &mut self.metrics else { return Ok(()) };
        let path = self.dir.join(METRICS);
        file.write_all(format!("\n{line}\n").as_bytes()).map_err(write_error(&path))
    }
}

/// The files that the report of a run goes to.
pub(in crate::cli) fn reports(run: &RunArgs, config: &Config) -> Vec<PathBuf> {
    let own = config.runner.run_dir.as_ref().map(|dir| dir.join(REPORT));
    run.report().map(Path::to_path_buf).into_iter().chain(own).collect()
}

/// Where the epochs of a run are that is to be evaluated: that of a folder, or the latest one of a
/// configuration, as an override.
///
/// # Errors
/// If there is no such run, or it has saved no epochs.
pub(in crate::cli) fn epochs_of(run: &RunArgs) -> Result<Option<String>> {
    let found = match run.run_dir() {
        Some(dir) => Run::at(dir)?.with_context(|| {
            format!("--run-dir {}: there is no {ABOUT}: this is no folder of a run", dir.display())
        })?,
        None => {
            let config = run.load()?;
            if config.runner.infer_load_path.is_some() {
                return Ok(None);
            }
            let found = find::with_epochs(&std::path::absolute(RUNS)?, &config)?;
            writeln!(io::stdout(), "evaluating the run in {}", shown(&found.dir))?;
            found
        }
    };
    Ok(Some(format!("runner.infer_load_path={}", found.epochs.display())))
}

/// Whether a folder holds checkpoints.
pub(super) fn has_checkpoints(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("checkpoint_"))
}

/// Whether epochs are saved somewhere.
pub(super) fn has_epochs(epochs: &Path) -> bool {
    let entries = fs::read_dir(epochs).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().parse::<u64>().is_ok())
}
