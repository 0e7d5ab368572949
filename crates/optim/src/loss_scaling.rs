//! The factor on the loss of mixed precision training, and how it follows from what gradients did.
//!
//! Small gradients vanish in 16-bit IEEE floats, so the loss is multiplied by a large number and the
//! gradients are divided by it again. If they overflow, the step is left out; if that happens too
//! often, the number shrinks, and after many good steps it grows.

use crate::Error;

/// When and by how much the factor changes. The defaults are Paddle's.
#[derive(Debug, Clone, Copy, PartialEq)]
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
        let bad = |name: &'static str, value: f64, expected: &'static str| {
            Err(Error::Setting { rule: "loss scaling", name, value, expected })
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
