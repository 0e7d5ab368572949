//! Rows that do not fit into memory: records of a fixed number of words, in files of one process.
//!
//! A store takes records, each with a 64-bit hash and a tag, and gives them numbers. They lie in
//! memory until a segment of 64 MB is full; a thread sorts it by hash and writes it. Batches of
//! numbers are read by io_uring or by threads, many pages at a time. Segments that are mostly
//! released are compacted.
//!
//! It is memory, not storage: nothing survives the process, nothing is synchronized to disk, files
//! are removed at the start and at the end. It knows nothing of tables, and has no index: whoever
//! puts a record keeps its number. After a failed read or write, or a wrong checksum, the store
//! refuses everything: an error, never a wrong row.
//!
//! ```
//! use regatta_cold::{Options, Store};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let dir = folder.path().join("rows");
//! let store = Store::open(&dir, &Options::new(3))?;
//! let number = store.put(0x5eed, 7, &[1, 2, 3])?;
//! let ticket = store.submit(&[number])?;
//! let records = ticket.wait()?;
//! let record = records.get(0).expect("nobody has released it");
//! assert_eq!((record.hash, record.tag, record.words), (0x5eed, 7, &[1, 2, 3][..]));
//! store.release(&[number])?;
//! # Ok::<(), regatta_cold::Error>(())
//! ```
//!
//! Reading order: `layout` (bytes), `segment` (files), `memory` (what fills), `state` (numbers),
//! `store`, `seal` (writing), `batch` and `engine` (reading, by `ring` or `threads`), `compact`,
//! `scan`, `load`; `directory`, `descriptors`, `health`, `bits` and `buffer` serve them.

mod batch;
mod bits;
mod buffer;
mod compact;
mod descriptors;
mod directory;
mod engine;
mod error;
mod health;
mod layout;
mod load;
mod memory;
#[cfg(target_os = "linux")]
mod ring;
mod scan;
mod seal;
mod segment;
mod state;
mod store;
mod threads;

pub use batch::{Held, Record, Ticket};
pub use compact::{Compacted, Compactor};
pub use directory::sweep;
pub use engine::EngineChoice;
pub use error::Error;
pub use health::Stats;
pub use load::Loader;
pub use scan::{Pins, Scan};
pub use store::{Info, Options, RecordNo, Store};
