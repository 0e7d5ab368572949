//! How much of refused connections goes into a log: a few lines a minute, then a number. Strangers
//! who knock on an open port must not fill the disk.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;

/// Connections that are reported one by one in an interval.
const SHOWN: u32 = 5;
/// After which the others are reported as a number.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);

/// Counts refusals, and says which of them to report.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Beginning of the interval; none before the first refusal.
    since: Option<Instant>,
    shown: u32,
    hidden: u64,
}

impl RefusalLog {
    /// Notes a refusal at `now`; whether it is to be reported.
    pub fn note(&self, now: Instant) -> bool {
        let mut state = lock(&self.0);
        state.since.get_or_insert(now);
        if state.shown < SHOWN {
            state.shown += 1;
            return true;
        }
        state.hidden += 1;
        false
    }

    /// How many refusals were not reported, when an interval is over at `now` and there were any.
    /// To be called now and then, and before [`note`](RefusalLog::note).
    pub fn overdue(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        if now.duration_since(state.since?) < INTERVAL {
            return None;
        }
        let hidden = state.hidden;
        *state = State::default();
        (hidden > 0).then_some(hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_reported_and_then_a_number_per_interval() {
        let (log, start) = (RefusalLog::default(), Instant::now());
        assert_eq!(log.overdue(start), None);
        let reported = (0..1000).filter(|_| log.note(start)).count();
        assert_eq!(reported, 5);
        assert_eq!(log.overdue(start + INTERVAL / 2), None);
        assert_eq!(log.overdue(start + INTERVAL), Some(995));
        assert!(log.note(start + INTERVAL));
        assert_eq!(log.overdue(start + 2 * INTERVAL), None, "nothing was left out");
    }
}
