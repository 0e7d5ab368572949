//! Starts a set of processes and stays until they have ended, in whatever way.
//!
//! One thread, the one that calls [`Supervisor::run`], decides everything; others only report to it
//! what happened: a line was written, a process ended, a signal came.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::guard::{Guard, signal_group};
use crate::output::{Output, Stream, read_lines};
use crate::process::{Exit, Part, STOP_LIMIT, Spec};
use crate::status::{self, Heard, Status};
use crate::{Error, ThisProgram, random_hex};

/// What a server prints when it accepts connections, before its address.
pub const LISTENING: &str = "Server listening on ";

/// How what programs print on standard error begins when something is wrong: Python's exceptions,
/// errors of this command line and of Rust programs, those of C++.
const COMPLAINTS: [&str; 4] =
    ["Traceback (most recent call last)", "error:", "Error:", "terminate called"];

/// Events that wait for the supervisor; a flood of lines slows the process that writes them.
const EVENTS: usize = 1024;
/// How long the others are waited for when a process has failed. It may be the first to end, but
/// not the first that went wrong: others can notice a lost peer, and end, before the process that
/// caused it is gone.
const SETTLE: Duration = Duration::from_millis(500);
/// A process that fails may have begun to say why as long before.
const MEMORY: Duration = Duration::from_secs(5);
/// How long lines of processes that have ended are waited for.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// How a job is looked after.
#[derive(Clone)]
pub struct Options {
    /// The program that supervises; its guardian is the same once more.
    pub this: ThisProgram,
    /// When the launcher was started; times are counted from there.
    pub started: Instant,
    /// How long followers may take to end by themselves after the last leader; then they are
    /// stopped. Nothing if leaders elsewhere may still need them: [`Remote::leaders_are_done`] says
    /// when not.
    pub follower_limit: Option<Duration>,
    /// Called when the last leader has ended well; at once if there are none.
    pub on_leaders_done: Option<Arc<dyn Fn() + Send + Sync>>,
    /// A folder of the job, removed by the guardian if this process is killed.
    pub folder: Option<PathBuf>,
}

impl Options {
    /// For a job that is all on this machine.
    pub fn new(this: &ThisProgram, started: Instant) -> Options {
        Options {
            this: this.clone(),
            started,
            follower_limit: Some(Duration::from_secs(10)),
            on_leaders_done: None,
            folder: None,
        }
    }
}

/// How a job ended.
#[derive(Debug)]
pub struct Report {
    /// In which way.
    pub outcome: Outcome,
    /// When things happened, counted from [`Options::started`].
    pub timing: Timing,
}

/// In which way a job ended.
#[derive(Debug)]
pub enum Outcome {
    /// Every process has done what it should.
    Done,
    /// A process failed, and this is the first one.
    Failed(Failure),
    /// A signal ended it.
    Interrupted(i32),
    /// Another machine said that the job is over; why.
    Stopped(String),
}

/// The first process that failed.
#[derive(Debug)]
pub struct Failure {
    /// Who, and how: `worker 1 failed with exit code 3`.
    pub message: String,
    /// What it printed last.
    pub last_lines: Vec<String>,
    /// Its exit code.
    pub code: u8,
}

/// When things happened.
#[derive(Debug, Clone, Default)]
pub struct Timing {
    /// All processes were started.
    pub started: Duration,
    /// All followers had said that they listen, if they did.
    pub listening: Option<Duration>,
    /// All leaders had done their first step, if they said so.
    pub first_step: Option<Duration>,
}

enum Event {
    Line(usize, Stream, Vec<u8>),
    /// One of the two outputs of a process has closed.
    Closed,
    Ended(usize),
    Signal(i32),
    Status(String, Status),
    /// The guardian has ended.
    Unguarded,
    Stop(String),
    LeadersDone,
}

/// Reports to a supervisor what happens on other machines.
#[derive(Clone)]
pub struct Remote(SyncSender<Event>);

impl Remote {
    /// The job is over.
    pub fn stop(&self, reason: &str) {
        let _ = self.0.send(Event::Stop(reason.to_string()));
    }

    /// No machine has leaders any more.
    pub fn leaders_are_done(&self) {
        let _ = self.0.send(Event::LeadersDone);
    }
}

struct Process {
    spec: Spec,
    output: Output,
    /// While it runs.
    child: Option<Child>,
    restarts: u32,
    can_resume: bool,
    /// Why servers have lost it, since it was started.
    lost: Option<String>,
    /// How often each server has lost it.
    losses: BTreeMap<String, u32>,
    listening: Option<Instant>,
    first_step: Option<Instant>,
    /// When it began to say what is wrong, since it was started.
    complained: Option<Instant>,
}

/// A process that has failed, and may be the cause of all.
struct Suspect {
    index: usize,
    failure: Failure,
    ended: Instant,
}

/// What the supervisor is about.
enum Phase {
    Running,
    /// A process has failed; others that fail now may have failed before.
    Settling {
        until: Instant,
    },
    /// Processes have been asked to end; what is left then is killed.
    Stopping {
        kill_at: Instant,
    },
    Killed,
}

/// A set of processes that is looked after.
pub struct Supervisor {
    options: Options,
    processes: Vec<Process>,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    /// The value of `REGATTA_STATUS` for children.
    status: String,
    guard: Guard,
    signals: Handle,
    phase: Phase,
    outcome: Option<Outcome>,
    /// The first process that failed.
    failed: Option<usize>,
    suspects: Vec<Suspect>,
    /// Outputs that have not closed yet.
    open: usize,
    end_followers_at: Option<Instant>,
    timing: Timing,
}

impl Supervisor {
    /// Makes everything ready, starts nothing. Signals of this process belong to the supervisor
    /// from now on, and every process that ends up as a child of this one is taken for a part of
    /// the job: there should be one supervisor in a process, and nothing beside it that starts
    /// others. The supervisor runs this program once more as its guardian: with
    /// [`GUARDIAN`](crate::GUARDIAN) as the first argument the program must call
    /// [`guard()`](crate::guard()).
    ///
    /// # Errors
    /// If a log cannot be created or the system refuses something.
    pub fn new(specs: Vec<Spec>, options: Options) -> Result<Supervisor, Error> {
        let (sender, events) = sync_channel(EVENTS);
        let processes = specs.into_iter().map(Process::new).collect::<Result<Vec<_>, Error>>()?;
        let inner = |what| move |e| Error::System(format!("cannot {what}: {e}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(inner("listen for signals"))?;
        let handle = signals.handle();
        let to = sender.clone();
        thread::spawn(move || signals.forever().all(|s| to.send(Event::Signal(s)).is_ok()));
        let listener = status::Listener::new(&random_hex()?, random_hex()?);
        let listener = listener.map_err(inner("open a socket"))?;
        let (job, status) = (listener.name().to_string(), listener.variable());
        let to = sender.clone();
        thread::spawn(move || hear(&listener, &to));
        let guard = Guard::new(&options.this, &job, options.folder.clone());
        let guard = guard.map_err(inner("start the guardian, this program once more"))?;
        notify_end(guard.pid(), &sender, Event::Unguarded);
        Ok(Supervisor {
            options,
            processes,
            events,
            sender,
            status,
            guard,
            signals: handle,
            phase: Phase::Running,
            outcome: None,
            failed: None,
            suspects: Vec::new(),
            open: 0,
            end_followers_at: None,
            timing: Timing::default(),
        })
    }

    /// For reports of what happens elsewhere.
    pub fn remote(&self) -> Remote {
        Remote(self.sender.clone())
    }

    /// Starts all processes at once and returns when all have ended. The calling thread must be one
    /// that lives as long as this process: the kernel ends the processes with it.
    ///
    /// # Errors
    /// If a process cannot be started; those that were are ended.
    pub fn run(mut self) -> Result<Report, Error> {
        for index in 0..self.processes.len() {
            self.start(index)?;
        }
        self.timing.started = self.options.started.elapsed();
        self.look_for_leaders();
        while self.is_running() {
            let event = self.next(self.deadline());
            match event {
                Some(event) => self.on_event(event)?,
                None => self.on_deadline(),
            }
        }
        self.blame();
        self.drain();
        self.guard.kill_strays();
        Ok(self.report())
    }

    fn start(&mut self, index: usize) -> Result<(), Error> {
        let process = &mut self.processes[index];
        let mut child = process.spec.start(&self.status).map_err(|source| Error::Start {
            name: process.spec.name.clone(),
            program: process.spec.program.path.clone(),
            source,
        })?;
        let pid = child.id();
        if let Some(out) = child.stdout.take() {
            self.forward(index, Stream::Out, out);
        }
        if let Some(err) = child.stderr.take() {
            self.forward(index, Stream::Err, err);
        }
        let process = &mut self.processes[index];
        (process.child, process.lost, process.complained) = (Some(child), None, None);
        self.notify_guard();
        notify_end(pid, &self.sender, Event::Ended(index));
        Ok(())
    }

    fn forward(&mut self, index: usize, stream: Stream, from: impl io::Read + Send + 'static) {
        self.open += 1;
        let to = self.sender.clone();
        thread::spawn(move || {
            read_lines(from, |line| to.send(Event::Line(index, stream, line)).is_ok());
            let _ = to.send(Event::Closed);
        });
    }

    fn notify_guard(&mut self) {
        let groups = self.processes.iter().filter_map(|p| Some(p.child.as_ref()?.id()));
        self.guard.watch(groups.collect());
    }

    /// Somebody has killed the guardian, perhaps because memory was short.
    fn on_unguarded(&mut self) {
        match self.guard.replace() {
            Ok(ended) => {
                eprintln!("note: the guardian has ended ({ended}); another one takes its place");
                notify_end(self.guard.pid(), &self.sender, Event::Unguarded);
            }
            Err(e) => eprintln!(
                "note: the guardian has ended and there is no other one: {e}; if this launcher is \
                 killed, processes of the job may be left"
            ),
        }
    }

    fn is_running(&self) -> bool {
        self.processes.iter().any(|p| p.child.is_some())
    }

    fn deadline(&self) -> Option<Instant> {
        let next = match self.phase {
            Phase::Stopping { kill_at } => Some(kill_at),
            Phase::Settling { until } => Some(until),
            _ => None,
        };
        next.into_iter().chain(self.end_followers_at).min()
    }

    fn next(&self, deadline: Option<Instant>) -> Option<Event> {
        let limit = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        self.events.recv_timeout(limit.unwrap_or(Duration::from_secs(3600))).ok()
    }

    fn on_event(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Line(index, stream, line) => self.processes[index].line(stream, &line),
            Event::Closed => self.open -= 1,
            Event::Ended(index) => self.on_end(index)?,
            Event::Status(from, status) => self.on_status(&from, status),
            Event::Unguarded => self.on_unguarded(),
            Event::Signal(signal) => {
                eprintln!("signal {signal}: stopping all processes");
                // Whoever asks twice does not want to wait.
                let is_asked_again = matches!(self.phase, Phase::Stopping { .. });
                self.blame();
                self.outcome.get_or_insert(Outcome::Interrupted(signal));
                if is_asked_again { self.kill() } else { self.stop() }
            }
            Event::Stop(reason) => {
                self.blame();
                self.outcome.get_or_insert(Outcome::Stopped(reason));
                self.stop();
            }
            Event::LeadersDone => self.let_followers_end(),
        }
        Ok(())
    }

    fn on_deadline(&mut self) {
        let now = Instant::now();
        if let Phase::Stopping { kill_at } = self.phase
            && now >= kill_at
        {
            self.kill();
        }
        if let Phase::Settling { until } = self.phase
            && now >= until
        {
            self.blame();
        }
        if self.end_followers_at.is_some_and(|at| now >= at) {
            self.end_followers_at = None;
            self.stop();
        }
    }

    fn on_status(&mut self, from: &str, status: Status) {
        let of = match &status {
            Status::LostWorker { worker, reason } => {
                return self.on_lost_worker(from, &format!("worker {worker}"), reason);
            }
            Status::RejoinedWorker { worker } => format!("worker {worker}"),
            _ => from.to_string(),
        };
        let Some(process) = self.process(&of) else { return };
        match status {
            Status::FirstStep => {
                process.first_step.get_or_insert_with(Instant::now);
            }
            Status::CannotResume => process.can_resume = false,
            Status::RejoinedWorker { .. } => process.lost = None,
            Status::LostWorker { .. } => {}
        }
    }

    fn process(&mut self, name: &str) -> Option<&mut Process> {
        self.processes.iter_mut().find(|p| p.spec.name == name)
    }

    /// A server continues without this worker. Its process, which may hang, has failed, unless the
    /// job continues without it: then it may come back.
    fn on_lost_worker(&mut self, server: &str, worker: &str, reason: &str) {
        let Some(process) = self.process(worker) else {
            eprintln!("{server} has lost {worker}, which runs elsewhere: {reason}");
            return;
        };
        // Every server reports the same loss; it counts once, also if the worker has been started
        // again before the last of them notices.
        let before = process.losses.values().copied().max().unwrap_or(0);
        let losses = process.losses.entry(server.to_string()).or_default();
        *losses += 1;
        let is_new = *losses > before;
        if let (true, Some(child)) = (is_new, &process.child) {
            process.lost = Some(format!("{server} has lost it: {reason}"));
            if !process.spec.is_dispensable {
                signal_group(child.id(), Signal::KILL);
            }
        }
        self.end_lost_leaders();
    }

    /// Nobody waits for leaders that are lost when the others are done.
    fn end_lost_leaders(&self) {
        let running = || {
            let leaders = self.processes.iter().filter(|p| p.spec.part == Part::Leader);
            leaders.filter_map(|p| Some((p, p.child.as_ref()?)))
        };
        if running().all(|(process, _)| process.lost.is_some()) {
            running().for_each(|(_, child)| signal_group(child.id(), Signal::KILL));
        }
    }

    fn on_end(&mut self, index: usize) -> Result<(), Error> {
        let process = &mut self.processes[index];
        let Some(mut child) = process.child.take() else { return Ok(()) };
        signal_group(child.id(), Signal::KILL);
        let exit = Exit::new(child.wait().map_err(|e| Error::System(e.to_string()))?);
        self.notify_guard();
        if !exit.is_success() && matches!(self.phase, Phase::Running | Phase::Settling { .. }) {
            self.on_failure(index, exit)?;
        }
        self.end_lost_leaders();
        self.look_for_leaders();
        Ok(())
    }

    /// Followers are not needed after the last leader.
    fn look_for_leaders(&mut self) {
        let is_leader = |p: &Process| p.spec.part == Part::Leader;
        let is_led = self.processes.iter().any(|p| is_leader(p) && p.child.is_some());
        if is_led || !matches!(self.phase, Phase::Running) {
            return;
        }
        if let Some(notify) = self.options.on_leaders_done.take() {
            notify();
        }
        if self.options.follower_limit.is_some() && self.processes.iter().any(is_leader) {
            self.let_followers_end();
        }
    }

    fn on_failure(&mut self, index: usize, exit: Exit) -> Result<(), Error> {
        let process = &mut self.processes[index];
        let how = match process.lost.take() {
            Some(lost) => format!("is lost: {lost}"),
            None => exit.describe(),
        };
        let message = format!("{} {how}", process.spec.title());
        let is_first = matches!(self.phase, Phase::Running);
        if is_first && process.can_resume && process.restarts < process.spec.restarts {
            process.restarts += 1;
            let (n, of) = (process.restarts, process.spec.restarts);
            eprintln!("{message}; starting it again ({n} of {of})");
            process.output.note(&format!("{message}; started again ({n} of {of})"));
            return self.start(index);
        }
        // The process is gone, but its last lines may still be in flight; they are added at the
        // end.
        let failure = Failure { message, last_lines: Vec::new(), code: exit.code() };
        // The others cannot begin without a process that has not joined them.
        let has_joined = !process.can_resume;
        if is_first && process.spec.is_dispensable && has_joined {
            eprintln!("{}; the others continue", failure.message);
            self.failed.get_or_insert(index);
            self.outcome.get_or_insert(Outcome::Failed(failure));
            return Ok(());
        }
        self.suspects.push(Suspect { index, failure, ended: Instant::now() });
        if is_first {
            self.phase = Phase::Settling { until: Instant::now() + SETTLE };
        }
        Ok(())
    }

    /// Names the process that went wrong first, and stops the others.
    fn blame(&mut self) {
        let suspects = std::mem::take(&mut self.suspects);
        let went_wrong = |suspect: &Suspect| {
            let complained = self.processes[suspect.index].complained;
            let complained = complained.filter(|at| *at + MEMORY > suspect.ended);
            complained.map_or(suspect.ended, |at| at.min(suspect.ended))
        };
        let Some(cause) = suspects.into_iter().min_by_key(went_wrong) else { return };
        self.failed.get_or_insert(cause.index);
        eprintln!("{}; stopping all processes", cause.failure.message);
        self.outcome.get_or_insert(Outcome::Failed(cause.failure));
        self.stop();
    }

    fn let_followers_end(&mut self) {
        if self.is_running() && matches!(self.phase, Phase::Running) {
            let limit = self.options.follower_limit.unwrap_or(Duration::from_secs(10));
            self.end_followers_at.get_or_insert(Instant::now() + limit);
        }
    }

    /// Asks all processes to end.
    fn stop(&mut self) {
        if matches!(self.phase, Phase::Running | Phase::Settling { .. }) {
            self.phase = Phase::Stopping { kill_at: Instant::now() + STOP_LIMIT };
            self.signal_all(Signal::TERM);
        }
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed;
        self.signal_all(Signal::KILL);
    }

    fn signal_all(&self, signal: Signal) {
        for child in self.processes.iter().filter_map(|p| p.child.as_ref()) {
            signal_group(child.id(), signal);
        }
    }

    /// Takes the lines that are still in flight. An output can stay open if a process that left its
    /// group has it; strays are killed after this.
    fn drain(&mut self) {
        let limit = Instant::now() + DRAIN_LIMIT;
        while self.open > 0 && Instant::now() < limit {
            match self.next(Some(limit)) {
                Some(Event::Line(index, stream, line)) => self.processes[index].line(stream, &line),
                Some(Event::Closed) => self.open -= 1,
                Some(Event::Status(from, status)) => self.on_status(&from, status),
                _ => {}
            }
        }
    }

    fn report(&mut self) -> Report {
        let started = self.options.started;
        let all = |part: Part, when: fn(&Process) -> Option<Instant>| {
            let times: Option<Vec<Instant>> =
                self.processes.iter().filter(|p| p.spec.part == part).map(when).collect();
            times?.into_iter().max().map(|at| at.saturating_duration_since(started))
        };
        self.timing.listening = all(Part::Follower, |p| p.listening);
        self.timing.first_step = all(Part::Leader, |p| p.first_step);
        let mut outcome = self.outcome.take().unwrap_or(Outcome::Done);
        if let Outcome::Failed(failure) = &mut outcome
            && let Some(index) = self.failed
        {
            failure.last_lines = self.processes[index].output.last_lines();
        }
        Report { outcome, timing: self.timing.clone() }
    }
}

impl Drop for Supervisor {
    /// Ends what still runs, for instance because a later process could not be started.
    fn drop(&mut self) {
        for process in &mut self.processes {
            if let Some(mut child) = process.child.take() {
                signal_group(child.id(), Signal::KILL);
                let _ = child.wait();
            }
        }
        self.signals.close();
        status::Listener::end(&self.status);
    }
}

/// Says when a process has ended, but leaves it to the supervisor to collect it: until then its
/// number cannot be given to another process.
fn notify_end(pid: u32, to: &SyncSender<Event>, event: Event) {
    let to = to.clone();
    thread::spawn(move || {
        if let Some(pid) = Pid::from_raw(pid as i32) {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let wait = || rustix::process::waitid(WaitId::Pid(pid), options);
            while wait().err() == Some(rustix::io::Errno::INTR) {}
        }
        let _ = to.send(event);
    });
}

/// Reports what processes say to the supervisor. What others say is named once.
fn hear(listener: &status::Listener, to: &SyncSender<Event>) {
    let mut has_stranger = false;
    while let Ok(heard) = listener.next() {
        match heard {
            Heard::Status(from, status) => {
                if to.send(Event::Status(from, status)).is_err() {
                    return;
                }
            }
            Heard::Stranger if has_stranger => {}
            Heard::Stranger => {
                has_stranger = true;
                eprintln!("note: a status message that is not from this job was ignored");
            }
            Heard::End => return,
        }
    }
}

impl Process {
    fn new(spec: Spec) -> Result<Process, Error> {
        let failed = |path: &Path, source| Error::Log { path: path.to_path_buf(), source };
        let log = spec.log.as_deref();
        let output = Output::new(&spec.name, log)
            .map_err(|source| failed(log.unwrap_or(Path::new("")), source))?;
        Ok(Process {
            spec,
            output,
            child: None,
            restarts: 0,
            can_resume: true,
            lost: None,
            losses: BTreeMap::new(),
            listening: None,
            first_step: None,
            complained: None,
        })
    }

    fn line(&mut self, stream: Stream, line: &[u8]) {
        if line.starts_with(LISTENING.as_bytes()) {
            self.listening.get_or_insert_with(Instant::now);
        }
        if matches!(stream, Stream::Err)
            && COMPLAINTS.iter().any(|c| line.starts_with(c.as_bytes()))
        {
            // An old complaint was about something that the process has survived.
            let is_new = self.complained.is_none_or(|at| at.elapsed() > MEMORY);
            self.complained = if is_new { Some(Instant::now()) } else { self.complained };
        }
        self.output.line(stream, line);
    }
}
