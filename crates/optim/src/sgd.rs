//! Stochastic gradient descent.

use serde::{Deserialize, Serialize};

use crate::lanes::each;
use crate::{Error, Kernel, StateMut, StateSpec};

/// `w -= lr * g`. Keeps no state, so it is the same per row as per parameter.
///
/// Paddle's global learning-rate factor of server-side tables is part of `lr`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {}

impl Sgd {
    /// One step.
    #[inline(always)]
    pub fn update(&self, lr: f32, w: &mut [f32], g: &[f32]) {
        each(w, g, [], |w, g, []| (w - lr * g, []));
    }

    /// Every configuration is possible.
    ///
    /// # Errors
    /// None.
    pub fn validate(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl Kernel for Sgd {
    const STATES: &'static [StateSpec] = &[];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], _: StateMut<'_>) {
        self.update(lr, w, g);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn two_steps_by_hand() {
        let mut trial = Trial::new(&Sgd {}, 0.1, &[1.0, -2.0]);
        trial.step(&[0.5, -1.0]);
        assert_close(&trial.w, &[0.95, -1.9]);
        trial.step(&[2.0, 4.0]);
        assert_close(&trial.w, &[0.75, -2.3]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Sgd {}, 0.5, 200) < 1e-9);
    }
}
