//! Update rules and learning-rate schedules as pure functions over slices.
//!
//! Dense optimizer ops and parameter-server tables use the same rules, so Adam exists once. There
//! are no tables, programs, files, clocks or threads here, and nothing allocates during a step.
//!
//! ```
//! use regatta_optim::{Adagrad, RowRule, Rule, Schedule};
//!
//! let rule = Rule::Adagrad(Adagrad::default());
//! let schedule = Schedule::Exponential { decay_steps: 1, decay_rate: 0.5, staircase: false };
//! let (mut w, mut state) = ([1.0, -1.0], vec![0.0; rule.row_state_len(2)]);
//! rule.init_row_state(2, &mut state);
//! let mut shared = rule.shared_state();
//! for step in 0..2 {
//!     rule.update_row(schedule.lr(0.1, step), &shared, &mut w, &[3.0, 0.0], &mut state);
//!     rule.advance(&mut shared);
//! }
//! // The second step has half the rate, and 1/sqrt(2) of the length since the accumulator doubled.
//! assert!((w[0] - (1.0 - 0.1 - 0.05 / 2f32.sqrt())).abs() < 1e-6);
//! ```
//!
//! Reading order: [`Rule`] (the enum), one file per rule with its formula ([`Sgd`] to [`Summary`]),
//! [`TableRule`], [`RowRule`] (many rows at once), [`StateMut`] (where states live), [`Schedule`],
//! [`LossScaling`].

mod adadelta;
mod adagrad;
mod adam;
mod adam_d2sum;
mod adamw;
mod error;
mod ftrl;
mod lamb;
mod lanes;
mod lars;
mod loss_scaling;
mod momentum;
mod rmsprop;
mod rows;
mod rule;
mod schedule;
mod sgd;
mod state;
mod sum;
pub mod table_rule;
#[cfg(test)]
mod testing;

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adam_d2sum::AdamD2Sum;
pub use adamw::AdamW;
pub use error::Error;
pub use ftrl::Ftrl;
pub use lamb::Lamb;
pub use lars::LarsMomentum;
pub use loss_scaling::{LossScaling, ScaleState};
pub use momentum::Momentum;
pub use rmsprop::RmsProp;
pub use rows::{Kernel, RowLoop, RowRule, RowUpdater};
pub use rule::Rule;
pub use schedule::Schedule;
pub use sgd::Sgd;
pub use state::{MAX_STATES, Per, SharedState, StateDesc, StateMut, StateSpec};
pub use sum::{Sum, Summary};
pub use table_rule::TableRule;
