//! What can go wrong between workers and servers.

/// A failed exchange.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes that are not what they should be.
    #[error("malformed message: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The server says no.
    #[error("server {server} at {endpoint}: {reason}")]
    Refused {
        /// Its number.
        server: usize,
        /// Its address.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// The connection failed for good.
    #[error(transparent)]
    Net(#[from] regatta_net::Error),
    /// Something about the job itself.
    #[error("{0}")]
    Job(String),
}

impl Error {
    pub(crate) fn malformed(reason: impl Into<String>) -> Error {
        Error::Malformed { reason: reason.into() }
    }
}
