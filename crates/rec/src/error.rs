//! What can be wrong with a configuration or a run.

use std::path::PathBuf;

/// A configuration that cannot be used, or a run that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was written makes no sense: every mistake, each with its place.
    #[error("{}", .0.join("\n"))]
    Config(Vec<String>),
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
    Program(Box<regatta_ir::Error>),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] regatta_data::Error),
    /// A step failed.
    #[error(transparent)]
    Exec(Box<regatta_exec::Error>),
    /// A checkpoint that this run cannot go on from.
    #[error("{0}")]
    Resume(String),
    /// A model could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] regatta_checkpoint::Error),
    /// Training with other processes failed.
    #[error(transparent)]
    Fleet(Box<regatta_fleet::Error>),
    /// A report or an event file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A remote store cannot be reached, refuses, or holds something else.
    #[error("{0}")]
    Store(String),
    /// Test data that the model's evaluation cannot use.
    #[error("{0}")]
    Evaluation(String),
}

impl From<regatta_ir::Error> for Error {
    fn from(error: regatta_ir::Error) -> Error {
        Error::Program(Box::new(error))
    }
}

impl From<regatta_fleet::Error> for Error {
    fn from(error: regatta_fleet::Error) -> Error {
        Error::Fleet(Box::new(error))
    }
}

impl From<regatta_exec::Error> for Error {
    fn from(error: regatta_exec::Error) -> Error {
        Error::Exec(Box::new(error))
    }
}

impl Error {
    /// A bad value of a key.
    pub fn key(key: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Key { key: key.into(), reason: reason.into() }
    }

    /// Whether the user must change what was written, rather than the data or the machine.
    pub fn is_usage(&self) -> bool {
        use regatta_data::Error::Config as DataConfig;
        matches!(self, Error::Config(_) | Error::Key { .. } | Error::Data(DataConfig(_)))
    }
}
