//! What can go wrong between workers and servers: your mistakes, trouble of others, and ours.

/// A failed exchange.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// You: what was asked for cannot be done.
    #[error("{0}")]
    Usage(String),
    /// You or them: a table refuses its configuration or has no memory left.
    #[error("table '{name}': {source}")]
    Table {
        /// Its name.
        name: String,
        /// Why.
        source: regatta_table::Error,
    },
    /// You or them: as [`Error::Table`], of a dense parameter.
    #[error("parameter '{name}': {source}")]
    Parameter {
        /// Its name.
        name: String,
        /// Why.
        source: regatta_table::Error,
    },
    /// Them: the server says no.
    #[error("server {server} at {endpoint}: {reason}")]
    Refused {
        /// Its number.
        server: usize,
        /// Its address.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// Them: servers have lost this worker, and continue without it.
    #[error("server {server} at {endpoint}: {reason}")]
    Dropped {
        /// Number of a server that says so.
        server: usize,
        /// Its address.
        endpoint: String,
        /// How it was lost.
        reason: String,
    },
    /// Them: a worker was lost or does not belong to the job, or the job has failed.
    #[error("{0}")]
    Peer(String),
    /// Them: bytes that are not what they should be.
    #[error("malformed message: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// Them: the connection failed for good.
    #[error(transparent)]
    Net(#[from] regatta_net::Error),
    /// Them: files are missing, damaged, of another job, or cannot be written.
    #[error(transparent)]
    Files(#[from] regatta_checkpoint::Error),
    /// Us: something that this crate promises is not so.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    pub(crate) fn usage(reason: impl Into<String>) -> Error {
        Error::Usage(reason.into())
    }

    pub(crate) fn peer(reason: impl Into<String>) -> Error {
        Error::Peer(reason.into())
    }

    pub(crate) fn malformed(reason: impl Into<String>) -> Error {
        Error::Malformed { reason: reason.into() }
    }

    pub(crate) fn internal(reason: impl Into<String>) -> Error {
        Error::Internal(reason.into())
    }

    pub(crate) fn table(name: &str, source: regatta_table::Error) -> Error {
        Error::Table { name: name.to_string(), source }
    }

    pub(crate) fn parameter(name: &str, source: regatta_table::Error) -> Error {
        Error::Parameter { name: name.to_string(), source }
    }
}
