//! The factor on the loss of mixed precision training, and how it follows from what gradients did.
//!
//! Small gradients vanish in 16-bit IEEE floats, so the loss is multiplied by a large number and
//! the gradients are divided by it again. If they overflow, the step is left out; if that happens
//! too often, the number shrinks, and after many good steps it grows.

use crate::Error;

use serde::{Deserialize, Serialize};

/// When and by how much the factor changes. The defaults are Paddle's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossScaling {
    /// The first factor.
    pub initial: f32,
    /// Whether it changes at all.
    pub dynamic: bool,
    /// Good steps in a row after which it grows.
    pub incr_every_n_steps: u32,
    /// Bad steps in a row after which it shrinks.
    pub decr_every_n_nan_or_inf: u32,
    /// It grows by this factor.
    pub incr_ratio: f32,
    /// It shrinks by this factor.
    pub decr_ratio: f32,
}

impl Default for LossScaling {
    fn default() -> Self {
        LossScaling {
            initial: 32768.0,
            dynamic: true,
            incr_every_n_steps: 1000,
            decr_every_n_nan_or_inf: 2,
            incr_ratio: 2.0,
            decr_ratio: 0.8,
        }
    }
}

/// The factor and the steps since it last changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleState {
    /// The factor on the loss.
    pub scale: f32,
    /// Good steps in a row.
    pub good_steps: i64,
    /// Bad steps in a row.
    pub bad_steps: i64,
}

/// It never shrinks below this: gradients that overflow unscaled are lost anyway.
const SMALLEST: f32 = 1.0;

impl LossScaling {
    /// Checks the numbers.
    ///
    /// # Errors
    /// If a number makes no sense; the message names it.
    pub fn validate(&self) -> Result<(), Error> {
        let bad = |field: &'static str, value: f64, expected: &'static str| {
            Err(Error::OutOfRange { of: "loss scaling", field, value, expected })
        };
        let LossScaling { initial, incr_ratio, decr_ratio, .. } = *self;
        if !(initial.is_finite() && initial >= SMALLEST) {
            return bad("init_loss_scaling", initial.into(), "a finite number of at least 1");
        }
        if self.incr_every_n_steps == 0 {
            return bad("incr_every_n_steps", 0.0, "at least 1");
        }
        if self.decr_every_n_nan_or_inf == 0 {
            return bad("decr_every_n_nan_or_inf", 0.0, "at least 1");
        }
        if !(incr_ratio.is_finite() && incr_ratio > 1.0) {
            return bad("incr_ratio", incr_ratio.into(), "a finite number above 1");
        }
        if !(decr_ratio > 0.0 && decr_ratio < 1.0) {
            return bad("decr_ratio", decr_ratio.into(), "between 0 and 1");
        }
        Ok(())
    }

    /// The state before the first step.
    pub fn start(&self) -> ScaleState {
        ScaleState { scale: self.initial, good_steps: 0, bad_steps: 0 }
    }

    /// The state after a step whose gradients were finite or not.
    #[must_use]
    pub fn after(&self, state: ScaleState, finite: bool) -> ScaleState {
        if !self.dynamic {
            return state;
        }
        let ScaleState { scale, good_steps, bad_steps } = state;
        if finite {
            let good_steps = good_steps + 1;
            if good_steps < i64::from(self.incr_every_n_steps) {
                return ScaleState { scale, good_steps, bad_steps: 0 };
            }
            let grown = scale * self.incr_ratio;
            let scale = if grown.is_finite() { grown } else { scale };
            ScaleState { scale, good_steps: 0, bad_steps: 0 }
        } else {
            let bad_steps = bad_steps + 1;
            if bad_steps < i64::from(self.decr_every_n_nan_or_inf) {
                return ScaleState { scale, good_steps: 0, bad_steps };
            }
            let scale = (scale * self.decr_ratio).max(SMALLEST);
            ScaleState { scale, good_steps: 0, bad_steps: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_setting() -> impl Strategy<Value = LossScaling> {
        let ratios = (1.1f32..4.0, 0.1f32..0.95);
        (1.0f32..1e6, 1u32..6, 1u32..4, ratios).prop_map(|(initial, incr, decr, ratios)| {
            LossScaling {
                initial,
                dynamic: true,
                incr_every_n_steps: incr,
                decr_every_n_nan_or_inf: decr,
                incr_ratio: ratios.0,
                decr_ratio: ratios.1,
            }
        })
    }

    /// What the settings mean, said once more from the whole history: the factor changes at the end
    /// of every full run of equal steps.
    fn from_history(how: &LossScaling, steps: &[bool]) -> f32 {
        let mut scale = how.initial;
        for run in steps.chunk_by(|a, b| a == b) {
            let (every, good) = match run[0] {
                true => (how.incr_every_n_steps, true),
                false => (how.decr_every_n_nan_or_inf, false),
            };
            for _ in 0..run.len() / every as usize {
                let next = scale * if good { how.incr_ratio } else { how.decr_ratio };
                scale = if next.is_finite() { next.max(1.0) } else { scale };
            }
        }
        scale
    }

    proptest! {
           #[test]
           fn the_factor_follows_from_runs_of_good_and_bad_steps(
               how in any_setting(),
               steps in proptest::collection::vec(any::<bool>(), 0..200),
           ) {
               let mut state = how.start();
               for (n, &finite) in steps.iter().enumerate() {
                   state = how.after(state, finite);
                   prop_assert!(state.scale.is_finite() && state.scale >= 1.0);
                   prop_assert!(state.good_steps < i64::from(how.incr_every_n_steps));
                   prop_assert!(state.bad_steps < i64::from(how.decr_every_n_nan_or_inf));
                   prop_assert!(state.good_steps == 0 || state.bad_steps == 0);
                   prop_assert_eq!(state.scale, from_history(&how, &steps[..=n]));
               }
           }

           #[test]
           fn a_fixed_factor_stays(steps in proptest::collection::vec(any::<bool>(), 0..50)) {
               let defaults = LossScaling::default();
    let how = LossScaling { dynamic: false, incr_every_n_steps: 1, ..defaults };
               let end = steps.iter().fold(how.start(), |state, &finite| how.after(state, finite));
               prop_assert_eq!(end, how.start());
           }
       }

    #[test]
    fn the_largest_factor_is_finite() {
        let how = LossScaling { incr_every_n_steps: 1, ..LossScaling::default() };
        let end = (0..500).fold(how.start(), |state, _| how.after(state, true));
        assert_eq!(end.scale, 2f32.powi(127));
    }

    #[test]
    fn impossible_numbers_are_named() {
        let default = LossScaling::default();
        assert!(default.validate().is_ok());
        let wrong = [
            (LossScaling { initial: 0.5, ..default }, "init_loss_scaling"),
            (LossScaling { initial: f32::INFINITY, ..default }, "init_loss_scaling"),
            (LossScaling { incr_every_n_steps: 0, ..default }, "incr_every_n_steps"),
            (LossScaling { decr_every_n_nan_or_inf: 0, ..default }, "decr_every_n_nan_or_inf"),
            (LossScaling { incr_ratio: 1.0, ..default }, "incr_ratio"),
            (LossScaling { decr_ratio: 1.0, ..default }, "decr_ratio"),
            (LossScaling { decr_ratio: f32::NAN, ..default }, "decr_ratio"),
        ];
        for (how, field) in wrong {
            let error = how.validate().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
