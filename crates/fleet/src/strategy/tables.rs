//! Groups about tables of parameter servers, and what can be honoured of them: rows on disk.

use std::path::PathBuf;

use regatta_train::tier::{LOOKAHEAD, Tier, Tiers};

use super::DistributedStrategy;
use super::setting::{Group, options};
use crate::Error;

options! {
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
        /// Fraction of rows in the cache.
        sparse_table_cache_rate: f32 = 0.00055,
        /// Files of a saved cache.
        sparse_table_cache_file_num: u64 = 16,
        /// Keep what is needed to go back to the last save.
        enable_revert: bool = false,
        /// Megabytes (2^20 bytes) of rows that each server keeps in memory; the others are on its
        /// disk. Paddle has no such option.
        memory_mb: Option<u64> = None,
        /// With `memory_mb`: the folder for rows on disk. Paddle has no such option.
        ssd_dir: Option<String> = None,
        /// With `memory_mb`: batches ahead of training whose rows are read from disk. Paddle has no
        /// such option.
        lookahead: Option<u64> = None,
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
        /// Initial sum of squares.
        initial_g2sum: f32 = 3.0,
        /// Initial values are within plus and minus this.
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
        /// Initial sum of squares.
        sparse_initial_g2sum: Option<f32> = None,
        /// Initial values are within plus and minus this.
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
        /// Its initial values.
        embed_sparse_initial_range: Option<f32> = None,
        /// Its initial sum of squares.
        embed_sparse_initial_g2sum: Option<f32> = None,
        /// Update rule of the second stage.
        embedx_sparse_optimizer: Option<String> = None,
        /// Its learning rate.
        embedx_sparse_learning_rate: Option<f32> = None,
        /// Its smallest and largest weight.
        embedx_sparse_weight_bounds: Vec<f32> = vec![],
        /// Its initial values.
        embedx_sparse_initial_range: Option<f32> = None,
        /// Its initial sum of squares.
        embedx_sparse_initial_g2sum: Option<f32> = None,
    }
}

/// Options of a table that are honoured.
const HONOURED: &[&str] = &["table_name", "memory_mb", "ssd_dir", "lookahead"];

impl TableParameter {
    /// The name of the table, and how much of it is in memory, if it says so.
    fn tier(&self) -> Option<(String, Tier)> {
        let tier = Tier {
            memory_mb: self.memory_mb?,
            ssd_dir: PathBuf::from(self.ssd_dir.clone().unwrap_or_default()),
            lookahead: self.lookahead.unwrap_or(LOOKAHEAD),
        };
        Some((self.table_name.clone(), tier))
    }

    /// What cannot be honoured.
    fn problems(&self) -> Vec<String> {
        let path = |name: &str| format!("sparse_table_configs['{}'].{name}", self.table_name);
        let listed = |table: &TableParameter| {
            let mut options = Vec::new();
            table.list_fields("", &mut options);
            options
        };
        let default = listed(&TableParameter::default());
        let is_other = |(name, value): &(String, String)| {
            !HONOURED.contains(&name.as_str()) && !default.contains(&(name.clone(), value.clone()))
        };
        let others = listed(self).into_iter().filter(is_other);
        let hint = "tables follow from the program and its optimizer";
        let mut problems: Vec<String> =
            others.map(|(name, _)| format!("{} is not implemented: {hint}", path(&name))).collect();
        match self.tier() {
            None => {
                let needs =
                    [("ssd_dir", self.ssd_dir.is_some()), ("lookahead", self.lookahead.is_some())];
                let alone = needs.iter().filter(|(_, is_set)| *is_set);
                problems.extend(alone.map(|(name, _)| format!("{} needs memory_mb", path(name))));
            }
            Some((name, _)) if name.is_empty() => {
                problems.push("sparse_table_configs: memory_mb needs table_name".into());
            }
            Some((_, tier)) => {
                problems.extend(tier.problem().map(|(name, why)| format!("{} {why}", path(name))))
            }
        }
        problems
    }
}

impl DistributedStrategy {
    /// The tables that have rows on disk.
    ///
    /// # Errors
    /// If options of a table cannot be honoured.
    pub fn tiers(&self) -> Result<Tiers, Error> {
        let problems = self.table_problems();
        if !problems.is_empty() {
            return Err(Error::Config(format!("strategy: {}", problems.join("; "))));
        }
        Ok(self.sparse_table_configs.iter().filter_map(TableParameter::tier).collect())
    }

    pub(super) fn table_problems(&self) -> Vec<String> {
        self.sparse_table_configs.iter().flat_map(TableParameter::problems).collect()
    }
}
