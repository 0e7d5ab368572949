//! Names of options in earlier versions, and what they are called now.

/// Old name, and what to write instead.
const RENAMED: &[(&str, &str)] = &[
    ("forward_recompute", "recompute"),
    ("recompute_checkpoints", "recompute_configs.checkpoints"),
    ("use_local_sgd", "localsgd"),
    ("local_sgd_config", "localsgd_configs"),
    ("use_amp", "amp"),
    ("amp_loss_scaling", "amp_configs.init_loss_scaling"),
    ("use_dgc", "dgc"),
    ("use_lars", "lars"),
    ("use_lamb", "lamb"),
    ("enable_backward_optimizer_op_deps", "build_strategy.enable_backward_optimizer_op_deps"),
    ("exec_strategy", "execution_strategy"),
    ("sync_mode", "a_sync"),
    ("geo_sgd_mode", "a_sync_configs.k_steps"),
    ("geo_sgd_need_push_nums", "a_sync_configs.k_steps"),
    ("FLAGS_sync_nccl_allreduce", "sync_nccl_allreduce"),
    ("FLAGS_fuse_parameter_memory_size", "fuse_grad_size_in_MB"),
    ("FLAGS_fuse_parameter_groups_size", "fuse_grad_size_in_TFLOPS"),
    ("FLAGS_cudnn_exhaustive_search", "cudnn_exhaustive_search"),
    ("FLAGS_conv_workspace_size_limit", "conv_workspace_size_limit"),
    ("FLAGS_cudnn_batchnorm_spatial_persistent", "cudnn_batchnorm_spatial_persistent"),
    ("FLAGS_communicator_max_merge_var_num", "a_sync_configs.max_merge_var_num"),
    ("FLAGS_communicator_send_queue_size", "a_sync_configs.send_queue_size"),
    ("FLAGS_communicator_independent_recv_thread", "a_sync_configs.independent_recv_thread"),
    (
        "FLAGS_communicator_min_send_grad_num_before_recv",
        "a_sync_configs.min_send_grad_num_before_recv",
    ),
    ("FLAGS_communicator_thread_pool_size", "a_sync_configs.thread_pool_size"),
    ("FLAGS_communicator_send_wait_times", "a_sync_configs.send_wait_times"),
];

/// The present name of an option that had another one.
pub(super) fn new_name(old: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(name, _)| *name == old).map(|(_, new)| *new)
}

/// Why there is no option `name` in the group `path`.
pub(super) fn unknown(path: &str, name: &str, known: &[&str]) -> String {
    let full = super::setting::below(path, name);
    if let Some(new) = new_name(name).filter(|new| *new != full) {
        return format!("{full} is now called {new}");
    }
    if name.starts_with("FLAGS_") {
        return format!(
            "{full} is a process flag, and flags are not part of a strategy; remove it"
        );
    }
    let place = if path.is_empty() { String::new() } else { format!(" in {path}") };
    match regatta_ir::nearest(name, known.iter().copied()) {
        Some(near) => format!("there is no option '{name}'{place}; did you mean '{near}'?"),
        None => format!("there is no option '{name}'{place} (options: {})", known.join(", ")),
    }
}
