//! What can go wrong between memory and disk.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A save or load that did not happen. After a failed save the old file is still there; after a
/// failed load nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused: missing file, no permission, disk full.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `read`, `write`, `replace`, ...
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is truncated, foreign or damaged.
    #[error("{}: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file was written by another version of this crate.
    #[error("{}: format version {found} is not supported (only {supported})", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version it has.
        found: String,
        /// The version that can be read.
        supported: u32,
    },
    /// Something that was asked for makes no sense here.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A table could not give or take rows.
    #[error("{}: table '{table}': {source}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// Name of the table.
        table: String,
        /// The reason.
        source: regatta_table::Error,
    },
    /// The tensors of a file are not those of the program.
    #[error("{}: does not fit program '{program}'{}", path.display(), lines(.differences))]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Name of the program.
        program: String,
        /// All differences.
        differences: Vec<Difference>,
    },
    /// Values to be saved are not there, or are not what the program declares.
    #[error("cannot save program '{program}'{}", lines(.differences))]
    Values {
        /// Name of the program.
        program: String,
        /// All differences.
        differences: Vec<Difference>,
    },
    /// Two tensors of one name, or a name that the format reserves.
    #[error("cannot save a tensor under the name '{name}': {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model's inputs or outputs are not those of its program.
    #[error("cannot save an inference model: {reason}")]
    Model {
        /// What is wrong.
        reason: String,
    },
    /// A directory holds something that a save would destroy.
    #[error(
        "cannot save a model as {}: the directory holds '{entry}', which is not part of a model",
        path.display()
    )]
    Occupied {
        /// The directory.
        path: PathBuf,
        /// One thing in it.
        entry: String,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_path_buf(), source }
    }

    /// Names what the user knows, `to`, in the place of the temporary directory `from`.
    #[must_use]
    pub fn moved(self, from: &Path, to: &Path) -> Error {
        match self {
            Error::Io { action, path, source } => {
                let path = path.strip_prefix(from).map(|rest| to.join(rest)).unwrap_or(path);
                Error::Io { action, path, source }
            }
            other => other,
        }
    }

    pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> Error {
        Error::Refused { path: path.to_path_buf(), reason: reason.into() }
    }

    pub(crate) fn table(path: &Path, table: &str) -> impl FnOnce(regatta_table::Error) -> Error {
        let (path, table) = (path.to_path_buf(), table.to_string());
        move |source| Error::Table { path, table, source }
    }

    pub(crate) fn corrupt(path: &Path, reason: impl Into<String>) -> Error {
        Error::Corrupt { path: path.to_path_buf(), reason: reason.into() }
    }
}

/// One way in which tensors are not what a program declares.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The program keeps it, but there is no value.
    Missing {
        /// Its name.
        name: String,
        /// Its declared type.
        expected: String,
    },
    /// There is a value, but the program has no such variable.
    Unexpected {
        /// Its name.
        name: String,
    },
    /// The value has another shape or element type.
    Type {
        /// Its name.
        name: String,
        /// As declared.
        expected: String,
        /// As found.
        actual: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing { name, expected } => write!(f, "'{name}' ({expected}) is missing"),
            Difference::Unexpected { name } => write!(f, "'{name}' is unexpected"),
            Difference::Type { name, expected, actual } => {
                write!(f, "'{name}' should be {expected}, but is {actual}")
            }
        }
    }
}

fn lines(differences: &[Difference]) -> String {
    differences.iter().map(|d| format!("\n  {d}")).collect()
}
