//! What a user asks of distributed training, by Paddle's names.
//!
//! Reading order: [`DistributedStrategy`], `configs` and `tables` (its groups), `a_sync` (parameter
//! servers), `check` (what can be honoured, and what excludes what), `setting` (how options become
//! text and back), `text` and `yaml_form` (the two text forms), `renamed` (earlier names).

mod a_sync;
mod check;
mod configs;
mod renamed;
mod setting;
mod tables;
mod text;
mod yaml_form;

use std::path::Path;

pub use a_sync::ASyncConfigs;
pub use check::Use;
pub use configs::*;
pub use tables::*;

use self::setting::{Group, Problem, choice, options};
use crate::Error;
use crate::yaml;

choice! {
    /// What a strategy was written for. [`crate::Fleet::init`] decides what is run.
    StrategyMode {
        /// Workers reduce gradients among themselves.
        Collective = "COLLECTIVE",
        /// Parameter servers.
        Ps = "PS",
        /// Layers in stages.
        Pipeline = "PIPELINE",
        /// Devices of several kinds.
        Heter = "HETER",
    }
}

options! {
    /// Everything that can be asked of distributed training.
    ///
    /// Each field is an option of Paddle's `DistributedStrategy`. Nothing is dropped silently: an
    /// option that cannot be honoured in the training that it is used for is an error
    /// ([`DistributedStrategy::check`]).
    ///
    /// ```
    /// use regatta_fleet::strategy::{DistributedStrategy, Use};
    ///
    /// let text = "a_sync: true\na_sync_configs: {k_steps: 100}\n";
    /// let strategy = DistributedStrategy::from_yaml(text)?;
    /// assert_eq!(strategy.a_sync_configs.k_steps, 100);
    /// strategy.check(Use::ParameterServer)?;
    ///
    /// let strategy = DistributedStrategy { pipeline: true, ..Default::default() };
    /// let error = strategy.check(Use::Collective).unwrap_err();
    /// assert_eq!(error.to_string(), "strategy: pipeline is not implemented");
    /// # Ok::<(), regatta_fleet::Error>(())
    /// ```
    DistributedStrategy {
        /// What it was written for.
        mode: StrategyMode = StrategyMode::Collective,
        /// Mixed precision.
        amp: bool = false,
        /// Keep few activations and compute the others again.
        recompute: bool = false,
        /// Workers train apart and average parameters now and then.
        localsgd: bool = false,
        /// Send only the largest elements of gradients.
        dgc: bool = false,
        /// Add up gradients of several steps before one update.
        gradient_merge: bool = false,
        /// Replace momentum by LARS.
        lars: bool = false,
        /// Replace Adam by LAMB.
        lamb: bool = false,
        /// Layers in stages on several workers.
        pipeline: bool = false,
        /// Workers may come and go.
        elastic: bool = false,
        /// Find the best options.
        auto: bool = false,
        /// With parameter servers: workers do not wait for each other.
        a_sync: bool = true,
        /// GPUs: wait for each reduction.
        sync_nccl_allreduce: bool = true,
        /// GPUs: rings used in turn.
        nccl_comm_num: u64 = 1,
        /// Reduce within groups of workers first, then among their leaders.
        use_hierarchical_allreduce: bool = false,
        /// Workers of such a group.
        hierarchical_allreduce_inter_nranks: u64 = 1,
        /// Batch norms see the batches of all workers.
        sync_batch_norm: bool = false,
        /// Reduce several gradients together.
        fuse_all_reduce_ops: bool = true,
        /// Megabytes of gradients that are reduced together.
        fuse_grad_size_in_mb as "fuse_grad_size_in_MB": u64 = 32,
        /// GPUs: gradients of this much work.
        fuse_grad_size_in_tflops as "fuse_grad_size_in_TFLOPS": f32 = 50.0,
        /// GPUs: try convolution algorithms.
        cudnn_exhaustive_search: bool = false,
        /// GPUs: megabytes for convolutions.
        conv_workspace_size_limit: u64 = 512,
        /// GPUs: algorithm of batch norms.
        cudnn_batchnorm_spatial_persistent: bool = false,
        /// As `localsgd`, with a number of steps that follows the loss.
        adaptive_localsgd: bool = false,
        /// Gradients travel in half precision.
        fp16_allreduce: bool = false,
        /// Optimizer state divided among workers.
        sharding: bool = false,
        /// Megabytes of the gradients that are reduced last.
        last_comm_group_size_mb as "last_comm_group_size_MB": f32 = 1.0,
        /// Parameters without a gradient count as zero gradients.
        find_unused_parameters: bool = false,
        /// One layer on several workers.
        tensor_parallel: bool = false,
        /// Leave programs as they are.
        without_graph_optimization: bool = true,
        /// Gradients that are reduced together, by number.
        fuse_grad_size_in_num: u64 = 8,
        /// GPUs: communicate on the stream that computes.
        calc_comm_same_stream: bool = false,
        /// Two of four weights are zero.
        asp: bool = false,
        /// Merged gradients in one piece of memory.
        fuse_grad_merge: bool = false,
        /// Parallel training from annotations.
        semi_auto: bool = false,
        /// Dense parameters on servers use `adam_d2sum`.
        adam_d2sum: bool = false,
        /// Search for the best parallel training.
        auto_search: bool = false,
        /// Devices of several kinds.
        heter_ccl_mode: bool = false,
        /// Federated training.
        is_fl_ps_mode: bool = false,
        /// Federated training with a coordinator.
        with_coordinator: bool = false,
        /// Training for small integers.
        qat: bool = false,
        /// Workers read different data.
        split_data: bool = true,
        /// About `recompute`.
        recompute_configs: RecomputeConfigs = RecomputeConfigs::default(),
        /// About `amp`.
        amp_configs: AmpConfigs = AmpConfigs::default(),
        /// About `localsgd`.
        localsgd_configs: LocalSgdConfigs = LocalSgdConfigs::default(),
        /// About `gradient_merge`.
        gradient_merge_configs: GradientMergeConfigs = GradientMergeConfigs::default(),
        /// About `dgc`.
        dgc_configs: DgcConfigs = DgcConfigs::default(),
        /// About `pipeline`.
        pipeline_configs: PipelineConfigs = PipelineConfigs::default(),
        /// About parameter servers.
        a_sync_configs: ASyncConfigs = ASyncConfigs::default(),
        /// About `lars`.
        lars_configs: LarsConfigs = LarsConfigs::default(),
        /// About `lamb`.
        lamb_configs: LambConfigs = LambConfigs::default(),
        /// About `adaptive_localsgd`.
        adaptive_localsgd_configs: AdaptiveLocalSgdConfigs = AdaptiveLocalSgdConfigs::default(),
        /// About `sharding`.
        sharding_configs: ShardingConfigs = ShardingConfigs::default(),
        /// Several kinds of parallel training together.
        hybrid_configs: HybridConfigs = HybridConfigs::default(),
        /// About `tensor_parallel`.
        tensor_parallel_configs: TensorParallelConfigs = TensorParallelConfigs::default(),
        /// What workers write down.
        trainer_desc_configs: TrainerDescConfigs = TrainerDescConfigs::default(),
        /// Tables of parameter servers.
        sparse_table_configs: Vec<TableParameter> = vec![],
        /// The same by short names.
        fleet_desc_configs: Vec<FleetDescConfigs> = vec![],
        /// Access to a distributed file system.
        fs_client_param: FsClientParam = FsClientParam::default(),
        /// About `qat`.
        qat_configs: QatConfigs = QatConfigs::default(),
        /// How gradients of several workers become one.
        gradient_scale_configs: GradientScaleConfigs = GradientScaleConfigs::default(),
        /// How programs are rewritten.
        build_strategy: BuildStrategy = BuildStrategy::default(),
        /// How programs are run.
        execution_strategy: ExecutionStrategy = ExecutionStrategy::default(),
    }
}

impl DistributedStrategy {
    /// A strategy with the default of every option.
    pub fn new() -> DistributedStrategy {
        DistributedStrategy::default()
    }

    /// Reads a strategy from YAML; options that are not written keep their defaults.
    ///
    /// # Errors
    /// If the text is not YAML, an option is unknown, or a value is of another type, with the line.
    pub fn from_yaml(text: &str) -> Result<DistributedStrategy, Error> {
        read_yaml(text).map_err(|problem| in_text("strategy", problem))
    }

    /// Writes every option as YAML.
    pub fn to_yaml(&self) -> String {
        yaml_form::write(&self.entries())
    }

    /// Reads a strategy from the text form of protocol buffers.
    ///
    /// # Errors
    /// As [`DistributedStrategy::from_yaml`].
    pub fn from_prototxt(text: &str) -> Result<DistributedStrategy, Error> {
        read_prototxt(text).map_err(|problem| in_text("strategy", problem))
    }

    /// Writes every option in the text form of protocol buffers.
    pub fn to_prototxt(&self) -> String {
        text::write(&self.entries())
    }

    /// Reads a file: YAML if its name ends in `.yaml` or `.yml`, else the text form of protocol
    /// buffers.
    ///
    /// # Errors
    /// If the file cannot be read, or as [`DistributedStrategy::from_yaml`], with file and line.
    pub fn load(path: impl AsRef<Path>) -> Result<DistributedStrategy, Error> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::Config(format!("cannot read the strategy {}: {e}", path.display()))
        })?;
        let strategy = if is_yaml(path) { read_yaml(&text) } else { read_prototxt(&text) };
        strategy.map_err(|problem| in_text(&path.display().to_string(), problem))
    }

    /// Writes a file, in the form that its name says as for [`DistributedStrategy::load`].
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let text = if is_yaml(path) { self.to_yaml() } else { self.to_prototxt() };
        std::fs::write(path, text).map_err(|e| {
            Error::Config(format!("cannot write the strategy {}: {e}", path.display()))
        })
    }

    /// As [`DistributedStrategy::load`], by Paddle's name and always in the text form of protocol
    /// buffers.
    ///
    /// # Errors
    /// As [`DistributedStrategy::load`].
    pub fn load_from_prototxt(path: impl AsRef<Path>) -> Result<DistributedStrategy, Error> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::Config(format!("cannot read the strategy {}: {e}", path.display()))
        })?;
        read_prototxt(&text).map_err(|problem| in_text(&path.display().to_string(), problem))
    }

    /// Every option with its value, as `group.option` and text.
    pub fn options(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        self.list_fields("", &mut out);
        out
    }

    /// The options that differ from their defaults.
    pub fn changed(&self) -> Vec<(String, String)> {
        let usual = DistributedStrategy::default().options();
        self.options().into_iter().filter(|option| !usual.contains(option)).collect()
    }
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "yaml" || e == "yml")
}

fn read_yaml(text: &str) -> Result<DistributedStrategy, Problem> {
    let tree = yaml::parse(text).map_err(|e| Problem { line: e.line, reason: e.reason })?;
    setting::read_group("", &tree)
}

fn read_prototxt(text: &str) -> Result<DistributedStrategy, Problem> {
    setting::read_group("", &text::parse(text)?)
}

fn in_text(file: &str, problem: Problem) -> Error {
    Error::Config(format!("{file}:{}: {}", problem.line, problem.reason))
}

#[cfg(test)]
mod tests;
