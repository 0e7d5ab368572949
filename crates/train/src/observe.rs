//! What a run reports while it trains.

use std::fmt;
use std::path::Path;

use regatta_data::BadLines;
use regatta_tensor::Tensor;

use crate::metrics::{Measure, Slice};
use crate::report::{CheckpointReport, EpochReport};

/// Hears of everything that happens in a run. A closure will do.
pub trait Observer {
    /// Something happened. Called on the training thread, so it should return soon.
    fn event(&mut self, event: &Event<'_>);
}

impl<F: FnMut(&Event<'_>)> Observer for F {
    fn event(&mut self, event: &Event<'_>) {
        self(event);
    }
}

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The model is built and the data are found.
    Begin {
        /// Name of the model.
        model: &'a str,
        /// Numbers that are learned.
        parameters: u64,
        /// Data passes to come; not known where data arrive while training.
        epochs: Option<u64>,
        /// Examples of a data pass, as far as that can be known beforehand.
        examples: Option<u64>,
    },
    /// A batch is done.
    Batch(&'a Batch),
    /// What an evaluation predicts for a batch.
    Scores {
        /// Examples of the batch.
        examples: usize,
        /// Name and values of each head.
        heads: &'a [(&'a str, &'a Tensor)],
    },
    /// `print_interval` batches are done.
    Interval(&'a Interval),
    /// A data pass is done.
    Epoch(&'a EpochReport),
    /// Lines were skipped in a data pass.
    BadLines(&'a BadLines),
    /// A model was saved.
    Saved(&'a Path),
    /// A checkpoint was made.
    Checkpoint(&'a CheckpointReport),
    /// Something that the user should know.
    Note(&'a str),
}

/// Where training stands after a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batch {
    /// The data pass.
    pub epoch: u64,
    /// The batch in it, from 0.
    pub batch_id: u64,
    /// Examples of the data pass so far.
    pub examples: u64,
    /// Loss of the batch, if it is fetched.
    pub loss: Option<f32>,
}

/// Some batches together.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// The data pass.
    pub epoch: u64,
    /// The last batch, from 0.
    pub batch_id: u64,
    /// Steps since training began.
    pub step: u64,
    /// Loss of the last batch.
    pub loss: Option<f32>,
    /// Measures of the model since their counters began.
    pub metrics: Vec<Measure>,
    /// Mean time that a batch was waited for.
    pub reader_seconds: f64,
    /// Mean time of a batch.
    pub batch_seconds: f64,
    /// Mean number of examples in a batch.
    pub samples: f64,
}

impl Interval {
    /// Examples in a second.
    pub fn examples_per_sec(&self) -> f64 {
        if self.batch_seconds > 0.0 { self.samples / self.batch_seconds } else { 0.0 }
    }
}

impl fmt::Display for Interval {
    /// The line that PaddleRec's trainers print.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch: {}, batch_id: {}, ", self.epoch, self.batch_id)?;
        for (name, value) in &self.metrics {
            write!(f, "{name}: {value:.6}, ")?;
        }
        if let Some(loss) = self.loss {
            write!(f, "cost: {loss:.6}, ")?;
        }
        write!(
            f,
            "avg_reader_cost: {:.5} sec, avg_batch_cost: {:.5} sec, avg_samples: {:.5}, \
             ips: {:.5} ins/s",
            self.reader_seconds,
            self.batch_seconds,
            self.samples,
            self.examples_per_sec()
        )
    }
}

impl fmt::Display for CheckpointReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checkpoint {}: epoch {}, batch {}, step {}, {:.2} MB, stall {:.1} ms, written in \
             {:.3} s",
            self.serial,
            self.epoch,
            self.batch,
            self.step,
            self.bytes as f64 / 1e6,
            self.stall_seconds * 1e3,
            self.write_seconds
        )
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slice { head, column, value, examples, auc, log_loss } = self;
        let auc = auc.map_or("none".to_string(), |auc| format!("{auc:.6}"));
        write!(f, "slice {column}={value}: {head}: {auc}, log_loss: {log_loss:.6}, ")?;
        write!(f, "examples: {examples}")
    }
}

impl fmt::Display for EpochReport {
    /// The line that PaddleRec's trainers print after a data pass.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch: {} done, ", self.epoch)?;
        // Models of several tasks have names of their own for it, among the metrics.
        let named = |name: &String| name.starts_with("auc_") && name != "auc_bucketed";
        if let Some(auc) = self.auc
            && !self.metrics.keys().any(named)
        {
            write!(f, "auc: {auc:.6}, ")?;
        }
        for (name, value) in &self.metrics {
            write!(f, "{name}: {value:.6}, ")?;
        }
        if let Some(loss) = self.loss {
            write!(f, "cost: {loss:.6}, ")?;
        }
        write!(
            f,
            "examples: {}, ips: {:.2} ins/s, epoch time: {:.3} s",
            self.examples, self.examples_per_sec, self.seconds
        )?;
        self.slices.iter().try_for_each(|slice| write!(f, "\n{slice}"))
    }
}
