//! What an operator wants to read while it runs: events for the log, counters for the report.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::counted;
use crate::identity::{Identity, Peer};
use crate::refusals::INTERVAL;

/// Receives [`Event`]s. Called from the threads of this crate: it should return quickly and must
/// not call back into the client or server.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// Something worth a line in the log; the line is its `Display`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A client cannot reach its server yet, or not again yet. Repeated every few seconds.
    Waiting {
        /// Who.
        server: Identity,
        /// Where.
        endpoint: String,
        /// Since the first attempt.
        waited: Duration,
        /// Why the last attempt failed.
        problem: String,
    },
    /// A client is connected for the first time.
    Connected {
        /// To whom.
        server: Identity,
        /// Where.
        endpoint: String,
        /// `"tcp"`, `"tls"`, `"unix"` or `"memory"`: what the data takes.
        transport: &'static str,
    },
    /// A client's connection broke; it tries to get another.
    Broken {
        /// To whom.
        server: Identity,
        /// Where.
        endpoint: String,
        /// How.
        problem: String,
    },
    /// A client is connected again.
    Reconnected {
        /// To whom.
        server: Identity,
        /// Where.
        endpoint: String,
        /// Since the connection broke.
        outage: Duration,
        /// Requests without a reply that were sent again.
        resent: usize,
    },
    /// A client gave up on its server.
    GaveUp {
        /// Why; it is what requests return from now on.
        error: crate::Error,
    },
    /// A server turned away a connection that did not complete the handshake.
    Refused {
        /// From where.
        address: String,
        /// Why.
        problem: String,
    },
    /// A server turned away more connections than it reported one by one.
    RefusedMore {
        /// How many more.
        count: u64,
    },
    /// A server closed the connection of a peer that sent something senseless.
    Misbehaved {
        /// Who.
        peer: Peer,
        /// What it sent.
        problem: String,
    },
    /// A handler panicked; the peer received an error reply.
    HandlerPanicked {
        /// Whose request.
        peer: Peer,
        /// Its kind.
        kind: u16,
        /// The panic message.
        message: String,
    },
    /// A server could not accept or start a connection; it continues.
    AcceptFailed {
        /// What the system said.
        problem: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Waiting { server, endpoint, waited, problem } => {
                write!(f, "waiting for {server} at {endpoint} ({} s): {problem}", waited.as_secs())
            }
            Event::Connected { server, endpoint, transport } => {
                write!(f, "connected to {server} at {endpoint} ({transport})")
            }
            Event::Broken { server, endpoint, problem } => {
                write!(f, "connection to {server} at {endpoint} broke: {problem}; reconnecting")
            }
            Event::Reconnected { server, endpoint, outage, resent } => write!(
                f,
                "reconnected to {server} at {endpoint} after {:.1} s, {} sent again",
                outage.as_secs_f32(),
                counted(*resent, "request")
            ),
            Event::GaveUp { error } => error.fmt(f),
            Event::Refused { address, problem } => {
                write!(f, "refused a connection from {address}: {problem}")
            }
            Event::RefusedMore { count } => {
                let count = counted(usize::try_from(*count).unwrap_or(usize::MAX), "connection");
                write!(f, "refused {count} more within {} s", INTERVAL.as_secs())
            }
            Event::Misbehaved { peer, problem } => {
                write!(f, "closed the connection of {peer}: {problem}")
            }
            Event::HandlerPanicked { peer, kind, message } => {
                write!(f, "handling a request of kind {kind} from {peer} panicked: {message}")
            }
            Event::AcceptFailed { problem } => write!(f, "cannot accept a connection: {problem}"),
        }
    }
}

/// Counters since the start, headers included, handshakes and heartbeats not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes handed to the transport.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
    /// Requests or replies handed to the transport.
    pub frames_sent: u64,
    /// Replies or requests read.
    pub frames_received: u64,
}

#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    frames_sent: AtomicU64,
    frames_received: AtomicU64,
}

impl TrafficCounters {
    pub(crate) fn sent(&self, bytes: usize) {
        self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.frames_sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.frames_received.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn frames_sent(&self) -> u64 {
        self.frames_sent.load(Ordering::Relaxed)
    }

    pub(crate) fn frames_received(&self) -> u64 {
        self.frames_received.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> Traffic {
        Traffic {
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
            bytes_received: self.bytes_received.load(Ordering::Relaxed),
            frames_sent: self.frames_sent(),
            frames_received: self.frames_received(),
        }
    }
}
