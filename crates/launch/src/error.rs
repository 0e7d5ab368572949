//! Why a job cannot be launched.

use std::io;
use std::path::PathBuf;

use regatta_net::Family;

/// What is wrong before any process has failed by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Flags that do not fit each other or this machine.
    #[error("{0}")]
    Usage(String),
    /// An environment variable or a list of endpoints.
    #[error(transparent)]
    Contract(#[from] regatta_cluster::Error),
    /// The program cannot be run.
    #[error("{0}")]
    Program(String),
    /// A process could not be started.
    #[error("cannot start {name} ({}): {source}", program.display())]
    Start {
        /// Which one.
        name: String,
        /// The file.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A log could not be created.
    #[error("cannot write the log {}: {source}", path.display())]
    Log {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A port of this machine that the job needs is taken.
    #[error("{name} cannot listen on {endpoint}: {source}{hint}")]
    Port {
        /// Whose it would be.
        name: String,
        /// The address.
        endpoint: String,
        /// What the system said.
        source: io::Error,
        /// Who has it, if that is known.
        hint: String,
    },
    /// Machines of the job that did not come, went away or cannot reach each other.
    #[error("{0}")]
    Machines(String),
    /// The operating system refused something that should always work.
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
            Error::Usage(_) | Error::Contract(_) | Error::Program(_) | Error::Port { .. } => {
                Family::You
            }
            Error::Start { .. } | Error::Log { .. } | Error::Machines(_) | Error::System(_) => {
                Family::Them
            }
            Error::Internal(_) => Family::Us,
        }
    }
}
