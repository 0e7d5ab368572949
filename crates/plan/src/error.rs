//! What can be wrong with a cluster plan.

use std::path::PathBuf;

/// A cluster plan that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The cluster file says something that makes no sense: every mistake, each with its line.
    #[error("{}", .0.join("\n"))]
    Cluster(Vec<String>),
    /// The model, its configuration or its data.
    #[error(transparent)]
    Model(Box<regatta_rec::Error>),
    /// A value that the cluster plan needs and no file gives.
    #[error("{0}")]
    Missing(String),
    /// A measurement of this machine failed.
    #[error("cannot measure {what}: {reason}")]
    Measure {
        /// What was to be measured.
        what: &'static str,
        /// The reason.
        reason: String,
    },
}

impl From<regatta_rec::Error> for Error {
    fn from(error: regatta_rec::Error) -> Error {
        Error::Model(Box::new(error))
    }
}

impl From<regatta_ir::Error> for Error {
    fn from(error: regatta_ir::Error) -> Error {
        Error::Model(Box::new(error.into()))
    }
}
