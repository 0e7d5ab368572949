//! FTRL-Proximal (McMahan and others 2013): sparse linear models under L1 regularization.

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// ```text
/// N' = N + g^2
/// z += g - (N'^p - N^p) / lr * w                     with p = -lr_power
/// w  = (l1 * sign(z) - z) / (N'^p / lr + 2 * l2)     if |z| > l1, else 0
/// N  = N'
/// ```
/// The weight is a function of `z` and `N`: its initial value is overwritten by the first
/// gradient. A step with `lr = 0` leaves everything as it is. Paddle's tiny `1e-10` on both
/// regularization is added here too: it makes the divisor positive before the first gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ftrl {
    /// L1 regularization: weights whose `|z|` stays below it are exactly zero.
    pub l1: f32,
    /// L2 regularization.
    pub l2: f32,
    /// How the step shrinks with the sum of squares; -0.5 is the published rule.
    pub lr_power: f32,
}

impl Default for Ftrl {
    fn default() -> Self {
        Ftrl { l1: 0.0, l2: 0.0, lr_power: -0.5 }
    }
}

impl Ftrl {
    /// One step: `N` and `z` of the formula.
    #[inline(always)]
    pub fn update(
        &self,
        lr: f32,
        w: &mut [f32],
        g: &[f32],
        squared: &mut [f32],
        linear: &mut [f32],
    ) {
        if lr == 0.0 {
            return;
        }
        if self.lr_power == -0.5 {
            self.update_with(lr, w, g, squared, linear, f32::sqrt);
        } else {
            self.update_with(lr, w, g, squared, linear, |n| n.powf(-self.lr_power));
        }
    }

    #[inline(always)]
    fn update_with(
        &self,
        lr: f32,
        w: &mut [f32],
        g: &[f32],
        squared: &mut [f32],
        linear: &mut [f32],
        power: impl Fn(f32) -> f32,
    ) {
        let (l1, l2) = (self.l1 + 1e-10, self.l2 + 1e-10);
        each(w, g, [squared, linear], |w, g, [n, z]| {
            let n_after = n + g * g;
            let pull = power(n_after);
            let z = z + (g - (pull - power(n)) / lr * w);
            let free = (l1.copysign(z) - z) / (pull / lr + 2.0 * l2);
            let w = if z.abs() > l1 { free } else { 0.0 };
            (w, [n_after, z])
        });
    }

    /// Checks the regularization and the direction of the power.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let check = Check { of: "ftrl" };
        check.non_negative("l1", self.l1)?;
        check.non_negative("l2", self.l2)?;
        check.non_positive("lr_power", self.lr_power)
    }
}

impl Kernel for Ftrl {
    const STATES: &'static [StateSpec] =
        &[StateSpec::element("squared"), StateSpec::element("linear")];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        let [squared, linear, ..] = state.slices;
        self.update(lr, w, g, squared, linear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn two_steps_by_hand() {
        let rule = Ftrl { l1: 0.5, l2: 0.25, lr_power: -0.5 };
        let mut trial = Trial::new(&rule, 0.5, &[0.0]);
        trial.step(&[3.0]); // N = 9, z = 3, w = (0.5 - 3) / (3 / 0.5 + 0.5) = -2.5 / 6.5
        let w = -2.5 / 6.5;
        assert_close(&trial.state, &[9.0, 3.0]);
        assert_close(&trial.w, &[w]);
        trial.step(&[-4.0]); // N = 25, z = 3 - 4 - (5 - 3) / 0.5 * w
        let z = -1.0 - 4.0 * w;
        assert_close(&trial.state, &[25.0, z]);
        assert_close(&trial.w, &[(0.5 - z) / (10.0 + 0.5)]);
    }

    #[test]
    fn another_power_by_hand() {
        let rule = Ftrl { lr_power: -1.0, ..Ftrl::default() };
        let mut trial = Trial::new(&rule, 2.0, &[0.0]);
        trial.step(&[2.0]); // N = 4, z = 2, w = -2 / (4 / 2)
        assert_close(&trial.w, &[-1.0]);
    }

    #[test]
    fn the_regularization_makes_exact_zeros() {
        let rule = Ftrl { l1: 1.0, ..Ftrl::default() };
        let mut trial = Trial::new(&rule, 0.1, &[0.0, 0.0]);
        trial.step(&[0.9, 1.1]);
        assert_eq!(trial.w[0], 0.0);
        assert!(trial.w[1] < 0.0);
    }

    #[test]
    fn no_gradient_and_no_rate_give_no_nan() {
        let rule = Ftrl::default();
        let mut trial = Trial::new(&rule, 0.1, &[1.0]);
        trial.step(&[0.0]);
        assert_eq!(trial.w, [0.0]);
        trial.lr = 0.0;
        trial.step(&[1.0]);
        assert_eq!(trial.w, [0.0]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Ftrl::default(), 1.0, 400) < 1e-6);
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(Ftrl::default().validate().is_ok());
        let error = Ftrl { l1: -1.0, ..Ftrl::default() }.validate().unwrap_err();
        assert!(error.to_string().contains("`l1` is -1"), "{error}");
        assert!(Ftrl { lr_power: 0.5, ..Ftrl::default() }.validate().is_err());
    }
}
