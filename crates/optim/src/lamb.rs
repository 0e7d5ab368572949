//! LAMB (You and others 2020): Adam with a trust ratio, for large batches.

use serde::{Deserialize, Serialize};

use crate::adam::{ADAM_STATES, Adam, Correction};
use crate::error::Check;
use crate::lanes::{each, sum_squares};
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// m, v as in Adam
/// r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * w
/// w -= lr * |w| / |r| * r          (a ratio of 1 if either norm is 0)
/// ```
/// The norms are over one parameter. On rows of a table they are over one row, which is another
/// algorithm than the published one: allowed, but rarely useful.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lamb {
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    pub beta2: f32,
    /// Keeps the division finite.
    pub epsilon: f32,
    /// Weight of the weights in the direction of the step; 0 for excluded parameters.
    pub weight_decay: f32,
}

impl Default for Lamb {
    fn default() -> Self {
        Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 }
    }
}

impl Lamb {
    #[inline(always)]
    fn adam(&self) -> Adam {
        Adam { beta1: self.beta1, beta2: self.beta2, epsilon: self.epsilon }
    }

    /// One step: a pass for the moments, one for the norms, one for the weights.
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
        each(moment1, g, [&mut *moment2], |m, g, [v]| {
            let (m, v) = adam.moments(g, m, v);
            (m, [v])
        });

        let correction = Correction::next(&adam, beta1_pow, beta2_pow);
        let epsilon = self.epsilon * correction.epsilon;
        let direction = |w: f32, m: f32, v: f32| {
            correction.lr * m / (v.sqrt() + epsilon) + self.weight_decay * w
        };

        let weight_norm = sum_squares([w], |[w]| w).sqrt();
        let step_norm = sum_squares([w, moment1, moment2], |[w, m, v]| direction(w, m, v)).sqrt();
        let lr = lr * trust_ratio(weight_norm, step_norm);

        each(w, moment1, [moment2], |w, m, [v]| (w - lr * direction(w, m, v), [v]));
    }

    /// Checks what [`Adam::validate`] checks, and that the decay does not grow weights.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        self.adam().validate_as("lamb")?;
        Check { of: "lamb" }.non_negative("weight_decay", self.weight_decay)
    }
}

#[inline(always)]
fn trust_ratio(weight_norm: f64, step_norm: f64) -> f32 {
    if weight_norm > 0.0 && step_norm > 0.0 { (weight_norm / step_norm) as f32 } else { 1.0 }
}

impl Kernel for Lamb {
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
    fn three_steps_of_the_published_form() {
        // An epsilon large enough to see that it is corrected.
        let rule = Lamb { epsilon: 0.1, ..Lamb::default() };
        let (beta1, beta2, eps, decay, lr) = (0.9f64, 0.999f64, 0.1f64, 0.01f64, 0.1f64);
        let mut trial = Trial::new(&rule, 0.1, &[3.0, -4.0]);
        let (mut w, mut m, mut v) = ([3.0f64, -4.0], [0.0f64; 2], [0.0f64; 2]);
        for (t, g) in [[0.5f64, 1.0], [-2.0, 0.25], [0.125, 0.0]].into_iter().enumerate() {
            let mut r = [0.0; 2];
            for i in 0..2 {
                m[i] = beta1 * m[i] + (1.0 - beta1) * g[i];
                v[i] = beta2 * v[i] + (1.0 - beta2) * g[i] * g[i];
                let m_hat = m[i] / (1.0 - beta1.powi(t as i32 + 1));
                let v_hat = v[i] / (1.0 - beta2.powi(t as i32 + 1));
                r[i] = m_hat / (v_hat.sqrt() + eps) + decay * w[i];
            }
            let ratio = w[0].hypot(w[1]) / r[0].hypot(r[1]);
            for i in 0..2 {
                w[i] -= lr * ratio * r[i];
            }
            trial.step(&[g[0] as f32, g[1] as f32]);
            assert_close(&trial.w, &w);
        }
    }

    #[test]
    fn a_weight_of_zero_trusts_fully() {
        let rule = Lamb::default();
        let mut trial = Trial::new(&rule, 0.1, &[0.0]);
        trial.step(&[2.0]);
        assert_close(&trial.w, &[-0.1]);
    }

    #[test]
    fn converges() {
        // The step is lr * |w| long at the minimum too, which bounds how near it gets.
        assert!(minimise(&Lamb { weight_decay: 0.0, ..Lamb::default() }, 0.003, 3000) < 1e-2);
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(Lamb::default().validate().is_ok());
        let error = Lamb { beta1: 1.0, ..Lamb::default() }.validate().unwrap_err();
        assert!(error.to_string().starts_with("lamb: `beta1` is 1"), "{error}");
        assert!(Lamb { weight_decay: -1.0, ..Lamb::default() }.validate().is_err());
    }
}
