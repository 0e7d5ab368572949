//! A file through the user's `pipe_command`: `sh -c COMMAND < file`, whose output is the data.
//!
//! Each command runs in a process group of its own, so that ending it also ends what it started.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use regatta_store::Stores;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::Error;
use crate::open;

/// How much of a command's standard error is kept for messages.
const STDERR_BYTES: usize = 4096;

/// The running commands of a data pass, so that stopping it can end them. Once stopped, no new
/// command starts.
#[derive(Debug, Default)]
pub(crate) struct Children {
    stopped: AtomicBool,
    /// Commands that have not been reaped. A process id is only reaped under this lock, so an id in
    /// the list is never that of a stranger.
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
        running.iter().for_each(|&pid| kill_group(pid));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn kill_group(pid: Pid) {
    // It may have ended in the meantime, which is what we want.
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
}

/// A running command with its file; reads as its standard output.
pub(crate) struct Pipe {
    file: PathBuf,
    command: String,
    child: Child,
    pid: Pid,
    stdout: ChildStdout,
    stderr: Arc<Mutex<Vec<u8>>>,
    threads: Vec<JoinHandle<Option<io::Error>>>,
    children: Arc<Children>,
    reaped: bool,
}

impl Pipe {
    /// Starts `command` with the contents of `file`, unpacked if its suffix says so, on its
    /// standard input.
    pub(crate) fn spawn(
        command: &str,
        file: &Path,
        children: &Arc<Children>,
        stores: &Stores,
    ) -> Result<Pipe, Error> {
        let fail = |e: io::Error| Error::Pipe {
            file: file.to_path_buf(),
            command: command.to_string(),
            status: format!("could not be started: {e}"),
            stderr: String::new(),
        };
        let plain = open::is_plain_local(file);
        let stdin = if plain { Stdio::from(open::open_local(file)?) } else { Stdio::piped() };
        let unpacked = if plain { None } else { Some(open::open(file, stores)?) };
        let mut running = children.lock();
        if children.stopped() {
            return Err(Error::Stopped);
        }
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let pid = Pid::from_raw(child.id() as i32).expect("a process id is positive");
        running.push(pid);
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
            pid,
            stdout,
            stderr,
            threads,
            children: children.clone(),
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
        let status = self.reap().map_err(|e| Error::io(&self.file, e))?;
        let mut unpack_error = None;
        for thread in std::mem::take(&mut self.threads) {
            unpack_error = unpack_error.or(thread.join().unwrap_or(None));
        }
        if let Some(e) = unpack_error {
            return Err(Error::io(&self.file, e));
        }
        if status.success() {
            return Ok(());
        }
        Err(Error::Pipe {
            file: self.file.clone(),
            command: self.command.clone(),
            status: describe(status),
            stderr: self.stderr(),
        })
    }

    /// Waits until the command has ended, ends what it left behind in its group, and reaps it.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        let mut pause = Duration::from_micros(50);
        loop {
            let mut running = self.children.lock();
            // Looks without reaping: until then the id of the group cannot become another's.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if rustix::process::waitid(WaitId::Pid(self.pid), look)?.is_some() {
                kill_group(self.pid);
                let status = self.child.wait();
                running.retain(|&pid| pid != self.pid);
                self.reaped = true;
                return status;
            }
            drop(running);
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(10));
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stdout.read(buf)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if !self.reaped {
            kill_group(self.pid);
            let _ = self.reap();
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
        let mut pipe = Pipe::spawn(command, &file, &Arc::default(), &Stores::new()).unwrap();
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
        let start = std::time::Instant::now();
        let (out, end) = run("sleep 60 >/dev/null & cat", "x\n");
        assert_eq!(out, "x\n");
        end.unwrap();
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
