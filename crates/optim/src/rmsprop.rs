//! RMSProp (Hinton 2012), optionally centered (Graves 2013) and with momentum.

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// s = rho * s + (1 - rho) * g^2
/// m = rho * m + (1 - rho) * g                                  if centered, else m = 0
/// u = momentum * u + lr * g / sqrt(s - m^2 + epsilon)
/// w -= u
/// ```
/// As in Paddle, epsilon is under the root (PyTorch adds it to the root), and the three states
/// exist in every configuration, so that changing a switch does not change the layout of a
/// checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmsProp {
    /// Decay of both means.
    pub rho: f32,
    /// Keeps the root away from zero.
    pub epsilon: f32,
    /// How much of the last step is repeated.
    pub momentum: f32,
    /// Divide by the standard deviation of the gradient instead of its root mean square.
    pub centered: bool,
}

impl Default for RmsProp {
    fn default() -> Self {
        RmsProp { rho: 0.95, epsilon: 1e-6, momentum: 0.0, centered: false }
    }
}

impl RmsProp {
    /// One step: `u`, `s` and `m` of the formula.
    #[inline(always)]
    pub fn update(
        &self,
        lr: f32,
        w: &mut [f32],
        g: &[f32],
        momentum: &mut [f32],
        mean_square: &mut [f32],
        mean_grad: &mut [f32],
    ) {
        let RmsProp { rho, epsilon, momentum: mu, .. } = *self;
        if self.centered {
            each(w, g, [momentum, mean_square, mean_grad], |w, g, [u, s, m]| {
                let s = rho * s + (1.0 - rho) * g * g;
                let m = rho * m + (1.0 - rho) * g;
                // Never negative but for rounding.
                let variance = (s - m * m).max(0.0);
                let u = mu * u + lr * g / (variance + epsilon).sqrt();
                (w - u, [u, s, m])
            });
        } else {
            each(w, g, [momentum, mean_square], |w, g, [u, s]| {
                let s = rho * s + (1.0 - rho) * g * g;
                let u = mu * u + lr * g / (s + epsilon).sqrt();
                (w - u, [u, s])
            });
        }
    }

    /// Checks that the decays are fractions and the divisor cannot be zero.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let check = Check { of: "rmsprop" };
        check.decay("rho", self.rho)?;
        check.positive("epsilon", self.epsilon)?;
        check.decay("momentum", self.momentum)
    }
}

impl Kernel for RmsProp {
    const STATES: &'static [StateSpec] = &[
        StateSpec::element("momentum"),
        StateSpec::element("mean_square"),
        StateSpec::element("mean_grad"),
    ];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [momentum, mean_square, mean_grad, _] = state.slices;
        self.update(lr, w, g, momentum, mean_square, mean_grad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    fn check(rule: RmsProp) {
        let (rho, eps, mu, lr) = (0.95f64, 1e-6f64, f64::from(rule.momentum), 0.1f64);
        let mut trial = Trial::new(&rule, 0.1, &[1.0]);
        let (mut w, mut u, mut s, mut m) = (1.0, 0.0, 0.0, 0.0);
        for g in [0.5f64, -2.0, 0.125] {
            s = rho * s + (1.0 - rho) * g * g;
            m = if rule.centered { rho * m + (1.0 - rho) * g } else { 0.0 };
            u = mu * u + lr * g / (s - m * m + eps).sqrt();
            w -= u;
            trial.step(&[g as f32]);
            assert_close(&trial.w, &[w]);
            assert_close(&trial.state, &[u, s, m]);
        }
    }

    #[test]
    fn three_steps_of_every_kind() {
        for (momentum, centered) in [(0.0, false), (0.5, false), (0.0, true), (0.5, true)] {
            check(RmsProp { momentum, centered, ..RmsProp::default() });
        }
    }

    #[test]
    fn converges() {
        // Near the minimum the step stays about lr long, so the end is within lr^2.
        assert!(minimise(&RmsProp::default(), 0.01, 2000) < 1e-3);
        let rule = RmsProp { momentum: 0.5, centered: true, ..RmsProp::default() };
        assert!(minimise(&rule, 0.002, 4000) < 1e-3);
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(RmsProp::default().validate().is_ok());
        let error = RmsProp { rho: -0.1, ..RmsProp::default() }.validate().unwrap_err();
        assert!(error.to_string().contains("`rho` is -0.1"), "{error}");
        assert!(RmsProp { momentum: 1.0, ..RmsProp::default() }.validate().is_err());
    }
}
