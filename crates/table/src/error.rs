//! What can go wrong with a table: a request or a configuration goes in, an [`Error`] comes out.

use crate::TableId;

/// Why a table refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that no table can honour.
    #[error("{table}: {what}")]
    Config {
        /// The table.
        table: TableId,
        /// The field and what is wrong with it.
        what: String,
    },
    /// A configuration of an update rule that means nothing.
    #[error("{table}: {source}")]
    Rule {
        /// The table.
        table: TableId,
        /// What is wrong.
        source: regatta_optim::Error,
    },
    /// A slice of the wrong length.
    #[error("{table}: {what} has {actual} values, expected {expected}")]
    Length {
        /// The table.
        table: TableId,
        /// Which slice.
        what: &'static str,
        /// How long it must be.
        expected: usize,
        /// How long it is.
        actual: usize,
    },
    /// An index that is not one of those there are.
    #[error("{table}: {what} {index}, but there are {len}")]
    NoSuch {
        /// The table.
        table: TableId,
        /// What the index counts.
        what: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        len: usize,
    },
    /// A dense table was read before anyone gave it values.
    #[error("{table}: no values have been set yet")]
    NotSet {
        /// The table.
        table: TableId,
    },
    /// A shard has as many rows as it can number.
    #[error("a shard is full with {rows} rows; use more shards")]
    ShardFull {
        /// How many it has.
        rows: usize,
    },
    /// A moment of the table cannot be saved now.
    #[error("{table}: {what}")]
    Snapshot {
        /// The table.
        table: TableId,
        /// Why not.
        what: &'static str,
    },
    /// Rows outside of memory could not be read or written. The table refuses everything from then
    /// on.
    #[error("{table}: {what}")]
    Cold {
        /// The table.
        table: TableId,
        /// The file and what happened.
        what: String,
    },
    /// The system gave no memory.
    #[error("no memory for {bytes} bytes: {why}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What the system said.
        why: String,
    },
    /// A thread panicked while it changed this part of the table, which may be half-changed.
    #[error("{table}: shard {shard} is unusable since a thread panicked while changing it")]
    Poisoned {
        /// The table.
        table: TableId,
        /// The shard, or the parameter of a dense table.
        shard: usize,
    },
}

/// Checks the length of a slice that a caller gave.
pub(crate) fn check_len(
    table: TableId,
    what: &'static str,
    actual: usize,
    expected: usize,
) -> Result<(), Error> {
    if actual == expected { Ok(()) } else { Err(Error::Length { table, what, expected, actual }) }
}
