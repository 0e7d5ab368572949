//! "adagrad", "std_adagrad" and "adagrad_v2": Adagrad on gradients per impression.

use serde::{Deserialize, Serialize};

use super::{Bounds, inverse_count};
use crate::error::Check;
use crate::lanes::{each, sum_squares};
use crate::{Error, Kernel, StateMut, StateSpec};

/// The configuration of the three adagrad rules.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdagradConfig {
    /// Length of the first step.
    pub learning_rate: f32,
    /// `G0`: how large the sum must grow to shorten steps noticeably. Not used by "adagrad_v2".
    pub initial_g2sum: f32,
    /// First weights are drawn from `-range..=range`.
    pub initial_range: f32,
    /// Smallest and largest weight; none means no bounds.
    pub weight_bounds: Option<[f32; 2]>,
}

impl Default for AdagradConfig {
    fn default() -> Self {
        AdagradConfig {
            learning_rate: 0.05,
            initial_g2sum: 3.0,
            initial_range: 1e-4,
            weight_bounds: Some([-10.0, 10.0]),
        }
    }
}

impl AdagradConfig {
    pub(super) fn shared(&self) -> (f32, f32, Option<[f32; 2]>) {
        (self.learning_rate, self.initial_range, self.weight_bounds)
    }

    pub(super) fn validate(&self, check: Check) -> Result<(), Error> {
        check.positive("initial_g2sum", self.initial_g2sum)
    }

    /// `sqrt(G0 / (G0 + sum))`
    #[inline(always)]
    fn ratio(&self, g2sum: f32) -> f32 {
        (self.initial_g2sum / (self.initial_g2sum + g2sum)).sqrt()
    }
}

/// `q = g / scale` is the gradient per impression. A scale that is not positive counts as 1: a
/// gradient without impressions must not turn a row into infinities.
#[inline(always)]
fn per_impression(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 1.0 }
}

/// The mean of `q^2` over a vector, summed in `f64`.
#[inline(always)]
fn mean_square(g: &[f32], inverse: f32) -> f32 {
    (sum_squares([g], |[g]| g * inverse) * inverse_count(g.len())) as f32
}

/// `w -= lr * q * sqrt(G0 / (G0 + g2sum))` with `q = g / scale`, then `g2sum += mean(q^2)`: one sum
/// for the vector, read before it grows.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Adagrad(
    /// Its configuration.
    pub AdagradConfig,
);

impl Kernel for Adagrad {
    const STATES: &'static [StateSpec] = &[StateSpec::row("g2sum")];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, scale: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [g2sum, ..] = state.slices;
        let inverse = per_impression(scale);
        let lr = lr * inverse * self.0.ratio(g2sum[0]);
        let bounds = Bounds::new(self.0.weight_bounds);
        each(w, g, [], |w, g, []| (bounds.apply(w - lr * g), []));
        g2sum[0] += mean_square(g, inverse);
    }
}

/// `w -= lr * q * sqrt(G0 / (G0 + g2))` with `q = g / scale`, then `g2 += q^2`: one sum per
/// element, read before it grows.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StdAdagrad(
    /// Its configuration.
    pub AdagradConfig,
);

impl Kernel for StdAdagrad {
    const STATES: &'static [StateSpec] = &[StateSpec::element("g2sum")];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, scale: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [g2sum, ..] = state.slices;
        let inverse = per_impression(scale);
        let bounds = Bounds::new(self.0.weight_bounds);
        each(w, g, [g2sum], |w, g, [g2]| {
            let q = g * inverse;
            (bounds.apply(w - lr * q * self.0.ratio(g2)), [g2 + q * q])
        });
    }
}

/// `g2sum += mean(q^2)` with `q = g / scale`, then `w -= lr * q / (sqrt(g2sum) + 1e-8)`: one sum
/// for the vector, read after it has grown.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AdagradV2(
    /// Its configuration.
    pub AdagradConfig,
);

impl Kernel for AdagradV2 {
    const STATES: &'static [StateSpec] = &[StateSpec::row("g2sum")];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, scale: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [g2sum, ..] = state.slices;
        let inverse = per_impression(scale);
        g2sum[0] += mean_square(g, inverse);
        let lr = lr * inverse / (g2sum[0].sqrt() + 1e-8);
        let bounds = Bounds::new(self.0.weight_bounds);
        each(w, g, [], |w, g, []| (bounds.apply(w - lr * g), []));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn shared_two_steps_by_hand() {
        let rule = Adagrad::default();
        let mut trial = Trial::new(&rule, 0.05, &[1.0, -1.0]);
        trial.scale = 2.0;
        trial.step(&[6.0, -2.0]); // q = 3, -1; the ratio is still 1
        assert_close(&trial.w, &[0.85, -0.95]);
        assert_close(&trial.state, &[5.0]); // (9 + 1) / 2
        trial.step(&[2.0, 4.0]); // q = 1, 2; the ratio is sqrt(3 / 8)
        let lr = 0.05 * (3.0f64 / 8.0).sqrt();
        assert_close(&trial.w, &[0.85 - lr, -0.95 - 2.0 * lr]);
        assert_close(&trial.state, &[7.5]);
    }

    #[test]
    fn per_element_two_steps_by_hand() {
        let rule = StdAdagrad::default();
        let mut trial = Trial::new(&rule, 0.05, &[1.0, -1.0]);
        trial.scale = 2.0;
        trial.step(&[6.0, -2.0]);
        assert_close(&trial.w, &[0.85, -0.95]);
        assert_close(&trial.state, &[9.0, 1.0]);
        trial.step(&[2.0, 4.0]); // ratios sqrt(3 / 12), sqrt(3 / 4)
        assert_close(&trial.w, &[0.825, -0.95 - 0.1 * 0.75f64.sqrt()]);
        assert_close(&trial.state, &[10.0, 5.0]);
    }

    #[test]
    fn sum_first_two_steps_by_hand() {
        let rule = AdagradV2::default();
        let mut trial = Trial::new(&rule, 0.05, &[1.0, -1.0]);
        trial.scale = 2.0;
        trial.step(&[6.0, -2.0]);
        let lr = 0.05 / 5.0f64.sqrt();
        let w = [1.0 - 3.0 * lr, -1.0 + lr];
        assert_close(&trial.w, &w);
        trial.step(&[2.0, 4.0]);
        let lr = 0.05 / 7.5f64.sqrt();
        assert_close(&trial.w, &[w[0] - lr, w[1] - 2.0 * lr]);
        assert_close(&trial.state, &[7.5]);
    }

    #[test]
    fn weights_stay_within_bounds() {
        let rule = Adagrad::default();
        let mut trial = Trial::new(&rule, 1.0, &[9.0, -9.0]);
        trial.step(&[-5.0, 5.0]);
        assert_eq!(trial.w, [10.0, -10.0]);
    }

    #[test]
    fn no_impressions_and_no_elements_give_no_infinity() {
        let rule = Adagrad::default();
        let mut trial = Trial::new(&rule, 0.05, &[1.0]);
        trial.scale = 0.0;
        trial.step(&[1.0]);
        assert_close(&trial.w, &[0.95]);
        let mut empty = Trial::new(&rule, 0.05, &[]);
        empty.step(&[]);
        assert_eq!(empty.state, [0.0]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Adagrad::default(), 0.5, 400) < 1e-6);
        assert!(minimise(&StdAdagrad::default(), 0.5, 400) < 1e-6);
        assert!(minimise(&AdagradV2::default(), 1.0, 400) < 1e-6);
    }
}
