//! Rules that add what is pushed instead of descending: deltas of geo training, data statistics.

use serde::{Deserialize, Serialize};

use crate::error::Check;
use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// `w += g`: what is pushed is a finished delta (geo training). The learning rate plays no part.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sum {}

impl Sum {
    /// One step.
    #[inline(always)]
    pub fn update(&self, w: &mut [f32], g: &[f32]) {
        each(w, g, [], |w, g, []| (w + g, []));
    }

    /// Every configuration is possible.
    ///
    /// # Errors
    /// None.
    pub fn validate(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl Kernel for Sum {
    const STATES: &'static [StateSpec] = &[];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, _: f32, _: f32, w: &mut [f32], g: &[f32], _: StateMut<'_>) {
        self.update(w, g);
    }
}

/// `w = w * decay_rate + g`: a slowly forgetting sum, for the statistics of `data_norm`. The
/// learning rate plays no part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Summary {
    /// How much of the sum a step keeps.
    pub decay_rate: f32,
}

impl Default for Summary {
    fn default() -> Self {
        Summary { decay_rate: 0.999999 }
    }
}

impl Summary {
    /// One step.
    #[inline(always)]
    pub fn update(&self, w: &mut [f32], g: &[f32]) {
        each(w, g, [], |w, g, []| (w * self.decay_rate + g, []));
    }

    /// Checks that the rate is a fraction.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        Check { of: "summary" }.decay_or_one("decay_rate", self.decay_rate)
    }
}

impl Kernel for Summary {
    const STATES: &'static [StateSpec] = &[];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, _: f32, _: f32, w: &mut [f32], g: &[f32], _: StateMut<'_>) {
        self.update(w, g);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close};

    #[test]
    fn deltas_are_added_whatever_the_learning_rate() {
        let mut trial = Trial::new(&Sum {}, 0.0, &[1.0, -2.0]);
        trial.step(&[0.5, -1.0]);
        trial.step(&[0.25, 0.0]);
        assert_close(&trial.w, &[1.75, -3.0]);
    }

    #[test]
    fn statistics_forget_slowly() {
        let mut trial = Trial::new(&Summary { decay_rate: 0.5 }, 0.0, &[4.0]);
        trial.step(&[1.0]);
        assert_close(&trial.w, &[3.0]);
        trial.step(&[1.0]);
        assert_close(&trial.w, &[2.5]);
        // The fixed point of w = w/2 + 1.
        (0..60).for_each(|_| trial.step(&[1.0]));
        assert_close(&trial.w, &[2.0]);
    }

    #[test]
    fn a_growing_rate_is_refused() {
        assert!(Summary::default().validate().is_ok());
        let error = Summary { decay_rate: 1.5 }.validate().unwrap_err();
        assert!(error.to_string().contains("`decay_rate` is 1.5"), "{error}");
    }
}
