//! Training by ranks without servers: what a strategy makes of a training program, and the group of
//! all ranks. The steps are those of [`regatta_train::Ranks`].

mod join;
mod plan;

pub use join::join;
pub use plan::{optimizer_for, plan_ranks, plan_ranks_watched};
