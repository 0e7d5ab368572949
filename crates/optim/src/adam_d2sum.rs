//! Paddle's `adam_d2sum`: the dense rule of its click-through-rate servers.

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// d2 = r * d2 + 1                      with r = ada_decay_rate
/// g2 = r * g2 + g^2
/// scale = sqrt((d2 + d2 * epsilon) / (g2 + d2 * epsilon))
/// m = (m + g) * moment_decay_rate - g
/// w += lr * m * scale
/// ```
/// `g2 / d2` is the mean of squared gradients over about `1 / (1 - r)` steps. The momentum has the
/// sign of the descent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamD2Sum {
    /// Decay of the momentum.
    pub moment_decay_rate: f32,
    /// Decay of the two sums.
    pub ada_decay_rate: f32,
    /// Keeps the division finite.
    pub epsilon: f32,
}

impl Default for AdamD2Sum {
    fn default() -> Self {
        AdamD2Sum { moment_decay_rate: 0.99, ada_decay_rate: 0.9999, epsilon: 1e-8 }
    }
}

impl AdamD2Sum {
    /// One step.
    #[inline(always)]
    pub fn update(
        &self,
        lr: f32,
        w: &mut [f32],
        g: &[f32],
        d2sum: &mut [f32],
        g2sum: &mut [f32],
        moment: &mut [f32],
    ) {
        let AdamD2Sum { moment_decay_rate, ada_decay_rate, epsilon } = *self;
        each(w, g, [d2sum, g2sum, moment], |w, g, [d2, g2, m]| {
            let d2 = d2 * ada_decay_rate + 1.0;
            let g2 = g2 * ada_decay_rate + g * g;
            let scale = ((d2 + d2 * epsilon) / (g2 + d2 * epsilon)).sqrt();
            let m = (m + g) * moment_decay_rate - g;
            (w + lr * m * scale, [d2, g2, m])
        });
    }

    /// Checks that the decays are fractions and the divisor cannot be zero.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let check = Check { of: "adam_d2sum" };
        check.decay("moment_decay_rate", self.moment_decay_rate)?;
        check.decay_or_one("ada_decay_rate", self.ada_decay_rate)?;
        check.positive("epsilon", self.epsilon)
    }
}

impl Kernel for AdamD2Sum {
    const STATES: &'static [StateSpec] =
        &[StateSpec::element("d2sum"), StateSpec::element("g2sum"), StateSpec::element("moment")];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [d2sum, g2sum, moment, _] = state.slices;
        self.update(lr, w, g, d2sum, g2sum, moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn two_steps_by_hand() {
        let rule = AdamD2Sum { moment_decay_rate: 0.5, ada_decay_rate: 0.5, epsilon: 1e-8 };
        let mut trial = Trial::new(&rule, 0.1, &[1.0]);
        trial.step(&[2.0]); // d2 = 1, g2 = 4, scale = 1/2, m = 2 * 0.5 - 2 = -1
        assert_close(&trial.state, &[1.0, 4.0, -1.0]);
        assert_close(&trial.w, &[0.95]);
        trial.step(&[-1.0]); // d2 = 1.5, g2 = 3, m = -2 * 0.5 + 1 = 0
        assert_close(&trial.state, &[1.5, 3.0, 0.0]);
        assert_close(&trial.w, &[0.95]);
        trial.step(&[1.0]); // d2 = 1.75, g2 = 2.5, m = 0.5 - 1 = -0.5
        assert_close(&trial.w, &[0.95 - 0.05 * (1.75f64 / 2.5).sqrt()]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&AdamD2Sum::default(), 0.1, 3000) < 1e-6);
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(AdamD2Sum::default().validate().is_ok());
        let rule = AdamD2Sum { moment_decay_rate: 1.0, ..AdamD2Sum::default() };
        let error = rule.validate().unwrap_err();
        assert!(error.to_string().contains("`moment_decay_rate` is 1"), "{error}");
    }
}
