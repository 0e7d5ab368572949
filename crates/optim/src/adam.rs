//! Adam (Kingma, Ba 2015). The moments and the step exist here once, for all relatives of Adam.

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// m = beta1 * m + (1 - beta1) * g
/// v = beta2 * v + (1 - beta2) * g^2
/// w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon * sqrt(1 - beta2^t))
/// ```
/// Paddle's arrangement of PyTorch's Adam. The powers `beta^t` are states: they start at `beta` and
/// are multiplied after the step, as Paddle's accumulators are. Lazily per row, the moments of a
/// row rest while it is not touched, and the powers count the steps of the whole table, as in
/// Paddle's `lazy_mode`: a row that is met late and seldom takes larger steps than with a count of
/// its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    pub beta2: f32,
    /// Keeps the division finite.
    pub epsilon: f32,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// The states of Adam and of all that is built on it.
pub(crate) const ADAM_STATES: &[StateSpec] = &[
    StateSpec::element("moment1"),
    StateSpec::element("moment2"),
    StateSpec::scalar("beta1_pow"),
    StateSpec::scalar("beta2_pow"),
];

impl Adam {
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
        let correction = Correction::next(self, beta1_pow, beta2_pow);
        let (lr, epsilon) = (lr * correction.lr, self.epsilon * correction.epsilon);
        self.descend(lr, epsilon, 1.0, w, g, moment1, moment2);
    }

    /// The loop over the elements: `w = keep * w - lr * m / (sqrt(v) + epsilon)`, with bias
    /// corrections already in `lr` and `epsilon`.
    #[inline(always)]
    pub(crate) fn descend(
        &self,
        lr: f32,
        epsilon: f32,
        keep: f32,
        w: &mut [f32],
        g: &[f32],
        moment1: &mut [f32],
        moment2: &mut [f32],
    ) {
        each(w, g, [moment1, moment2], |w, g, [m, v]| {
            let (m, v) = self.moments(g, m, v);
            (keep * w - lr * m / (v.sqrt() + epsilon), [m, v])
        });
    }

    /// The moments of one element after a gradient.
    #[inline(always)]
    pub(crate) fn moments(&self, g: f32, m: f32, v: f32) -> (f32, f32) {
        let m = self.beta1 * m + (1.0 - self.beta1) * g;
        let v = self.beta2 * v + (1.0 - self.beta2) * g * g;
        (m, v)
    }

    /// Initial values of [`ADAM_STATES`].
    pub(crate) fn initial_state(&self, idx: usize) -> f32 {
        [0.0, 0.0, self.beta1, self.beta2][idx]
    }

    pub(crate) fn validate_as(&self, of: &'static str) -> Result<(), Error> {
        let check = Check { of };
        check.decay("beta1", self.beta1)?;
        check.decay("beta2", self.beta2)?;
        check.positive("epsilon", self.epsilon)
    }

    /// Checks that the betas are fractions and the divisor cannot be zero.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        self.validate_as("adam")
    }
}

/// Factors that undo the pull of the moments towards their start at zero.
pub(crate) struct Correction {
    /// `sqrt(1 - beta2^t) / (1 - beta1^t)`, for the learning rate.
    pub(crate) lr: f32,
    /// `sqrt(1 - beta2^t)`, for epsilon.
    pub(crate) epsilon: f32,
}

impl Correction {
    /// Reads the corrections of this step from the powers, then moves the powers to the next step.
    #[inline(always)]
    pub(crate) fn next(betas: &Adam, beta1_pow: &mut f32, beta2_pow: &mut f32) -> Self {
        let epsilon = (1.0 - *beta2_pow).sqrt();
        let correction = Correction { lr: epsilon / (1.0 - *beta1_pow), epsilon };
        *beta1_pow = next_pow(*beta1_pow, betas.beta1);
        *beta2_pow = next_pow(*beta2_pow, betas.beta2);
        correction
    }
}

/// `pow * beta`, but zero below the normal range: 0.9^t gets there in 830 steps, and arithmetic on
/// subnormal numbers takes a hundred times as long.
#[inline(always)]
fn next_pow(pow: f32, beta: f32) -> f32 {
    let next = pow * beta;
    if next < f32::MIN_POSITIVE { 0.0 } else { next }
}

impl Kernel for Adam {
    const STATES: &'static [StateSpec] = ADAM_STATES;

    fn initial(&self, idx: usize) -> f32 {
        self.initial_state(idx)
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
    fn three_steps_of_the_published_form() {
        // An epsilon large enough to see that it is corrected.
        let rule = Adam { epsilon: 0.1, ..Adam::default() };
        let (beta1, beta2, eps, lr) = (0.9f64, 0.999f64, 0.1f64, 0.1f64);
        let mut trial = Trial::new(&rule, 0.1, &[1.0]);
        let (mut w, mut m, mut v) = (1.0f64, 0.0, 0.0);
        for (t, g) in [0.5f64, -2.0, 0.125].into_iter().enumerate() {
            m = beta1 * m + (1.0 - beta1) * g;
            v = beta2 * v + (1.0 - beta2) * g * g;
            let m_hat = m / (1.0 - beta1.powi(t as i32 + 1));
            let v_hat = v / (1.0 - beta2.powi(t as i32 + 1));
            w -= lr * m_hat / (v_hat.sqrt() + eps);
            trial.step(&[g as f32]);
            assert_close(&trial.w, &[w]);
        }
        assert_close(&trial.state, &[m, v]);
        assert_close(trial.shared.values_mut(), &[beta1.powi(4), beta2.powi(4)]);
    }

    #[test]
    fn the_first_step_is_lr_long_whatever_the_gradient() {
        let rule = Adam::default();
        let mut trial = Trial::new(&rule, 0.01, &[1.0, 1.0, 1.0]);
        trial.step(&[1e-3, 7.0, -1e4]);
        assert_close(&trial.w, &[0.99, 0.99, 1.01]);
    }

    #[test]
    fn powers_end_at_zero_and_not_at_a_subnormal_number() {
        let rule = Adam::default();
        let mut trial = Trial::new(&rule, 0.001, &[1.0]);
        (0..2000).for_each(|_| trial.step(&[1.0]));
        let [beta1_pow, beta2_pow] = *trial.shared.values_mut() else { panic!("two powers") };
        assert_eq!(beta1_pow, 0.0);
        assert!((f64::from(beta2_pow) - 0.999f64.powi(2001)).abs() < 1e-5);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Adam::default(), 0.1, 1500) < 1e-6);
    }

    #[test]
    fn impossible_betas_are_refused() {
        assert!(Adam::default().validate().is_ok());
        let error = Adam { beta2: 1.0, ..Adam::default() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "adam: `beta2` is 1, expected 0 <= value < 1");
        assert!(Adam { epsilon: 0.0, ..Adam::default() }.validate().is_err());
    }
}
