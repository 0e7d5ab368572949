//! Training programs on one machine or many.
//!
//! Reading order: [`ps`] (training against parameter servers).

mod error;
pub mod ps;

pub use error::Error;
