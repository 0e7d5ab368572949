//! Nanoseconds per row update with everything in cache: `cargo bench -p regatta-optim`.
//!
//! 512 rows `[w | state]` in one slab are visited in a scattered order, as a table visits the rows
//! of a push. Each figure is the best of ten rounds.

use std::hint::black_box;
use std::time::Instant;

use regatta_optim::{
    Adagrad, Adam, Ftrl, Kernel, Momentum, RowLoop, RowRule, RowUpdater, Rule, Sgd, StateMut,
    TableRule, table_rule,
};

const N_ROWS: usize = 512;
const N_PASSES: usize = 2000;
const N_ROUNDS: usize = 10;

struct SlabRows<'a> {
    slab: &'a mut [f32],
    stride: usize,
    slots: &'a [u32],
    gradients: &'a [f32],
    n: usize,
}

impl RowLoop for SlabRows<'_> {
    #[inline(always)]
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>) {
        for (&slot, g) in self.slots.iter().zip(self.gradients.chunks_exact(self.n)) {
            let row = &mut self.slab[slot as usize * self.stride..][..self.stride];
            let (w, state) = row.split_at_mut(self.n);
            update.row(w, g, state);
        }
    }
}

/// Best time of `pass`, in nanoseconds per `unit`.
fn best(n_passes: usize, n_units: usize, mut pass: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..N_ROUNDS {
        let start = Instant::now();
        (0..n_passes).for_each(|_| pass());
        best = best.min(start.elapsed().as_nanos() as f64 / (n_passes * n_units) as f64);
    }
    best
}

/// Gradients that differ per element and change sign, so that no state grows without bound.
fn gradients(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 500.0).collect()
}

/// Nanoseconds per row in one loop, and per call of `update_row`.
fn measure(rule: &impl RowRule, n: usize) -> (f64, f64) {
    let stride = n + rule.row_state_len(n);
    let mut slab = vec![0.01; N_ROWS * stride];
    slab.chunks_exact_mut(stride).for_each(|row| rule.init_row_state(n, &mut row[n..]));
    let slots: Vec<u32> = (0..N_ROWS as u32).map(|i| i * 197 % N_ROWS as u32).collect();
    let gradients = gradients(N_ROWS * n);
    let looped = best(N_PASSES, N_ROWS, || {
        let (slab, slots) = (black_box(slab.as_mut_slice()), black_box(slots.as_slice()));
        rule.run_rows(
            1e-4,
            &rule.shared_state(),
            SlabRows { slab, stride, slots, gradients: &gradients, n },
        );
    });
    let single = best(N_PASSES, N_ROWS, || {
        for (&slot, g) in black_box(&slots).iter().zip(gradients.chunks_exact(n)) {
            let (w, state) = slab[slot as usize * stride..][..stride].split_at_mut(n);
            rule.update_row(1e-4, &rule.shared_state(), w, g, state);
        }
    });
    (looped, single)
}

/// Nanoseconds per weight of a dense parameter that fits into the second-level cache.
fn measure_dense(rule: &Rule) -> f64 {
    let n = 16 * 1024;
    let mut w = vec![0.01; n];
    let g = gradients(n);
    let mut states: Vec<Vec<f32>> =
        rule.states().iter().map(|s| vec![s.initial; s.len_for(n)]).collect();
    best(100, n, || {
        rule.update(1e-4, black_box(&mut w), &g, states.iter_mut().collect::<StateMut>())
    })
}

fn main() {
    println!("{:<18} {:>4} {:>14} {:>14}", "rule", "dim", "ns/row looped", "ns/row single");
    let report = |name: &str, n: usize, (looped, single): (f64, f64)| {
        println!("{name:<18} {n:>4} {looped:>14.1} {single:>14.1}");
    };
    let rules = [
        ("sgd", Rule::Sgd(Sgd::default())),
        ("momentum", Rule::Momentum(Momentum::default())),
        ("adagrad", Rule::Adagrad(Adagrad::default())),
        ("adam", Rule::Adam(Adam::default())),
        ("ftrl", Rule::Ftrl(Ftrl::default())),
    ];
    let table_rules = [
        ("table adagrad", TableRule::Adagrad(table_rule::Adagrad::default())),
        ("table std_adagrad", TableRule::StdAdagrad(table_rule::StdAdagrad::default())),
        ("table adam", TableRule::Adam(table_rule::Adam::default())),
        ("table shared_adam", TableRule::SharedAdam(table_rule::SharedAdam::default())),
    ];
    for n in [8, 9, 16] {
        rules.iter().for_each(|(name, rule)| report(name, n, measure(rule, n)));
        table_rules.iter().for_each(|(name, rule)| report(name, n, measure(rule, n)));
    }
    println!("\n{:<18} {:>14}", "dense, 16384", "ns/weight");
    for (name, rule) in &rules {
        println!("{name:<18} {:>14.3}", measure_dense(rule));
    }
}
