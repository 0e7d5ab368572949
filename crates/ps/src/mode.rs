//! How far workers may be apart from each other and from the servers. Modes are data: the same
//! client, server and loop serve all of them.

use std::fmt;
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
    /// Each worker waits for its own update before it continues; workers do not wait for others.
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

/// What can be tuned about asynchronous training. Its [`Default`] holds the defaults of all front
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsyncConfig {
    /// Gradients of this many batches are added up before they are pushed.
    pub max_merge_var_num: u64,
    /// A worker stops computing while this many pushes are not yet acknowledged.
    pub send_queue_size: u64,
    /// Batches whose rows are prefetched at most while others are computed; 0 waits for the last
    /// update first. A caller that trains step by step does not know later batches, so nothing is
    /// prefetched there. Dense parameters are never prefetched: they come with the reply to the
    /// push. Dense parameters that are one step old cost accuracy and rows that are one step old do
    /// not (AUC 0.690 and 0.705, with nothing old 0.706; one data pass of 195 steps).
    pub pull_ahead: u64,
    /// Weight prediction: servers send dense parameters as they will be after one more update like
    /// the last ones, if another update is to be expected before the gradients computed with them
    /// arrive, and if the update rule has a momentum. Gradients then fit the values that they are
    /// applied to, although several workers train at the same time.
    pub dense_ahead: bool,
    /// Dense parameters are pulled once per this many pushes.
    pub min_send_grad_num_before_recv: u64,
    /// Gradients that are being added up are pushed after the first batch that ends later than this
    /// after the first of them was ready, even if they are fewer than `max_merge_var_num`. None:
    /// they wait until they are complete or the data pass ends, so that the speed of a worker does
    /// not change what it pushes.
    pub merge_wait: Option<Duration>,
}

impl Default for AsyncConfig {
    fn default() -> Self {
        AsyncConfig {
            max_merge_var_num: 1,
            send_queue_size: 16,
            pull_ahead: 1,
            dense_ahead: true,
            min_send_grad_num_before_recv: 1,
            merge_wait: None,
        }
    }
}

/// A setting whose value cannot be honoured. A front end puts the place of the setting before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSetting {
    /// The setting's name, without section or group.
    pub name: &'static str,
    /// What was found and what is expected.
    pub reason: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.reason)
    }
}

impl AsyncConfig {
    /// All settings that cannot be honoured.
    pub fn problems(&self) -> Vec<BadSetting> {
        let counts = [
            ("max_merge_var_num", self.max_merge_var_num),
            ("send_queue_size", self.send_queue_size),
            ("min_send_grad_num_before_recv", self.min_send_grad_num_before_recv),
        ];
        counts.into_iter().filter_map(|(name, n)| at_least_one(name, n)).collect()
    }
}

fn at_least_one(name: &'static str, n: u64) -> Option<BadSetting> {
    (n == 0).then(|| BadSetting { name, reason: "should be at least 1, but is 0".to_string() })
}

/// Asynchronous training, with the default of every setting.
impl Default for Mode {
    fn default() -> Self {
        Mode::Async(AsyncConfig::default())
    }
}

impl Mode {
    /// The names users select modes by.
    pub const NAMES: &'static [&'static str] = &["sync", "async", "half_async", "bounded", "geo"];

    /// All settings of the mode that cannot be honoured.
    pub fn problems(&self) -> Vec<BadSetting> {
        match self {
            Mode::Async(config) => config.problems(),
            Mode::Geo { every } => at_least_one("geo_step", *every).into_iter().collect(),
            Mode::Sync | Mode::HalfAsync | Mode::Bounded { .. } => Vec::new(),
        }
    }

    /// Checks that everything about the mode can be honoured.
    ///
    /// # Errors
    /// If not, naming what and why.
    pub fn check(&self) -> Result<(), Error> {
        match self.problems().first() {
            None => Ok(()),
            Some(problem) => Err(Error::usage(problem.to_string())),
        }
    }

    /// Whether servers collect the gradients of all workers before they update.
    pub fn is_sync(&self) -> bool {
        matches!(self, Mode::Sync)
    }

    /// The mode for a caller that gives one batch at a time, so that later ones are not known.
    pub fn without_prefetch(self) -> Mode {
        match self {
            Mode::Async(config) => Mode::Async(AsyncConfig { pull_ahead: 0, ..config }),
            other => other,
        }
    }

    /// The largest difference in steps between workers, if there is a bound.
    pub fn staleness(&self) -> Option<u64> {
        match self {
            Mode::Sync => Some(0),
            Mode::Bounded { staleness } => Some(*staleness),
            _ => None,
        }
    }

    /// The name users select it by, one of [`Mode::NAMES`].
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
        assert_eq!(good.problems(), []);
        let bad = AsyncConfig { max_merge_var_num: 0, send_queue_size: 0, ..good };
        let found: Vec<String> = bad.problems().iter().map(BadSetting::to_string).collect();
        assert_eq!(
            found,
            [
                "max_merge_var_num should be at least 1, but is 0",
                "send_queue_size should be at least 1, but is 0"
            ]
        );
        assert!(Mode::Async(bad).check().is_err());
        assert!(Mode::Geo { every: 0 }.check().is_err());
    }

    #[test]
    fn modes_have_the_names_of_the_list() {
        let all = [
            Mode::Sync,
            Mode::default(),
            Mode::HalfAsync,
            Mode::Bounded { staleness: 1 },
            Mode::Geo { every: 1 },
        ];
        assert_eq!(all.map(|mode| mode.name()), Mode::NAMES);
    }
}
