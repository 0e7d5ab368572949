//! Processes and files of a job, as the system shows them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_cluster::{Env, Place};
use rustix::process::{Pid, Signal, kill_process};

use crate::plan::Target;

/// The variable that all processes of a job inherit.
pub(crate) const MARK: &str = "REGATTA_CHAOS_JOB";

/// How long what is left may take to go.
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// Sends a signal to a process that may have ended by itself just now.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

fn environment(pid: u32) -> Env {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let pairs = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let pair = |text: std::borrow::Cow<'_, str>| {
        text.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()))
    };
    pairs.filter_map(pair).collect()
}

fn is_guardian(pid: u32) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).nth(1) == Some(b"guardian")
}

/// The process of a job that is meant, if it is there now.
pub(crate) fn find(launcher: u32, target: Target) -> Option<u32> {
    let names = match target {
        Target::Launcher => return Some(launcher),
        Target::Guardian => vec![],
        Target::Server(i) => vec![format!("server {i}")],
        Target::Worker(i) => vec![format!("worker {i}"), format!("rank {i}")],
    };
    let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
    let is_meant = |pid: &u32| {
        if names.is_empty() {
            return is_guardian(*pid);
        }
        let env = environment(*pid);
        let place = Place::from_env(&env).map(|place| place.to_string()).unwrap_or_default();
        env.get(MARK).is_some() && names.contains(&place) && !is_guardian(*pid)
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_meant)
}

/// Live processes with the mark of a job.
fn marked(mark: &str) -> Vec<u32> {
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    // A process that has ended and was not collected yet has no variables any more.
    pids.filter(|pid| environment(*pid).get(MARK) == Some(mark)).collect()
}

/// Processes of a job that has ended, after they had time to go. They are killed.
pub(crate) fn left_processes(mark: &str) -> Vec<String> {
    let limit = Instant::now() + GONE_LIMIT;
    loop {
        let left = marked(mark);
        if left.is_empty() {
            return Vec::new();
        }
        if Instant::now() > limit {
            let describe = |pid: &u32| {
                let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                format!("{pid}: {}", String::from_utf8_lossy(&command).replace('\0', " "))
            };
            let text = left.iter().map(describe).collect();
            end_processes(mark);
            return text;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills what a job has started.
pub(crate) fn end_processes(mark: &str) {
    loop {
        let left = marked(mark);
        if left.is_empty() {
            return;
        }
        left.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The entries of a folder; none if there is no such folder.
pub(crate) fn entries(folder: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Whether a file is there that is being written: under a hidden name.
pub(crate) fn hidden(folder: &Path) -> BTreeSet<PathBuf> {
    let is_hidden =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
    entries(folder).into_iter().filter(is_hidden).collect()
}

/// What a job that has ended leaves in a folder for temporary files, or where it was started.
pub(crate) fn left_files(folder: &Path) -> BTreeSet<PathBuf> {
    let limit = Instant::now() + GONE_LIMIT;
    loop {
        let mut left = entries(folder);
        // Folders of runs stay.
        left.retain(|path| path.file_name().is_none_or(|name| name != "runs"));
        if left.is_empty() || Instant::now() > limit {
            return left;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Shared memory with a name of this project, which nobody else has.
pub(crate) fn shared_memory() -> BTreeSet<PathBuf> {
    let is_ours = |path: &PathBuf| path.to_string_lossy().to_lowercase().contains("regatta");
    entries(Path::new("/dev/shm")).into_iter().filter(is_ours).collect()
}
