//! A training program and a strategy become what a rank runs.

use regatta_ir::Programs;
use regatta_optim::LossScaling;
use regatta_passes::pipeline::Watch;
use regatta_passes::{
    AmpConfig, Dgc, FuseAllReduce, Lamb, Lars, Optimizer, Precision, RankPrograms, RankSettings,
    RecomputeConfig, Sharding,
};

use regatta_train::{RankPlan, When};

use crate::Error;
use crate::strategy::{AmpDtype, DistributedStrategy, Use};

/// Rewrites a training program for rank `rank` of `ranks`.
///
/// # Errors
/// If options of the strategy exclude each other or do not fit the program, naming them.
pub fn plan_ranks(
    programs: &Programs,
    strategy: &DistributedStrategy,
    rank: usize,
    ranks: usize,
) -> Result<RankPlan, Error> {
    plan_ranks_watched(programs, strategy, rank, ranks, &mut |_, _, _| {})
}

/// As [`plan_ranks`]; `watch` sees the output of every compiler pass.
///
/// # Errors
/// As [`plan_ranks`].
pub fn plan_ranks_watched(
    programs: &Programs,
    strategy: &DistributedStrategy,
    rank: usize,
    ranks: usize,
    watch: &mut Watch<'_>,
) -> Result<RankPlan, Error> {
    strategy.check(Use::Collective)?;
    check_together(strategy, ranks)?;
    let settings = rank_settings(strategy, rank, ranks);
    let (sharded, merges) = (settings.sharding.is_some(), settings.gradient_merge.is_some());
    let RankPrograms { each, then, .. } = RankPrograms::new(programs, settings, watch)?;
    let when = match local_steps(strategy) {
        Some(when) => when,
        None if merges => When::Every(strategy.gradient_merge_configs.k_steps),
        None => When::Never,
    };
    let sharded = sharded && !when.is_local();
    Ok(RankPlan { each, then, when, sharded, keeps_unsent: strategy.dgc })
}

/// An optimizer with what a strategy says about computing gradients: mixed precision and
/// activations that are computed again. `minimize` applies it; [`plan_ranks`] then rewrites the
/// result.
///
/// # Errors
/// If the strategy cannot be honoured in collective training, or does not fit the update rule.
pub fn optimizer_for(
    optimizer: &Optimizer,
    strategy: &DistributedStrategy,
) -> Result<Optimizer, Error> {
    strategy.check(Use::Collective)?;
    strategy.check_rule(&optimizer.rule)?;
    let mut optimizer = optimizer.clone();
    if strategy.amp {
        optimizer.amp = Some(amp_config(strategy));
    }
    if strategy.recompute {
        let c = &strategy.recompute_configs;
        optimizer.recompute = Some(RecomputeConfig {
            checkpoints: c.checkpoints.clone(),
            enable_offload: c.enable_offload,
            checkpoint_shape: c.checkpoint_shape.clone(),
        });
    }
    Ok(optimizer)
}

fn amp_config(strategy: &DistributedStrategy) -> AmpConfig {
    let c = &strategy.amp_configs;
    let bf16 = c.use_pure_bf16 || c.dtype == AmpDtype::Bfloat16;
    let scaling = LossScaling {
        initial: c.init_loss_scaling,
        dynamic: c.use_dynamic_loss_scaling,
        incr_every_n_steps: u32::try_from(c.incr_every_n_steps).unwrap_or(u32::MAX),
        decr_every_n_nan_or_inf: u32::try_from(c.decr_every_n_nan_or_inf).unwrap_or(u32::MAX),
        incr_ratio: c.incr_ratio,
        decr_ratio: c.decr_ratio,
    };
    AmpConfig {
        precision: if bf16 { Precision::Bf16 } else { Precision::Fp16 },
        pure: c.use_pure_fp16 || c.use_pure_bf16,
        // bf16 has the range of f32.
        loss_scaling: (!bf16).then_some(scaling),
        custom_white_list: c.custom_white_list.clone(),
        custom_black_list: c.custom_black_list.clone(),
        custom_black_varnames: c.custom_black_varnames.clone(),
    }
}

/// What a strategy says about the compiler passes of a rank.
fn rank_settings(strategy: &DistributedStrategy, rank: usize, ranks: usize) -> RankSettings {
    let stage = strategy.sharding_configs.stage as u32;
    let merge = &strategy.gradient_merge_configs;
    RankSettings {
        ranks,
        lars: strategy.lars.then(|| lars_config(strategy)),
        lamb: strategy.lamb.then(|| lamb_config(strategy)),
        local: local_steps(strategy).is_some(),
        sync_batch_norm: strategy.sync_batch_norm,
        dgc: strategy.dgc.then(|| dgc_config(strategy)),
        sharding: strategy.sharding.then_some(Sharding { ranks, rank, stage }),
        fp16_all_reduce: strategy.fp16_allreduce,
        node_ranks: strategy
            .use_hierarchical_allreduce
            .then_some(strategy.hierarchical_allreduce_inter_nranks as usize),
        fuse_all_reduce: strategy.fuse_all_reduce_ops.then(|| FuseAllReduce {
            bucket_mb: strategy.fuse_grad_size_in_mb as f64,
            last_bucket_mb: f64::from(strategy.last_comm_group_size_mb),
            max_count: fuse_count(strategy),
        }),
        gradient_merge: (strategy.gradient_merge && merge.k_steps > 1).then_some(merge.avg),
    }
}

/// The size decides how many gradients travel together, unless their number was set.
fn fuse_count(strategy: &DistributedStrategy) -> Option<usize> {
    let default = DistributedStrategy::default().fuse_grad_size_in_num;
    let count = strategy.fuse_grad_size_in_num;
    (count != default).then_some(count as usize)
}

fn local_steps(strategy: &DistributedStrategy) -> Option<When> {
    if strategy.localsgd {
        let c = &strategy.localsgd_configs;
        return Some(When::Local { k_steps: c.k_steps, begin_step: c.begin_step });
    }
    strategy.adaptive_localsgd.then(|| {
        let c = &strategy.adaptive_localsgd_configs;
        When::Adaptive { init_k_steps: c.init_k_steps, begin_step: c.begin_step }
    })
}

fn lars_config(strategy: &DistributedStrategy) -> Lars {
    let c = &strategy.lars_configs;
    Lars {
        coeff: c.lars_coeff,
        weight_decay: c.lars_weight_decay,
        epsilon: c.epsilon,
        exclude: c.exclude_from_weight_decay.clone(),
    }
}

fn lamb_config(strategy: &DistributedStrategy) -> Lamb {
    let c = &strategy.lamb_configs;
    Lamb { weight_decay: c.lamb_weight_decay, exclude: c.exclude_from_weight_decay.clone() }
}

fn dgc_config(strategy: &DistributedStrategy) -> Dgc {
    let (c, default) = (&strategy.dgc_configs, Dgc::default());
    let exact = |s: &f32| s.to_string().parse().expect("a printed float can be read");
    let sparsity = match c.sparsity.is_empty() {
        true => default.sparsity.clone(),
        false => c.sparsity.iter().map(exact).collect(),
    };
    let (rampup_begin_step, rampup_step) = (c.rampup_begin_step, c.rampup_step);
    Dgc { rampup_begin_step, rampup_step, sparsity, ..default }
}

/// What excludes what, where it depends on values or on the number of ranks.
fn check_together(strategy: &DistributedStrategy, ranks: usize) -> Result<(), Error> {
    let local = strategy.localsgd || strategy.adaptive_localsgd;
    let name = if strategy.localsgd { "localsgd" } else { "adaptive_localsgd" };
    let stage = strategy.sharding_configs.stage;
    let degree = strategy.sharding_configs.sharding_degree;
    let problem = if local && strategy.sync_batch_norm {
        format!(
            "{name} and sync_batch_norm exclude each other: ranks that train apart do not wait for \
             the batches of others"
        )
    } else if strategy.dgc && strategy.amp {
        "dgc and amp exclude each other: deferred entries would have another loss scale \
         than those that come later"
            .to_string()
    } else if strategy.sharding && stage == 2 && strategy.amp {
        "sharding_configs.stage 2 and amp exclude each other: every rank would look for infinities \
         in other gradients; use stage 1"
            .to_string()
    } else if strategy.sharding && stage == 2 && strategy.fp16_allreduce {
        "sharding_configs.stage 2 and fp16_allreduce exclude each other: gradients are brought to \
         one rank, not all-reduced"
            .to_string()
    } else if strategy.sharding && stage == 2 && strategy.use_hierarchical_allreduce {
        "sharding_configs.stage 2 and use_hierarchical_allreduce exclude each other: gradients are \
         brought to one rank, not all-reduced"
            .to_string()
    } else if strategy.sharding && degree.is_some_and(|d| d != ranks as u64) {
        let (degree, s) = (degree.unwrap_or_default(), if ranks == 1 { "" } else { "s" });
        format!(
            "sharding_configs.sharding_degree is {degree}, but the job has {ranks} rank{s}: state \
             is divided among all of them"
        )
    } else {
        return Ok(());
    };
    Err(Error::Config(format!("strategy: {problem}")))
}
