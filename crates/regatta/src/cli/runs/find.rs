//! Runs that are there: in order of time, by name, and those of a configuration.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_rec::Config;
use regatta_rec::config::CHECKPOINTS;

use super::folder::{has_checkpoints, has_epochs, shown};
use super::{LATEST, Run, differences};

/// How long a run that was just killed may be held by its last processes.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// All runs in a folder, the oldest first.
///
/// # Errors
/// If a run cannot be read.
pub(super) fn all(root: &Path) -> Result<Vec<Run>> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_name() != LATEST).map(|entry| entry.path());
    let mut runs = Vec::new();
    for folder in folders.filter(|folder| folder.is_dir()) {
        runs.extend(Run::at(&folder)?);
    }
    runs.sort_by(|a, b| (&a.started, &a.dir).cmp(&(&b.started, &b.dir)));
    Ok(runs)
}

/// The run that a word of the command line means: a folder, or the name of one in `root`.
///
/// # Errors
/// If there is no such run, or several.
pub(super) fn named(root: &Path, word: &str) -> Result<Run> {
    for folder in [root.join(word), PathBuf::from(word)] {
        let folder = folder.canonicalize().unwrap_or(folder);
        if let Some(run) = Run::at(&folder)? {
            return Ok(run);
        }
    }
    let mut runs = all(root)?;
    runs.retain(|run| run.name == word);
    match (runs.pop(), runs.pop()) {
        (Some(run), None) => Ok(run),
        (Some(last), Some(other)) => bail!(
            "{word}: several runs have this name, among them {} and {}: give the name of a folder",
            other.folder(),
            last.folder()
        ),
        (None, _) => bail!(
            "{word}: there is no such run; `regatta runs list` shows those of {}",
            shown(root)
        ),
    }
}

/// Runs of a configuration, the newest first: of its file or, if there are none, of its model.
fn of(root: &Path, config: &Config, keep: impl Fn(&Run) -> bool) -> Result<Option<Run>> {
    let file = std::path::absolute(&config.path)?;
    let mut runs = all(root)?;
    runs.retain(|run| run.model == config.model.name && keep(run));
    let at = runs.iter().rposition(|run| run.config == file).or(runs.len().checked_sub(1));
    Ok(at.map(|at| runs.swap_remove(at)))
}

/// The latest run of a configuration that has saved epochs.
///
/// # Errors
/// If there is none.
pub(super) fn with_epochs(root: &Path, config: &Config) -> Result<Run> {
    of(root, config, |run| has_epochs(&run.epochs))?.with_context(|| {
        format!(
            "runner.infer_load_path: must be set: there is no run of model {} with epochs in {}",
            config.model.name,
            shown(root)
        )
    })
}

/// The latest run of a configuration that has checkpoints.
///
/// # Errors
/// If there is none.
pub(super) fn with_checkpoints(root: &Path, config: &Config) -> Result<PathBuf> {
    let found = of(root, config, |run| has_checkpoints(&run.dir.join(CHECKPOINTS)))?;
    found.map(|run| run.dir).with_context(|| {
        format!(
            "--resume latest: there is no run of model {} with checkpoints in {}; set --run-dir or \
             --checkpoint-dir",
            config.model.name,
            shown(root)
        )
    })
}

/// The run that made the checkpoints of a configuration, which names their folder.
///
/// # Errors
/// If runs cannot be read.
pub(super) fn that_made(root: &Path, config: &Config) -> Result<Option<PathBuf>> {
    let Some(checkpoint) = &config.runner.checkpoint else { return Ok(None) };
    let folder = config.get("runner.checkpoint.dir").map(serde_json::Value::from);
    let mut runs = all(root)?;
    runs.retain(|run| run.settings.pointer("/runner/checkpoint/dir") == folder.as_ref());
    let resumes = |run: &Run| match checkpoint.store {
        // What is in a store is found out later: a run that is done stays what it is.
        Some(_) => !run.is_done(),
        None => has_checkpoints(&checkpoint.config.dir),
    };
    Ok(runs.pop().filter(resumes).map(|run| run.dir))
}

/// The latest run of a configuration, if it has the same settings, makes checkpoints, and was
/// stopped before its end.
///
/// # Errors
/// If runs cannot be read.
pub(super) fn unfinished(root: &Path, config: &Config) -> Result<Option<PathBuf>> {
    let settings = config.to_json();
    let same =
        |run: &Run| run.makes_checkpoints() && differences(&run.settings, &settings).is_empty();
    let Some(run) = of(root, config, same)?.filter(|run| !run.is_done()) else { return Ok(None) };
    // What was killed this moment may still end; what trains on is not ours.
    let until = Instant::now() + RELEASE_LIMIT;
    while run.is_held() {
        if Instant::now() > until {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(Some(run.dir))
}
