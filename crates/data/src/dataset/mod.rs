//! Kinds of datasets. All give their data passes as [`Batches`].

mod in_memory;
mod ledger;
mod loader;
mod queue;
mod shuffle;
mod stream;

pub use in_memory::{InMemoryDataset, MemoryOptions};
pub use loader::{DataLoader, LoaderOptions};
pub use queue::{QueueDataset, QueueOptions};

use crate::{Batches, Error, Position, Schema};

/// Data that can be read again and again.
pub trait Dataset {
    /// The slots of its batches.
    fn schema(&self) -> &Schema;

    /// Starts a data pass from where an earlier one with the same number stood: together they hand
    /// out every record exactly once. Where the order of a pass is fixed, the batches are those
    /// that the earlier pass would have given next.
    ///
    /// # Errors
    /// If there is nothing to read. What readers meet is returned by [`Batches::next`].
    fn resume(&self, pass: u64, from: &Position) -> Result<Batches, Error>;

    /// Starts data pass number `pass` (the epoch) from its beginning.
    ///
    /// # Errors
    /// As [`Dataset::resume`].
    fn pass(&self, pass: u64) -> Result<Batches, Error> {
        self.resume(pass, &Position::default())
    }
}

/// Batches of no examples would never end.
fn check_batch_size(batch_size: usize) -> Result<(), Error> {
    if batch_size == 0 { Err(Error::config("batch_size must be at least 1")) } else { Ok(()) }
}
