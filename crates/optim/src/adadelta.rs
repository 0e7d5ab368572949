//! Adadelta (Zeiler 2012).

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// s = rho * s + (1 - rho) * g^2
/// d = g * sqrt((x + epsilon) / (s + epsilon))
/// x = rho * x + (1 - rho) * d^2
/// w -= lr * d
/// ```
/// The published rule has `lr = 1`; early Paddle ignored the learning rate, PyTorch and later
/// Paddle multiply by it as here.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adadelta {
    /// Decay of both means.
    pub rho: f32,
    /// Keeps the division finite and gets the first steps going.
    pub epsilon: f32,
}

impl Default for Adadelta {
    fn default() -> Self {
        Adadelta { rho: 0.95, epsilon: 1e-6 }
    }
}

impl Adadelta {
    /// One step: `s` and `x` of the formula.
    #[inline(always)]
    pub fn update(
        &self,
        lr: f32,
        w: &mut [f32],
        g: &[f32],
        avg_squared_grad: &mut [f32],
        avg_squared_update: &mut [f32],
    ) {
        let Adadelta { rho, epsilon } = *self;
        each(w, g, [avg_squared_grad, avg_squared_update], |w, g, [s, x]| {
            let s = rho * s + (1.0 - rho) * g * g;
            let d = g * ((x + epsilon) / (s + epsilon)).sqrt();
            let x = rho * x + (1.0 - rho) * d * d;
            (w - lr * d, [s, x])
        });
    }

    /// Checks that `rho` is a fraction and the divisor cannot be zero.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let check = Check { of: "adadelta" };
        check.decay("rho", self.rho)?;
        check.positive("epsilon", self.epsilon)
    }
}

impl Kernel for Adadelta {
    const STATES: &'static [StateSpec] =
        &[StateSpec::element("avg_squared_grad"), StateSpec::element("avg_squared_update")];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [avg_squared_grad, avg_squared_update, ..] = state.slices;
        self.update(lr, w, g, avg_squared_grad, avg_squared_update);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn three_steps_by_hand() {
        let rule = Adadelta::default();
        let (rho, eps) = (0.95f64, 1e-6f64);
        let mut trial = Trial::new(&rule, 1.0, &[1.0]);
        let (mut w, mut s, mut x) = (1.0f64, 0.0, 0.0);
        for g in [0.5f64, -2.0, 0.125] {
            s = rho * s + (1.0 - rho) * g * g;
            let d = (x + eps).sqrt() / (s + eps).sqrt() * g;
            x = rho * x + (1.0 - rho) * d * d;
            w -= d;
            trial.step(&[g as f32]);
            assert_close(&trial.w, &[w]);
            assert_close(&trial.state, &[s, x]);
        }
    }

    #[test]
    fn converges() {
        assert!(minimise(&Adadelta::default(), 1.0, 4000) < 1e-3);
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(Adadelta::default().validate().is_ok());
        let error = Adadelta { epsilon: 0.0, ..Adadelta::default() }.validate().unwrap_err();
        assert!(error.to_string().contains("`epsilon` is 0"), "{error}");
    }
}
