//! How far workers may run ahead of each other and of the servers. Modes are data: the same client,
//! server and loop serve all of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;

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
///
/// What is not honoured is refused by [`AsyncConfig::check`], never dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsyncConfig {
    /// Gradients of this many batches are added up before they are pushed.
    pub max_merge_var_num: u64,
    /// A worker stops computing while this many pushes are not yet acknowledged.
    pub send_queue_size: u64,
    /// Batches whose rows are prefetched at most while others are computed; 0 waits for the last
    /// update first. Dense parameters are never prefetched: they come with the reply to the push, a
    /// step that is old in them costs accuracy and one that is old in rows does not (AUC 0.690 and
    /// 0.705, with nothing old 0.706; one data pass of 195 steps).
    pub pull_ahead: u64,
    /// Servers give dense values as they will be after one more update like the last ones, if another
    /// is to be expected before the gradients computed with them arrive, and if the update rule has a
    /// momentum. Gradients then fit the values that they are applied to, although several workers
    /// train at the same time.
    pub dense_ahead: bool,
    /// Dense parameters are pulled once per this many pushes.
    pub min_send_grad_num_before_recv: u64,
    /// Gradients that are being added up are pushed after the first batch that ends later than this
    /// many times 10 ms after the first of them was ready, even if they are fewer than
    /// `max_merge_var_num`. Without it they wait until they are complete or the pass ends, so that
    /// the speed of a worker does not change what it pushes.
    pub send_wait_times: Option<u64>,
    /// Values are received by a thread of their own while the worker computes. Every connection has
    /// such a thread, so this asks for nothing that `pull_ahead` does not give; set without running
    /// ahead it is refused, because each batch then waits for its values.
    pub independent_recv_thread: bool,
    /// Threads that send gradients. Only 1 is accepted: requests to all servers are under way at the
    /// same time, each on its own connection, and are written by the thread that trains.
    pub thread_pool_size: u64,
}

impl Default for AsyncConfig {
    fn default() -> Self {
        AsyncConfig {
            max_merge_var_num: 1,
            send_queue_size: 16,
            pull_ahead: 0,
            dense_ahead: false,
            min_send_grad_num_before_recv: 1,
            send_wait_times: None,
            independent_recv_thread: false,
            thread_pool_size: 1,
        }
    }
}

impl AsyncConfig {
    /// Checks that everything can be honoured.
    ///
    /// # Errors
    /// If not, naming the field and the reason.
    pub fn check(&self) -> Result<(), Error> {
        let at_least_one = [
            ("max_merge_var_num", self.max_merge_var_num),
            ("send_queue_size", self.send_queue_size),
            ("min_send_grad_num_before_recv", self.min_send_grad_num_before_recv),
            ("thread_pool_size", self.thread_pool_size),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, n)| *n == 0) {
            return Err(Error::Job(format!("{name} is 0, but must be at least 1")));
        }
        if self.thread_pool_size > 1 {
            return Err(Error::Job(format!(
                "thread_pool_size is {}, but only 1 can be honoured: requests to all servers are \
                 under way at the same time without a pool of sending threads",
                self.thread_pool_size
            )));
        }
        if self.independent_recv_thread && self.pull_ahead == 0 {
            return Err(Error::Job(
                "independent_recv_thread needs pull_ahead of at least 1: with 0 every batch waits \
                 for its values"
                    .to_string(),
            ));
        }
        Ok(())
    }

    /// How long gradients may be held back to be added up.
    pub fn longest_wait(&self) -> Option<Duration> {
        self.send_wait_times
            .map(|n| Duration::from_millis(10).saturating_mul(n.min(1 << 30) as u32))
    }
}

impl Mode {
    /// Checks that everything about the mode can be honoured.
    ///
    /// # Errors
    /// If not, naming what and why.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Mode::Async(config) => config.check(),
            Mode::Geo { every: 0 } => {
                Err(Error::Job("geo exchanges every 0 steps, but must be at least 1".into()))
            }
            _ => Ok(()),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let good = AsyncConfig::default();
        assert!(good.check().is_ok());
        assert!(
            AsyncConfig { independent_recv_thread: true, pull_ahead: 1, ..good }.check().is_ok()
        );
        let bad = [
            (AsyncConfig { thread_pool_size: 4, ..good }, "thread_pool_size is 4"),
            (AsyncConfig { max_merge_var_num: 0, ..good }, "max_merge_var_num is 0"),
            (
                AsyncConfig { independent_recv_thread: true, pull_ahead: 0, ..good },
                "independent_recv_thread needs pull_ahead",
            ),
        ];
        for (config, reason) in bad {
            let error = Mode::Async(config).check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(Mode::Geo { every: 0 }.check().is_err());
    }
}
