//! AdamW (Loshchilov, Hutter 2019): Adam whose weight decay does not pass through the moments.

use serde::{Deserialize, Serialize};

use crate::adam::{ADAM_STATES, Adam, Correction};
use crate::error::Check;
use crate::{Error, Kernel, StateMut, StateSpec};

/// `w *= 1 - lr * weight_decay`, then a step of [`Adam`]. PyTorch's and Paddle's AdamW.
///
/// Lazily per row, only touched rows decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    pub beta2: f32,
    /// Keeps the division finite.
    pub epsilon: f32,
    /// Fraction of a weight that a step of length 1 removes.
    pub weight_decay: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        let Adam { beta1, beta2, epsilon } = Adam::default();
        AdamW { beta1, beta2, epsilon, weight_decay: 0.01 }
    }
}

impl AdamW {
    #[inline(always)]
    fn adam(&self) -> Adam {
        Adam { beta1: self.beta1, beta2: self.beta2, epsilon: self.epsilon }
    }

    /// One step.
    #[inline(always)]
    pub fn update(
        &self,
        lr: f32,
        w: &mut [f32],
        g: &[f32],
        moment1: &mut [f32],
        moment2: &mut [f32],
        beta1_pow: &mut f32,
        beta2_pow: &mut f32,
    ) {
        let adam = self.adam();
        let correction = Correction::next(&adam, beta1_pow, beta2_pow);
        let keep = 1.0 - lr * self.weight_decay;
        let (lr, epsilon) = (lr * correction.lr, self.epsilon * correction.epsilon);
        adam.descend(lr, epsilon, keep, w, g, moment1, moment2);
    }

    /// Checks what [`Adam::validate`] checks, and that the decay does not grow weights.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        self.adam().validate_as("adamw")?;
        Check { of: "adamw" }.non_negative("weight_decay", self.weight_decay)
    }
}

impl Kernel for AdamW {
    const STATES: &'static [StateSpec] = ADAM_STATES;

    fn initial(&self, idx: usize) -> f32 {
        self.adam().initial_state(idx)
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [m, v, beta1_pow, beta2_pow] = state.slices;
        self.update(lr, w, g, m, v, &mut beta1_pow[0], &mut beta2_pow[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn two_steps_decay_before_they_descend() {
        let rule = AdamW { weight_decay: 0.5, ..AdamW::default() };
        let mut trial = Trial::new(&rule, 0.1, &[1.0]);
        trial.step(&[2.0]); // 1 * 0.95 - 0.1
        assert_close(&trial.w, &[0.85]);
        trial.step(&[2.0]); // an equal gradient makes an equal step: 0.85 * 0.95 - 0.1
        assert_close(&trial.w, &[0.7075]);
    }

    #[test]
    fn without_decay_it_is_adam() {
        let rule = AdamW { weight_decay: 0.0, ..AdamW::default() };
        let adam = Adam::default();
        let mut decayed = Trial::new(&rule, 0.1, &[1.0, -3.0]);
        let mut plain = Trial::new(&adam, 0.1, &[1.0, -3.0]);
        for g in [[0.5, 1.0], [-2.0, 0.25], [1.0, 0.0]] {
            decayed.step(&g);
            plain.step(&g);
        }
        assert_eq!(decayed.w, plain.w);
        assert_eq!(decayed.state, plain.state);
    }

    #[test]
    fn converges() {
        let rule = AdamW { weight_decay: 1e-4, ..AdamW::default() };
        assert!(minimise(&rule, 0.1, 1500) < 1e-3);
    }

    #[test]
    fn growth_is_refused() {
        assert!(AdamW::default().validate().is_ok());
        let error = AdamW { weight_decay: -0.1, ..AdamW::default() }.validate().unwrap_err();
        assert!(error.to_string().starts_with("adamw: `weight_decay` is -0.1"), "{error}");
        assert!(AdamW { beta1: 1.0, ..AdamW::default() }.validate().is_err());
    }
}
