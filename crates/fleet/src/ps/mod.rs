//! Training against parameter servers.
//!
//! Reading order: `exchange` (what a trainer program exchanges), `lookup` (the ids of a batch become
//! keys and a small local table).

mod exchange;
mod lookup;

pub use exchange::{Exchange, TableExchange};
pub use lookup::Lookup;
