//! "naive": gradient descent within bounds.

use serde::{Deserialize, Serialize};

use super::Bounds;
use crate::lanes::each;
use crate::{Kernel, StateMut, StateSpec};

/// `w -= lr * g`, then the bounds. The scale is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Naive {
    /// Length of a step.
    pub learning_rate: f32,
    /// First weights are drawn from `-range..=range`.
    pub initial_range: f32,
    /// Smallest and largest weight; none means no bounds.
    pub weight_bounds: Option<[f32; 2]>,
}

impl Default for Naive {
    fn default() -> Self {
        Naive { learning_rate: 0.05, initial_range: 1e-4, weight_bounds: None }
    }
}

impl Kernel for Naive {
    const STATES: &'static [StateSpec] = &[];

    fn initial(&self, _: usize) -> f32 {
        0.0
    }

    #[inline(always)]
    fn apply(&self, lr: f32, _: f32, w: &mut [f32], g: &[f32], _: StateMut<'_>) {
        let bounds = Bounds::new(self.weight_bounds);
        each(w, g, [], |w, g, []| (bounds.apply(w - lr * g), []));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Trial, assert_close, minimise};

    #[test]
    fn two_steps_by_hand() {
        let rule = Naive { weight_bounds: Some([-1.0, 1.0]), ..Naive::default() };
        let mut trial = Trial::new(&rule, 0.5, &[0.5, -0.5]);
        trial.scale = 100.0; // ignored
        trial.step(&[0.5, -0.5]);
        assert_close(&trial.w, &[0.25, -0.25]);
        trial.step(&[10.0, -10.0]);
        assert_close(&trial.w, &[-1.0, 1.0]);
    }

    #[test]
    fn converges() {
        assert!(minimise(&Naive::default(), 0.5, 200) < 1e-9);
    }
}
