//! The file of a table's rows.
//!
//! Reading order: `layout` (the bytes), `write` ([`TableWriter`]), `behind` (its way to disk),
//! `read` ([`TableReader`]), `direct` (its way from disk), `merge` (a base and its deltas).

mod behind;
mod direct;
pub(crate) mod layout;
mod merge;
mod read;
mod write;

pub use layout::TableHeader;
pub(crate) use merge::Merge;
pub(crate) use read::read_at;
pub use read::{BlockBuffer, BlockRows, Saved, TableReader};
pub use write::TableWriter;
