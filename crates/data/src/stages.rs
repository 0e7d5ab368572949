//! Where the time of reading goes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time spent in each stage of a data pass so far, summed over its threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    /// Reading and decompressing files, and waiting for pipe commands.
    pub read: Duration,
    /// Turning text into records; for Parquet also reading it, for synthetic data making them.
    pub parse: Duration,
    /// Shuffling, gathering and assembling batches.
    pub batch: Duration,
    /// The caller of `next` waiting for a batch: reading is the bottleneck if this is large.
    pub wait: Duration,
    /// Reader threads waiting for room in the queue: training is the bottleneck if this is large.
    pub blocked: Duration,
}

/// The stage that a measured time belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    Read,
    Parse,
    Batch,
    Wait,
    Blocked,
}

/// The sums, shared between threads, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    nanos: [AtomicU64; 5],
}

impl Timers {
    pub(crate) fn add(&self, stage: Stage, time: Duration) {
        self.nanos[stage as usize].fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Runs `work` and counts its time to `stage`.
    pub(crate) fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(stage, start.elapsed());
        result
    }

    pub(crate) fn stages(&self) -> Stages {
        let of = |stage: Stage| Duration::from_nanos(self.nanos[stage as usize].load(Relaxed));
        Stages {
            read: of(Stage::Read),
            parse: of(Stage::Parse),
            batch: of(Stage::Batch),
            wait: of(Stage::Wait),
            blocked: of(Stage::Blocked),
        }
    }
}
