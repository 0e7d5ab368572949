//! The report of a run: numbers by epoch, written as JSON.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use regatta_checkpoint::publish_file;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::metrics::Slice;

/// The outcome of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The configuration as resolved.
    pub config: serde_json::Value,
    /// What computed, if it was not the processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// One entry for each epoch, in order.
    pub epochs: Vec<EpochReport>,
    /// Most memory that the process has held, in megabytes (2^20 bytes).
    pub peak_rss_mb: f64,
    /// The checkpoint that the run resumed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<PathBuf>,
    /// Checkpoints that were made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<CheckpointReport>,
    /// The epoch that is the best one on the validation data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<u64>,
}

/// A checkpoint that was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointReport {
    /// Its number.
    pub serial: u64,
    /// Where it is.
    pub path: PathBuf,
    /// The data pass.
    pub epoch: u64,
    /// Batches of the data pass that are in it.
    pub batch: u64,
    /// Steps since training began.
    pub step: u64,
    /// How long training stalled for it.
    pub stall_seconds: f64,
    /// How long writing took, beside training.
    pub write_seconds: f64,
    /// Size.
    pub bytes: u64,
}

/// One data pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Its number, from 0.
    pub epoch: u64,
    /// Mean over the examples; none where evaluation has no loss.
    pub loss: Option<f64>,
    /// Area under the ROC curve of the first prediction that has one.
    pub auc: Option<f64>,
    /// Examples that were used.
    pub examples: u64,
    /// Examples in a second.
    pub examples_per_sec: f64,
    /// Time of the data pass.
    pub seconds: f64,
    /// Where the time went.
    pub stages: StageSeconds,
    /// Ids of an evaluation that have no row and counted as zeros: distinct ones of each batch and
    /// table.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing_ids: u64,
    /// Measures other than those above, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Measures of parts of the examples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
    /// The same epoch on the validation data, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Box<EpochReport>>,
}

impl EpochReport {
    /// A measure by its name: `loss`, `auc` or one of the metrics.
    pub fn measure(&self, name: &str) -> Option<f64> {
        match name {
            "loss" => self.loss,
            "auc" => self.auc,
            other => self.metrics.get(other).copied(),
        }
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Seconds by stage. Stages of readers run beside those of training and are summed over threads, so
/// the whole may be more than the time of the data pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StageSeconds {
    /// Reading and unpacking files, and waiting for pipe commands.
    pub read: f64,
    /// Turning text into records.
    pub parse: f64,
    /// Shuffling and assembling batches.
    pub batch: f64,
    /// Training waiting for a batch.
    pub wait: f64,
    /// Fetching parameters from servers; between ranks, waiting for the slowest before a step.
    pub pull: f64,
    /// Predictions and loss.
    pub forward: f64,
    /// Gradients.
    pub backward: f64,
    /// Updates of parameters that this process makes; servers report theirs.
    pub update: f64,
    /// Sending gradients to servers.
    pub push: f64,
    /// Saving the model.
    pub save: f64,
}

impl StageSeconds {
    /// Names and values in the order of a batch's way.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> {
        [
            ("read", self.read),
            ("parse", self.parse),
            ("batch", self.batch),
            ("wait", self.wait),
            ("pull", self.pull),
            ("forward", self.forward),
            ("backward", self.backward),
            ("update", self.update),
            ("push", self.push),
            ("save", self.save),
        ]
        .into_iter()
    }
}

impl Report {
    /// Writes the report as JSON. The file appears complete or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("a report is plain data") + "\n";
        write_whole(path, text.as_bytes())
    }
}

/// Writes any JSON value. The file appears complete or not at all.
///
/// # Errors
/// If it cannot be written.
pub fn write_json(value: &serde_json::Value, path: &Path) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).expect("a value is plain data") + "\n";
    write_whole(path, text.as_bytes())
}

/// Writes a file that appears whole; a device or a pipe is written where it is.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if path.exists() && !path.is_file() && !path.is_dir() {
        let fail = |source| Error::Write { path: path.to_path_buf(), source };
        return std::fs::write(path, bytes).map_err(fail);
    }
    Ok(publish_file(path, |file| file.write_all(bytes))?)
}

/// Most memory that this process has held, in megabytes; 0 where the system does not say.
pub fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1024.0
}
