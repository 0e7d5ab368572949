//! What can be wrong with a configuration or a run.

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key has a value that makes no sense.
    #[error("{key}: {reason}")]
    Key {
        /// The key, with its section.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// The program could not be built or rewritten.
    #[error(transparent)]
    Program(#[from] regatta_ir::Error),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] regatta_data::Error),
}

impl Error {
    /// A bad value of a key.
    pub fn key(key: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Key { key: key.into(), reason: reason.into() }
    }
}
