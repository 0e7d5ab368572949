//! Rare messages, in JSON: easy to read in a trace, and their cost does not matter.

use std::collections::BTreeMap;

use regatta_checkpoint::Part;
use regatta_table::{SaveMode, TierConfig};
use serde::{Deserialize, Serialize};

use super::exact;
use crate::Error;
use crate::shards::{DataStart, Progress};
use crate::snapshot::{SnapshotId, SnapshotScope};

/// Name of the barrier after which all workers are in a data pass.
pub(crate) const RESUME: &str = "resume";

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
        /// Its data, where others may have to take them over.
        data: Option<DataStart>,
    },
    /// This worker has nothing to do: answered with an [`Idle`] when there is something.
    Idle,
    /// This worker takes over the shard of a lost one, as server 0 has told it; answered with the
    /// progress of the shard on this server.
    TakeOver {
        /// The shard.
        shard: usize,
        /// The step that the worker begins with.
        step: u64,
    },
    /// A worker that was lost takes part again. Server 0 first, then all others.
    Rejoin {
        /// As of any worker.
        hello: Hello,
        /// The last snapshot that server 0 has taken; none for server 0 itself.
        after: Option<SnapshotId>,
    },
    /// Opens a snapshot; see [`crate::snapshot`]. Only worker 0 may. This server's part is to be
    /// written into a directory.
    Snapshot {
        /// Its number.
        id: SnapshotId,
        /// The directory.
        dir: String,
        /// What of the tables.
        scope: SnapshotScope,
    },
    /// Whether the checkpoint of the last snapshot is stored, from which changes are to be counted.
    /// Only worker 0 knows, and says so after snapshots that are not [`SnapshotScope::Whole`].
    Stored {
        /// Number of the snapshot.
        id: SnapshotId,
        /// It is; else the next changes hold those of this snapshot again.
        stored: bool,
    },
    /// This worker has nothing in flight; answered when the snapshot is taken.
    Ready {
        /// Number of the snapshot.
        id: SnapshotId,
        /// What the worker needs to continue from here, for worker 0 to write down.
        state: String,
        /// The worker will write a part of its own and report it.
        own_part: bool,
    },
    /// A worker's own part of a snapshot is written, or why not.
    OwnPart {
        /// Number of the snapshot.
        id: SnapshotId,
        /// The part.
        part: Result<Part, String>,
    },
    /// Answered when this server's part of a snapshot is written, and on server 0 also the parts of
    /// workers.
    Written {
        /// Number of the snapshot.
        id: SnapshotId,
    },
    /// This worker is done and takes no part in anything from now on.
    Leave,
    /// Write this server's part to files in a directory.
    Save {
        /// The directory.
        dir: String,
        /// The same for all parts of one save, and different for any other.
        id: u64,
        /// Which rows.
        mode: SaveMode,
    },
    /// Try whether this server can write to a directory, without leaving anything there.
    TrySave {
        /// The directory.
        dir: String,
    },
    /// Read this server's part from a directory that any number of servers has written.
    Load {
        /// The directory.
        dir: String,
        /// Only these tables and parameters; all if empty.
        names: Vec<String>,
        /// Keep rows that are there and not in the directory, as for a delta on top of its base.
        over: bool,
    },
    /// Read this server's part of a checkpoint and continue from there, with its learning rate.
    Restore {
        /// The checkpoint.
        dir: String,
        /// Later snapshots may ask for what has changed since.
        count_changes: bool,
    },
    /// Drop the rows of all tables that are not worth keeping; their statistics decay.
    Shrink {
        /// Rows not seen for more days than this go, instead of those of the tables' configuration.
        max_unseen_days: Option<u32>,
    },
    /// A day is over: all rows have gone one more day without a push.
    EndDay,
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
    /// See [`Idle`].
    Idle(Idle),
    /// How far a shard is trained on this server.
    Progress(Progress),
    /// See [`Rejoin`].
    Rejoin(Rejoin),
    /// The worker has left; workers that were lost and did not come back, and how.
    Left(Vec<String>),
    /// See [`SnapshotTaken`].
    Taken(SnapshotTaken),
    /// What was written, for the manifest.
    Written(Vec<Part>),
}

/// What there is for a worker that has nothing to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// The data pass is over for all workers.
    PassOver {
        /// Shards of lost workers that nobody else can read.
        untrained: Vec<usize>,
    },
    /// A snapshot is open.
    Snapshot,
    /// The shard of a lost worker.
    TakeOver {
        /// The shard.
        shard: usize,
        /// The job is at this step.
        step: u64,
    },
}

/// Whether a worker that was lost takes part again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejoin {
    /// It does.
    Joined {
        /// The data pass that the job is in.
        pass: u64,
        /// What its data are, where that is not known beforehand.
        plan: Option<String>,
        /// The step that the worker begins with.
        step: u64,
        /// Number of the next reduction.
        round: u64,
        /// The last snapshot that was taken.
        snapshot: SnapshotId,
    },
    /// Not now, and what it must wait for.
    Later(String),
}

/// A snapshot was taken.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SnapshotTaken {
    /// What the workers were ready with, in order; only worker 0 gets it.
    pub states: Vec<(usize, String)>,
    /// Where parts of workers go.
    pub dir: String,
    /// Seconds that this server's copy took.
    pub copy_seconds: f64,
    /// Shards of lost workers, and how far they are trained: on this server; for the worker on all
    /// servers, in order.
    #[serde(default)]
    pub orphans: Vec<(usize, Vec<Progress>)>,
}

impl SnapshotTaken {
    /// Adds how far the next server has the shards of lost workers. Where it has not lost a worker,
    /// that one was ready for the snapshot: all servers have the same of it.
    pub(crate) fn add_orphans(&mut self, next: Vec<(usize, Vec<Progress>)>) {
        for (shard, all) in &mut self.orphans {
            let found = next.iter().find(|(number, _)| number == shard);
            let progress = found.and_then(|(_, progress)| progress.first());
            all.extend(progress.or(all.first()).cloned());
        }
    }
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
    /// Workers that were lost and did not come back, or never came, and how.
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
    /// Ids pulled that had no row at that time.
    #[serde(default)]
    pub missed: u64,
    /// Rows updated.
    pub pushed: u64,
    /// Of a table with rows on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierStats>,
}

/// Numbers about a table with rows on disk.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TierStats {
    /// Bytes of rows that may be in memory.
    pub memory_bytes: u64,
    /// Rows on disk.
    pub cold: u64,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// Rows read from disk.
    pub cold_reads: u64,
    /// Rows read because a worker said that it would pull them.
    pub prefetched: u64,
    /// Rows that went to disk.
    pub demoted: u64,
    /// Of the pulled ids that had a row, the part whose row was in memory.
    pub hit_rate: f64,
    /// Pulls and pushes that waited for rows from disk.
    pub waits: u64,
    /// How long they waited together.
    pub wait_seconds: f64,
}

impl TableStats {
    /// The numbers of a table of so many bytes in memory, if it has rows on disk.
    pub(crate) fn new(stats: &regatta_table::Stats, tier: Option<&TierConfig>) -> TableStats {
        let s = stats;
        let tier = tier.map(|tier| TierStats {
            memory_bytes: tier.memory_bytes,
            cold: s.cold,
            disk_bytes: s.disk_bytes,
            cold_reads: s.cold_reads,
            prefetched: s.prefetched,
            demoted: s.demoted,
            hit_rate: s.hit_rate(),
            waits: s.waits,
            wait_seconds: s.wait_micros as f64 / 1e6,
        });
        TableStats {
            rows: s.rows,
            bytes: s.bytes,
            pulled: s.pulls,
            missed: s.pulls.saturating_sub(s.hits),
            pushed: s.updated,
            tier,
        }
    }
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
