//! LARS (You, Gitman, Ginsburg 2017): momentum with one learning rate per layer.

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::{each, sum_squares};
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// local_lr = lr * coeff * |w| / (|g| + weight_decay * |w| + epsilon)     (lr if either norm is 0)
/// v = mu * v + local_lr * (g + weight_decay * w)
/// w -= v
/// ```
/// Paddle's `lars_momentum`; excluded parameters get a configuration with `weight_decay` 0. The
/// norms are over one parameter. On rows of a table they are over one row, which is another
/// algorithm than the published one: allowed, but rarely useful.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LarsMomentum {
    /// How much of the velocity a step keeps.
    pub mu: f32,
    /// Trust: the length of a step relative to the length of the weights.
    pub coeff: f32,
    /// L2 regularization.
    pub weight_decay: f32,
    /// Added to the divisor of the local learning rate.
    pub epsilon: f32,
}

impl Default for LarsMomentum {
    fn default() -> Self {
        LarsMomentum { mu: 0.9, coeff: 0.001, weight_decay: 0.0005, epsilon: 0.0 }
    }
}

impl LarsMomentum {
    /// One step: a pass for the norms, one for the weights.
    #[inline(always)]
    pub fn update(&self, lr: f32, w: &mut [f32], g: &[f32], velocity: &mut [f32]) {
        let LarsMomentum { mu, weight_decay, .. } = *self;
        let weight_norm = sum_squares([w], |[w]| w).sqrt();
        let grad_norm = sum_squares([g], |[g]| g).sqrt();
        let lr = self.local_lr(lr, weight_norm, grad_norm);
        each(w, g, [velocity], |w, g, [v]| {
            let v = mu * v + lr * (g + weight_decay * w);
            (w - v, [v])
        });
    }

    #[inline(always)]
    fn local_lr(&self, lr: f32, weight_norm: f64, grad_norm: f64) -> f32 {
        if weight_norm > 0.0 && grad_norm > 0.0 {
            let pull =
                grad_norm + f64::from(self.weight_decay) * weight_norm + f64::from(self.epsilon);
            lr * (f64::from(self.coeff) * weight_norm / pull) as f32
        } else {
            lr
        }
    }

    /// Checks that `mu` is a fraction and the others are not negative.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let check = Check { of: "lars_momentum" };
        check.decay("mu", self.mu)?;
        check.positive("coeff", self.coeff)?;
        check.non_negative("weight_decay", self.weight_decay)?;
        check.non_negative("epsilon", self.epsilon)
    }
}

impl Kernel for LarsMomentum {
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
        let rule = LarsMomentum { mu: 0.5, coeff: 0.1, weight_decay: 0.2, epsilon: 1.0 };
        let mut trial = Trial::new(&rule, 2.0, &[3.0, -4.0]);
        // |w| = 5, |g| = 10: local lr = 2 * 0.1 * 5 / (10 + 1 + 1) = 1/12
        trial.step(&[6.0, 8.0]);
        let v = [(6.0 + 0.6) / 12.0, (8.0 - 0.8) / 12.0];
        let w = [3.0 - v[0], -4.0 - v[1]];
        assert_close(&trial.state, &v);
        assert_close(&trial.w, &w);
        // |g| = 5
        trial.step(&[-3.0, 4.0]);
        let norm = f64::hypot(w[0], w[1]);
        let local_lr = 2.0 * 0.1 * norm / (5.0 + 0.2 * norm + 1.0);
        let v = [
            0.5 * v[0] + local_lr * (-3.0 + 0.2 * w[0]),
            0.5 * v[1] + local_lr * (4.0 + 0.2 * w[1]),
        ];
        assert_close(&trial.w, &[w[0] - v[0], w[1] - v[1]]);
    }

    #[test]
    fn a_weight_of_zero_takes_the_global_rate() {
        let rule = LarsMomentum::default();
        let mut trial = Trial::new(&rule, 0.5, &[0.0, 0.0]);
        trial.step(&[1.0, -2.0]);
        assert_close(&trial.w, &[-0.5, 1.0]);
    }

    #[test]
    fn converges() {
        // Every step is coeff * |w| long, so the end is within that distance.
        let rule = LarsMomentum { weight_decay: 0.0, ..LarsMomentum::default() };
        assert!(minimise(&rule, 0.2, 4000) < 1e-2);
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(LarsMomentum::default().validate().is_ok());
        let error = LarsMomentum { mu: 1.0, ..LarsMomentum::default() }.validate().unwrap_err();
        assert!(error.to_string().starts_with("lars_momentum: `mu` is 1"), "{error}");
        assert!(LarsMomentum { coeff: 0.0, ..LarsMomentum::default() }.validate().is_err());
    }
}
