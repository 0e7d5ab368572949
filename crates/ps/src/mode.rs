//! How far workers may run ahead of each other and of the servers. Modes are data: the same client,
//! server and loop serve all of them.

use serde::{Deserialize, Serialize};

/// The consistency of a parameter-server job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Mode {
    /// All workers do step `t` together: gradients are averaged over all their examples, servers
    /// update once, everyone continues with the new values.
    Sync,
    /// Each worker waits for its own update before it goes on; workers do not wait for each other.
    HalfAsync,
    /// Updates are applied as they come; a worker pulls for its next batch while it computes.
    Async(AsyncConfig),
    /// As `HalfAsync`, but no worker is more than this many steps ahead of the slowest.
    Bounded {
        /// Steps that the fastest worker may be ahead.
        staleness: u64,
    },
    /// Every worker trains its own copy and exchanges differences now and then.
    Geo {
        /// Steps between exchanges.
        every: u64,
    },
}

/// What can be tuned about asynchronous training, by the names of Paddle's `a_sync_configs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsyncConfig {
    /// Gradients of this many batches are added up before they are pushed.
    pub max_merge_var_num: u64,
    /// A worker stops computing while this many pushes are not yet acknowledged.
    pub send_queue_size: u64,
    /// Batches whose rows are pulled before they are computed; 0 waits for the last update first.
    pub pull_ahead: u64,
    /// Dense parameters are pulled once per this many pushes.
    pub min_send_grad_num_before_recv: u64,
}

impl Default for AsyncConfig {
    fn default() -> Self {
        AsyncConfig {
            max_merge_var_num: 1,
            send_queue_size: 16,
            pull_ahead: 1,
            min_send_grad_num_before_recv: 1,
        }
    }
}

impl Mode {
    /// Whether servers collect the gradients of all workers before they update.
    pub fn is_sync(&self) -> bool {
        matches!(self, Mode::Sync)
    }

    /// The largest difference in steps between workers, if there is a bound.
    pub fn staleness(&self) -> Option<u64> {
        match self {
            Mode::Sync => Some(0),
            Mode::Bounded { staleness } => Some(*staleness),
            _ => None,
        }
    }

    /// The name users select it by.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::Sync => "sync",
            Mode::HalfAsync => "half_async",
            Mode::Async(_) => "async",
            Mode::Bounded { .. } => "bounded",
            Mode::Geo { .. } => "geo",
        }
    }
}
