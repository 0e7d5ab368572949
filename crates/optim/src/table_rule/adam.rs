//! "adam" and "shared_adam": Adam with a step count per row.

use serde::{Deserialize, Serialize};

use super::{Bounds, inverse_count};
use crate::adam::Correction;
use crate::error::Check;
use crate::lanes::{each, sum, sum_squares};
use crate::{Error, Kernel, StateMut, StateSpec};

/// The configuration of the two adam rules.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamConfig {
    /// Length of a step.
    pub learning_rate: f32,
    /// Decay of the mean of gradients.
    #[serde(alias = "beta1_decay_rate")]
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    #[serde(alias = "beta2_decay_rate")]
    pub beta2: f32,
    /// Keeps the division finite.
    #[serde(alias = "ada_epsilon")]
    pub epsilon: f32,
    /// First weights are drawn from `-range..=range`.
    pub initial_range: f32,
    /// Smallest and largest weight; none means no bounds.
    pub weight_bounds: Option<[f32; 2]>,
}

impl Default for AdamConfig {
    fn default() -> Self {
        let crate::Adam { beta1, beta2, epsilon } = crate::Adam::default();
        AdamConfig {
            learning_rate: 0.001,
            beta1,
            beta2,
            epsilon,
            initial_range: 1e-4,
            weight_bounds: None,
        }
    }
}

impl AdamConfig {
    pub(super) fn shared(&self) -> (f32, f32, Option<[f32; 2]>) {
        (self.learning_rate, self.initial_range, self.weight_bounds)
    }

    pub(super) fn validate(&self, check: Check) -> Result<(), Error> {
        self.moments().validate_as(check.of)
    }

    #[inline(always)]
    fn moments(&self) -> crate::Adam {
        crate::Adam { beta1: self.beta1, beta2: self.beta2, epsilon: self.epsilon }
    }
}

/// [`Adam`](crate::Adam) whose epsilon is not bias-corrected, and then the bounds:
/// `w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)`. The scale is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Adam(
    /// Its configuration.
    pub AdamConfig,
);

impl Kernel for Adam {
    const STATES: &'static [StateSpec] = &[
        StateSpec::element("moment1"),
        StateSpec::element("moment2"),
        StateSpec::row("beta1_pow"),
        StateSpec::row("beta2_pow"),
    ];

    fn initial(&self, idx: usize) -> f32 {
        self.0.moments().initial_state(idx)
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [moment1, moment2, beta1_pow, beta2_pow] = state.slices;
        let adam = self.0.moments();
        let lr = lr * Correction::next(&adam, &mut beta1_pow[0], &mut beta2_pow[0]).lr;
        let bounds = Bounds::new(self.0.weight_bounds);
        each(w, g, [moment1, moment2], |w, g, [m, v]| {
            let (m, v) = adam.moments(g, m, v);
            (bounds.apply(w - lr * m / (v.sqrt() + adam.epsilon)), [m, v])
        });
    }
}

/// [`Adam`] with one `m` and one `v` for the whole vector: every element continues from the shared
/// moments with its own gradient, and the means of what they arrive at are shared in the next step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SharedAdam(
    /// Its configuration.
    pub AdamConfig,
);

impl Kernel for SharedAdam {
    const STATES: &'static [StateSpec] = &[
        StateSpec::row("moment1"),
        StateSpec::row("moment2"),
        StateSpec::row("beta1_pow"),
        StateSpec::row("beta2_pow"),
    ];

    fn initial(&self, idx: usize) -> f32 {
        self.0.moments().initial_state(idx)
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [moment1, moment2, beta1_pow, beta2_pow] = state.slices;
        let adam = self.0.moments();
        let lr = lr * Correction::next(&adam, &mut beta1_pow[0], &mut beta2_pow[0]).lr;
        let bounds = Bounds::new(self.0.weight_bounds);
        let (m, v) = (moment1[0], moment2[0]);
        each(w, g, [], |w, g, []| {
            let (m, v) = adam.moments(g, m, v);
            (bounds.apply(w - lr * m / (v.sqrt() + adam.epsilon)), [])
        });
        // The mean of the moments is the moment of the means.
        let part = inverse_count(g.len());
        let mean = sum([g], |[g]| f64::from(g)) * part;
        let mean_square = sum_squares([g], |[g]| g) * part;
        moment1[0] = adam.beta1 * m + (1.0 - adam.beta1) * mean as f32;
        moment2[0] = adam.beta2 * v + (1.0 - adam.beta2) * mean_square as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn three_steps_by_hand() {
        let rule = Adam(AdamConfig { epsilon: 0.1, ..AdamConfig::default() });
        let (beta1, beta2, eps, lr) = (0.9f64, 0.999f64, 0.1f64, 0.01f64);
        let mut trial = Trial::new(&rule, 0.01, &[1.0]);
        trial.scale = 7.0; // ignored
        let (mut w, mut m, mut v) = (1.0, 0.0, 0.0);
        for (t, g) in [0.5f64, -2.0, 0.125].into_iter().enumerate() {
            let t = t as i32 + 1;
            m = beta1 * m + (1.0 - beta1) * g;
            v = beta2 * v + (1.0 - beta2) * g * g;
            let lr = lr * (1.0 - beta2.powi(t)).sqrt() / (1.0 - beta1.powi(t));
            w -= lr * m / (v.sqrt() + eps);
            trial.step(&[g as f32]);
            assert_close(&trial.w, &[w]);
        }
        assert_close(&trial.state, &[m, v, beta1.powi(4), beta2.powi(4)]);
    }

    #[test]
    fn three_shared_steps_by_hand() {
        let rule = SharedAdam::default();
        let (beta1, beta2, eps, lr) = (0.9f64, 0.999f64, 1e-8f64, 0.01f64);
        let mut trial = Trial::new(&rule, 0.01, &[1.0, -1.0]);
        let (mut w, mut m, mut v) = ([1.0f64, -1.0], 0.0f64, 0.0f64);
        for (t, g) in [[0.5f64, 1.0], [-2.0, 0.25], [0.125, 0.0]].into_iter().enumerate() {
            let t = t as i32 + 1;
            let lr = lr * (1.0 - beta2.powi(t)).sqrt() / (1.0 - beta1.powi(t));
            let m_i = g.map(|g| beta1 * m + (1.0 - beta1) * g);
            let v_i = g.map(|g| beta2 * v + (1.0 - beta2) * g * g);
            for i in 0..2 {
                w[i] -= lr * m_i[i] / (v_i[i].sqrt() + eps);
            }
            (m, v) = (m_i.iter().sum::<f64>() / 2.0, v_i.iter().sum::<f64>() / 2.0);
            trial.step(&g.map(|g| g as f32));
            assert_close(&trial.w, &w);
        }
        assert_close(&trial.state, &[m, v, beta1.powi(4), beta2.powi(4)]);
    }

    #[test]
    fn weights_stay_within_bounds() {
        let config = AdamConfig { weight_bounds: Some([-1.0, 1.0]), ..AdamConfig::default() };
        let (per_element, shared) = (Adam(config), SharedAdam(config));
        let mut trial = Trial::new(&per_element, 0.1, &[0.95, 0.0]);
        trial.step(&[-1.0, 1.0]);
        assert_close(&trial.w, &[1.0, -0.1]);
        let mut trial = Trial::new(&shared, 0.1, &[0.95]);
        trial.step(&[-1.0]);
        assert_close(&trial.w, &[1.0]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Adam::default(), 0.1, 1500) < 1e-6);
        assert!(minimise(&SharedAdam::default(), 0.1, 1500) < 1e-4);
    }
}
