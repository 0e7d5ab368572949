//! What can go wrong, with the peer and the endpoint in every message.

use std::time::Duration;

use crate::identity::Identity;

/// Why a connection, a request or a reply failed.
///
/// Cloneable, because one lost peer fails every request in flight.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that cannot be done.
    #[error("{0}")]
    Config(String),
    /// The server could not listen.
    #[error("cannot listen on {endpoint}: {problem}{hint}")]
    Bind {
        /// Where.
        endpoint: String,
        /// What the system said.
        problem: String,
        /// What to do about it; empty when nothing is known.
        hint: String,
    },
    /// A payload is larger than one of the two ends allows.
    #[error("payload of {len} bytes for {peer}: the limit is {limit}")]
    PayloadTooLarge {
        /// Who would have received it.
        peer: Identity,
        /// Its size.
        len: u64,
        /// The smaller of both limits.
        limit: u64,
    },

    /// The two ends have different job tokens.
    #[error(
        "{server} at {endpoint} refused the job token: it belongs to another job, or one of the \
         two was started with a wrong token"
    )]
    WrongToken {
        /// Who should have been there.
        server: Identity,
        /// Where.
        endpoint: String,
    },
    /// The server could not prove that it knows the job token.
    #[error("{endpoint} answers as {server} but does not know the job token")]
    ImposterServer {
        /// Who it says it is.
        server: Identity,
        /// Where.
        endpoint: String,
    },
    /// The two ends are different versions of this program.
    #[error(
        "{endpoint} speaks protocol version {theirs}, this process {ours}: \
         use the same build everywhere"
    )]
    WrongVersion {
        /// Where.
        endpoint: String,
        /// Version of this process.
        ours: u16,
        /// Version of the peer.
        theirs: u16,
    },
    /// Somebody of the same job answers, but not the one that was meant.
    #[error(
        "expected {expected} at {endpoint} but {actual} answers there: \
         check the order of the endpoint list"
    )]
    WrongServer {
        /// Whom the caller wanted.
        expected: Identity,
        /// Who is there.
        actual: Identity,
        /// Where.
        endpoint: String,
    },
    /// Something that does not speak this protocol answers.
    #[error("expected {server} at {endpoint} but the answer is not this protocol: {problem}")]
    NotOurProtocol {
        /// Who should have been there.
        server: Identity,
        /// Where.
        endpoint: String,
        /// What was wrong with the answer.
        problem: String,
    },

    /// Both ends know the job token, but have not the same encrypted channel.
    #[error(
        "{server} at {endpoint}: somebody between the two ends reads along, who ends TLS and \
         begins it again; the connection is not used"
    )]
    Intercepted {
        /// Who should have been there.
        server: Identity,
        /// Where.
        endpoint: String,
    },
    /// The two ends do not agree on encryption.
    #[error("{server} at {endpoint}: {problem}")]
    Encryption {
        /// Who should have been there.
        server: Identity,
        /// Where.
        endpoint: String,
        /// How they differ, or what is wrong with a certificate.
        problem: String,
    },

    /// The process there is of this job, but does not admit this one.
    #[error("{server} at {endpoint} refused this process: {problem}")]
    Refused {
        /// Who is there.
        server: Identity,
        /// Where.
        endpoint: String,
        /// Why.
        problem: String,
    },

    /// The server never came up within the limit.
    #[error(
        "{server} at {endpoint} could not be reached within {} s: {problem}",
        waited.as_secs_f32()
    )]
    Unreachable {
        /// Who.
        server: Identity,
        /// Where.
        endpoint: String,
        /// How long it was tried.
        waited: Duration,
        /// The last failure.
        problem: String,
    },
    /// A peer that was connected is gone and did not come back within the limit.
    #[error("lost {peer} at {endpoint}: {problem}")]
    PeerLost {
        /// Who.
        peer: Identity,
        /// Where.
        endpoint: String,
        /// How it went.
        problem: String,
    },
    /// The server came back as a new process: what it held is gone.
    #[error("{server} at {endpoint} was restarted and has lost its state")]
    ServerRestarted {
        /// Who.
        server: Identity,
        /// Where.
        endpoint: String,
    },
    /// A deadline passed; the peer is alive as far as is known.
    #[error("no {what} from {peer} at {endpoint} within {} s", waited.as_secs_f32())]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// From whom.
        peer: Identity,
        /// Where.
        endpoint: String,
        /// How long.
        waited: Duration,
    },
    /// The server answered that it could not handle the request.
    #[error("{server} at {endpoint} failed on request kind {kind}: {problem}")]
    Remote {
        /// Who.
        server: Identity,
        /// Where.
        endpoint: String,
        /// The kind of the request.
        kind: u16,
        /// What it said.
        problem: String,
    },
    /// The client or the server object was closed by its owner.
    #[error("the connection to {peer} was closed by this process")]
    Closed {
        /// The far end.
        peer: Identity,
    },
    /// The operating system refused something that should always work.
    #[error("{0}")]
    System(String),
}

/// Who can do something about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// The user: a setting, an endpoint or a token is wrong. Trying again does not help.
    You,
    /// A peer, the network or the operating system. Starting again may help.
    Them,
    /// This program: it contradicts itself. Worth a bug report.
    Us,
}

impl Error {
    /// Who can do something about it.
    pub fn family(&self) -> Family {
        match self {
            Error::Config(_)
            | Error::Bind { .. }
            | Error::PayloadTooLarge { .. }
            | Error::WrongToken { .. }
            | Error::ImposterServer { .. }
            | Error::WrongVersion { .. }
            | Error::WrongServer { .. }
            | Error::NotOurProtocol { .. }
            | Error::Intercepted { .. }
            | Error::Encryption { .. }
            | Error::Refused { .. } => Family::You,
            Error::Unreachable { .. }
            | Error::PeerLost { .. }
            | Error::ServerRestarted { .. }
            | Error::Timeout { .. }
            | Error::Remote { .. }
            | Error::System(_) => Family::Them,
            Error::Closed { .. } => Family::Us,
        }
    }
}

/// A number of things, for messages: `1 rank`, `2 ranks`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
