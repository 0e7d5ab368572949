//! Training by ranks without servers: every rank has all parameters, computes gradients on its own
//! examples, and makes the same updates with the sum of all ranks' gradients.
//!
//! Reading order: [`CollectivePlan`] (a training program and a strategy become the programs that ranks
//! run), [`join()`] (the group of all ranks), [`CollectiveTrainer`] (the loop), [`GroupComm`] (exchanges in the background of a step).

mod comm;
mod join;
mod plan;
mod trainer;

pub use comm::GroupComm;
pub use join::join;
pub use plan::{CollectivePlan, When, optimizer_for};
pub use trainer::{CollectiveTrainer, PassEnd};
