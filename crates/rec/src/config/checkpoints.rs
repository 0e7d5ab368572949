//! The keys `runner.checkpoint.*`: where checkpoints are kept, when they are made, and what a run
//! resumes from.

use std::path::{Path, PathBuf};

use regatta_checkpoint::{CheckpointConfig, Resume};
use regatta_train::Checkpointing;

use super::CHECKPOINTS;
use super::resolver::Resolver;
use crate::HyperValue;

fn key(name: &str) -> String {
    format!("runner.checkpoint.{name}")
}

/// Checkpoints, if there is a folder for them: the one that is written or, where other keys ask for
/// them, one in the folder of the run.
pub(super) fn resolve_checkpoint(r: &mut Resolver, run: Option<&Path>) -> Option<Checkpointing> {
    let run = run.filter(|_| is_asked_for(r));
    let (dir, store) = resolve_dir(r, run);
    let config = resolve_intervals(r, dir.clone().unwrap_or_default());
    let resume = r.text(&key("resume")).unwrap_or_default();
    if dir.is_none() {
        leave_out(r, &resume);
        return None;
    }
    if let Some(problem) = config.problem() {
        r.problem(&key("dir"), problem);
    }
    let resume = match Resume::from(resume) {
        Resume::Path(path) => {
            let path = r.dir.join(path);
            r.restate(&key("resume"), HyperValue::Str(path.to_string_lossy().into_owned()));
            Resume::Path(path)
        }
        other => other,
    };
    Some(Checkpointing { config, store, resume })
}

/// Whether keys are written that mean something with checkpoints only.
fn is_asked_for(r: &Resolver) -> bool {
    let starts_anew =
        |name: &str| r.peek(name).is_some_and(|text| ["none", "auto", ""].contains(&text.as_str()));
    let mut written = r.written_keys().filter(|name| name.starts_with("runner.checkpoint."));
    written.any(|name| name != key("resume") || !starts_anew(name))
}

/// The folder on this machine, and the address of the remote store if there is one.
fn resolve_dir(r: &mut Resolver, run: Option<&Path>) -> (Option<PathBuf>, Option<String>) {
    let dir = r.path_in_run(&key("dir"), run, CHECKPOINTS);
    let local = r.path(&key("local_dir"));
    let store = dir.as_deref().filter(|dir| regatta_data::is_remote(dir));
    let store = store.map(|dir| dir.to_string_lossy().into_owned());
    if local.is_some() && store.is_none() {
        r.unused(&key("local_dir"), "runner.checkpoint.dir is no remote store");
    }
    let dir = match &store {
        Some(_) if local.is_some() => local,
        Some(address) => match regatta_train::remote::cache_of(address) {
            Ok(folder) => Some(folder),
            Err(e) => {
                r.problem(&key("local_dir"), format!("must be set: {e}"));
                None
            }
        },
        None => dir,
    };
    (dir, store)
}

fn resolve_intervals(r: &mut Resolver, dir: PathBuf) -> CheckpointConfig {
    let seconds = r.float(&key("seconds"));
    let mut step_interval = r.int(&key("step_interval"));
    // Checkpoints by time alone, unless steps are asked for as well.
    if seconds.is_some() && !r.is_set(&key("step_interval")) {
        r.unused(&key("step_interval"), "runner.checkpoint.seconds is set");
        step_interval = None;
    }
    CheckpointConfig {
        dir,
        keep: r.int(&key("keep")).unwrap_or_default() as usize,
        epoch_interval: r.int(&key("epoch_interval")).unwrap_or_default(),
        step_interval,
        seconds,
        full_every: r.int(&key("full_every")).unwrap_or_default(),
        keep_when_done: r.bool(&key("keep_when_done")).unwrap_or_default(),
    }
}

/// There is no folder, so the other keys mean nothing, and nothing can be resumed.
fn leave_out(r: &mut Resolver, resume: &str) {
    if !matches!(resume, "" | "none" | "auto") {
        let reason = "there are no checkpoints: set runner.checkpoint.dir or runner.run_dir";
        r.problem(&key("resume"), reason.into());
    }
    let names = [
        "keep",
        "epoch_interval",
        "step_interval",
        "seconds",
        "full_every",
        "keep_when_done",
        "resume",
    ];
    names.iter().for_each(|name| r.unused(&key(name), "runner.checkpoint.dir is not set"));
}
