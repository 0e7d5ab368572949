//! What can be wrong with a configuration or a run.

use regatta_train::Error as TrainError;

/// A configuration that cannot be used, or a run that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// You: what was written makes no sense; every mistake, each with its file and line.
    #[error("{}", .0.join("\n"))]
    Config(Vec<String>),
    /// You: a key has a value that makes no sense.
    #[error("{key}: {reason}")]
    Key {
        /// The key, with its section.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// You or them: the model does not fit into the memory of this machine.
    #[error("{0}")]
    Memory(String),
    /// You: a strategy that cannot be honoured; or them: ranks that do not come.
    #[error(transparent)]
    Fleet(Box<regatta_fleet::Error>),
    /// You: test data that the model's evaluation cannot use.
    #[error("{0}")]
    Evaluation(String),
    /// Whatever the loop met.
    #[error(transparent)]
    Train(Box<TrainError>),
}

regatta_train::front_error!(Error);

impl From<regatta_fleet::Error> for Error {
    fn from(error: regatta_fleet::Error) -> Error {
        Error::Fleet(Box::new(error))
    }
}

impl From<regatta_features::Error> for Error {
    fn from(error: regatta_features::Error) -> Error {
        use regatta_features::Error::{Declaration, NotLearned};
        match error {
            Declaration { feature, reason } | NotLearned { feature, reason } => {
                Error::key(format!("features.{feature}"), reason)
            }
            other => Error::key("features", other.to_string()),
        }
    }
}

impl Error {
    /// A bad value of a key.
    pub fn key(key: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Key { key: key.into(), reason: reason.into() }
    }

    /// A saved model or checkpoint that cannot be used.
    pub(crate) fn resume(reason: String) -> Error {
        Error::Train(Box::new(TrainError::Resume(reason)))
    }

    /// Whether the user must change what was written, rather than the data or the machine.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Config(_) | Error::Key { .. } => true,
            Error::Train(e) => e.is_usage(),
            Error::Memory(_) | Error::Fleet(_) | Error::Evaluation(_) => false,
        }
    }
}
