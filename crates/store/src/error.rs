//! What can go wrong with a store, with the address in every message and no secret in any.

use std::path::PathBuf;

/// Why a request to a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not one that can be used.
    #[error("{address}: {why}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such file.
    #[error("{0}: no such file")]
    Missing(String),
    /// The store knows us, or does not, and refuses.
    #[error("{address}: access denied; check the credentials and what they permit ({why})")]
    Denied {
        /// The address.
        address: String,
        /// What the store said.
        why: String,
    },
    /// The store cannot be reached, or failed.
    #[error("{address}: {why}")]
    Failed {
        /// The address.
        address: String,
        /// What happened.
        why: String,
    },
    /// What has arrived is not what was sent.
    #[error("{address}: {found} bytes have arrived, not {expected}")]
    Differs {
        /// The address.
        address: String,
        /// Bytes sent.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The operating system refused to read or write a local file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { path: path.into(), source }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Missing(_) => ErrorKind::NotFound,
            Error::Denied { .. } => ErrorKind::PermissionDenied,
            Error::Address { .. } => ErrorKind::InvalidInput,
            Error::Failed { .. } | Error::Differs { .. } => ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}
