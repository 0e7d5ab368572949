//! tables
mod admission;
mod config;
mod ctr;
mod error;
mod group;
mod hash;
mod index;
mod init;
mod memory;
mod plain;
mod row;
mod shard;
mod slab;
mod sparse;
mod stats;

pub use admission::Admission;
pub use config::{Accessor, AnyRule, Create, CtrConfig, PlainConfig, SparseConfig, TableId};
pub use error::Error;
pub use group::Scratch;
pub use init::{Initializer, Stream};
pub use sparse::{PullCounts, PullMode, PushCounts, SparseTable};
pub use stats::Stats;
