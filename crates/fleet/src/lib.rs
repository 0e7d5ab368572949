//! Training programs on one machine or many.
//!
//! Reading order: [`ps`] (training against parameter servers).

pub mod ps;
