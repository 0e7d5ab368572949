//! The uniform interface: any rule, any storage. A rule and rows go in, updated rows come out.
//!
//! Sparse tables update millions of short rows a second, so the choice of the rule and of the
//! instruction set must happen once per batch, not once per row. [`RowRule::run_rows`] makes both
//! choices and then hands a [`RowUpdater`] to the caller's own loop ([`RowLoop::run`]), which is
//! compiled once per rule and instruction set with the update inlined into it.

use crate::{Per, SharedState, StateDesc, StateMut, StateSpec};

/// One update rule with its configuration: what all the rules of this crate implement.
///
/// [`RowLoop::run`] is generic over it; apart from that, callers hold a [`Rule`](crate::Rule) or a
/// [`TableRule`](crate::TableRule).
pub trait Kernel {
    /// The states in storage order: those per element, those per row, those that rows share.
    const STATES: &'static [StateSpec];

    /// The first value of state number `idx`.
    fn initial(&self, idx: usize) -> f32;

    /// One step. `scale` is the number of impressions behind the gradient; rules without a use for
    /// it ignore it. `state` is divided according to [`STATES`](Kernel::STATES).
    fn apply(&self, lr: f32, scale: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>);
}

/// A loop over rows, written by the code that stores them.
pub trait RowLoop {
    /// Visits the rows and calls `update` for each. Mark the implementation `#[inline(always)]`:
    /// then it is compiled for the instruction set that was chosen, with the update inlined.
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>);
}

/// Updates one row after another with the same rule and learning rate.
#[derive(Debug)]
pub struct RowUpdater<'a, K> {
    kernel: &'a K,
    lr: f32,
    shared: SharedState,
}

impl<K: Kernel> RowUpdater<'_, K> {
    /// Updates the weights of one row; `state` is `[element states, n each | states per row]`.
    ///
    /// # Panics
    /// If `g` or `state` does not fit the length of `w`.
    #[inline(always)]
    pub fn row(&self, w: &mut [f32], g: &[f32], state: &mut [f32]) {
        self.row_scaled(1.0, w, g, state);
    }

    /// As [`row`](RowUpdater::row), for a gradient that sums over `scale` impressions.
    #[inline(always)]
    pub fn row_scaled(&self, scale: f32, w: &mut [f32], g: &[f32], state: &mut [f32]) {
        // A copy: the step is counted once for all rows, by `RowRule::advance`.
        let mut shared = self.shared;
        let state = StateMut::of_row(K::STATES, w.len(), state).and_shared(&mut shared);
        self.kernel.apply(self.lr, scale, w, g, state);
    }

    /// Updates weights whose own states are stored apart from each other.
    ///
    /// # Panics
    /// If `g` or a state does not fit the length of `w`.
    #[inline(always)]
    pub fn with_states(&self, w: &mut [f32], g: &[f32], states: StateMut<'_>) {
        let mut shared = self.shared;
        self.kernel.apply(self.lr, 1.0, w, g, states.and_shared(&mut shared));
    }
}

/// What tables need of a rule; implemented by [`Rule`](crate::Rule) and
/// [`TableRule`](crate::TableRule).
pub trait RowRule {
    /// The states in storage order: those per element, those per row, those that rows share.
    fn states(&self) -> Vec<StateDesc>;

    /// How many floats of state a row of `n` weights has.
    fn row_state_len(&self, n: usize) -> usize;

    /// Writes the initial values into the state of a new row of `n` weights.
    ///
    /// # Panics
    /// If `state` is not [`row_state_len`](RowRule::row_state_len) long.
    fn init_row_state(&self, n: usize, state: &mut [f32]);

    /// What all rows share before the first step.
    fn shared_state(&self) -> SharedState;

    /// Counts a step in what all rows share. To be called once per step, after its rows.
    fn advance(&self, shared: &mut SharedState);

    /// What all rows share after N steps.
    fn shared_after(&self, steps: u64) -> SharedState {
        let mut shared = self.shared_state();
        for _ in 0..steps {
            let before = shared;
            self.advance(&mut shared);
            if shared == before {
                break;
            }
        }
        shared
    }

    /// Runs the caller's loop with the updater of this rule: the way to update many rows.
    fn run_rows<L: RowLoop>(&self, lr: f32, shared: &SharedState, rows: L);

    /// Updates one row, for callers with few of them.
    ///
    /// # Panics
    /// If `g` or `state` does not fit the length of `w`.
    fn update_row(
        &self,
        lr: f32,
        shared: &SharedState,
        w: &mut [f32],
        g: &[f32],
        state: &mut [f32],
    ) {
        self.update_row_scaled(lr, 1.0, shared, w, g, state);
    }

    /// As [`update_row`](RowRule::update_row), for a gradient that sums over `scale` impressions.
    fn update_row_scaled(
        &self,
        lr: f32,
        scale: f32,
        shared: &SharedState,
        w: &mut [f32],
        g: &[f32],
        state: &mut [f32],
    ) {
        self.run_rows(lr, shared, SingleRow { scale, w, g, state });
    }
}

struct SingleRow<'a> {
    scale: f32,
    w: &'a mut [f32],
    g: &'a [f32],
    state: &'a mut [f32],
}

impl RowLoop for SingleRow<'_> {
    #[inline(always)]
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>) {
        update.row_scaled(self.scale, self.w, self.g, self.state);
    }
}

regatta_kernels::simd! {
    /// Runs `rows` with `kernel`, compiled for the widest instruction set of this CPU.
    pub(crate) fn run(kernel: &impl Kernel, lr: f32, shared: SharedState, rows: impl RowLoop) {
        rows.run(RowUpdater { kernel, lr, shared });
    }
}

regatta_kernels::simd_long! {
    /// One step of a dense parameter, compiled for the widest instruction set of this CPU.
    pub(crate) fn run_dense(
        kernel: &impl Kernel,
        lr: f32,
        w: &mut [f32],
        g: &[f32],
        state: StateMut<'_>,
    ) {
        kernel.apply(lr, 1.0, w, g, state);
    }
}

pub(crate) fn describe<K: Kernel>(kernel: &K) -> Vec<StateDesc> {
    let desc = |(idx, spec): (usize, &StateSpec)| StateDesc {
        name: spec.name,
        per: spec.per,
        initial: kernel.initial(idx),
    };
    K::STATES.iter().enumerate().map(desc).collect()
}

pub(crate) fn row_state_len<K: Kernel>(_: &K, n: usize) -> usize {
    let own = K::STATES.iter().filter(|spec| spec.per != Per::Scalar);
    own.map(|spec| spec.len_for(n)).sum()
}

pub(crate) fn init_row_state<K: Kernel>(kernel: &K, n: usize, state: &mut [f32]) {
    let view = StateMut::of_row(K::STATES, n, state);
    let n_own = view.len();
    for (idx, slice) in view.slices.into_iter().take(n_own).enumerate() {
        slice.fill(kernel.initial(idx));
    }
}

pub(crate) fn shared_state<K: Kernel>(kernel: &K) -> SharedState {
    let states = K::STATES.iter().enumerate();
    SharedState::first(states.map(|(idx, spec)| (*spec, kernel.initial(idx))))
}

/// A step of no weights at all moves what steps share, and nothing else.
pub(crate) fn advance<K: Kernel>(kernel: &K, shared: &mut SharedState) {
    if !shared.values_mut().is_empty() {
        let state = StateMut::of_row(K::STATES, 0, &mut []).and_shared(shared);
        kernel.apply(0.0, 1.0, &mut [], &[], state);
    }
}

/// Implements [`RowRule`] for an enum by handing each variant's configuration to the functions
/// above.
macro_rules! impl_row_rule {
    ($rule:ident { $($variant:ident),* $(,)? }) => {
        impl $crate::RowRule for $rule {
            fn states(&self) -> Vec<$crate::StateDesc> {
                match self { $($rule::$variant(k) => $crate::rows::describe(k),)* }
            }

            fn row_state_len(&self, n: usize) -> usize {
                match self { $($rule::$variant(k) => $crate::rows::row_state_len(k, n),)* }
            }

            fn init_row_state(&self, n: usize, state: &mut [f32]) {
                match self { $($rule::$variant(k) => $crate::rows::init_row_state(k, n, state),)* }
            }

            fn shared_state(&self) -> $crate::SharedState {
                match self { $($rule::$variant(k) => $crate::rows::shared_state(k),)* }
            }

            fn advance(&self, shared: &mut $crate::SharedState) {
                match self { $($rule::$variant(k) => $crate::rows::advance(k, shared),)* }
            }

            fn run_rows<L: $crate::RowLoop>(
                &self,
                lr: f32,
                shared: &$crate::SharedState,
                rows: L,
            ) {
                match self { $($rule::$variant(k) => $crate::rows::run(k, lr, *shared, rows),)* }
            }
        }
    };
}
pub(crate) use impl_row_rule;
