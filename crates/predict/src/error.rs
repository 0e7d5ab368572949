//! Why a model cannot be opened or a batch not scored.

use std::path::PathBuf;

/// A model that cannot be used, or a batch that it cannot score.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The files of the model.
    #[error(transparent)]
    Files(#[from] regatta_checkpoint::Error),
    /// A file that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A table that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The program of the model.
    #[error(transparent)]
    Program(Box<regatta_ir::Error>),
    /// Running it.
    #[error(transparent)]
    Exec(Box<regatta_exec::Error>),
    /// The batch is not what the model takes: the caller's mistake.
    #[error("{0}")]
    Input(String),
    /// A model that ONNX cannot express, or whose tables are too large for one file.
    #[error("model '{model}' cannot be written as ONNX: {reason}")]
    Onnx {
        /// The model.
        model: String,
        /// The reason.
        reason: String,
    },
    /// An id that has no row, where that is an error.
    #[error("input '{input}': id {id} has no row in table '{table}'")]
    MissingId {
        /// The input.
        input: String,
        /// The table.
        table: String,
        /// The id.
        id: u64,
    },
}

impl Error {
    /// Whether another batch might be scored: the mistake is in this one.
    pub fn is_input(&self) -> bool {
        match self {
            Error::Input(_) | Error::MissingId { .. } => true,
            // Names, types and widths were compared before, so only values are left to be wrong.
            Error::Exec(error) => matches!(**error, regatta_exec::Error::Kernel { .. }),
            _ => false,
        }
    }
}

impl From<regatta_ir::Error> for Error {
    fn from(error: regatta_ir::Error) -> Error {
        Error::Program(Box::new(error))
    }
}

impl From<regatta_exec::Error> for Error {
    fn from(error: regatta_exec::Error) -> Error {
        Error::Exec(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_of_a_batch_are_the_callers_mistake() {
        use regatta_exec::Error as Exec;
        let (op, output, reason) = ("embedding".into(), "e".into(), "id 9 of 5".into());
        let value = Exec::Kernel { step: 1, op, output, reason };
        assert!(Error::from(value).is_input());
        assert!(Error::Input("no such input".into()).is_input());
        for ours in [
            Exec::NotInitialised { what: "parameter", name: "w".into() },
            Exec::Fetch { name: "y".into(), reason: "nothing makes it".into() },
            Exec::Options("0 threads".into()),
        ] {
            assert!(!Error::from(ours).is_input());
        }
        let source = std::io::Error::other("gone");
        assert!(!Error::Map { path: "rows".into(), source }.is_input());
    }
}
