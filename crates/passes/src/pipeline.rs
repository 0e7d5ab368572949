//! The order of compiler passes, as data. [`minimize()`](crate::minimize()) applies [`TRAINING`], a
//! rank applies [`RANKS`] to the result, and the executor applies [`EXECUTION`] to what it is
//! given, once for every batch size. Workers of parameter servers run what
//! [`split_trainer()`](crate::split_trainer()) takes out of a training program.
//!
//! `regatta programs` prints the programs after every pass by watching the same lists.

use regatta_ir::{Error, Program};

use crate::{Lowering, RankPrograms, Training};

/// A compiler pass by its name, with the programs that it works on.
pub struct Pass<S> {
    /// Name of its function.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    applies: fn(&S) -> bool,
    apply: fn(&mut S) -> Result<(), Error>,
}

/// Programs on their way through passes.
pub trait Rewrite {
    /// The programs as they are now, each with a name of its own.
    fn programs(&self) -> Vec<Program>;
}

/// Called after every pass with its name, what it is for, and what it has made.
pub type Watch<'w> = dyn FnMut(&str, &str, &dyn Rewrite) + 'w;

/// Applies those passes of a list that apply, in its order.
///
/// # Errors
/// That of the first pass that refuses a program.
pub fn apply_passes<S: Rewrite>(
    passes: &[Pass<S>],
    state: &mut S,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    for pass in passes {
        if (pass.applies)(state) {
            (pass.apply)(state)?;
            watch(pass.name, pass.about, state);
        }
    }
    Ok(())
}

/// From a forward program to a training program.
pub const TRAINING: &[Pass<Training>] = &[
    Pass {
        name: "merge_lookups",
        about: "lookups of one table are one op",
        applies: Training::has_lookups,
        apply: Training::merge_lookups,
    },
    Pass {
        name: "amp",
        about: "casts of mixed precision",
        applies: |t| t.optimizer.amp.is_some(),
        apply: Training::amp,
    },
    Pass {
        name: "backward",
        about: "gradients of the loss",
        applies: |_| true,
        apply: Training::backward,
    },
    Pass {
        name: "recompute",
        about: "forward ops are repeated within backward",
        applies: |t| t.optimizer.recompute.is_some(),
        apply: Training::recompute,
    },
    Pass {
        name: "scale_loss",
        about: "gradients in the range of 16-bit floats",
        applies: |t| t.loss_scaling().is_some(),
        apply: Training::scale_loss,
    },
    Pass {
        name: "unscale",
        about: "gradients as they are without loss scaling",
        applies: |t| t.loss_scaling().is_some(),
        apply: Training::unscale,
    },
    Pass {
        name: "clip",
        about: "limits on gradients",
        applies: |t| t.optimizer.clip.is_some(),
        apply: Training::clip,
    },
    Pass {
        name: "regularize",
        about: "regularization of parameters",
        applies: |_| true,
        apply: Training::regularize,
    },
    Pass {
        name: "insert_updates",
        about: "updates, with optimizer state and learning rate",
        applies: |_| true,
        apply: Training::insert_updates,
    },
    Pass {
        name: "skip_overflowed",
        about: "no update where a scaled gradient overflowed",
        applies: |t| t.loss_scaling().is_some(),
        apply: Training::skip_overflowed,
    },
];

/// From a training program to the programs of a rank.
pub const RANKS: &[Pass<RankPrograms>] = &[
    Pass {
        name: "lars",
        about: "layer-wise rates for momentum",
        applies: |r| r.settings.lars.is_some(),
        apply: RankPrograms::lars,
    },
    Pass {
        name: "lamb",
        about: "layer-wise rates for Adam",
        applies: |r| r.settings.lamb.is_some(),
        apply: RankPrograms::lamb,
    },
    Pass {
        name: "local_sgd",
        about: "ranks train apart and average their parameters with a second program",
        applies: |r| r.settings.local,
        apply: RankPrograms::local_sgd,
    },
    Pass {
        name: "data_parallel",
        about: "gradients are averaged over ranks",
        applies: |r| !r.settings.local,
        apply: RankPrograms::data_parallel,
    },
    Pass {
        name: "sync_batch_norm",
        about: "statistics over the batches of all ranks",
        applies: |r| r.settings.sync_batch_norm && !r.settings.local,
        apply: RankPrograms::sync_batch_norm,
    },
    Pass {
        name: "dgc",
        about: "only the largest entries of gradients travel",
        applies: |r| r.settings.dgc.is_some() && !r.settings.local,
        apply: RankPrograms::dgc,
    },
    Pass {
        name: "sharding",
        about: "every rank keeps a part of the optimizer state",
        applies: |r| r.settings.sharding.is_some() && !r.settings.local,
        apply: RankPrograms::sharding,
    },
    Pass {
        name: "fp16_all_reduce",
        about: "values travel as 16-bit floats",
        applies: |r| r.settings.fp16_all_reduce && r.reduces(),
        apply: RankPrograms::fp16_all_reduce,
    },
    Pass {
        name: "hierarchical_all_reduce",
        about: "sums within a node first",
        applies: |r| r.settings.node_ranks.is_some() && r.reduces(),
        apply: RankPrograms::hierarchical_all_reduce,
    },
    Pass {
        name: "fuse_all_reduce",
        about: "several gradients travel together",
        applies: |r| r.settings.fuse_all_reduce.is_some(),
        apply: RankPrograms::fuse_all_reduce,
    },
    Pass {
        name: "gradient_merge",
        about: "gradients of several steps are added up, and a second program applies them",
        applies: |r| r.settings.gradient_merge.is_some() && !r.settings.local,
        apply: RankPrograms::gradient_merge,
    },
];

/// From any program to what the executor runs on batches of one size.
pub const EXECUTION: &[Pass<Lowering>] = &[
    Pass {
        name: "fuse",
        about: "ops that need not write what lies between them are one op",
        applies: Lowering::may_fuse,
        apply: Lowering::fuse,
    },
    Pass {
        name: "split_batch",
        about: "what each thread runs on its part of the batch, and what runs on the whole",
        applies: |_| true,
        apply: Lowering::split_batch,
    },
    Pass {
        name: "memory_reuse",
        about: "temporaries share buffers",
        applies: |l| l.options.memory_reuse || l.shares_memory(),
        apply: Lowering::memory_reuse,
    },
    Pass {
        name: "concrete_types",
        about: "every dimension is known; this is what the executor runs",
        applies: |_| true,
        apply: Lowering::concrete_types,
    },
];
