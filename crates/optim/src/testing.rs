//! What the tests of all rules share: run a kernel for some steps, compare, minimise a quadratic.

use crate::rows::{advance, init_row_state, row_state_len, run, shared_state};
use crate::{Kernel, RowLoop, RowUpdater, SharedState};

/// One row under training by one kernel.
pub(crate) struct Trial<'a, K> {
    pub(crate) kernel: &'a K,
    pub(crate) lr: f32,
    pub(crate) scale: f32,
    pub(crate) w: Vec<f32>,
    pub(crate) state: Vec<f32>,
    pub(crate) shared: SharedState,
}

impl<'a, K: Kernel> Trial<'a, K> {
    pub(crate) fn new(kernel: &'a K, lr: f32, w: &[f32]) -> Self {
        let mut state = vec![f32::NAN; row_state_len(kernel, w.len())];
        init_row_state(kernel, w.len(), &mut state);
        let shared = shared_state(kernel);
        Trial { kernel, lr, scale: 1.0, w: w.to_vec(), state, shared }
    }

    pub(crate) fn step(&mut self, g: &[f32]) {
        let (kernel, lr, shared) = (self.kernel, self.lr, self.shared);
        run(kernel, lr, shared, Once(self, g));
        advance(kernel, &mut self.shared);
    }
}

struct Once<'t, 'a, K>(&'t mut Trial<'a, K>, &'t [f32]);

impl<K> RowLoop for Once<'_, '_, K> {
    #[inline(always)]
    fn run<U: Kernel>(self, update: RowUpdater<'_, U>) {
        let Once(trial, g) = self;
        update.row_scaled(trial.scale, &mut trial.w, g, &mut trial.state);
    }
}

/// Steps until the end and returns the loss `0.5 * sum c_i (w_i - t_i)^2` that is left; it starts
/// at 34.855 with 11 weights, so that blocks and remainders of a vector loop both take part.
pub(crate) fn minimise<K: Kernel>(kernel: &K, lr: f32, n_steps: usize) -> f64 {
    let curvature = |i: usize| 0.5 + 0.1 * i as f32;
    let target = |i: usize| if i.is_multiple_of(2) { 2.0 } else { -3.0 };
    let mut trial = Trial::new(kernel, lr, &[0.1; 11]);
    for _ in 0..n_steps {
        let g: Vec<f32> =
            trial.w.iter().enumerate().map(|(i, w)| curvature(i) * (w - target(i))).collect();
        trial.step(&g);
    }
    let loss = |(i, w): (usize, &f32)| 0.5 * f64::from(curvature(i) * (w - target(i)).powi(2));
    trial.w.iter().enumerate().map(loss).sum()
}

/// Asserts that `actual` is within a relative (below 1: absolute) `1e-6` of `expected`.
#[track_caller]
pub(crate) fn assert_close(actual: &[f32], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(a) - e).abs() / e.abs().max(1.0);
        assert!(error < 1e-6, "element {i}: {a} but expected {e}");
    }
}
