//! What can go wrong, with the ranks and the operation in every message.

use std::fmt;
use std::time::Duration;

use regatta_net::Family;

/// Why a group could not be formed, or why one of its operations failed.
///
/// Cloneable: a group that has failed answers every later call with the same error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that cannot be done.
    #[error("{0}")]
    Config(String),
    /// This rank could not listen on its own endpoint.
    #[error("rank {rank} cannot listen on {endpoint}: {problem}")]
    Bind {
        /// This rank.
        rank: usize,
        /// Where.
        endpoint: String,
        /// What the system said, and what to do about it.
        problem: String,
    },
    /// Some ranks did not come within the limit.
    #[error("rank {rank} waited {} s for {}", waited.as_secs(), AbsentList(missing))]
    Missing {
        /// This rank.
        rank: usize,
        /// How long.
        waited: Duration,
        /// Who is missing, and why as far as is known.
        missing: Vec<Absent>,
    },
    /// Two ranks were started for different jobs: another program, other settings, another world.
    #[error(
        "rank {rank} and rank {peer} do not belong together: \
         rank {rank} has {ours}, rank {peer} has {theirs}"
    )]
    OtherJob {
        /// This rank.
        rank: usize,
        /// What this rank was started with.
        ours: String,
        /// The other rank.
        peer: usize,
        /// What it was started with.
        theirs: String,
    },
    /// A rank could not be admitted, or does not admit this one.
    #[error("rank {rank} cannot join rank {peer} at {endpoint}: {problem}")]
    Refused {
        /// This rank.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// Where.
        endpoint: String,
        /// Why.
        problem: String,
    },
    /// Two ranks of a group do not do the same: another order of calls, other shapes, other
    /// options.
    #[error(
        "rank {rank} and rank {peer} do different things: \
         rank {rank} is in {ours}, rank {peer} in {theirs}"
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// What this rank does.
        ours: String,
        /// The other rank.
        peer: usize,
        /// What it does.
        theirs: String,
    },
    /// A rank died, or its machine cannot be reached any more.
    #[error("lost rank {rank}: {problem}")]
    RankLost {
        /// Who.
        rank: usize,
        /// How it went.
        problem: String,
    },
    /// A rank has ended its part while others still need it.
    #[error("rank {rank} has left the group; {during} still needs it")]
    RankLeft {
        /// Who.
        rank: usize,
        /// The operation that cannot be completed.
        during: String,
    },
    /// An operation took longer than the limit.
    #[error(
        "{what} was not completed within {} s; waiting for {}",
        waited.as_secs_f32(),
        AbsentList(missing)
    )]
    Timeout {
        /// The operation.
        what: String,
        /// How long it was waited.
        waited: Duration,
        /// Who has not come, and what they do as far as is known.
        missing: Vec<Absent>,
    },
    /// Another rank has failed and notified this one.
    #[error("rank {by} gave up: {why}")]
    Aborted {
        /// Who.
        by: usize,
        /// Its error.
        why: String,
    },
    /// The operating system, or MPI, refused something that should always work.
    #[error("{0}")]
    System(String),
    /// This crate contradicts itself.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Who can do something about it.
    pub fn family(&self) -> Family {
        match self {
            Error::Config(_)
            | Error::Bind { .. }
            | Error::OtherJob { .. }
            | Error::Refused { .. }
            | Error::Mismatch { .. } => Family::You,
            Error::Missing { .. }
            | Error::RankLost { .. }
            | Error::RankLeft { .. }
            | Error::Timeout { .. }
            | Error::Aborted { .. }
            | Error::System(_) => Family::Them,
            Error::Internal(_) => Family::Us,
        }
    }
}

/// A rank that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Who.
    pub rank: usize,
    /// What is known of it: why it cannot be reached, or what it does instead.
    pub state: String,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if self.state.is_empty() { Ok(()) } else { write!(f, " ({})", self.state) }
    }
}

/// Several absent ranks in one line.
pub(crate) struct AbsentList<'a>(pub(crate) &'a [Absent]);

impl fmt::Display for AbsentList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, absent) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{absent}")?;
        }
        if self.0.is_empty() { f.write_str("nobody in particular") } else { Ok(()) }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn system(what: &str, problem: impl fmt::Display) -> Error {
    Error::System(format!("{what}: {problem}"))
}
