//! What can go wrong, with the file and the offset in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::RecordNo;
use crate::descriptors::explain;

/// Why an operation of a store failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that cannot be honoured.
    #[error("cold store: {0}")]
    Options(String),
    /// Another store of a live process has the directory.
    #[error("{}: in use by process {owner}; give every store a directory of its own", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// What the owner wrote about itself.
        owner: String,
    },
    /// The directory holds something that no store wrote.
    #[error("{}: holds '{file}', which is not of a cold store; give it an empty directory", dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
        /// The first such file.
        file: String,
    },
    /// The system refused to read or write.
    #[error("{}: cannot {action} at byte {offset}: {source}", file.display())]
    Io {
        /// The verb.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A file ends too early.
    #[error("{}: only {actual} of {expected} bytes at byte {offset}", file.display())]
    ShortRead {
        /// The file.
        file: PathBuf,
        /// Where the read began.
        offset: u64,
        /// Bytes that should be there.
        expected: usize,
        /// Bytes that are.
        actual: usize,
    },
    /// What is in the file is not what was written there.
    #[error("{}: wrong checksum at byte {offset}", file.display())]
    Checksum {
        /// The file.
        file: PathBuf,
        /// Where the record or header begins.
        offset: u64,
    },
    /// The header is not the one that was written.
    #[error("{}: {field} at byte {offset} is {actual}, not {expected}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// Which field.
        field: &'static str,
        /// Where it is.
        offset: u64,
        /// What belongs there.
        expected: u64,
        /// What is there.
        actual: u64,
    },
    /// No thread can be started, or no ring made.
    #[error("cold store: cannot start {what}: {source}")]
    Start {
        /// What was to be started.
        what: &'static str,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// All record numbers are taken.
    #[error("cold store: all {0} record numbers are taken; use several stores, or compact")]
    Full(u32),
    /// A record has another number of words than the store was made for.
    #[error("cold store: a record of {actual} words, not {expected}")]
    Words {
        /// What the store was made for.
        expected: usize,
        /// What was given.
        actual: usize,
    },
    /// Records to load come in a wrong order.
    #[error("cold store: records to load must ascend: {hash:#018x} follows {previous:#018x}")]
    Unsorted {
        /// The hash that came too late.
        hash: u64,
        /// The one before it.
        previous: u64,
    },
    /// The number is of no live record.
    #[error("cold store: record {0:?} is not live: it was released or moved")]
    NotLive(RecordNo),
    /// The store failed before, and its contents cannot be trusted.
    #[error("the cold store has failed before: {0}")]
    Poisoned(Arc<Error>),
}

impl Error {
    pub(crate) fn io(action: &'static str, file: &Path, offset: u64, source: io::Error) -> Error {
        Error::Io { action, file: file.into(), offset, source: Arc::new(explain(source)) }
    }

    pub(crate) fn start(what: &'static str, source: io::Error) -> Error {
        Error::Start { what, source: Arc::new(source) }
    }
}
