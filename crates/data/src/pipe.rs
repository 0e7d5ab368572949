//! A file through the user's `pipe_command`: `sh -c COMMAND < file`, whose output is the data.
//!
//! Each command runs in a process group of its own, so that ending it also ends what it started.
//! The first process of a group is its guardian, a shell that waits for the end of its input. That
//! end comes when this process is gone, however it went, and the guardian then kills its group.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use regatta_store::Stores;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::Error;
use crate::open;

/// `kill -9 0` reaches exactly the guardian's own group, so no id can be that of a stranger.
const GUARDIAN: &str = "trap '' INT TERM HUP QUIT; read -r _; kill -9 0";

/// How much of a command's standard error is kept for messages.
const STDERR_BYTES: usize = 4096;

/// How long a command may be silent, and who hears of it.
#[derive(Clone)]
pub(crate) struct Patience {
    /// After this time without output a command is given up; `None` waits for ever.
    pub(crate) limit: Option<Duration>,
    /// Time between two notices.
    pub(crate) every: Duration,
    pub(crate) notice: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for Patience {
    fn default() -> Patience {
        let notice = Arc::new(|line: &str| {
            // One call: several processes may share standard error. Reading continues when nobody
            // reads it any more.
            let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
        });
        Patience { limit: None, every: Duration::from_secs(5), notice }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// The running commands of a data pass, so that stopping it can end them. Once stopped, no new
/// command starts.
#[derive(Debug, Default)]
pub(crate) struct Children {
    stopped: AtomicBool,
    /// Groups whose guardian has not been reaped. That is only done under this lock, so an id in the
    /// list is never that of a stranger.
    running: Mutex<Vec<Pid>>,
}

impl Children {
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// Ends all running commands and lets no other start.
    pub(crate) fn stop(&self) {
        let running = self.lock();
        self.stopped.store(true, SeqCst);
        running.iter().for_each(|&group| kill_group(group));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn kill_group(group: Pid) {
    // It may have ended in the meantime, which is what we want.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
}

fn id_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).expect("a process id is positive")
}

/// Starts a group with its guardian, whose input this process holds open.
fn start_guardian() -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", GUARDIAN])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

/// A running command with its file; reads as its standard output.
pub(crate) struct Pipe {
    file: PathBuf,
    command: String,
    child: Child,
    guardian: Child,
    stdout: ChildStdout,
    stderr: Arc<Mutex<Vec<u8>>>,
    threads: Vec<JoinHandle<Option<io::Error>>>,
    children: Arc<Children>,
    patience: Patience,
    reaped: bool,
}

impl Pipe {
    /// Starts `command` with the contents of `file`, unpacked if its suffix says so, on its
    /// standard input.
    pub(crate) fn spawn(
        command: &str,
        file: &Path,
        children: &Arc<Children>,
        patience: &Patience,
        stores: &Stores,
    ) -> Result<Pipe, Error> {
        let plain = open::is_plain_local(file);
        let stdin = if plain { Stdio::from(open::open_local(file)?) } else { Stdio::piped() };
        let unpacked = if plain { None } else { Some(open::open(file, stores)?) };
        let mut running = children.lock();
        if children.stopped() {
            return Err(Error::Stopped);
        }
        let (mut child, guardian) = start(command, stdin).map_err(|e| Error::Pipe {
            file: file.to_path_buf(),
            command: command.to_string(),
            status: format!("could not be started: {e}"),
            stderr: String::new(),
        })?;
        running.push(id_of(&guardian));
        drop(running);
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        let (from, tail) = (child.stderr.take().expect("stderr is piped"), stderr.clone());
        threads.push(std::thread::spawn(move || keep_tail(from, &tail)));
        if let (Some(mut input), Some(mut stdin)) = (unpacked, child.stdin.take()) {
            threads.push(std::thread::spawn(move || feed(&mut input, &mut stdin)));
        }
        Ok(Pipe {
            file: file.to_path_buf(),
            command: command.to_string(),
            child,
            guardian,
            stdout,
            stderr,
            threads,
            children: children.clone(),
            patience: patience.clone(),
            reaped: false,
        })
    }

    /// The end of what the command has written to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).trim().to_string()
    }

    /// Waits for the command to end, after its output has ended.
    ///
    /// # Errors
    /// If it failed, or if its file could not be unpacked.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let status = self.reap(self.patience.limit)?;
        let mut unpack_error = None;
        for thread in std::mem::take(&mut self.threads) {
            unpack_error = unpack_error.or(thread.join().unwrap_or(None));
        }
        if let Some(e) = unpack_error {
            return Err(Error::io(&self.file, e));
        }
        if status.success() { Ok(()) } else { Err(self.failed(describe(status))) }
    }

    fn failed(&self, status: String) -> Error {
        let (file, command) = (self.file.clone(), self.command.clone());
        Error::Pipe { file, command, status, stderr: self.stderr() }
    }

    /// Waits until the command has ended, ends what it left behind in its group, and reaps it.
    fn reap(&mut self, limit: Option<Duration>) -> Result<ExitStatus, Error> {
        let mut wait = Wait::new(limit, self.patience.every);
        let mut pause = Duration::from_micros(50);
        loop {
            let mut running = self.children.lock();
            // Looks without reaping: the group is that of the guardian until all have ended.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let ended = rustix::process::waitid(WaitId::Pid(id_of(&self.child)), look);
            if ended.map_err(|e| Error::io(&self.file, e.into()))?.is_some() {
                let group = id_of(&self.guardian);
                kill_group(group);
                let status = self.child.wait().and_then(|s| self.guardian.wait().map(|_| s));
                running.retain(|&other| other != group);
                self.reaped = true;
                return status.map_err(|e| Error::io(&self.file, e));
            }
            drop(running);
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(10));
            wait.check(self, "to end", "did not end")?;
        }
    }

    /// Waits until there is output, or its end.
    fn await_output(&self) -> Result<(), Error> {
        let mut wait = Wait::new(self.patience.limit, self.patience.every);
        loop {
            let left = Timespec::try_from(wait.left()).ok();
            match poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], left.as_ref()) {
                Ok(1..) => return Ok(()),
                Ok(0) | Err(rustix::io::Errno::INTR) => {
                    wait.check(self, "to write something", "wrote nothing")?;
                }
                Err(e) => return Err(Error::io(&self.file, e.into())),
            }
        }
    }
}

/// Starts a command in a group of its own; returns it with the guardian of the group.
fn start(command: &str, stdin: Stdio) -> io::Result<(Child, Child)> {
    // First, so that there is no moment at which the command has no guardian.
    let mut guardian = start_guardian()?;
    let group = id_of(&guardian);
    let child = Command::new("sh")
        .args(["-c", command])
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(group.as_raw_pid())
        .spawn()
        .inspect_err(|_| {
            kill_group(group);
            let _ = guardian.wait();
        })?;
    Ok((child, guardian))
}

/// A wait for a command, which is reported now and then and may have an end.
struct Wait {
    start: Instant,
    limit: Option<Duration>,
    every: Duration,
    /// Time from the start to the next notice.
    next_notice: Duration,
}

impl Wait {
    fn new(limit: Option<Duration>, every: Duration) -> Wait {
        Wait { start: Instant::now(), limit, every, next_notice: every }
    }

    /// Time until something has to be said.
    fn left(&self) -> Duration {
        let next = self.limit.map_or(self.next_notice, |limit| limit.min(self.next_notice));
        next.saturating_sub(self.start.elapsed())
    }

    /// Says what has to be said now: what the command should do, or that it did not.
    fn check(&mut self, pipe: &Pipe, should: &str, did_not: &str) -> Result<(), Error> {
        let waited = self.start.elapsed();
        if let Some(limit) = self.limit.filter(|limit| waited >= *limit) {
            let limit = limit.as_secs_f64();
            return Err(pipe.failed(format!("{did_not} for {limit} s, the limit (pipe_timeout)")));
        }
        if waited >= self.next_notice {
            self.next_notice = waited + self.every;
            let (command, file, waited) = (&pipe.command, pipe.file.display(), waited.as_secs());
            let line =
                format!("waiting for pipe command `{command}` on {file} {should} ({waited} s)");
            (pipe.patience.notice)(&line);
        }
        Ok(())
    }
}

impl Read for Pipe {
    /// An [`Error`] of this crate is inside of the error, if it is one.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.await_output().map_err(io::Error::other)?;
        self.stdout.read(buf)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if !self.reaped {
            kill_group(id_of(&self.guardian));
            let _ = self.reap(None);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "did not end well".into(),
    }
}

/// Keeps the last part of what a command writes to standard error.
fn keep_tail(mut from: impl Read, tail: &Mutex<Vec<u8>>) -> Option<io::Error> {
    let mut block = [0; 1024];
    while let Ok(n @ 1..) = from.read(&mut block) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&block[..n]);
        let excess = tail.len().saturating_sub(STDERR_BYTES);
        tail.drain(..excess);
    }
    None
}

/// Feeds an unpacked file to a command; returns what went wrong with the file.
fn feed(input: &mut dyn Read, stdin: &mut dyn Write) -> Option<io::Error> {
    let mut block = vec![0; 64 * 1024];
    loop {
        match input.read(&mut block) {
            Ok(0) => return None,
            // A command such as `head` need not read everything.
            Ok(n) => stdin.write_all(&block[..n]).ok()?,
            Err(e) => return Some(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, text: &str) -> (String, Result<(), Error>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.txt");
        std::fs::write(&file, text).unwrap();
        let mut pipe =
            Pipe::spawn(command, &file, &Arc::default(), &Patience::default(), &Stores::new())
                .unwrap();
        let mut out = String::new();
        pipe.read_to_string(&mut out).unwrap();
        (out, pipe.finish())
    }

    #[test]
    fn output_and_failure() {
        let (out, end) = run("tr a b", "aha\n");
        assert_eq!(out, "bhb\n");
        end.unwrap();
        let (out, end) = run("head -c 2; echo oh no >&2; exit 3", "aha\n");
        assert_eq!(out, "ah");
        let message = end.unwrap_err().to_string();
        assert!(message.contains("a.txt: pipe command `head -c 2; "), "{message}");
        let tail = "ended with exit status 3; it wrote to stderr: oh no";
        assert!(message.ends_with(tail), "{message}");
    }

    #[test]
    fn background_children_do_not_hold_it_up() {
        let start = Instant::now();
        let (out, end) = run("sleep 60 >/dev/null & cat", "x\n");
        assert_eq!(out, "x\n");
        end.unwrap();
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
