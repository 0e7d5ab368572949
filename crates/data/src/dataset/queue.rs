//! `QueueDataset`: several reader threads over the files, batches in the order in which they get
//! ready.

use std::sync::Arc;

use super::stream::{self, Leftovers, Parts};
use super::{Dataset, check_batch_size};
use crate::batches::Output;
use crate::{Batches, Error, Position, Schema, Source};

/// How a [`QueueDataset`] makes batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOptions {
    /// Examples per batch.
    pub batch_size: usize,
    /// Whether an incomplete last batch is left out.
    pub drop_last: bool,
    /// Reader threads; never more than there are files.
    pub thread_num: usize,
    /// Batches that are ready in advance, over all threads.
    pub queue_batches: usize,
}

impl QueueOptions {
    /// One thread, with an incomplete last batch, 16 batches prefetched.
    pub fn new(batch_size: usize) -> QueueOptions {
        QueueOptions { batch_size, drop_last: false, thread_num: 1, queue_batches: 16 }
    }
}

/// Streams a source with several reader threads.
///
/// With one thread the order is that of the files. With several, each takes the next file when it
/// is done with one, so the order of batches and their make-up vary from run to run; every record
/// still comes exactly once, and only the last batch can be incomplete.
#[derive(Debug, Clone)]
pub struct QueueDataset {
    source: Source,
    options: QueueOptions,
}

impl QueueDataset {
    /// A dataset; nothing is read yet.
    ///
    /// # Errors
    /// If the batch size or the number of threads is 0.
    pub fn new(source: Source, options: QueueOptions) -> Result<QueueDataset, Error> {
        check_batch_size(options.batch_size)?;
        if options.thread_num == 0 {
            return Err(Error::config("thread_num must be at least 1"));
        }
        Ok(QueueDataset { source, options })
    }
}

impl Dataset for QueueDataset {
    fn schema(&self) -> &Schema {
        self.source.schema()
    }

    fn resume(&self, pass: u64, from: &Position) -> Result<Batches, Error> {
        let QueueOptions { batch_size, drop_last, thread_num, queue_batches } = self.options;
        let n = thread_num.min(self.source.parts().len());
        let parts = Arc::new(Parts::new(self.source.clone(), pass, from));
        let leftovers = Arc::new(Leftovers::new(n));
        let work = |_| {
            let (parts, leftovers) = (parts.clone(), leftovers.clone());
            move |output: &Output| stream::run(&parts, &leftovers, batch_size, drop_last, output)
        };
        let threads = (0..n).map(work).collect();
        Ok(Batches::start(&self.source, batch_size, queue_batches, from, threads))
    }
}
