//! What can be honoured, and what excludes what.

use regatta_optim::Rule;

use super::DistributedStrategy;
use crate::Error;

/// What a strategy is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Training against parameter servers.
    ParameterServer,
    /// Workers that reduce gradients among themselves.
    Collective,
}

/// Who honours an option that differs from its default.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Support {
    /// All training.
    Always,
    /// Collective training. The text says what to do with parameter servers.
    Collective(&'static str),
    /// Parameter servers.
    Ps,
    /// Nobody; only GPUs have what it tunes.
    Gpu,
    /// Nobody, with a hint.
    Nobody(&'static str),
}

use Support::{Always, Collective, Gpu, Nobody, Ps};

/// Options and groups of options. One that is not listed is honoured by nobody.
const SUPPORT: &[(&str, Support)] = &[
    // Checked by itself.
    ("mode", Always),
    ("execution_strategy.num_threads", Always),
    ("a_sync", Always),
    // Collective training.
    ("amp", Collective("")),
    ("amp_configs.use_optimizer_fp16", Nobody("optimizer state stays in f32")),
    ("amp_configs", Collective("")),
    ("recompute", Collective("")),
    ("recompute_configs.enable_tuning", Nobody("name the checkpoints")),
    ("recompute_configs.refined_ops_patterns", Nobody("name the checkpoints")),
    ("recompute_configs", Collective("")),
    ("localsgd", Collective("a_sync with k_steps above 0 is the like for servers")),
    ("localsgd_configs", Collective("")),
    ("adaptive_localsgd", Collective("a_sync with k_steps above 0 is the like for servers")),
    ("adaptive_localsgd_configs", Collective("")),
    ("gradient_merge", Collective("max_merge_var_num of a_sync_configs is the like for servers")),
    ("gradient_merge_configs", Collective("")),
    ("dgc", Collective("")),
    ("dgc_configs", Collective("")),
    ("fp16_allreduce", Collective("")),
    ("lars", Collective("give the optimizer the rule LarsMomentum instead")),
    ("lars_configs", Collective("")),
    ("lamb", Collective("give the optimizer the rule Lamb instead")),
    ("lamb_configs", Collective("")),
    ("sharding", Collective("servers divide parameters and optimizer state anyway")),
    ("sharding_configs.stage", Collective("")),
    ("sharding_configs.sharding_degree", Collective("")),
    (
        "sharding_configs.gradient_merge_acc_step",
        Nobody("use gradient_merge and gradient_merge_configs.k_steps"),
    ),
    ("sharding_configs", Nobody("")),
    ("use_hierarchical_allreduce", Collective("")),
    ("hierarchical_allreduce_inter_nranks", Collective("")),
    ("sync_batch_norm", Collective("")),
    ("fuse_all_reduce_ops", Collective("")),
    ("fuse_grad_size_in_MB", Collective("")),
    ("fuse_grad_size_in_num", Collective("")),
    ("last_comm_group_size_MB", Collective("")),
    ("find_unused_parameters", Collective("")),
    // Parameter servers.
    ("a_sync_configs.runtime_split_send_recv", Nobody("")),
    ("a_sync_configs.launch_barrier", Nobody("workers always wait for the servers at the start")),
    ("a_sync_configs.heter_worker_device_guard", Nobody("")),
    ("a_sync_configs.lr_decay_steps", Nobody("servers follow the schedule at every update")),
    ("a_sync_configs.use_ps_gpu", Nobody("")),
    ("a_sync_configs.use_gpu_graph", Nobody("")),
    ("a_sync_configs", Ps),
    ("adam_d2sum", Nobody("give the optimizer the rule AdamD2Sum instead")),
    // GPUs.
    ("sync_nccl_allreduce", Gpu),
    ("nccl_comm_num", Gpu),
    ("cudnn_exhaustive_search", Gpu),
    ("cudnn_batchnorm_spatial_persistent", Gpu),
    ("conv_workspace_size_limit", Gpu),
    ("calc_comm_same_stream", Gpu),
    ("fuse_grad_size_in_TFLOPS", Gpu),
    ("build_strategy.allow_cuda_graph_capture", Gpu),
    // Nobody, where there is something to say.
    ("hybrid_configs", Nobody("sharding with sharding_configs divides optimizer state")),
    // By table: `tables.rs`.
    ("sparse_table_configs", Ps),
    ("fleet_desc_configs", Nobody("tables follow from the program and its optimizer")),
    ("split_data", Nobody("every worker trains on the data that its program reads")),
    ("build_strategy", Nobody("programs are rewritten as far as that is known to help")),
];

/// Options that exclude each other when both are on.
const CONFLICTS: &[(&str, &str, &str)] = &[
    ("localsgd", "adaptive_localsgd", "they are two ways to choose the steps between averages"),
    ("localsgd", "gradient_merge", "workers that train apart do not exchange gradients"),
    ("localsgd", "dgc", "workers that train apart do not exchange gradients"),
    ("localsgd", "fp16_allreduce", "workers that train apart do not exchange gradients"),
    ("localsgd", "sharding", "workers that train apart need all of their optimizer state"),
    ("adaptive_localsgd", "gradient_merge", "workers that train apart do not exchange gradients"),
    ("adaptive_localsgd", "dgc", "workers that train apart do not exchange gradients"),
    ("adaptive_localsgd", "fp16_allreduce", "workers that train apart do not exchange gradients"),
    ("adaptive_localsgd", "sharding", "workers that train apart need all of their optimizer state"),
    ("dgc", "fp16_allreduce", "sparse gradients travel as they are"),
    ("dgc", "gradient_merge", "sparse gradients are collected from step to step already"),
    ("dgc", "sharding", "sparse gradients go to all workers"),
    ("dgc", "lars", "sparse gradients have momentum of their own"),
    ("dgc", "use_hierarchical_allreduce", "sparse gradients are gathered, not reduced"),
    ("lars", "lamb", "there is one update rule"),
    (
        "amp_configs.use_pure_fp16",
        "amp_configs.use_pure_bf16",
        "everything is in one format or in the other",
    ),
];

impl DistributedStrategy {
    /// Checks that everything can be honoured in some training, and that no option excludes others.
    ///
    /// # Errors
    /// If not, naming all of the options.
    pub fn check(&self, used_for: Use) -> Result<(), Error> {
        let mut problems = self.not_honoured(used_for);
        problems.extend(self.conflicts());
        problems.extend(self.out_of_range());
        problems.extend(self.table_problems());
        if used_for == Use::ParameterServer
            && problems.is_empty()
            && let Err(e) = self.ps_mode()
        {
            return Err(e);
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Config(format!("strategy: {}", problems.join("; "))))
    }

    /// Checks that the update rule fits the options that change it.
    ///
    /// # Errors
    /// If not, naming both.
    pub fn check_rule(&self, rule: &Rule) -> Result<(), Error> {
        let momentum = matches!(rule, Rule::Momentum(_));
        let checks = [
            ("lars", self.lars, momentum, "momentum"),
            ("dgc", self.dgc, momentum, "momentum"),
            ("lamb", self.lamb, matches!(rule, Rule::Adam(_)), "adam"),
            (
                "localsgd",
                self.localsgd,
                momentum || matches!(rule, Rule::Sgd(_)),
                "sgd or momentum",
            ),
            (
                "adaptive_localsgd",
                self.adaptive_localsgd,
                momentum || matches!(rule, Rule::Sgd(_)),
                "sgd or momentum",
            ),
        ];
        match checks.iter().find(|(_, on, fits, _)| *on && !fits) {
            None => Ok(()),
            Some((name, _, _, wanted)) => Err(Error::Config(format!(
                "strategy: {name} needs the optimizer {wanted}, but it is {}",
                rule.name()
            ))),
        }
    }

    fn not_honoured(&self, used_for: Use) -> Vec<String> {
        let changed = self.changed();
        let is_used = |path: &str| self.switch_of(path).unwrap_or(true);
        let used = changed.iter().filter(|(path, _)| is_used(path));
        used.filter_map(|(path, value)| problem_with(path, value, used_for)).collect()
    }

    /// Whether the switch that a group belongs to is on; nothing for groups without one.
    fn switch_of(&self, path: &str) -> Option<bool> {
        let (group, _) = path.split_once('.')?;
        Some(match group {
            "amp_configs" => self.amp,
            "recompute_configs" => self.recompute,
            "localsgd_configs" => self.localsgd,
            "adaptive_localsgd_configs" => self.adaptive_localsgd,
            "gradient_merge_configs" => self.gradient_merge,
            "dgc_configs" => self.dgc,
            "lars_configs" => self.lars,
            "lamb_configs" => self.lamb,
            "sharding_configs" => self.sharding,
            "pipeline_configs" => self.pipeline,
            "tensor_parallel_configs" => self.tensor_parallel,
            "qat_configs" => self.qat,
            _ => return None,
        })
    }

    fn conflicts(&self) -> Vec<String> {
        let changed = self.changed();
        let on: Vec<&str> = changed
            .iter()
            .filter(|(path, value)| value == "true" && self.switch_of(path).unwrap_or(true))
            .map(|(path, _)| path.as_str())
            .collect();
        let both = CONFLICTS.iter().filter(|(a, b, _)| on.contains(a) && on.contains(b));
        both.map(|(a, b, why)| format!("{a} and {b} exclude each other: {why}")).collect()
    }

    fn out_of_range(&self) -> Vec<String> {
        let at_least_one = [
            (self.localsgd, "localsgd_configs.k_steps", self.localsgd_configs.k_steps),
            (
                self.adaptive_localsgd,
                "adaptive_localsgd_configs.init_k_steps",
                self.adaptive_localsgd_configs.init_k_steps,
            ),
            (
                self.gradient_merge,
                "gradient_merge_configs.k_steps",
                self.gradient_merge_configs.k_steps,
            ),
            (self.dgc, "dgc_configs.rampup_step", self.dgc_configs.rampup_step),
            (self.fuse_all_reduce_ops, "fuse_grad_size_in_num", self.fuse_grad_size_in_num),
            (true, "execution_strategy.num_threads", self.execution_strategy.num_threads),
            (
                self.use_hierarchical_allreduce,
                "hierarchical_allreduce_inter_nranks",
                self.hierarchical_allreduce_inter_nranks,
            ),
        ];
        let mut problems: Vec<String> = at_least_one
            .iter()
            .filter(|(on, _, value)| *on && *value == 0)
            .map(|(_, name, _)| format!("{name} is 0, but must be at least 1"))
            .collect();
        let outside = |s: &f32| !(0.0..1.0).contains(s);
        if self.dgc && self.dgc_configs.sparsity.iter().any(outside) {
            problems.push("dgc_configs.sparsity must lie between 0 and 1".to_string());
        }
        let stage = self.sharding_configs.stage;
        if self.sharding && !(1..=2).contains(&stage) {
            problems.push(format!(
                "sharding_configs.stage is {stage}, but only 1 and 2 are implemented"
            ));
        }
        problems
    }
}

/// Why an option cannot be honoured, if it cannot.
fn problem_with(path: &str, value: &str, used_for: Use) -> Option<String> {
    let is_in = |group: &str| {
        path == group || path.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'))
    };
    let listed = SUPPORT.iter().find(|(group, _)| is_in(group));
    let with_hint = |reason: String, hint: &str| {
        Some(if hint.is_empty() { reason } else { format!("{reason}: {hint}") })
    };
    match (listed.map_or(Nobody(""), |(_, support)| *support), used_for) {
        (Always, _) if path == "mode" => mode_problem(value, used_for),
        (Always, _) | (Collective(_), Use::Collective) | (Ps, Use::ParameterServer) => None,
        (Collective(hint), _) => with_hint(format!("{path} is for collective training"), hint),
        (Ps, _) => with_hint(format!("{path} is for parameter servers"), ""),
        (Gpu, _) => with_hint(format!("{path} has no effect on CPUs"), "leave it at its default"),
        (Nobody(hint), _) => with_hint(format!("{path} is not implemented"), hint),
    }
}

/// The mode that is written down need not be, but must not contradict the training.
fn mode_problem(value: &str, used_for: Use) -> Option<String> {
    match (value, used_for) {
        ("PS", Use::ParameterServer) => None,
        ("PS", Use::Collective) => Some("mode is PS, but the training is collective".to_string()),
        (other, _) => Some(format!("mode {other} is not implemented")),
    }
}

/// Names in the table, for a test that they exist.
#[cfg(test)]
pub(super) fn listed() -> impl Iterator<Item = (&'static str, ())> {
    SUPPORT.iter().map(|(name, _)| (*name, ()))
}
