//! One rank as a process: it listens, knows all others by a control connection, and notices when
//! one dies, leaves or gives up. In: a [`GroupConfig`]. Out: connections for the data of groups.
//!
//! Every two ranks share one control connection, made when the job starts, and one data connection
//! per group. The control connections belong to the watch thread (`watch`); data connections belong
//! to the caller of the group's operations. So a death is seen at once by all ranks, whether or not
//! they exchange data with the dead one, and a waiting rank can ask all others what they do.

mod dial;
mod greet;
mod meet;
mod watch;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use regatta_net::{RefusalLog, counted};
use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Event, GroupConfig, Transport};
use crate::error::{Absent, Error, Result, system};
use crate::fate::{Activity, Fate, lock};
use crate::header::Header;
use crate::socket::Socket;

pub(crate) use dial::random_name;
use dial::{Listeners, dial_control, dial_data};
use greet::About;
pub(crate) use meet::meet;
use watch::frame;

/// How long one handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long a rank that ends waits for others to close connections over TCP. One that is closed
/// with unread bytes is reset, and the reset may overtake the goodbye.
const FAREWELL: Duration = Duration::from_millis(500);

/// One rank of the job. Shared by its groups; the last one to go says goodbye.
pub(crate) struct Node {
    shared: Arc<Shared>,
    watch: Option<JoinHandle<()>>,
}

/// What the caller, the watch thread and the threads of handshakes share.
pub(crate) struct Shared {
    pub(crate) config: GroupConfig,
    pub(crate) fate: Fate,
    about: About,
    lobby: Mutex<Lobby>,
    arrived: Condvar,
    /// Wakes the watch thread.
    wake: OwnedFd,
    stopping: AtomicBool,
    /// Handshakes in flight.
    handshakes: AtomicUsize,
    refusals: RefusalLog,
    /// What other ranks answered when asked: per group and rank.
    answers: Mutex<HashMap<(u64, usize), Option<Activity>>>,
    answered: Condvar,
}

/// Connections that have arrived.
struct Lobby {
    controls: Vec<Option<Arc<Control>>>,
    /// Made by other ranks for a group, not taken yet: by group and rank.
    data: HashMap<(u64, usize), Socket>,
    /// Why each rank cannot be reached, as of the last attempt.
    problems: Vec<String>,
}

/// The control connection to one rank.
pub(crate) struct Control {
    rank: usize,
    socket: Socket,
    about: About,
    /// Held while a frame is written.
    writing: Mutex<()>,
}

/// Where the members of a group are, seen from one that waits.
#[derive(Default)]
pub(crate) struct Whereabouts {
    /// In the same operation.
    pub(crate) waiting: Vec<usize>,
    /// Elsewhere.
    pub(crate) missing: Vec<Absent>,
    /// One that is in another operation where it should be in this one, and which.
    pub(crate) conflict: Option<(usize, String)>,
}

impl Control {
    /// Sends a frame. A rank that does not take it is dead or will be found so.
    fn send(&self, kind: u8, payload: &[u8]) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let _writing = lock(&self.writing);
        let _ = self.socket.write_all(&frame::encode(kind, payload), Instant::now() + PATIENCE);
    }
}

impl Node {
    /// Joins the other ranks.
    pub(crate) fn connect(config: GroupConfig) -> Result<Node> {
        let listeners = Listeners::bind(&config)?;
        let shared = Arc::new(Shared::new(config, &listeners)?);
        let for_watch = shared.clone();
        let watch = thread::Builder::new()
            .name("collective-watch".to_owned())
            .spawn(move || watch::run(&for_watch, &listeners))
            .map_err(|e| system("cannot start a thread", e))?;
        let node = Node { shared, watch: Some(watch) };
        node.shared.gather()?;
        Ok(node)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.notify_all(frame::GOODBYE, &[]);
        self.shared.wake_watch();
        if let Some(watch) = self.watch.take() {
            // It does not panic; if it did, there is nobody left to notify.
            let _ = watch.join();
        }
        let deadline = Instant::now() + FAREWELL;
        let controls = self.shared.controls();
        controls.iter().for_each(|control| control.socket.shutdown_write());
        for control in controls {
            control.socket.drain(deadline);
            control.socket.shutdown();
        }
    }
}

impl Shared {
    fn new(config: GroupConfig, listeners: &Listeners) -> Result<Shared> {
        let size = config.endpoints.len();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("cannot create an event descriptor", e))?;
        Ok(Shared {
            fate: Fate::new(size)?,
            about: About {
                rank: config.rank,
                size,
                job: config.job.clone(),
                transport: config.transport,
                host: regatta_net::host(),
                shortcut: listeners.shortcut.clone(),
            },
            lobby: Mutex::new(Lobby {
                controls: (0..size).map(|_| None).collect(),
                data: HashMap::new(),
                problems: vec![String::new(); size],
            }),
            arrived: Condvar::new(),
            wake,
            stopping: AtomicBool::new(false),
            handshakes: AtomicUsize::new(0),
            refusals: RefusalLog::default(),
            answers: Mutex::default(),
            answered: Condvar::new(),
            config,
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.config.rank
    }

    pub(crate) fn observe(&self, event: &Event) {
        (self.config.observer)(event);
    }

    /// Reports a connection that was turned away, unless there are many.
    fn turn_away(&self, address: String, problem: String) {
        self.report_refusals();
        if self.refusals.note(Instant::now()) {
            self.observe(&Event::TurnedAway { address, problem });
        }
    }

    /// Reports how many of these were left out, when that is due.
    fn report_refusals(&self) {
        if let Some(count) = self.refusals.overdue(Instant::now()) {
            self.observe(&Event::TurnedAwayMore { count });
        }
    }

    /// Records a failure and notifies everybody, unless it came from another rank.
    pub(crate) fn fail(&self, error: &Error) {
        if self.fate.fail(error.clone()) && !matches!(error, Error::Aborted { .. }) {
            self.notify_all(frame::ABORT, error.to_string().as_bytes());
        }
        self.arrived.notify_all();
    }

    fn controls(&self) -> Vec<Arc<Control>> {
        lock(&self.lobby).controls.iter().flatten().cloned().collect()
    }

    fn notify_all(&self, kind: u8, payload: &[u8]) {
        for control in self.controls() {
            if !self.fate.has_left(control.rank) {
                control.send(kind, payload);
            }
        }
    }

    fn wake_watch(&self) {
        // An eventfd that cannot be written to is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes control connections with all ranks: dials the lower ones, is dialled by the others.
    fn gather(self: &Arc<Self>) -> Result<()> {
        let deadline = Instant::now() + self.config.start_timeout;
        let diallers = (0..self.rank()).map(|peer| {
            let shared = self.clone();
            thread::Builder::new()
                .name(format!("collective-dial-{peer}"))
                .spawn(move || dial_control(&shared, peer, deadline))
                .map_err(|e| system("cannot start a thread", e))
        });
        let diallers = diallers.collect::<Result<Vec<_>>>();
        let outcome = match diallers {
            Ok(_) => self.wait_for_all(deadline),
            Err(ref error) => Err(error.clone()),
        };
        if let Err(error) = &outcome {
            self.fail(error);
        }
        for dialler in diallers.into_iter().flatten() {
            let _ = dialler.join();
        }
        outcome
    }

    fn wait_for_all(&self, deadline: Instant) -> Result<()> {
        let started = Instant::now();
        let mut report_at = started + self.config.report_every;
        let mut lobby = lock(&self.lobby);
        loop {
            self.fate.check()?;
            let missing = self.missing(&lobby);
            if missing.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            let (rank, waited) = (self.rank(), now - started);
            if now >= deadline {
                return Err(Error::Missing { rank, waited, missing });
            }
            if now >= report_at {
                report_at = now + self.config.report_every;
                self.observe(&Event::Waiting { rank, waited, missing });
            }
            let until = deadline.min(report_at) - now;
            lobby =
                self.arrived.wait_timeout(lobby, until).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn missing(&self, lobby: &Lobby) -> Vec<Absent> {
        let ranks = (0..self.config.endpoints.len()).filter(|rank| *rank != self.rank());
        let missing = ranks.filter(|rank| lobby.controls[*rank].is_none()).map(|rank| {
            let (endpoint, problem) = (&self.config.endpoints[rank], &lobby.problems[rank]);
            let state = match problem.is_empty() {
                true => endpoint.clone(),
                false => format!("{endpoint}: {problem}"),
            };
            Absent { rank, state }
        });
        missing.collect()
    }

    /// A control connection is complete.
    fn admit_control(&self, socket: Socket, about: About) -> Result<()> {
        let peer = about.rank;
        if let Some((ours, theirs)) = difference(&self.about, &about) {
            return Err(Error::OtherJob { rank: self.rank(), ours, peer, theirs });
        }
        let control = Arc::new(Control { rank: peer, socket, about, writing: Mutex::new(()) });
        lock(&self.lobby).controls[peer] = Some(control);
        self.arrived.notify_all();
        self.wake_watch();
        Ok(())
    }

    /// Waits until `peer` has joined; false when `deadline` came first.
    fn await_control(&self, peer: usize, deadline: Instant) -> bool {
        let mut lobby = lock(&self.lobby);
        while lobby.controls[peer].is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            lobby =
                self.arrived.wait_timeout(lobby, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Connections between this rank and the other members of a group, in the order of `members`.
    /// All members call it.
    pub(crate) fn data_connections(
        &self,
        group: u64,
        members: &[usize],
    ) -> Result<Vec<Option<Socket>>> {
        let deadline = Instant::now() + self.config.start_timeout;
        let connect = |peer: &usize| match *peer {
            peer if peer == self.rank() => Ok(None),
            peer if peer < self.rank() => dial_data(self, group, peer, deadline).map(Some),
            peer => self.await_data(group, peer, deadline).map(Some),
        };
        members.iter().map(connect).collect()
    }

    fn await_data(&self, group: u64, peer: usize, deadline: Instant) -> Result<Socket> {
        let started = Instant::now();
        let mut lobby = lock(&self.lobby);
        loop {
            self.fate.check()?;
            if let Some(socket) = lobby.data.remove(&(group, peer)) {
                return Ok(socket);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let state = "its data connection".to_owned();
                let missing = vec![Absent { rank: peer, state }];
                return Err(Error::Missing {
                    rank: self.rank(),
                    waited: started.elapsed(),
                    missing,
                });
            }
            // Short, because a failure is not announced under this lock.
            let left = left.min(Duration::from_millis(100));
            lobby =
                self.arrived.wait_timeout(lobby, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn about(&self, peer: usize) -> Option<About> {
        lock(&self.lobby).controls[peer].as_ref().map(|control| control.about.clone())
    }

    fn is_same_host(&self, about: &About) -> bool {
        self.about.host != [0; 16] && self.about.host == about.host && !about.shortcut.is_empty()
    }

    /// Whether all members can share memory with this rank, and so with each other.
    pub(crate) fn are_on_this_host(&self, members: &[usize]) -> bool {
        let others = members.iter().filter(|member| **member != self.rank());
        others
            .into_iter()
            .all(|peer| self.about(*peer).is_some_and(|about| self.is_same_host(&about)))
    }

    /// Asks the other members of a group what they do, and says who is in the operation `header`
    /// and who is not.
    pub(crate) fn inquire(&self, header: &Header, members: &[usize]) -> Whereabouts {
        const PATIENCE: Duration = Duration::from_millis(300);
        let others: Vec<usize> = members.iter().copied().filter(|m| *m != self.rank()).collect();
        lock(&self.answers).retain(|(group, _), _| *group != header.group);
        for control in self.controls().iter().filter(|control| others.contains(&control.rank)) {
            control.send(frame::ASK, &header.group.to_le_bytes());
        }
        let deadline = Instant::now() + PATIENCE;
        let mut answers = lock(&self.answers);
        let complete = |answers: &HashMap<(u64, usize), Option<Activity>>| {
            others.iter().all(|rank| answers.contains_key(&(header.group, *rank)))
        };
        while !complete(&answers) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            answers =
                self.answered.wait_timeout(answers, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut found = Whereabouts { waiting: vec![self.rank()], ..Whereabouts::default() };
        for rank in others {
            let state = match answers.get(&(header.group, rank)) {
                None if self.fate.has_left(rank) => "it has left".to_owned(),
                None => "it does not answer".to_owned(),
                Some(None) => "it has not begun".to_owned(),
                Some(Some(doing)) if doing.inside && header.agrees_with(&doing.header) => {
                    found.waiting.push(rank);
                    continue;
                }
                Some(Some(Activity { header: theirs, inside })) => {
                    if *inside && header.conflicts_with(theirs) {
                        found.conflict = Some((rank, theirs.to_string()));
                    }
                    format!("{} {theirs}", if *inside { "it is in" } else { "its last was" })
                }
            };
            found.missing.push(Absent { rank, state });
        }
        found.waiting.sort_unstable();
        found
    }

    /// What carries data to `peer`, decided alike by both.
    fn data_route(&self, peer: usize) -> Result<Option<String>> {
        let Some(about) = self.about(peer) else {
            return Err(Error::Internal(format!("no control connection to rank {peer}")));
        };
        match self.config.transport {
            Transport::Tcp => Ok(None),
            Transport::Auto => Ok(self.is_same_host(&about).then_some(about.shortcut)),
            _ if self.is_same_host(&about) => Ok(Some(about.shortcut)),
            transport => Err(Error::Config(format!(
                "transport {transport:?}: rank {peer} is not on the machine of rank {}",
                self.rank()
            ))),
        }
    }
}

/// In what two ranks differ that must agree.
fn difference(ours: &About, theirs: &About) -> Option<(String, String)> {
    if ours.size != theirs.size {
        return Some((counted(ours.size, "rank"), counted(theirs.size, "rank")));
    }
    if ours.job != theirs.job {
        return Some((format!("job `{}`", ours.job), format!("job `{}`", theirs.job)));
    }
    if ours.transport != theirs.transport {
        let text = |about: &About| format!("transport {:?}", about.transport);
        return Some((text(ours), text(theirs)));
    }
    None
}
