//! Each pass as text: a program before, the program after.
//!
//! `UPDATE_EXPECT=1 cargo test -p regatta-passes` rewrites the expected texts; read the difference.

mod amp;
mod backward;
mod clip;
mod collective;
mod data_parallel;
mod fuse;
mod memory_reuse;
mod merge_lookups;
mod models;
mod prune;
mod recompute;
mod regularize;
mod split_batch;
mod updates;
