//! Adagrad (Duchi, Hazan, Singer 2011).

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// G += g^2
/// w -= lr * g / (sqrt(G) + epsilon)
/// ```
/// PyTorch's Adagrad without learning-rate decay. An untouched weight does not move, so lazily per
/// row it is exactly the dense rule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adagrad {
    /// Keeps the division finite.
    pub epsilon: f32,
    /// What the accumulator starts with.
    pub initial_accumulator: f32,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad { epsilon: 1e-6, initial_accumulator: 0.0 }
    }
}

impl Adagrad {
    /// One step; `moment` is the accumulator `G`.
    #[inline(always)]
    pub fn update(&self, lr: f32, w: &mut [f32], g: &[f32], moment: &mut [f32]) {
        each(w, g, [moment], |w, g, [acc]| {
            let acc = acc + g * g;
            (w - lr * g / (acc.sqrt() + self.epsilon), [acc])
        });
    }

    /// Checks that the divisor cannot be zero or imaginary.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let check = Check { of: "adagrad" };
        check.positive("epsilon", self.epsilon)?;
        check.non_negative("initial_accumulator", self.initial_accumulator)
    }
}

impl Kernel for Adagrad {
    const STATES: &'static [StateSpec] = &[StateSpec::element("moment")];

    fn initial(&self, _: usize) -> f32 {
        self.initial_accumulator
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [moment, ..] = state.slices;
        self.update(lr, w, g, moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn two_steps_by_hand() {
        let rule = Adagrad::default();
        let mut trial = Trial::new(&rule, 0.1, &[1.0, -2.0]);
        trial.step(&[3.0, -0.5]); // the first step is lr long
        assert_close(&trial.state, &[9.0, 0.25]);
        assert_close(&trial.w, &[0.9 + 1e-7 / 3.0, -1.9 - 2e-7]);
        trial.step(&[4.0, 0.0]); // sqrt(25) = 5: 0.1 * 4/5
        assert_close(&trial.state, &[25.0, 0.25]);
        assert_close(&trial.w, &[0.82, -1.9]);
    }

    #[test]
    fn the_accumulator_may_start_above_zero() {
        let rule = Adagrad { initial_accumulator: 16.0, ..Adagrad::default() };
        let mut trial = Trial::new(&rule, 1.0, &[0.0]);
        trial.step(&[3.0]);
        assert_close(&trial.w, &[-0.6]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Adagrad::default(), 1.0, 400) < 1e-9);
    }

    #[test]
    fn a_negative_accumulator_is_refused() {
        assert!(Adagrad::default().validate().is_ok());
        let rule = Adagrad { initial_accumulator: -1.0, ..Adagrad::default() };
        let error = rule.validate().unwrap_err();
        assert!(error.to_string().contains("`initial_accumulator` is -1"), "{error}");
    }
}
