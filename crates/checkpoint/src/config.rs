//! When checkpoints are made, and how many are kept.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::manifest::Kind;
use crate::{CheckpointDir, Error};

/// What a user wants of checkpoints; Paddle's `CheckpointConfig`, with saving by time and deltas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// The directory of all checkpoints of the job.
    pub dir: PathBuf,
    /// How many complete ones are kept (`max_num_checkpoints`), beside those that they build on.
    pub keep: usize,
    /// Only epochs whose number, from 0, is a multiple of this have checkpoints by step.
    pub epoch_interval: u64,
    /// In such an epoch, steps whose number, from 0, is a multiple of this end with a checkpoint.
    /// None: checkpoints are made by time only.
    pub step_interval: Option<u64>,
    /// A step also ends with a checkpoint if the last one is this many seconds old.
    pub seconds: Option<f64>,
    /// Every how many checkpoints one stands alone; those between hold what differs from the one
    /// before. 1: all stand alone.
    pub full_every: u64,
    /// Whether a job that reached its end leaves its checkpoints.
    pub keep_when_done: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig {
            dir: PathBuf::from("."),
            keep: 3,
            epoch_interval: 1,
            step_interval: Some(10),
            seconds: None,
            full_every: 1,
            keep_when_done: true,
        }
    }
}

impl CheckpointConfig {
    /// The defaults, in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        CheckpointConfig { dir: dir.into(), ..CheckpointConfig::default() }
    }

    /// What cannot be meant, by the name of the setting.
    pub fn problem(&self) -> Option<String> {
        let zero = [
            ("keep", self.keep == 0),
            ("epoch_interval", self.epoch_interval == 0),
            ("step_interval", self.step_interval == Some(0)),
            ("full_every", self.full_every == 0),
        ];
        if let Some((name, _)) = zero.iter().find(|(_, zero)| *zero) {
            return Some(format!("`{name}` is 0, expected 1 or more"));
        }
        if let Some(s) = self.seconds.filter(|s| !(s.is_finite() && *s > 0.0 && *s < 1e9)) {
            return Some(format!("`seconds` is {s}, expected a number above 0"));
        }
        let never = self.step_interval.is_none() && self.seconds.is_none();
        never.then(|| {
            "neither `step_interval` nor `seconds` is set: no checkpoint is ever due".into()
        })
    }

    /// Whether the step that just ended, counted from 0 within its epoch, ends with a checkpoint.
    /// `elapsed` is the time since the last one, or since training began.
    pub fn due(&self, epoch: u64, step: u64, elapsed: Duration) -> bool {
        let by_step = self.step_interval.is_some_and(|every| step.is_multiple_of(every.max(1)));
        let by_time = self.seconds.is_some_and(|seconds| elapsed.as_secs_f64() >= seconds);
        by_time || (by_step && epoch.is_multiple_of(self.epoch_interval.max(1)))
    }

    /// The directory.
    pub fn open(&self) -> CheckpointDir {
        CheckpointDir::open(&self.dir)
    }

    /// What the next checkpoint is to be, when the tables count changes from checkpoint `last`
    /// (none: they do not). A delta is only possible if `last` is still complete.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn next_kind(&self, last: Option<u64>) -> Result<Kind, Error> {
        let Some(base) = last.filter(|_| self.full_every > 1) else { return Ok(Kind::Full) };
        let entries = self.open().list()?;
        let kind = |serial: u64| {
            let entry = entries.iter().find(|e| e.serial == serial && e.manifest().is_some())?;
            Some(entry.manifest()?.kind)
        };
        // How many checkpoints the next one would build on.
        let (mut length, mut at) = (1, base);
        loop {
            match kind(at) {
                None => return Ok(Kind::Full),
                Some(_) if length >= self.full_every => return Ok(Kind::Full),
                Some(Kind::Full) => return Ok(Kind::Delta { base }),
                Some(Kind::Delta { base }) => (length, at) = (length + 1, base),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_and_steps_as_paddle_counts_them() {
        let config = CheckpointConfig {
            epoch_interval: 2,
            step_interval: Some(10),
            ..CheckpointConfig::default()
        };
        let due = |epoch: u64| -> Vec<u64> {
            (0..25).filter(|step| config.due(epoch, *step, Duration::ZERO)).collect()
        };
        assert_eq!(due(0), [0, 10, 20]);
        assert_eq!(due(1), Vec::<u64>::new());
        assert_eq!(due(2), [0, 10, 20]);
    }

    #[test]
    fn time_counts_in_any_epoch() {
        let config = CheckpointConfig {
            epoch_interval: 2,
            step_interval: None,
            seconds: Some(1.5),
            ..CheckpointConfig::default()
        };
        assert!(!config.due(0, 0, Duration::from_millis(1499)));
        assert!(config.due(1, 3, Duration::from_millis(1500)));
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let problem = |config: CheckpointConfig| config.problem().unwrap_or_default();
        let default = CheckpointConfig::default;
        assert_eq!(problem(default()), "");
        assert_eq!(
            problem(CheckpointConfig { keep: 0, ..default() }),
            "`keep` is 0, expected 1 or more"
        );
        let never = CheckpointConfig { step_interval: None, ..default() };
        assert!(problem(never).contains("no checkpoint is ever due"));
        assert!(
            problem(CheckpointConfig { seconds: Some(-1.0), ..default() }).contains("`seconds`")
        );
    }
}
