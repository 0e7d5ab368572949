//! Training programs on one machine or many.
//!
//! Reading order: [`ps`] (training against parameter servers), [`DistributeTranspiler`]
//! (the programs of servers and trainers, to look at).

mod error;
pub mod ps;
mod transpiler;

pub use error::Error;
pub use transpiler::{DistributeTranspiler, parse_endpoints};
