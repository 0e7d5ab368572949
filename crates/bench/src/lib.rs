//! Workloads that Regatta is measured on, built from the same numbers as those of other systems
//! (`bench/compare`), so that losses can be compared too.

pub mod checkpoint;
pub mod dense;
pub mod ps;
