//! What training a model takes: a configuration becomes counts of rows, keys, bytes and operations.

use std::collections::HashSet;

use regatta_data::Batch;
use regatta_optim::{RowRule, Rule};
use regatta_passes::{Split, split_trainer};
use regatta_ps::{Mode, Wire};
use regatta_rec::Config;
use regatta_rec::data::Data as Examples;
use regatta_rec::network::Network;
use regatta_tensor::Value;
use serde::Serialize;

use crate::Error;
use crate::cluster::Data;
use crate::tier::TierLoad;

/// What a table takes per row beyond its floats: header and index. Tables hold themselves to it
/// (`regatta-table`), and a test of this crate compares.
pub const ROW_OVERHEAD: f64 = 24.0;

/// What a step of a model takes.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    /// Name of the model.
    pub model: String,
    /// Examples of a worker's step.
    pub batch: f64,
    /// Threads of a worker that share its batch.
    pub threads: f64,
    /// The tables.
    pub tables: Vec<TableLoad>,
    /// Dense parameters.
    pub dense: f64,
    /// Floats that servers keep for dense parameters, with optimizer state.
    pub dense_floats: f64,
    /// Floating-point operations of the matrix products, forward and backward.
    pub flops_per_example: f64,
    /// Ids that are looked up.
    pub ids_per_example: f64,
    /// Bytes in the file.
    pub bytes_per_example: f64,
    /// How workers and servers keep in step.
    pub mode: String,
    /// Bytes of a float on the network.
    pub float_bytes: f64,
    /// The same of an id.
    pub id_bytes: f64,
    /// What the arithmetic needs of it.
    #[serde(skip)]
    pub(crate) pace: Pace,
}

/// One table.
#[derive(Debug, Clone, Serialize)]
pub struct TableLoad {
    /// Name of the parameter.
    pub name: String,
    /// Floats of a row that workers see.
    pub dim: f64,
    /// Rows in all.
    pub rows: f64,
    /// Bytes of a row on its server, overhead included.
    pub row_bytes: f64,
    /// Distinct keys of a batch.
    pub keys_per_batch: f64,
    /// If it has rows on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierLoad>,
}

/// How exchanges and computing follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// A worker waits for its own exchange.
    Own,
    /// A worker waits for all workers.
    All,
    /// Rows are prefetched; a worker waits for its push and the dense parameters after it.
    Push,
    /// Exchanges are hidden behind computing.
    Hidden,
    /// Exchanges every N steps, hidden.
    Every(f64),
}

/// Batches that are read to see what the data look like.
const SAMPLE_BATCHES: usize = 8;

impl Workload {
    /// What the model of a configuration takes. What `known` does not say is measured on the first
    /// batches of the training data.
    ///
    /// # Errors
    /// If the configuration cannot be trained against servers, or its data are needed and cannot be
    /// read.
    pub fn new(config: &Config, known: &Data) -> Result<Workload, Error> {
        let network = Network::build(config)?;
        let split = split_trainer(&network.train)?;
        let batch = config.runner.train.batch_size.unwrap_or(0) as f64;
        if batch < 1.0 {
            return Err(Error::Missing("runner.train_batch_size: must be set".into()));
        }
        let complete = known.ids_per_example.is_some()
            && known.distinct_share.is_some()
            && known.bytes_per_example.is_some();
        let seen = if complete {
            DataSample::default()
        } else {
            DataSample::look(config, &network, &split)?
        };
        let ids = known.ids_per_example.unwrap_or(seen.ids_per_example());
        let share = known.distinct_share.unwrap_or(seen.distinct_share());
        let mut tables = tables(&split, known, &seen, ids * batch * share);
        for table in &mut tables {
            let tier = config.runner.distributed.tiers.get(&table.name);
            table.tier = tier.map(|tier| TierLoad::new(tier.memory_mb, table));
        }
        let floats = |rule: &Rule, n: f64| n + state_floats(rule, n);
        let sizes: Vec<(f64, &Rule)> = split
            .dense
            .iter()
            .map(|d| (d.shape.iter().product::<usize>() as f64, &d.rule))
            .collect();
        let mode = config.runner.distributed.mode;
        let (float_bytes, id_bytes) = match config.runner.distributed.wire {
            Wire::F32 => (4.0, 8.0),
            // As many bytes as the largest id has; those of tables that the model declares.
            Wire::F16 | Wire::Bf16 => {
                let largest = split.tables.iter().map(|t| t.rows).max().unwrap_or(1) as f64;
                (2.0, (largest.max(2.0).log2() / 8.0).ceil())
            }
        };
        Ok(Workload {
            model: config.model.name.to_string(),
            batch,
            threads: config.runner.thread_num as f64,
            tables,
            dense: sizes.iter().map(|(n, _)| n).sum(),
            dense_floats: sizes.iter().map(|(n, rule)| floats(rule, *n)).sum(),
            flops_per_example: flops(&split),
            ids_per_example: ids,
            bytes_per_example: known.bytes_per_example.unwrap_or(seen.bytes_per_example()),
            mode: mode.name().to_string(),
            float_bytes,
            id_bytes,
            pace: pace(&mode),
        })
    }

    /// Distinct keys of a batch, over all tables.
    pub fn keys_per_batch(&self) -> f64 {
        self.tables.iter().map(|t| t.keys_per_batch).sum()
    }

    /// Bytes of all rows on all servers.
    pub fn table_bytes(&self) -> f64 {
        self.tables.iter().map(|t| t.rows * t.row_bytes).sum()
    }

    /// Steps between two exchanges.
    pub(crate) fn steps_per_exchange(&self) -> f64 {
        match self.pace {
            Pace::Every(steps) => steps,
            _ => 1.0,
        }
    }

    /// Bytes of an exchange from worker to servers: keys to pull, keys and gradients to push.
    pub fn bytes_up(&self) -> f64 {
        let rows = self
            .tables
            .iter()
            .map(|t| t.keys_per_batch * (2.0 * self.id_bytes + self.float_bytes * t.dim));
        rows.sum::<f64>() + self.float_bytes * self.dense
    }

    /// Bytes of an exchange from servers to worker.
    pub fn bytes_down(&self) -> f64 {
        let rows = self.tables.iter().map(|t| t.keys_per_batch * self.float_bytes * t.dim);
        rows.sum::<f64>() + self.float_bytes * self.dense
    }

    /// Bytes on the network per example, both ways.
    pub fn wire_bytes_per_example(&self) -> f64 {
        (self.bytes_up() + self.bytes_down()) / (self.batch * self.steps_per_exchange())
    }
}

fn pace(mode: &Mode) -> Pace {
    match mode {
        Mode::Sync => Pace::All,
        Mode::Geo { every } => Pace::Every(*every as f64),
        Mode::Async(a) if a.pull_ahead > 0 && a.min_send_grad_num_before_recv > 1 => Pace::Hidden,
        Mode::Async(a) if a.pull_ahead > 0 => Pace::Push,
        _ => Pace::Own,
    }
}

fn state_floats(rule: &Rule, n: f64) -> f64 {
    rule.states().iter().map(|s| s.len_for(n as usize) as f64).sum()
}

fn tables(split: &Split, known: &Data, seen: &DataSample, keys_per_batch: f64) -> Vec<TableLoad> {
    let declared: f64 = split.tables.iter().map(|t| t.rows as f64).sum();
    let ids: f64 = split.tables.iter().map(|t| seen.ids_of(split, &t.name)).sum();
    let load = |t: &regatta_passes::TableSpec| {
        // Rows that the file speaks of are divided as the model declares its tables.
        let rows = known.rows.map_or(t.rows as f64, |all| all * t.rows as f64 / declared.max(1.0));
        let dim = t.dim as f64;
        let part = if ids > 0.0 { seen.ids_of(split, &t.name) / ids } else { 0.0 };
        TableLoad {
            name: t.name.clone(),
            dim,
            rows,
            row_bytes: 4.0 * (dim + t.rule.row_state_len(dim as usize) as f64) + ROW_OVERHEAD,
            keys_per_batch: (keys_per_batch * part).min(rows),
            tier: None,
        }
    };
    split.tables.iter().map(load).collect()
}

/// Multiplications and additions per example: a matrix of n x m takes n*m of each in the forward
/// pass, and twice that in the backward pass (gradients of input and weights).
fn flops(split: &Split) -> f64 {
    let matrices = split.dense.iter().filter(|d| d.shape.len() == 2);
    matrices.map(|d| 6.0 * d.shape.iter().product::<usize>() as f64).sum()
}

/// What the first batches look like.
#[derive(Debug, Default)]
struct DataSample {
    examples: f64,
    /// Ids by input.
    ids: Vec<(String, f64)>,
    /// Distinct ids of each batch, added up.
    distinct: f64,
    bytes: f64,
}

impl DataSample {
    fn look(config: &Config, network: &Network, split: &Split) -> Result<DataSample, Error> {
        let mut data = Examples::open(config, &config.runner.train, &network.schema)?;
        let (mut batches, _) = data.pass(0)?;
        let mut seen = DataSample::default();
        for _ in 0..SAMPLE_BATCHES {
            let Some(batch) = batches.next().map_err(regatta_rec::Error::from)? else { break };
            seen.add(split, &batch);
            batches.recycle(batch);
        }
        if seen.examples == 0.0 {
            let what = "the training data are empty; say ids_per_example, distinct_share and \
                        bytes_per_example in the section 'data' of the cluster file";
            return Err(Error::Missing(what.into()));
        }
        Ok(seen)
    }

    fn add(&mut self, split: &Split, batch: &Batch) {
        self.examples += batch.examples() as f64;
        for table in &split.tables {
            let mut distinct: HashSet<u64> = HashSet::new();
            for input in inputs_of(split, &table.name) {
                let Some(ids) = batch.get(&input).map(ids) else { continue };
                distinct.extend(ids);
                match self.ids.iter_mut().find(|(name, _)| *name == input) {
                    Some((_, n)) => *n += ids.len() as f64,
                    None => self.ids.push((input, ids.len() as f64)),
                }
            }
            self.distinct += distinct.len() as f64;
        }
        // About the bytes of MultiSlot text: a count and a number for each value.
        let text = |v: &Value| match v.as_dense().map(|t| t.data()) {
            Some(regatta_tensor::Data::F32(x)) => 10.0 * x.len() as f64,
            Some(regatta_tensor::Data::I64(x)) => 4.0 * x.len() as f64,
            _ => 9.0 * ids(v).len() as f64,
        };
        self.bytes += batch.values().iter().map(text).sum::<f64>();
    }

    fn all_ids(&self) -> f64 {
        self.ids.iter().map(|(_, n)| n).sum()
    }

    fn ids_per_example(&self) -> f64 {
        self.all_ids() / self.examples.max(1.0)
    }

    fn distinct_share(&self) -> f64 {
        self.distinct / self.all_ids().max(1.0)
    }

    fn bytes_per_example(&self) -> f64 {
        self.bytes / self.examples.max(1.0)
    }

    /// Ids of a table; where no data were read, one for each of its inputs.
    fn ids_of(&self, split: &Split, table: &str) -> f64 {
        let inputs = inputs_of(split, table);
        if self.ids.is_empty() {
            return inputs.len() as f64;
        }
        self.ids.iter().filter(|(name, _)| inputs.contains(name)).map(|(_, n)| n).sum()
    }
}

/// The inputs whose ids are looked up in a table.
fn inputs_of(split: &Split, table: &str) -> Vec<String> {
    let own = split.exchange.tables.iter().filter(|pull| pull.name == table);
    own.flat_map(|pull| pull.inputs.iter().map(|(ids, _)| ids.clone())).collect()
}

fn ids(value: &Value) -> &[u64] {
    const NONE: &[u64] = &[];
    match value {
        Value::Dense(t) => match t.data() {
            regatta_tensor::Data::U64(ids) => ids,
            _ => NONE,
        },
        Value::Ragged(r) => match r.values() {
            regatta_tensor::Data::U64(ids) => ids,
            _ => NONE,
        },
    }
}
