//! Nothing outlives the job: process groups, the parent-death signal, and a guardian.
//!
//! Every process of a job leads a group of its own, so whatever it starts can be ended with it.
//! What leaves its group still becomes a child of this process when its parent ends, because this
//! process is the sub-reaper. Should this process be killed without a chance to do anything, the
//! kernel kills its children. The guardian, the same program once more, notices that its input has
//! closed. It kills the groups of the job and whatever else has the job's variable, and removes
//! the job's folder.

use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use regatta_cluster::names;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::ThisProgram;
use crate::folder::remove_after_owner;

/// The first argument, after those of [`ThisProgram`], with which a program that supervises others
/// must call [`guard`]. The name of the job follows, then its folder, if it has one.
pub const GUARDIAN: &str = "guardian";

/// Guardians that take the place of one that was killed; a system that kills more of them does not
/// want any.
const SUCCESSORS: u32 = 100;
/// How often what is left is looked for. Processes that start others while they are killed need
/// more than one round.
const ROUNDS: usize = 16;

/// Watches over the groups of a job.
pub(crate) struct Guard {
    guardian: Child,
    input: ChildStdin,
    this: ThisProgram,
    job: String,
    folder: Option<PathBuf>,
    groups: Vec<u32>,
    successors: u32,
}

impl Guard {
    pub(crate) fn new(this: &ThisProgram, job: &str, folder: Option<PathBuf>) -> io::Result<Guard> {
        adopt_orphans()?;
        let (guardian, input) = start(this, job, folder.as_deref())?;
        let (this, job, groups) = (this.clone(), job.to_string(), Vec::new());
        Ok(Guard { guardian, input, this, job, folder, groups, successors: 0 })
    }

    /// The process of the guardian.
    pub(crate) fn pid(&self) -> u32 {
        self.guardian.id()
    }

    /// Notifies the guardian which groups live.
    pub(crate) fn watch(&mut self, groups: Vec<u32>) {
        self.groups = groups;
        let list: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        // One write, so that the guardian never sees half a list. If the guardian is gone, its
        // successor gets the list.
        let _ = self.input.write_all(format!("{}\n", list.join(" ")).as_bytes());
    }

    /// Starts another guardian, because this one has ended. Says how it ended.
    ///
    /// # Errors
    /// If there can be no other one.
    pub(crate) fn replace(&mut self) -> io::Result<String> {
        let ended = self.guardian.wait().map_or_else(|e| e.to_string(), |exit| exit.to_string());
        if self.successors == SUCCESSORS {
            return Err(io::Error::other(format!("{SUCCESSORS} of them have ended ({ended})")));
        }
        self.successors += 1;
        (self.guardian, self.input) = start(&self.this, &self.job, self.folder.as_deref())?;
        let groups = std::mem::take(&mut self.groups);
        self.watch(groups);
        Ok(ended)
    }

    /// Ends processes that have become children of this one because their parents ended.
    pub(crate) fn kill_strays(&self) {
        // Ending one may hand its own children to this process; a chain of them ends soon.
        for _ in 0..ROUNDS {
            let strays: Vec<Pid> = children()
                .into_iter()
                .filter(|pid| pid.as_raw_pid() as u32 != self.guardian.id())
                .collect();
            if strays.is_empty() {
                return;
            }
            for pid in strays {
                let _ = kill_process(pid, Signal::KILL);
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
    }
}

/// Starts this program as the guardian of a job.
fn start(this: &ThisProgram, job: &str, folder: Option<&Path>) -> io::Result<(Child, ChildStdin)> {
    let mut command = this.command().map_err(io::Error::other)?;
    command.arg(GUARDIAN).arg(job).args(folder);
    // It is not a part of any job, not even if this launcher is.
    command.env_remove(names::STATUS).process_group(0);
    let mut guardian =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let input = guardian.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((guardian, input))
}

/// What the process of the guardian does. Each line of its input holds the groups that live now.
/// When the input ends, the launcher of the job is gone: nothing of the job may be left.
pub fn guard(job: &str, folder: Option<&Path>) {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        // Signals for the job are not for its guardian. One that cannot be caught is no reason to
        // leave.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    let mut groups = String::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        groups = line;
    }
    for group in groups.split_whitespace().filter_map(|group| group.parse().ok()) {
        signal_group(group, Signal::KILL);
    }
    kill_marked(job);
    if let Some(folder) = folder {
        remove_after_owner(folder);
    }
}

/// Kills all processes with the variable of a job, whatever group they are in.
fn kill_marked(job: &str) {
    let mark = format!("{}={job} ", names::STATUS).into_bytes();
    let is_marked = |pid: &Pid| {
        let file = format!("/proc/{}/environ", pid.as_raw_pid());
        let variables = fs::read(file).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable.starts_with(&mark))
    };
    for _ in 0..ROUNDS {
        let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|e| e.file_name());
        let pids = names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?));
        let marked: Vec<Pid> = pids.filter(is_marked).collect();
        if marked.is_empty() {
            return;
        }
        for pid in marked {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Children of all threads of this process.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids: Vec<Pid> = list
                .split_whitespace()
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
                .collect();
            pids
        })
        .collect()
}

/// Sends a signal to all processes of a group; one that has none left is fine.
pub(crate) fn signal_group(group: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

#[cfg(target_os = "linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// The process dies when the thread that starts it does.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the parent-death signal has to be set between fork and exec")]
pub(crate) fn die_with_parent(command: &mut Command) {
    use rustix::process::{getpid, getppid, set_parent_process_death_signal};
    let parent = getpid();
    let set = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: the closure runs in the new process before exec. It makes two system calls and
    // touches neither the heap nor a lock that another thread of the parent might have held at the
    // fork.
    unsafe { command.pre_exec(set) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn die_with_parent(_: &mut Command) {}
