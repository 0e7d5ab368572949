//! What to start, and how one started process is doing.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use regatta_cluster::{Place, PsRole, names};

use crate::program::Program;
use crate::{cores, guard};

/// What a process is to the others of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The job is done when all of these are.
    Leader,
    /// Serves the leaders, and is not needed after them.
    Follower,
}

/// One process to be started.
#[derive(Debug, Clone)]
pub struct Spec {
    /// What it is called, for example `worker 0`.
    pub name: String,
    /// Its address, for messages.
    pub endpoint: Option<String>,
    /// What it is to the others.
    pub part: Part,
    /// What runs.
    pub program: Program,
    /// Arguments after those of `program`.
    pub args: Vec<String>,
    /// Variables that say its place.
    pub env: Vec<(String, String)>,
    /// Processor cores that it may use; those of this process if there are none.
    pub cores: Vec<usize>,
    /// File for its lines.
    pub log: Option<PathBuf>,
    /// How often it is started again when it fails.
    pub restarts: u32,
    /// The others continue when it fails, once it has reported that it has joined them
    /// ([`CannotResume`](crate::status::Status::CannotResume)).
    pub is_dispensable: bool,
}

impl Spec {
    /// A process in a place of a job.
    pub fn new(place: &Place, program: Program) -> Spec {
        let (part, endpoint) = match place {
            Place::ParameterServer(ps) => {
                let follows = matches!(ps.role, PsRole::Server(_));
                let part = if follows { Part::Follower } else { Part::Leader };
                (part, ps.endpoint().map(str::to_string))
            }
            Place::Collective(c) => (Part::Leader, c.endpoints.get(c.rank).cloned()),
            Place::Local => (Part::Leader, None),
        };
        Spec {
            name: place.to_string(),
            endpoint,
            part,
            program,
            args: Vec::new(),
            env: place.to_env(),
            cores: Vec::new(),
            log: None,
            restarts: 0,
            is_dispensable: false,
        }
    }

    /// `server 1 at 10.0.0.1:6000`; other processes by their name, as nobody dials them.
    pub(crate) fn title(&self) -> String {
        match (&self.endpoint, self.part) {
            (Some(endpoint), Part::Follower) => format!("{} at {endpoint}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Starts it. The calling thread must live as long as the process should.
    pub(crate) fn start(&self, status: &str) -> io::Result<Child> {
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.args).args(&self.args);
        for name in names::PLACE.iter().chain(names::PROXIES) {
            command.env_remove(name);
        }
        command.env("PYTHONUNBUFFERED", "1").env(names::STATUS, status);
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        guard::die_with_parent(&mut command);
        // A new process may use the cores of the thread that starts it.
        let _only = if self.cores.is_empty() { None } else { Some(cores::only(&self.cores)?) };
        command.spawn()
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(ExitStatus);

impl Exit {
    pub(crate) fn new(status: ExitStatus) -> Exit {
        Exit(status)
    }

    /// Whether it did what it should.
    pub fn is_success(self) -> bool {
        self.0.success()
    }

    /// Its exit code; 128 and the number of the signal if one ended it, as shells say it.
    pub fn code(self) -> u8 {
        let signal = || self.0.signal().map(|signal| 128 + signal);
        self.0.code().or_else(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }

    /// `failed with exit code 3` or `is lost: ended by signal 9 (SIGKILL)`.
    pub(crate) fn describe(self) -> String {
        match self.0.signal() {
            Some(signal) => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
                format!("is lost: ended by signal {signal} ({name})")
            }
            None => format!("failed with exit code {}", self.code()),
        }
    }
}

/// How long a process may take to end after it was asked to.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_on_the_cores_it_was_given() {
        let mut spec = Spec::new(&Place::Local, Program::binary("/bin/sh"));
        spec.args = vec!["-c".into(), "grep Cpus_allowed_list /proc/self/status".into()];
        let last = cores::shares(1, 1).unwrap()[0].pop().unwrap();
        spec.cores = vec![last];
        let output = spec.start("").unwrap().wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.split_whitespace().last(), Some(last.to_string().as_str()), "{said}");
    }
}
