//! Gradient descent with momentum, plain or Nesterov's.

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// v = mu * v + g
/// w -= lr * v               plain
/// w -= lr * (g + mu * v)    nesterov
/// ```
/// PyTorch's SGD with `momentum = mu` and no dampening. Lazily per row, the velocity of a row rests
/// while the row is not touched.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Momentum {
    /// How much of the velocity a step keeps.
    pub mu: f32,
    /// Look ahead along the velocity.
    pub nesterov: bool,
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum { mu: 0.9, nesterov: false }
    }
}

impl Momentum {
    /// One step.
    #[inline(always)]
    pub fn update(&self, lr: f32, w: &mut [f32], g: &[f32], velocity: &mut [f32]) {
        let mu = self.mu;
        if self.nesterov {
            each(w, g, [velocity], |w, g, [v]| {
                let v = mu * v + g;
                (w - lr * (g + mu * v), [v])
            });
        } else {
            each(w, g, [velocity], |w, g, [v]| {
                let v = mu * v + g;
                (w - lr * v, [v])
            });
        }
    }

    /// Checks that `mu` is a fraction.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        Check { of: "momentum" }.decay("mu", self.mu)
    }
}

impl Kernel for Momentum {
    const STATES: &'static [StateSpec] = &[StateSpec::element("velocity")];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [velocity, ..] = state.slices;
        self.update(lr, w, g, velocity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn two_steps_by_hand() {
        let rule = Momentum::default();
        let mut trial = Trial::new(&rule, 0.1, &[1.0, -2.0]);
        trial.step(&[0.5, -1.0]);
        assert_close(&trial.w, &[0.95, -1.9]);
        trial.step(&[1.0, 1.0]); // v = 1.45, 0.1
        assert_close(&trial.state, &[1.45, 0.1]);
        assert_close(&trial.w, &[0.805, -1.91]);
    }

    #[test]
    fn two_nesterov_steps_by_hand() {
        let rule = Momentum { nesterov: true, ..Momentum::default() };
        let mut trial = Trial::new(&rule, 0.1, &[1.0, -2.0]);
        trial.step(&[0.5, -1.0]); // 0.5 + 0.9 * 0.5 = 0.95
        assert_close(&trial.w, &[0.905, -1.81]);
        trial.step(&[1.0, 1.0]); // 1 + 0.9 * 1.45 = 2.305; 1 + 0.9 * 0.1 = 1.09
        assert_close(&trial.w, &[0.6745, -1.919]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Momentum::default(), 0.1, 300) < 1e-9);
        assert!(minimise(&Momentum { nesterov: true, mu: 0.9 }, 0.1, 300) < 1e-9);
    }

    #[test]
    fn full_momentum_is_refused() {
        assert!(Momentum::default().validate().is_ok());
        let error = Momentum { mu: 1.0, nesterov: false }.validate().unwrap_err();
        assert!(error.to_string().contains("`mu` is 1"), "{error}");
    }
}
