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
        /// First factor on the loss.
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
        /// Seed of their first weights.
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

    /// Training against parameter servers.
    ASyncConfigs {
        /// With `a_sync`: 0 or less is asynchronous training, more is geo training with so many
        /// steps between exchanges.
        k_steps: i64 = -1,
        /// Gradients of so many batches are added up before they are pushed.
        max_merge_var_num: u64 = 1,
        /// Pushes that may be under way.
        send_queue_size: u64 = 16,
        /// Receive values for the next batch while one is computed.
        independent_recv_thread: bool = false,
        /// Dense parameters are pulled once per so many pushes.
        min_send_grad_num_before_recv: u64 = 1,
        /// Threads that send.
        thread_pool_size: u64 = 1,
        /// Times 10 ms after which gradients that are being added up are sent.
        send_wait_times: u64 = 1,
        /// Divide send and receive while running.
        runtime_split_send_recv: bool = false,
        /// Workers wait for servers at the start.
        launch_barrier: bool = true,
        /// Device of heterogeneous workers.
        heter_worker_device_guard: String = "cpu".to_string(),
        /// How often servers look at the learning-rate schedule.
        lr_decay_steps: u64 = 10,
        /// Parameter servers on GPUs.
        use_ps_gpu: u64 = 0,
        /// Graph tables on GPUs.
        use_gpu_graph: u64 = 0,
        /// Batches whose values are asked for before they are computed. Paddle has no such option.
        pull_ahead: u64 = 0,
        /// Dense values are given as they will be after one more update like the last ones, where others
        /// come in between. Paddle has no such option.
        dense_ahead: bool = false,
        /// No worker is more than so many steps ahead of the slowest. Paddle has no such option.
        staleness: Option<u64> = None,
        /// Every worker waits for its own updates. Paddle had this mode before version 2.
        half_async: bool = false,
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

    /// One table of parameter servers.
    TableParameter {
        /// Name of the embedding.
        table_name: String = String::new(),
        /// Number of the table.
        table_id: Option<u64> = None,
        /// Kind of the table.
        table_class: String = "MemorySparseTable".to_string(),
        /// Parts of a table on one server.
        shard_num: u64 = 1000,
        /// What rows are like.
        accessor: TableAccessorParameter = TableAccessorParameter::default(),
        /// Keep the most used rows in a cache.
        enable_sparse_table_cache: bool = false,
        /// Share of rows in the cache.
        sparse_table_cache_rate: f32 = 0.00055,
        /// Files of a saved cache.
        sparse_table_cache_file_num: u64 = 16,
        /// Keep what is needed to go back to the last save.
        enable_revert: bool = false,
    }

    /// Rows of a table.
    TableAccessorParameter {
        /// Layout of rows.
        accessor_class: String = "SparseAccessor".to_string(),
        /// Floats of a pulled row.
        fea_dim: u64 = 11,
        /// Floats of its second stage.
        embedx_dim: u64 = 8,
        /// Score from which a row has a second stage.
        embedx_threshold: f32 = 10.0,
        /// About shows and clicks.
        ctr_accessor_param: CtrAccessorParameter = CtrAccessorParameter::default(),
        /// Update rule of the first stage.
        embed_sgd_param: SparseSgdParameter = SparseSgdParameter::default(),
        /// Update rule of the second stage.
        embedx_sgd_param: SparseSgdParameter = SparseSgdParameter::default(),
    }

    /// Shows and clicks of rows.
    CtrAccessorParameter {
        /// Score of a show without a click.
        nonclk_coeff: f32 = 0.1,
        /// Score of a click.
        click_coeff: f32 = 1.0,
        /// Score from which a row is in a base save.
        base_threshold: f32 = 1.5,
        /// New score from which a row is in a delta save.
        delta_threshold: f32 = 0.25,
        /// Days a row stays in delta saves.
        delta_keep_days: f32 = 16.0,
        /// How shows and clicks fade per day.
        show_click_decay_rate: f32 = 0.98,
        /// Score below which a row is dropped.
        delete_threshold: f32 = 0.8,
        /// Days after which an unseen row is dropped.
        delete_after_unseen_days: f32 = 30.0,
        /// Days after which a row goes to disk.
        ssd_unseenday_threshold: f32 = 1.0,
        /// Gradients are divided by shows.
        show_scale: bool = true,
        /// Rows begin with zeros.
        zero_init: bool = true,
        /// Slots that are not loaded.
        load_filter_slots: Vec<f32> = vec![],
        /// Slots that are not saved.
        save_filter_slots: Vec<f32> = vec![],
    }

    /// Update rule of rows.
    SparseSgdParameter {
        /// Its name.
        name: String = "SparseAdaGradSGDRule".to_string(),
        /// Learning rate.
        learning_rate: f32 = 0.05,
        /// First sum of squares.
        initial_g2sum: f32 = 3.0,
        /// First values are within plus and minus this.
        initial_range: f32 = 0.0001,
        /// Smallest and largest weight.
        weight_bounds: Vec<f32> = vec![],
        /// Adam's decay of means.
        beta1_decay_rate: f32 = 0.9,
        /// Adam's decay of squares.
        beta2_decay_rate: f32 = 0.999,
        /// Keeps divisions finite.
        ada_epsilon: f32 = 1e-8,
    }

    /// One table of parameter servers, by the short names of `fleet_desc_configs`.
    FleetDescConfigs {
        /// Name of the embedding.
        table_name: String = String::new(),
        /// Kind of the table.
        sparse_table_class: Option<String> = None,
        /// Parts of a table on one server.
        sparse_shard_num: u64 = 1000,
        /// Layout of rows.
        sparse_accessor_class: String = "DownpourCtrAccessor".to_string(),
        /// Learning rate of both stages.
        sparse_learning_rate: Option<f32> = None,
        /// First sum of squares.
        sparse_initial_g2sum: Option<f32> = None,
        /// First values are within plus and minus this.
        sparse_initial_range: Option<f32> = None,
        /// Smallest and largest weight.
        sparse_weight_bounds: Vec<f32> = vec![],
        /// Floats of a pulled row.
        sparse_fea_dim: Option<u64> = None,
        /// Floats of the second stage.
        sparse_embedx_dim: u64 = 8,
        /// Score from which a row has a second stage.
        sparse_embedx_threshold: f32 = 10.0,
        /// Score of a show without a click.
        sparse_nonclk_coeff: Option<f32> = None,
        /// Score of a click.
        sparse_click_coeff: Option<f32> = None,
        /// Score from which a row is in a base save.
        sparse_base_threshold: Option<f32> = None,
        /// New score from which a row is in a delta save.
        sparse_delta_threshold: Option<f32> = None,
        /// Days a row stays in delta saves.
        sparse_delta_keep_days: Option<f32> = None,
        /// Days after which an unseen row is dropped.
        sparse_delete_after_unseen_days: Option<f32> = None,
        /// How shows and clicks fade per day.
        sparse_show_click_decay_rate: Option<f32> = None,
        /// Score below which a row is dropped.
        sparse_delete_threshold: Option<f32> = None,
        /// Update rule of both stages.
        sparse_optimizer: String = "adagrad".to_string(),
        /// Update rule of the first stage.
        embed_sparse_optimizer: Option<String> = None,
        /// Its learning rate.
        embed_sparse_learning_rate: Option<f32> = None,
        /// Its smallest and largest weight.
        embed_sparse_weight_bounds: Vec<f32> = vec![],
        /// Its first values.
        embed_sparse_initial_range: Option<f32> = None,
        /// Its first sum of squares.
        embed_sparse_initial_g2sum: Option<f32> = None,
        /// Update rule of the second stage.
        embedx_sparse_optimizer: Option<String> = None,
        /// Its learning rate.
        embedx_sparse_learning_rate: Option<f32> = None,
        /// Its smallest and largest weight.
        embedx_sparse_weight_bounds: Vec<f32> = vec![],
        /// Its first values.
        embedx_sparse_initial_range: Option<f32> = None,
        /// Its first sum of squares.
        embedx_sparse_initial_g2sum: Option<f32> = None,
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
