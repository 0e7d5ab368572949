//! Data passes over data that arrive while training: the first worker plans each of them, and all
//! train it.

use std::time::{Duration, Instant};

use regatta_data::arrivals::{PassPlan, Upcoming};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::backend::Backend;
use crate::front::Data;
use crate::observe::{Event, Observer};
use crate::state::WorkerState;

/// The reports of data passes that a run keeps: there is no end of data passes.
pub(crate) const KEPT_REPORTS: usize = 100;

/// The plan of a data pass, for checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedPass {
    /// Its number.
    pub(crate) epoch: u64,
    pub(crate) plan: PassPlan,
}

/// What the first worker has found, for all.
#[derive(Serialize, Deserialize)]
enum Found {
    Pass(PassPlan),
    /// What is waited for, and whether to make a checkpoint meanwhile.
    Later(String, bool),
    End(String),
    /// The first worker ends with this error.
    Failed(String),
}

impl From<Upcoming> for Found {
    fn from(upcoming: Upcoming) -> Found {
        match upcoming {
            Upcoming::Pass(plan) => Found::Pass(plan),
            Upcoming::Later(what) => Found::Later(what, false),
            Upcoming::End(why) => Found::End(why),
        }
    }
}

/// What all workers do next.
pub(crate) enum Look {
    /// Train this data pass.
    Pass(PassPlan),
    /// Look again.
    Again,
    /// Make a checkpoint, and look again.
    Checkpoint,
    /// End: there are no more data.
    End,
}

/// Waits for the next data pass.
pub(crate) struct Wait {
    since: Instant,
    /// What the user was told last, and when.
    told: Option<(String, Instant)>,
    /// There is something that the last checkpoint does not have.
    may_checkpoint: bool,
}

impl Wait {
    pub(crate) fn new(may_checkpoint: bool) -> Wait {
        Wait { since: Instant::now(), told: None, may_checkpoint }
    }

    /// Looks for the plan of the data pass where this worker is, and prepares the data for it. All
    /// workers call it, and do what it says.
    ///
    /// # Errors
    /// If data cannot be found or do not come in time, or a worker is gone.
    pub(crate) fn look(
        &mut self,
        state: &mut WorkerState,
        backend: &mut dyn Backend,
        data: &mut dyn Data,
        observer: &mut dyn Observer,
    ) -> Result<Look, Error> {
        let is_first = backend.worker() == 0;
        let looked = is_first.then(|| find(state, data)).transpose();
        let looked = looked.map(|found| found.map(|found| self.checkpoint_when_idle(found)));
        let own = match &looked {
            Ok(found) => found.as_ref().map(encode).unwrap_or_default(),
            Err(e) => encode(&Found::Failed(e.to_string())),
        };
        let all = backend.gather("data pass", &own)?;
        looked?;
        let plan = match decode(all.first().map_or(&[], Vec::as_slice))? {
            Found::Pass(plan) => plan,
            Found::Later(what, checkpoint) => {
                if is_first {
                    self.tell(&what, observer);
                }
                return Ok(if checkpoint { Look::Checkpoint } else { Look::Again });
            }
            Found::Failed(why) => return Err(Error::Lost(format!("worker 0 has failed: {why}"))),
            Found::End(why) => {
                if is_first {
                    observer.event(&Event::Note(&format!("the data have ended: {why}")));
                }
                return Ok(Look::End);
            }
        };
        let epoch = state.epoch;
        data.follow(epoch, &plan)?;
        if is_first {
            observer.event(&Event::Note(&format!("epoch {epoch} is {}", plan.title)));
            state.planned = Some(PlannedPass { epoch, plan: plan.clone() });
        }
        Ok(Look::Pass(plan))
    }

    /// A job that waits for long is in a checkpoint as it is.
    fn checkpoint_when_idle(&mut self, found: Found) -> Found {
        const AFTER: Duration = Duration::from_secs(5);
        match found {
            Found::Later(what, _) if self.may_checkpoint && self.since.elapsed() >= AFTER => {
                self.may_checkpoint = false;
                Found::Later(what, true)
            }
            other => other,
        }
    }

    /// Says what is waited for, now and then.
    fn tell(&mut self, what: &str, observer: &mut dyn Observer) {
        // What comes every second is not worth a line.
        const FIRST: Duration = Duration::from_secs(2);
        const EVERY: Duration = Duration::from_secs(30);
        let is_due = match &self.told {
            Some((told, at)) => told != what || at.elapsed() >= EVERY,
            None => self.since.elapsed() >= FIRST,
        };
        if is_due {
            let waited = self.since.elapsed().as_secs();
            observer.event(&Event::Note(&format!("waiting for {what} (for {waited} s)")));
            self.told = Some((what.to_string(), Instant::now()));
        }
    }
}

/// The plan that the job resumes with, or the next one.
fn find(state: &WorkerState, data: &mut dyn Data) -> Result<Found, Error> {
    match &state.planned {
        Some(planned) if planned.epoch == state.epoch => Ok(Found::Pass(planned.plan.clone())),
        before => {
            let before = before.as_ref().map(|planned| &planned.plan);
            Ok(data.next_pass(before)?.into())
        }
    }
}

fn encode(found: &Found) -> Vec<u8> {
    serde_json::to_vec(found).expect("a plan is plain data")
}

fn decode(bytes: &[u8]) -> Result<Found, Error> {
    if bytes.is_empty() {
        let why = "worker 0 is lost, which plans the data passes";
        return Err(Error::Lost(format!("{why}; start the job again, which resumes")));
    }
    let wrong = |e| Error::Internal(format!("worker 0 has sent no plan: {e}"));
    serde_json::from_slice(bytes).map_err(wrong)
}

/// A plan for servers, which give it to a worker that rejoins.
pub(crate) fn encode_plan(plan: &PassPlan) -> String {
    serde_json::to_string(plan).expect("a plan is plain data")
}

/// What servers know of the data pass.
pub(crate) fn decode_plan(plan: Option<&str>) -> Result<PassPlan, Error> {
    let read = plan.and_then(|plan| serde_json::from_str(plan).ok());
    read.ok_or_else(|| Error::Lost("servers do not know the data of this pass".into()))
}
