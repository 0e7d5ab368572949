//! `DataLoader`: one reader in file order, with an optional shuffle buffer. `RecDataset` is the
//! same without a shuffle and without an incomplete last batch.

use super::stream::{self, Leftovers, Parts};
use super::{Dataset, check_batch_size, shuffle};
use crate::batches::Output;
use crate::{Batches, Error, Position, Rng, Schema, Source};

/// How a [`DataLoader`] makes batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Examples per batch.
    pub batch_size: usize,
    /// Whether an incomplete last batch is left out.
    pub drop_last: bool,
    /// Records in the shuffle buffer; 0 keeps the order of the files.
    pub shuffle_buffer: usize,
    /// What the shuffled order depends on, together with the number of the data pass.
    pub seed: u64,
    /// Batches that are ready in advance.
    pub queue_batches: usize,
}

impl LoaderOptions {
    /// In file order, with an incomplete last batch, 8 batches prefetched.
    pub fn new(batch_size: usize) -> LoaderOptions {
        LoaderOptions { batch_size, drop_last: false, shuffle_buffer: 0, seed: 0, queue_batches: 8 }
    }

    /// What PaddleRec's `RecDataset` does: in file order, whole batches only.
    pub fn rec_dataset(batch_size: usize) -> LoaderOptions {
        LoaderOptions { drop_last: true, ..LoaderOptions::new(batch_size) }
    }
}

/// Streams a source with one reader thread. The same options and pass give the same batches.
#[derive(Debug, Clone)]
pub struct DataLoader {
    source: Source,
    options: LoaderOptions,
}

impl DataLoader {
    /// A loader; nothing is read yet.
    ///
    /// # Errors
    /// If the batch size is 0.
    pub fn new(source: Source, options: LoaderOptions) -> Result<DataLoader, Error> {
        check_batch_size(options.batch_size)?;
        Ok(DataLoader { source, options })
    }
}

impl Dataset for DataLoader {
    fn schema(&self) -> &Schema {
        self.source.schema()
    }

    /// With a shuffle buffer, the records that were handed out are read and drawn again; without,
    /// files that are done are not opened.
    fn resume(&self, pass: u64, from: &Position) -> Result<Batches, Error> {
        let LoaderOptions { batch_size, drop_last, shuffle_buffer, seed, queue_batches } =
            self.options;
        let (source, from) = (self.source.clone(), from.clone());
        let skip = from.examples;
        let replay = if shuffle_buffer > 0 { Position::default() } else { from.clone() };
        let work = move |output: &Output| {
            let parts = Parts::new(source, pass, &replay);
            if shuffle_buffer > 0 {
                let rng = Rng::new(seed, &[pass]);
                shuffle::run(&parts, shuffle_buffer, rng, batch_size, drop_last, skip, output)
            } else {
                stream::run(&parts, &Leftovers::new(1), batch_size, drop_last, output)
            }
        };
        Ok(Batches::start(&self.source, batch_size, queue_batches, &from, vec![work]))
    }
}
