//! Data that arrive while training: which files or messages the next data pass has.
//!
//! One process plans, and all of them read: a [`PassPlan`] names the parts of one data pass and
//! never changes, so a checkpoint that keeps it can resume in the midst of the pass. What comes
//! later belongs to a later pass.

mod address;
mod days;
#[cfg(feature = "kafka")]
mod kafka;
mod messages;
#[cfg(feature = "redis")]
mod redis;
mod tail;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Error;

pub use address::is_messages;
pub use days::{Days, DaysOptions, PassOfDay};
pub(crate) use messages::open_part;
pub use messages::{Messages, MessagesOptions};
pub use tail::{End, Tail, TailOptions};

/// One data pass over data that arrive while training.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassPlan {
    /// What it is, for the user.
    pub title: String,
    /// Paths of files or addresses of messages, in the order in which they are read.
    pub parts: Vec<String>,
    /// Where the next data pass begins, in words of the planner.
    pub next: String,
}

/// What there is to train next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upcoming {
    /// A data pass.
    Pass(PassPlan),
    /// Nothing yet: what is waited for.
    Later(String),
    /// Nothing any more, and why.
    End(String),
}

/// Looks for data that have arrived.
pub trait Planner {
    /// What comes after a data pass; after none, the first one. Waits a few seconds at most.
    ///
    /// # Errors
    /// If the data cannot be found, or did not come in time.
    fn next_pass(&mut self, after: Option<&PassPlan>) -> Result<Upcoming, Error>;
}

/// The longest wait within one call of [`Planner::next_pass`].
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How long nothing has come.
#[derive(Debug, Default)]
struct Waiting {
    since: Option<Instant>,
}

impl Waiting {
    /// Something has come.
    fn end(&mut self) {
        self.since = None;
    }

    /// Nothing has come: how long that has been so.
    fn elapsed(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}
