//! Files to records to batches: readers, datasets, shuffles and synthetic data.
//!
//! This crate knows nothing of training or of programs. It reads no environment variables, and the
//! clock only to measure its own stages and how long it waits for data; everything random follows
//! from seeds that are passed in.
//!
//! ```
//! use regatta_data::{DataLoader, Dataset, Format, LoaderOptions, Schema, Slot, Source};
//! # let dir = tempfile::tempdir()?;
//! # let file = dir.path().join("part-0");
//! // A label, any number of ids and two floats: MultiSlot text writes a count before each.
//! std::fs::write(&file, "1 1 2 17 99 2 0.5 0.25\n1 0 1 23 2 1.5 1.0\n")?;
//! let slots = vec![Slot::label("click"), Slot::ids("query"), Slot::dense("age", 2)];
//! let schema = Schema::new(slots)?;
//! let source = Source::files(schema, Format::MultiSlot, vec![file])?;
//! let loader = DataLoader::new(source, LoaderOptions::new(512))?;
//!
//! let mut batches = loader.pass(0)?;
//! while let Some(batch) = batches.next()? {
//!     assert_eq!(batch.examples(), 2);
//!     assert_eq!(batch.get("click").unwrap().as_dense().unwrap().i64(), &[1, 0]);
//!     batches.recycle(batch); // its buffers serve a later batch
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A line on its way into a batch, module by module:
//!
//! 1. `schema`: what the caller wants, [`Slot`] by slot
//! 2. `files`: which files there are, and which of them this worker reads
//! 3. `source`: a schema, a [`Format`] and files together make a [`Source`]
//! 4. `open`, `pipe`: a file, unpacked, or through a pipe command, as a stream of bytes
//! 5. `lines`: bytes to lines
//! 6. `format`: lines to [`Records`], one file per format; `number` reads the numbers in them
//! 7. `read`: puts 4 to 6 together for one file and counts malformed lines; `limits` finds ids and
//!    labels that are out of range
//! 8. `records`, `batch`: records by column, and how they become a [`Batch`]
//! 9. `dataset`: [`DataLoader`], [`QueueDataset`], [`InMemoryDataset`]: which thread reads what,
//!    and in which order
//! 10. `batches`: [`Batches`], the end of the queue that training holds
//! 11. `synthetic`: records from a formula instead of a file; `rng` and `math` are its tools
//! 12. `arrivals`: data that arrive while training, planned as data passes
//! 13. `stages`, `error`: how long it took and what went wrong
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arrivals;
mod batch;
mod batches;
mod dataset;
mod error;
mod files;
mod format;
#[cfg(feature = "kafka-server")]
pub mod kafka_server;
mod limits;
mod lines;
mod math;
mod number;
mod open;
mod pipe;
mod quotes;
mod read;
mod records;
mod rng;
mod schema;
mod source;
mod stages;
mod synthetic;

pub use batch::{Batch, FileRead};
pub use batches::{Batches, FilePosition, Position};
pub use dataset::{
    DataLoader, Dataset, InMemoryDataset, LoaderOptions, MemoryOptions, QueueDataset, QueueOptions,
};
pub use error::{BadLines, Error, LineError, Malformed};
pub use files::{list_files, split_file_list};
pub use format::{
    Criteo, CriteoRaw, DenseTransform, Dictionary, Format, LineParser, MakeParser, PaddleRec,
    PartKey, RowUse, SkipGram, Table, TextFormat, Tokens, Visitor, feature_hash, write_records,
};
pub use open::STDIN;
pub use records::Records;
pub use regatta_store::{Stores, is_remote};
pub use rng::{AliasTable, Rng};
pub use schema::{Schema, Slot, SlotKind};
pub use source::Source;
pub use stages::Stages;
pub use synthetic::{Parameter, Synthetic, write_synthetic};
