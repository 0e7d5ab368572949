//! Rewrites of programs, one per file. A pass takes a program and returns one; none does IO, starts
//! threads or reads a clock.
//!
//! Start with [`pipeline`]: the order in which passes are applied, as lists. [`minimize()`] makes a
//! training program ([`pipeline::TRAINING`]); [`RankPrograms`] are those of a rank without servers
//! ([`pipeline::RANKS`]); [`Lowering`] is what the executor makes of any program for one batch size
//! ([`pipeline::EXECUTION`]). [`split_trainer()`] and [`split_server()`] divide a training program
//! for parameter servers, [`prune()`] and [`clone_for_test()`] make programs that predict.

mod all_reduce_way;
mod amp;
mod backward;
mod clip;
mod data_parallel;
mod dgc;
mod exchange;
mod fuse;
mod fuse_all_reduce;
mod gradient_merge;
mod infer_types;
mod large_batch;
mod local_sgd;
mod lowering;
mod memory_reuse;
mod merge_lookups;
mod minimize;
pub mod pipeline;
mod prune;
mod pull_tables;
mod rank_programs;
mod recompute;
mod regularize;
mod sharding;
mod split_batch;
mod split_server;
mod split_trainer;
mod sync_batch_norm;
mod updates;

pub use all_reduce_way::{fp16_all_reduce, hierarchical_all_reduce};
pub use amp::{
    AmpConfig, FOUND_INF, LOSS_SCALING, Precision, amp, scale_loss, skip_overflowed, unscale,
};
pub use backward::{Backward, ParamGrad, backward};
pub use clip::{Clip, clip};
pub use data_parallel::data_parallel;
pub use dgc::{Dgc, dgc};
pub use exchange::{Exchange, TableExchange};
pub use fuse::fuse;
pub use fuse_all_reduce::{FuseAllReduce, fuse_all_reduce};
pub use gradient_merge::{Periodic, gradient_merge, is_merge_state};
pub use large_batch::{Lamb, Lars, lamb, lars};
pub use local_sgd::{is_snapshot, local_sgd, snapshot_name};
pub use lowering::{Lowering, LoweringOptions, SegmentProgram};
pub use memory_reuse::{MemoryReport, MemoryReuse, memory_reuse};
pub use merge_lookups::merge_lookups;
pub use minimize::{Minimized, Optimizer, Training, minimize, minimize_watched};
pub use prune::{clone_for_test, prune};
pub use pull_tables::{local_name, pull_tables, pulled_name};
pub use rank_programs::{RankPrograms, RankSettings};
pub use recompute::{RecomputeConfig, recompute};
pub use regularize::regularize;
pub use sharding::{Sharding, sharding};
pub use split_batch::{Parts, split_batch};
pub use split_server::{ServerPartition, split_server};
pub use split_trainer::{DenseSpec, Split, TableSpec, learning_rate, split_trainer};
pub use sync_batch_norm::sync_batch_norm;
pub use updates::insert_updates;

use regatta_ir::{Error, Program};

/// In debug builds, checks what a pass returns.
fn checked(program: Program) -> Result<Program, Error> {
    if cfg!(debug_assertions) {
        regatta_ir::verify(&program, &regatta_ops::OPS)?;
    }
    Ok(program)
}

/// Sharing memory is decided on the finished program; ops added later would find it overwritten.
fn refuse_buffers(program: &Program, pass: &str) -> Result<(), Error> {
    match program.block().vars.values().find(|v| v.buffer.is_some()) {
        Some(var) => refused(
            pass,
            format!("'{}' shares memory already; apply memory_reuse as the last pass", var.name),
        ),
        None => Ok(()),
    }
}

fn refused<T>(pass: &str, reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::Pass { pass: pass.to_string(), reason: reason.into() })
}
