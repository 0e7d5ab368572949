//! Nothing outlives the job: process groups, the parent-death signal, and a guardian.
//!
//! Every process of a job leads a group of its own, so whatever it starts can be ended with it.
//! What leaves its group still becomes a child of this process when its parent ends, because this
//! process is the sub-reaper. Should this process be killed without a chance to do anything, the
//! kernel kills its children, and the guardian, a shell that notices that its input has closed,
//! kills their groups.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Reads the groups that live now, the latest line each time; kills them when the input ends. An
/// empty line at the end says that all is well.
const GUARDIAN: &str = "trap '' INT TERM HUP QUIT; groups=; \
    while read -r line; do groups=$line; done; \
    for group in $groups; do kill -9 \"-$group\" 2>/dev/null; done";

/// Watches over the groups of a job.
pub(crate) struct Guard {
    shell: Child,
    input: ChildStdin,
}

impl Guard {
    pub(crate) fn new() -> io::Result<Guard> {
        adopt_orphans()?;
        let mut shell = Command::new("/bin/sh")
            .args(["-c", GUARDIAN])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let input = shell.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Guard { shell, input })
    }

    /// Notifies the guardian which groups live.
    pub(crate) fn watch(&mut self, groups: &[u32]) -> io::Result<()> {
        let list: Vec<String> = groups.iter().map(u32::to_string).collect();
        // One write, so that the guardian never sees half a list.
        self.input.write_all(format!("{}\n", list.join(" ")).as_bytes())
    }

    /// Ends processes that have become children of this one because their parents ended.
    pub(crate) fn kill_strays(&self) {
        // Ending one may hand its own children to this process; a chain of them ends soon.
        for _ in 0..16 {
            let strays: Vec<Pid> = children()
                .into_iter()
                .filter(|pid| pid.as_raw_pid() as u32 != self.shell.id())
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
        let _ = self.input.write_all(b"\n");
        let _ = self.shell.kill();
        let _ = self.shell.wait();
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
