//! One shard of parameters in one process: sparse tables (rows by id) and dense tables (a range of
//! a flat vector).
//!
//! Everything is synchronous and usable by several threads through `&self`. There is no network and
//! no global state here, no clock that anything depends on, and no file but those of rows that do
//! not fit into memory: days and seeds are passed in, and so are the requests.
//!
//! ```
//! use regatta_optim::{Rule, Sgd};
//! use regatta_table::{
//!     Accessor, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable, TableId,
//! };
//!
//! let rows = PlainConfig::new(2, Rule::Sgd(Sgd {}));
//! let table = SparseTable::new(SparseConfig::new(TableId(0), 42, Accessor::Plain(rows)))?;
//! let mut scratch = Scratch::default();
//!
//! let mut out = [0.0; 4];
//! let counts = table.pull(&[7, 9], &mut out, PullMode::Train, &mut scratch)?;
//! assert_eq!(counts.created, 2);
//! // Id 8 was never pulled and stays absent.
//! let gradients = [2.0, 0.5, 1.0, 1.0];
//! let counts = table.push(&[7, 8], &gradients, 0.1, &mut scratch)?;
//! assert_eq!((counts.updated, counts.ignored), (1, 1));
//! table.pull(&[7, 8], &mut out, PullMode::Test, &mut scratch)?;
//! assert_eq!(out, [-0.2, -0.05, 0.0, 0.0]);
//! # Ok::<(), regatta_table::Error>(())
//! ```
//!
//! Reading order: [`SparseConfig`] (what a table is), [`SparseTable::pull`] and
//! [`SparseTable::push`] in `sparse.rs`; on their way `group.rs` (keys by shard), `shard.rs`
//! ([`Admission`] of new ids), `index.rs` and `slab.rs` (where rows are), `plain.rs` and `ctr.rs`
//! (the two kinds of rows and the loops over them), `memory.rs` (all unsafe code). Then what
//! happens between requests: `life.rs` ([`SparseTable::shrink`]), `export.rs` ([`SaveMode`]),
//! `snapshot.rs` ([`SparseTable::snapshot`], one moment saved while training continues),
//! `stats.rs`, `inspect.rs`. Tables larger than memory: `tier`, which begins with [`TierConfig`].
//! Then [`DenseTable`]. With the feature `testing`, `suite` holds what every table must pass.
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod admission;
mod config;
mod ctr;
mod dense;
mod error;
mod export;
mod group;
mod hash;
mod index;
mod init;
mod inspect;
mod lease;
mod life;
mod memory;
mod plain;
mod pull_slots;
mod row;
mod shard;
mod slab;
mod snapshot;
mod sparse;
mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod suite;
mod tier;

pub use admission::Admission;
pub use config::{Accessor, AnyRule, Create, CtrConfig, PlainConfig, SparseConfig, TableId};
pub use dense::{DenseConfig, DenseHistory, DenseParam, DensePiece, DenseTable};
pub use error::Error;
pub use export::{Generation, Receipt, Row, RowBody, SaveMode, ShardRows, row_order};
pub use group::Scratch;
pub use init::{Initializer, Stream};
pub use inspect::{InspectedRow, Inspection};
pub use life::ShrinkCounts;
pub use snapshot::{Scope, Snapshot, SnapshotRows, SnapshotSlice};
pub use sparse::{Contribution, PullCounts, PullMode, PushCounts, SparseTable, Step};
pub use stats::Stats;
pub use tier::{TierConfig, sweep_tier};
