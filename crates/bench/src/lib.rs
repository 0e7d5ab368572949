//! Workloads that Regatta is measured on, built from the same numbers as those of other systems
//! (`bench/compare`), so that losses can be compared too, and what the machine could do at best.

pub mod checkpoint;
pub mod click_model;
pub mod dense;
pub mod limits;
#[cfg(target_os = "linux")]
pub mod load;
pub mod parser;
pub mod ps;
pub mod rows;
