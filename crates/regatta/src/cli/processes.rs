//! A parameter-server job on one machine: starts servers and workers as processes of this program,
//! shows their lines, and ends when they do.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What a server prints when it accepts connections, before its address.
pub(super) const LISTENING: &str = "Server listening on ";

/// How long servers may take to come up.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long processes may take to end by themselves after one of them has failed.
const END_LIMIT: Duration = Duration::from_secs(9);
/// Lines that wait to be shown; a flood of them slows the process that writes them.
const LINES: usize = 1024;
/// Lines of a failed process that are shown again at the end.
const LAST_LINES: usize = 8;

/// What a process of the job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Server(usize),
    Worker(usize),
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Server(i) => write!(f, "server {i}"),
            Role::Worker(i) => write!(f, "worker {i}"),
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;
    fn from_str(s: &str) -> Result<Role, String> {
        let parsed = s.split_once(':').and_then(|(role, index)| {
            let index = index.parse().ok()?;
            match role {
                "server" => Some(Role::Server(index)),
                "worker" => Some(Role::Worker(index)),
                _ => None,
            }
        });
        parsed.ok_or_else(|| "it must be server:N or worker:N".into())
    }
}

impl Role {
    fn flag(self) -> String {
        match self {
            Role::Server(i) => format!("server:{i}"),
            Role::Worker(i) => format!("worker:{i}"),
        }
    }
}

struct Process {
    role: Role,
    child: Child,
    status: Option<ExitStatus>,
    /// Ended by us, so how it ended says nothing.
    killed: bool,
    last: VecDeque<String>,
}

/// All processes of a job. Dropping it ends them: they watch their standard input, which closes even
/// when this process is killed.
pub(super) struct Processes {
    all: Vec<Process>,
    lines: Receiver<(usize, String)>,
    sender: SyncSender<(usize, String)>,
    token: String,
}

impl Processes {
    pub(super) fn new() -> Result<Processes> {
        let mut bytes = [0u8; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut bytes))
            .context("cannot read random bytes for the job token")?;
        let token = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let (sender, lines) = sync_channel(LINES);
        Ok(Processes { all: Vec::new(), lines, sender, token })
    }

    /// Starts this program again in a role; it gets the job token as the first line of its input.
    pub(super) fn start(&mut self, role: Role, args: &[String]) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(args)
            .args(["--role", &role.flag()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {role}"))?;
        let input = child.stdin.as_mut().context("a child has an input")?;
        writeln!(input, "{}", self.token).with_context(|| format!("cannot talk to {role}"))?;
        let number = self.all.len();
        if let Some(out) = child.stdout.take() {
            self.forward(number, out);
        }
        if let Some(err) = child.stderr.take() {
            self.forward(number, err);
        }
        self.all.push(Process { role, child, status: None, killed: false, last: VecDeque::new() });
        Ok(())
    }

    fn forward(&self, number: usize, stream: impl Read + Send + 'static) {
        let sender = self.sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if sender.send((number, line)).is_err() {
                    break;
                }
            }
        });
    }

    /// Waits until all `n` servers have said where they listen.
    pub(super) fn endpoints(&mut self, n: usize) -> Result<Vec<String>> {
        let mut found: Vec<Option<String>> = vec![None; n];
        let limit = Instant::now() + START_LIMIT;
        while found.iter().any(Option::is_none) {
            if let Some((number, line)) = self.next_line(Duration::from_millis(50)) {
                let role = self.all[number].role;
                match (role, line.strip_prefix(LISTENING)) {
                    (Role::Server(i), Some(endpoint)) if i < n => {
                        found[i] = Some(endpoint.to_string());
                    }
                    _ => {}
                }
                self.show(number, &line);
            }
            if self.poll()?.is_some() {
                return Err(self.failure());
            }
            if Instant::now() > limit {
                let missing = found.iter().position(Option::is_none).unwrap_or(0);
                bail!("server {missing} did not listen within {} s", START_LIMIT.as_secs());
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Shows lines until all processes have ended. `tolerate` says whose loss the others survive.
    pub(super) fn wait(&mut self, tolerate: impl Fn(Role) -> bool) -> Result<()> {
        let mut end_by: Option<Instant> = None;
        loop {
            let line = self.next_line(Duration::from_millis(50));
            if let Some((number, line)) = &line {
                self.show(*number, line);
            }
            if let Some(number) = self.poll()?
                && !tolerate(self.all[number].role)
            {
                end_by.get_or_insert(Instant::now() + END_LIMIT);
            }
            let running = self.all.iter().any(|p| p.status.is_none());
            if !running && line.is_none() {
                break;
            }
            if end_by.is_some_and(|limit| Instant::now() > limit) {
                self.kill();
            }
        }
        if self.all.iter().all(|p| p.status.is_some_and(|s| s.success())) {
            return Ok(());
        }
        Err(self.failure())
    }

    fn next_line(&mut self, wait: Duration) -> Option<(usize, String)> {
        match self.lines.recv_timeout(wait) {
            Ok((number, line)) => {
                let last = &mut self.all[number].last;
                last.push_back(line.clone());
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
                Some((number, line))
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    fn show(&self, number: usize, line: &str) {
        // Training goes on when nobody reads its lines any more.
        let _ = writeln!(std::io::stdout(), "[{}] {line}", self.all[number].role);
    }

    /// Notices processes that have ended; returns one that has failed just now.
    fn poll(&mut self) -> Result<Option<usize>> {
        let mut failed = None;
        for (number, process) in self.all.iter_mut().enumerate() {
            if process.status.is_some() {
                continue;
            }
            process.status = process.child.try_wait()?;
            if process.status.is_some_and(|s| !s.success()) {
                failed.get_or_insert(number);
            }
        }
        Ok(failed)
    }

    fn kill(&mut self) {
        for process in self.all.iter_mut().filter(|p| p.status.is_none()) {
            process.killed = true;
            let _ = process.child.kill();
        }
    }

    /// Names everyone that failed, with the last words of the first.
    fn failure(&mut self) -> anyhow::Error {
        // What is still on its way belongs to the last words.
        while let Some((number, line)) = self.next_line(Duration::from_millis(200)) {
            self.show(number, &line);
        }
        let by_itself = |p: &&Process| !p.killed && p.status.is_some_and(|s| !s.success());
        let failed: Vec<&Process> = self.all.iter().filter(by_itself).collect();
        let names: Vec<String> = failed
            .iter()
            .map(|p| {
                format!("{} ({})", p.role, p.status.map(|s| s.to_string()).unwrap_or_default())
            })
            .collect();
        let last: Vec<String> = failed
            .first()
            .map(|p| p.last.iter().map(|l| format!("\n  [{}] {l}", p.role)).collect())
            .unwrap_or_default();
        anyhow::anyhow!("failed: {}; last lines:{}", names.join(", "), last.concat())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
        for process in &mut self.all {
            let _ = process.child.wait();
        }
    }
}

/// In a child: reads the job token, and ends the process when the parent is gone.
pub(super) fn token_from_parent() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the job token")?;
    thread::spawn(|| {
        let mut rest = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut rest);
        // Nobody may be there to read it; `eprintln` would panic then.
        let _ = writeln!(std::io::stderr(), "error: the process that started this one is gone");
        std::process::exit(1);
    });
    Ok(line.trim().to_string())
}
