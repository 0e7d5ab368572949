//! Rare messages, in JSON: easy to read in a trace, and their cost does not matter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::exact;
use crate::Error;

/// The first thing a worker says to a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What the worker believes the job to be; must equal the server's.
    pub job: String,
    /// Number of workers.
    pub workers: usize,
    /// Number of servers.
    pub servers: usize,
}

/// How values of several workers become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Largest.
    Max,
    /// Smallest.
    Min,
    /// All values, worker by worker.
    Gather,
}

/// A rare request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// See [`Hello`].
    Hello(Hello),
    /// Combine values of all workers that are still there, in the order of their numbers; without
    /// values, a barrier. Each worker counts its own from 1.
    Reduce {
        /// Number of this reduction.
        round: u64,
        /// What it is about, for messages.
        what: String,
        /// How.
        op: ReduceOp,
        /// This worker's values.
        #[serde(with = "exact::f64s")]
        values: Vec<f64>,
    },
    /// This worker has no more batches in this pass: others need not wait for its steps until it
    /// resumes. It still takes part in reductions.
    Rest,
    /// This worker begins a pass at this step. All workers resume before any of them pushes.
    Resume {
        /// The step.
        step: u64,
    },
    /// This worker is done and takes no part in anything from now on.
    Leave,
    /// Write this server's part to files in a directory.
    Save {
        /// The directory.
        dir: String,
        /// The same for all parts of one save, and different for any other.
        id: u64,
    },
    /// Read this server's part from a directory that any number of servers has written.
    Load {
        /// The directory.
        dir: String,
        /// Only these tables and parameters; all if empty.
        names: Vec<String>,
    },
    /// Age the rows of all tables by a day and drop those that are not worth keeping.
    Shrink {
        /// Rows not seen for more days than this go.
        max_unseen_days: u32,
    },
    /// Numbers about this server.
    Stats,
    /// What is known of one id.
    Inspect {
        /// Name of the table.
        table: String,
        /// The id.
        id: u64,
    },
}

/// The answer to a [`Control`] request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply {
    /// Done.
    Done,
    /// Combined values.
    Values(#[serde(with = "exact::f64s")] Vec<f64>),
    /// Rows that went.
    Removed(u64),
    /// See [`ServerStats`].
    Stats(ServerStats),
    /// See [`Inspection`].
    Inspection(Option<Inspection>),
}

/// Numbers about a server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ServerStats {
    /// Its number.
    pub server: usize,
    /// Updates applied; exchanges in geo mode.
    pub steps: u64,
    /// Pushes that came again after a reconnect and were not applied again.
    pub repeated: u64,
    /// The largest number of steps that one worker was ahead of another when it was given values.
    pub largest_staleness: u64,
    /// Workers that were lost or never came, and how.
    pub lost: Vec<String>,
    /// By table.
    pub tables: BTreeMap<String, TableStats>,
    /// Bytes of resident memory, if known.
    pub peak_rss_bytes: u64,
    /// Seconds spent applying pushes and gathering pulls.
    pub busy_seconds: f64,
}

/// Numbers about a table.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TableStats {
    /// Rows.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
    /// Ids pulled.
    pub pulled: u64,
    /// Rows updated.
    pub pushed: u64,
}

/// What is known of one id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// The server that holds it.
    pub server: usize,
    /// Weights and optimizer state, part by part.
    #[serde(with = "exact::f32_parts")]
    pub parts: Vec<(String, Vec<f32>)>,
    /// Anything else, as text.
    pub detail: String,
}

impl Control {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Control, Error> {
        serde_json::from_slice(bytes).map_err(|e| Error::malformed(e.to_string()))
    }
}

impl ControlReply {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &[u8]) -> Result<ControlReply, Error> {
        serde_json::from_slice(bytes).map_err(|e| Error::malformed(e.to_string()))
    }
}
