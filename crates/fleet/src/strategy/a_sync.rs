//! Training against parameter servers: Paddle's `a_sync` and `a_sync_configs` become a [`Mode`].
//! Options of Paddle that tune nothing here are checked and go no further.

use std::time::Duration;

use regatta_ps::{AsyncConfig, BadSetting, Mode};

use super::DistributedStrategy;
use super::setting::options;
use crate::Error;

/// Paddle's unit of `send_wait_times`.
const SEND_WAIT: Duration = Duration::from_millis(10);

/// Options that mean something in asynchronous training only.
const TUNING: &[&str] = &[
    "max_merge_var_num",
    "send_queue_size",
    "independent_recv_thread",
    "min_send_grad_num_before_recv",
    "thread_pool_size",
    "send_wait_times",
    "pull_ahead",
    "dense_ahead",
];

options! {
    /// Training against parameter servers. Defaults are those of [`AsyncConfig`].
    ASyncConfigs {
        /// With `a_sync`: 0 or less is asynchronous training, more is geo training with N steps
        /// between exchanges.
        k_steps: i64 = -1,
        /// Gradients of N batches are added up before they are pushed.
        max_merge_var_num: u64 = AsyncConfig::default().max_merge_var_num,
        /// Pushes that may be in flight.
        send_queue_size: u64 = AsyncConfig::default().send_queue_size,
        /// Receive values while a batch is computed. Every connection has a receiving thread, so
        /// this changes nothing; with `pull_ahead` 0, which waits for values, it is an error.
        independent_recv_thread: bool = false,
        /// Dense parameters are pulled once per N pushes.
        min_send_grad_num_before_recv: u64 = AsyncConfig::default().min_send_grad_num_before_recv,
        /// Threads that send. Only 1 is accepted.
        thread_pool_size: u64 = 1,
        /// Times 10 ms after which gradients that are being added up are pushed. Not written: they
        /// are pushed when they are complete. (Paddle's default is 1.)
        send_wait_times: Option<u64> = None,
        /// Divide send and receive while running.
        runtime_split_send_recv: bool = false,
        /// Workers wait for servers at the start.
        launch_barrier: bool = true,
        /// Device of heterogeneous workers.
        heter_worker_device_guard: String = "cpu".to_string(),
        /// How often servers look at the learning-rate schedule.
        lr_decay_steps: u64 = 10,
        /// Parameter servers on GPUs.
        use_ps_gpu: u64 = 0,
        /// Graph tables on GPUs.
        use_gpu_graph: u64 = 0,
        /// Batches whose rows are prefetched at most. A program that trains step by step does not
        /// know later batches, so nothing is prefetched there. Paddle has no such option.
        pull_ahead: u64 = AsyncConfig::default().pull_ahead,
        /// Weight prediction: dense parameters are sent extrapolated by one update where another
        /// push comes first. Paddle has no such option.
        dense_ahead: bool = AsyncConfig::default().dense_ahead,
        /// No worker is more than N steps ahead of the slowest. Paddle has no such option.
        staleness: Option<u64> = None,
        /// Every worker waits for its own updates. Paddle had this mode before version 2.
        half_async: bool = false,
    }
}

impl ASyncConfigs {
    /// The settings of asynchronous training that these options ask for.
    ///
    /// # Errors
    /// If some cannot be honoured, all of them.
    pub fn asynchronous(&self) -> Result<AsyncConfig, Vec<BadSetting>> {
        let wait = |n: u64| SEND_WAIT.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
        let config = AsyncConfig {
            max_merge_var_num: self.max_merge_var_num,
            send_queue_size: self.send_queue_size,
            pull_ahead: self.pull_ahead,
            dense_ahead: self.dense_ahead,
            min_send_grad_num_before_recv: self.min_send_grad_num_before_recv,
            merge_wait: self.send_wait_times.map(wait),
        };
        let mut problems = config.problems();
        if self.thread_pool_size != 1 {
            let reason = format!(
                "should be 1, but is {}: requests to all servers are in flight at the same time \
                 without a pool of sending threads",
                self.thread_pool_size
            );
            problems.push(BadSetting { name: "thread_pool_size", reason });
        }
        if self.independent_recv_thread && self.pull_ahead == 0 {
            let reason = "should not be set with pull_ahead 0, where every batch waits for its \
                          values: set pull_ahead to at least 1"
                .to_string();
            problems.push(BadSetting { name: "independent_recv_thread", reason });
        }
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }
}

impl DistributedStrategy {
    /// How workers and parameter servers keep in step: `a_sync` off is synchronous training; on, it
    /// is asynchronous, or geo training if `k_steps` is above 0.
    ///
    /// # Errors
    /// If options contradict each other or a number makes no sense.
    pub fn ps_mode(&self) -> Result<Mode, Error> {
        self.ps_mode_or_problems()
            .map_err(|problems| Error::Config(format!("strategy: {}", problems.join("; "))))
    }

    fn ps_mode_or_problems(&self) -> Result<Mode, Vec<String>> {
        self.check_asked_modes()?;
        let c = &self.a_sync_configs;
        let mode = match (self.a_sync, c.staleness) {
            (false, _) => Mode::Sync,
            (true, Some(staleness)) => Mode::Bounded { staleness },
            (true, None) if c.half_async => Mode::HalfAsync,
            (true, None) if c.k_steps > 0 => Mode::Geo { every: c.k_steps.unsigned_abs() },
            (true, None) => {
                let named = |p: BadSetting| format!("a_sync_configs.{p}");
                let config = c.asynchronous();
                Mode::Async(config.map_err(|all| all.into_iter().map(named).collect::<Vec<_>>())?)
            }
        };
        let tuned = self.tuned();
        if !matches!(mode, Mode::Async(_)) && !tuned.is_empty() {
            return Err(vec![format!(
                "{} tunes asynchronous training, but the mode is {}",
                tuned.join(" and "),
                mode.name()
            )]);
        }
        Ok(mode)
    }

    /// Checks that at most one mode is asked for.
    fn check_asked_modes(&self) -> Result<(), Vec<String>> {
        let c = &self.a_sync_configs;
        let kinds = [
            ("a_sync_configs.half_async", c.half_async),
            ("a_sync_configs.staleness", c.staleness.is_some()),
            ("a_sync_configs.k_steps", c.k_steps > 0),
        ];
        let asked: Vec<&str> = kinds.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        match asked[..] {
            [first, second, ..] => {
                Err(vec![format!("{first} and {second} ask for different modes")])
            }
            [first] if !self.a_sync => {
                Err(vec![format!("a_sync is false, but {first} asks for another mode than sync")])
            }
            _ => Ok(()),
        }
    }

    /// The options of asynchronous training that differ from their defaults.
    fn tuned(&self) -> Vec<String> {
        let changed = self.changed().into_iter().map(|(path, _)| path);
        let is_tuning = |path: &String| {
            path.strip_prefix("a_sync_configs.").is_some_and(|name| TUNING.contains(&name))
        };
        changed.filter(is_tuning).collect()
    }
}
