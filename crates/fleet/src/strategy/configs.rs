//! The groups of options inside a strategy, with Paddle's names and defaults.

use super::setting::{choice, options};

choice! {
    /// Number format of mixed-precision training.
    AmpDtype {
        /// Half precision, with loss scaling.
        Float16 = "float16",
        /// Brain floating point: the range of `f32`, so no loss scaling is needed.
        Bfloat16 = "bfloat16",
    }
    /// How gradients of several workers become one.
    ScaleStrategy {
        /// Their mean.
        Avg = "avg",
        /// Their sum.
        Sum = "sum",
        /// As the program says.
        Customized = "customized",
    }
}

options! {
    /// Keep few activations and compute the others again in backward.
    RecomputeConfigs {
        /// Variables that are kept.
        checkpoints: Vec<String> = vec![],
        /// Move kept activations out of the way until they are needed.
        enable_offload: bool = false,
        /// Shape of the kept activations.
        checkpoint_shape: Vec<i64> = vec![],
        /// Search for what to keep.
        enable_tuning: bool = false,
        /// Ops that are never computed again.
        refined_ops_patterns: Vec<String> = vec![],
    }

    /// Mixed precision.
    AmpConfigs {
        /// The number format. Paddle has no such option: it takes `float16` unless `use_pure_bf16`.
        dtype: AmpDtype = AmpDtype::Float16,
        /// Initial factor on the loss.
        init_loss_scaling: f32 = 32768.0,
        /// Steps without overflow after which the factor grows.
        incr_every_n_steps: u64 = 1000,
        /// Steps with overflow after which the factor shrinks.
        decr_every_n_nan_or_inf: u64 = 2,
        /// How it grows.
        incr_ratio: f32 = 2.0,
        /// How it shrinks.
        decr_ratio: f32 = 0.8,
        /// Whether it changes at all.
        use_dynamic_loss_scaling: bool = true,
        /// Ops that run in the small format besides the usual ones.
        custom_white_list: Vec<String> = vec![],
        /// Ops that never do.
        custom_black_list: Vec<String> = vec![],
        /// Ops with one of these variables never do.
        custom_black_varnames: Vec<String> = vec![],
        /// Everything in `float16`.
        use_pure_fp16: bool = false,
        /// Only inside guards; programs here have none, so it makes no difference.
        use_fp16_guard: bool = true,
        /// Optimizer state in `float16`.
        use_optimizer_fp16: bool = false,
        /// Everything in `bfloat16`.
        use_pure_bf16: bool = false,
    }

    /// Workers train apart and average their parameters now and then.
    LocalSgdConfigs {
        /// Steps between averages.
        k_steps: u64 = 1,
        /// Up to this step parameters are averaged every step.
        begin_step: u64 = 1,
    }

    /// The same, with a number of steps that follows the loss.
    AdaptiveLocalSgdConfigs {
        /// Steps between averages at first.
        init_k_steps: u64 = 1,
        /// Up to this step parameters are averaged every step.
        begin_step: u64 = 1,
    }

    /// Add up gradients of several steps before one update.
    GradientMergeConfigs {
        /// Steps per update.
        k_steps: u64 = 1,
        /// Divide the sum by their number.
        avg: bool = true,
    }

    /// Send only the largest elements of gradients.
    DgcConfigs {
        /// The first step with sparse gradients.
        rampup_begin_step: u64 = 0,
        /// Steps over which `sparsity` is gone through.
        rampup_step: u64 = 1,
        /// Shares of elements that are held back; none means 0.999.
        sparsity: Vec<f32> = vec![],
    }

    /// Momentum with a learning rate per parameter.
    LarsConfigs {
        /// Length of a step relative to the length of the weights.
        lars_coeff: f32 = 0.001,
        /// L2 penalty.
        lars_weight_decay: f32 = 0.0005,
        /// Added to the divisor.
        epsilon: f32 = 0.0,
        /// Parameters with one of these texts in their name have no penalty.
        exclude_from_weight_decay: Vec<String> = vec![],
    }

    /// Adam with a trust ratio per parameter.
    LambConfigs {
        /// Weight decay.
        lamb_weight_decay: f32 = 0.01,
        /// Parameters whose name ends in one of these texts have none.
        exclude_from_weight_decay: Vec<String> = vec![],
    }

    /// Optimizer state divided among workers.
    ShardingConfigs {
        /// How parameters are cut into segments.
        sharding_segment_strategy: String = "segment_broadcast_MB".to_string(),
        /// Size of a segment.
        segment_broadcast_mb as "segment_broadcast_MB": f32 = 32.0,
        /// Where segments begin.
        segment_anchors: Vec<String> = vec![],
        /// Workers that share one copy of the state; not written means all of them. (Paddle's
        /// default is 8.)
        sharding_degree: Option<u64> = None,
        /// Workers that share a layer.
        mp_degree: u64 = 1,
        /// Copies of the divided state.
        dp_degree: u64 = 1,
        /// Old name of the same idea.
        hybrid_dp: bool = false,
        /// Steps per update.
        gradient_merge_acc_step: u64 = 1,
        /// Keep optimizer state elsewhere.
        optimize_offload: bool = false,
        /// Where pipelines reduce.
        pp_allreduce_in_optimize: bool = false,
        /// Stages of a pipeline.
        pp_degree: u64 = 1,
        /// Casts move to the optimizer.
        optimize_cast: bool = false,
        /// 1 divides optimizer state, 2 also gradients, 3 also parameters.
        stage: u64 = 1,
        /// Which GPU stream communicates.
        use_calc_stream: bool = false,
    }

    /// Layers in stages on several workers.
    PipelineConfigs {
        /// Examples of a part of a batch.
        micro_batch_size: u64 = 1,
        /// Parts of a batch.
        accumulate_steps: u64 = 1,
        /// Order of forward and backward.
        schedule_mode: String = "1F1B".to_string(),
        /// Shapes stay the same.
        p2p_cache_shape: bool = true,
        /// Send parts of tensors.
        enable_partial_send_recv: bool = true,
    }

    /// One layer on several workers.
    TensorParallelConfigs {
        /// How many.
        tensor_parallel_degree: u64 = 1,
        /// Seed of their initial weights.
        tensor_init_seed: i64 = -1,
    }

    /// Several kinds of parallel training together.
    HybridConfigs {
        /// Data parallel; -1 means what is left.
        dp_degree: i64 = -1,
        /// One layer on several workers.
        mp_degree: u64 = 1,
        /// Stages of a pipeline.
        pp_degree: u64 = 1,
        /// Workers that share optimizer state.
        sharding_degree: u64 = 1,
        /// Parts of a sequence.
        sep_degree: u64 = 1,
        /// Order of the kinds, outermost first.
        order: Vec<String> = ["dp", "pp", "sharding", "sep", "mp"].map(String::from).to_vec(),
        /// About shared optimizer state.
        sharding_configs: HybridShardingConfigs = HybridShardingConfigs::default(),
    }

    /// Part of [`HybridConfigs`].
    HybridShardingConfigs {
        /// Gradients that travel together.
        comm_buffer_size_mb as "comm_buffer_size_MB": u64 = 256,
        /// Average while reducing.
        use_reduce_avg: bool = true,
    }

    /// How gradients of several workers become one.
    GradientScaleConfigs {
        /// Mean, sum, or as the program says.
        scale_strategy: ScaleStrategy = ScaleStrategy::Avg,
        /// Scale gradients rather than the loss.
        scale_gradient: bool = false,
    }

    /// What workers write down while they train.
    TrainerDescConfigs {
        /// Folder of dumped values.
        dump_fields_path: String = String::new(),
        /// Variables to dump.
        dump_fields: Vec<String> = vec![],
        /// Parameters to dump.
        dump_param: Vec<String> = vec![],
        /// Variables whose statistics are kept.
        stat_var_names: Vec<String> = vec![],
        /// Class of the trainer.
        trainer: String = String::new(),
        /// Class of its threads.
        device_worker: String = String::new(),
        /// Tables kept by workers.
        local_sparse: Vec<String> = vec![],
        /// Tables kept elsewhere.
        remote_sparse: Vec<String> = vec![],
    }

    /// Access to a distributed file system.
    FsClientParam {
        /// Its address.
        uri: String = String::new(),
        /// Who asks.
        user: String = String::new(),
        /// With which password.
        passwd: String = String::new(),
        /// The client program.
        hadoop_bin: String = String::new(),
    }

    /// How programs are rewritten.
    BuildStrategy {
        /// Ops one after the other.
        enable_sequential_execution: bool = false,
        /// Sums with activations.
        fuse_elewise_add_act_ops: bool = false,
        /// Batch norms with activations.
        fuse_bn_act_ops: bool = false,
        /// Activations with convolutions.
        fuse_relu_depthwise_conv: bool = false,
        /// Broadcasts together.
        fuse_broadcast_ops: bool = false,
        /// Updates together.
        fuse_all_optimizer_ops: bool = false,
        /// Results in the place of inputs.
        enable_inplace: bool = false,
        /// Updates wait for the whole backward.
        enable_backward_optimizer_op_deps: bool = true,
        /// Keep what a run prepares.
        cache_runtime_context: bool = false,
        /// Batch norms with sums and activations.
        fuse_bn_add_act_ops: bool = true,
        /// Fuse what can be fused.
        enable_auto_fusion: bool = false,
        /// Add in place.
        enable_addto: bool = false,
        /// Capture CUDA graphs.
        allow_cuda_graph_capture: bool = false,
        /// 0 reduces gradients everywhere, 1 to one device.
        reduce_strategy: u64 = 0,
        /// Matrix multiplies with what follows.
        fuse_gemm_epilogue: bool = false,
        /// Where to draw the program.
        debug_graphviz_path: String = String::new(),
        /// Attention as one op.
        fused_attention: bool = false,
        /// A feed-forward layer as one op.
        fused_feedforward: bool = false,
    }

    /// How programs are run.
    ExecutionStrategy {
        /// Threads that share a batch.
        num_threads: u64 = 1,
        /// Steps after which temporaries are dropped.
        num_iteration_per_drop_scope: u64 = 10,
        /// Steps per call.
        num_iteration_per_run: u64 = 1,
        /// Threads wait for each other.
        use_thread_barrier: bool = false,
    }

    /// Training for small integers.
    QatConfigs {
        /// A scale per channel.
        channel_wise_abs_max: bool = true,
        /// Bits of weights.
        weight_bits: u64 = 8,
        /// Bits of activations.
        activation_bits: u64 = 8,
        /// Names of layers that are left out.
        not_quant_pattern: Vec<String> = vec![],
        /// How scales are found.
        algo: String = String::new(),
    }
}
