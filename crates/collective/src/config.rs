//! What a rank needs to join, and what it reports while it runs.

use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use regatta_net::{JobToken, own_address};

use crate::error::{Absent, AbsentList, Result, system};

/// How one rank takes part. Start from [`GroupConfig::new`] and change fields.
#[derive(Clone)]
pub struct GroupConfig {
    /// Which of the endpoints this process is.
    pub rank: usize,
    /// Where each rank listens, in the order of ranks: `host:port`, or `unix:@name` on one machine.
    pub endpoints: Vec<String>,
    /// The secret of the job.
    pub token: JobToken,
    /// What all ranks must agree on: a description or fingerprint of program and settings. Ranks
    /// with another one refuse each other, naming both.
    pub job: String,
    /// How long all ranks together may take to come up (120 s).
    pub start_timeout: Duration,
    /// How long one operation may take, the time until the last rank calls it included (30 min).
    pub op_timeout: Duration,
    /// Silence after which a machine counts as gone (20 s). A process that dies is noticed at once.
    pub peer_timeout: Duration,
    /// How often missing ranks are reported while the group forms (3 s).
    pub report_every: Duration,
    /// After how long, and then how often, an operation that waits is reported (10 s).
    pub stall_after: Duration,
    /// What carries the data.
    pub transport: Transport,
    /// Notified of waits and trouble; nobody by default.
    pub observer: Observer,
    /// A socket that is bound already, instead of binding `endpoints[rank]`.
    pub listener: Option<Arc<TcpListener>>,
}

impl GroupConfig {
    /// Defaults for `rank` among `endpoints`.
    pub fn new(rank: usize, endpoints: Vec<String>, token: JobToken) -> GroupConfig {
        GroupConfig {
            rank,
            endpoints,
            token,
            job: String::new(),
            start_timeout: Duration::from_secs(120),
            op_timeout: Duration::from_secs(1800),
            peer_timeout: Duration::from_secs(20),
            report_every: Duration::from_secs(3),
            stall_after: Duration::from_secs(10),
            transport: Transport::Auto,
            observer: Arc::new(|_| {}),
            listener: None,
        }
    }

    /// Listens at a free port of the address that this machine has on the way to `host:port`, and
    /// gives that address: ranks that tell each other theirs need not know any before.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if there is no way to it, or no port.
    pub fn listen_towards(&mut self, address: &str) -> Result<String> {
        let fail = |e| system(&format!("cannot listen for the others on the way to {address}"), e);
        let own = own_address(address).map_err(fail)?;
        let listener = TcpListener::bind((own, 0)).map_err(fail)?;
        let endpoint = listener.local_addr().map_err(fail)?.to_string();
        self.listener = Some(Arc::new(listener));
        Ok(endpoint)
    }
}

impl fmt::Debug for GroupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupConfig")
            .field("rank", &self.rank)
            .field("endpoints", &self.endpoints)
            .field("job", &self.job)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

/// What carries the data of a group. All ranks must ask for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Transport {
    /// Shared memory when all ranks of the group are on one machine. Otherwise Unix sockets between
    /// ranks on one machine, TCP between machines, and between containers on one machine.
    #[default]
    Auto = 0,
    /// Shared memory; an error when a rank is on another machine.
    SharedMemory = 1,
    /// Unix sockets; an error when a rank is on another machine.
    Unix = 2,
    /// TCP, on one machine too.
    Tcp = 3,
    /// Messages of MPI, in a job that `mpirun` has started. Needs the cargo feature `mpi`; ranks
    /// must be those of `MPI_COMM_WORLD`, as in the configuration that `Mpi::config` makes.
    Mpi = 4,
}

impl Transport {
    pub(crate) fn from_wire(code: u8) -> Option<Transport> {
        use Transport::{Auto, Mpi, SharedMemory, Tcp, Unix};
        let all = [Auto, SharedMemory, Unix, Tcp, Mpi];
        all.into_iter().find(|transport| *transport as u8 == code)
    }
}

/// Receives [`Event`]s. Called from the threads of this crate: it should return quickly and must
/// not call back into the group.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// Something worth a line in the log; the line is its `Display`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The group is not complete yet.
    Waiting {
        /// This rank.
        rank: usize,
        /// Since the start.
        waited: Duration,
        /// Who is missing, and why as far as is known.
        missing: Vec<Absent>,
    },
    /// All ranks are there.
    Connected {
        /// This rank.
        rank: usize,
        /// How many there are.
        size: usize,
        /// What carries the data.
        transport: String,
    },
    /// An operation waits for long.
    Stalled {
        /// The operation, with its tensor.
        what: String,
        /// How long.
        waited: Duration,
        /// The ranks that wait in the same operation, this one included.
        waiting: Vec<usize>,
        /// The ranks that have not come, and what they do instead.
        missing: Vec<Absent>,
    },
    /// All ranks of a group are on one machine, but cannot share memory: slower sockets are used.
    NoSharedMemory {
        /// This rank.
        rank: usize,
        /// Why.
        problem: String,
    },
    /// A rank on this machine does not answer on its Unix socket: TCP carries its data.
    OverTcp {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
        /// What the socket said.
        problem: String,
    },
    /// More connections were turned away than were reported one by one.
    TurnedAwayMore {
        /// How many more.
        count: u64,
    },
    /// Somebody who does not belong here connected.
    TurnedAway {
        /// From where.
        address: String,
        /// Why.
        problem: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Waiting { rank, waited, missing } => {
                write!(f, "rank {rank} waits for {} ({} s)", AbsentList(missing), waited.as_secs())
            }
            Event::Connected { rank, size: 1, .. } => {
                write!(f, "rank {rank} of 1: there are no others to connect to")
            }
            Event::Connected { rank, size, transport } => {
                write!(f, "rank {rank} of {size} connected over {transport}")
            }
            Event::Stalled { what, waited, waiting, missing } => write!(
                f,
                "{what} waits since {} s: ranks {waiting:?} are there, not {}",
                waited.as_secs(),
                AbsentList(missing)
            ),
            Event::NoSharedMemory { rank, problem } => {
                write!(f, "rank {rank} uses sockets instead of shared memory: {problem}")
            }
            Event::OverTcp { rank, peer, problem } => write!(
                f,
                "rank {rank} reaches rank {peer} over TCP: it is on this machine, but its Unix \
                 socket does not answer, as in another container ({problem})"
            ),
            Event::TurnedAwayMore { count } => {
                write!(f, "turned away {count} more connections within a minute")
            }
            Event::TurnedAway { address, problem } => {
                write!(f, "turned away a connection from {address}: {problem}")
            }
        }
    }
}
