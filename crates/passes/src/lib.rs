//! Rewrites of programs, one per file. A pass takes a program and returns one; none does IO, starts
//! threads or reads a clock.
//!
//! Reading order, which is also the order in which a training program is made:
//! [`amp()`] (mixed precision, if wanted), [`backward()`], [`recompute()`] (if wanted), [`scale_loss()`] and
//! [`unscale()`] (of mixed precision), [`clip()`], [`regularize()`], [`insert_updates()`],
//! [`skip_overflowed()`] (all in [`minimize()`]), then
//! [`prune()`] and [`clone_for_test()`] for inference; at the first run of a program, [`fuse()`] (ops
//! that need not write what lies between them), [`split_batch()`] (what each thread may run) and
//! [`memory_reuse()`]. For parameter servers: [`split_trainer()`], [`compute_stage()`] and
//! [`split_server()`]. For ranks without servers, in the order in which they are applied:
//! [`lars()`] and [`lamb()`], [`data_parallel()`], [`sync_batch_norm()`], [`dgc()`], [`sharding()`],
//! [`fp16_all_reduce()`] and [`hierarchical_all_reduce()`], [`fuse_all_reduce()`], [`gradient_merge()`];
//! in the place of all from `data_parallel` on, [`local_sgd()`].

mod all_reduce_way;
mod amp;
mod backward;
mod clip;
mod data_parallel;
mod dgc;
mod fuse;
mod fuse_all_reduce;
mod gradient_merge;
mod infer_types;
mod large_batch;
mod local_sgd;
mod memory_reuse;
mod minimize;
mod prune;
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
pub use fuse::fuse;
pub use fuse_all_reduce::{FuseAllReduce, fuse_all_reduce};
pub use gradient_merge::{Periodic, gradient_merge, is_merge_state};
pub use large_batch::{Lamb, Lars, lamb, lars};
pub use local_sgd::{is_snapshot, local_sgd, snapshot_name};
pub use memory_reuse::{MemoryReport, MemoryReuse, memory_reuse};
pub use minimize::{Minimized, Optimizer, minimize};
pub use prune::{clone_for_test, prune};
pub use recompute::{RecomputeConfig, recompute};
pub use regularize::regularize;
pub use sharding::{Sharding, sharding};
pub use split_batch::{Parts, split_batch};
pub use split_server::{ServerPiece, split_server};
pub use split_trainer::{
    DenseSpec, Split, TableSpec, compute_stage, local_name, pull_tables, pulled_name, split_trainer,
};
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
