//! The training loop and everything that every kind of training shares.
//!
//! One function, [`run_pass`], is the hub of local training, of parameter servers in every mode, of
//! geo, of ranks and of evaluation: read, step, count, report, take a snapshot when one is due.
//! What differs is a [`Backend`]. Not in here: where a model or its settings come from (`rec`,
//! `fleet`), and how values travel (`ps`, `collective`).
//!
//! Reading order: [`run_pass`] (`pass`), [`Backend`] and what it is fed ([`Input`]), `runner`, the
//! backends [`Local`], [`Servers`] (with `gradients`), [`Geo`] and [`Ranks`] (with `group_comm`,
//! [`RankPlan`]), [`Evaluator`]; [`RunSpec`] (what a front end provides), [`Session`] (a whole
//! run), `arriving` (data that come while training), [`Evaluation`], `totals` (numbers of all
//! workers), `state` (what a worker writes down), `checkpoints`, `resume`, `own_part`, [`remote`]
//! (checkpoints in stores), [`observe`], [`report`], [`metrics`], [`tensorboard`]; [`job`] (what
//! servers and workers must know).

mod arriving;
mod backend;
mod checkpoints;
mod error;
mod evaluate;
mod evaluation;
mod front;
mod geo;
mod gpubox;
mod gradients;
mod group_comm;
mod input;
pub mod job;
mod local;
mod lookahead;
mod marks;
pub mod metrics;
pub mod observe;
mod own_part;
mod pass;
mod rank_plan;
mod ranks;
pub mod remote;
pub mod report;
mod resume;
mod runner;
mod servers;
mod session;
mod state;
mod tables;
pub mod tensorboard;
pub mod tier;
mod tier_meter;
mod totals;
mod validation;

pub use backend::{
    Backend, BatchProgress, PassEnd, PassStart, RestoredState, Snapshot, SnapshotValues, StepTimes,
    Turn, save_parts, try_target,
};
pub use checkpoints::Checkpointing;
pub use error::Error;
pub use evaluate::{Evaluator, Rows, SavedTable};
pub use evaluation::{Evaluation, MeasureFn, run_feed};
pub use front::{Data, Feed, ModelFiles, RunSpec, SaveMoment, TrainedModel};
pub use geo::Geo;
pub use gpubox::{GpuBox, Moved};
pub use group_comm::GroupComm;
pub use input::{Input, Next};
pub use job::Job;
pub use local::Local;
pub use own_part::worker_part;
pub use pass::{Fetch, Pass, PassTotals, epoch_report, measures, run_pass, run_step};
pub use rank_plan::{RankPlan, When};
pub use ranks::Ranks;
pub use regatta_ps::message::ReduceOp;
pub use resume::Family;
pub use servers::Servers;
pub use session::{Farewell, RunReports, Session, leave};
pub use state::{Sharing, WorkerState};
pub use validation::{Judgement, Validation};
