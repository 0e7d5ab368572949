//! Training programs on one machine or many.
//!
//! Reading order: [`strategy`] (what a user asks for), [`ps`] (training against parameter servers),
//! [`DistributeTranspiler`] (the programs of servers and trainers, to look at), [`yaml`].

mod error;
pub mod ps;
pub mod strategy;
mod transpiler;
pub mod yaml;

pub use error::Error;
pub use strategy::DistributedStrategy;
pub use transpiler::{DistributeTranspiler, parse_endpoints};
