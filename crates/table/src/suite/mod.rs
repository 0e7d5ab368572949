//! One conformance suite for all tables: random requests go to a table and to a naive model, and
//! both must give the same bits.
//!
//! Whoever writes another table (on disk, on a device) implements [`RowStore`] and calls
//! [`sparse`].

mod dense;
mod model;
mod sparse;

pub use dense::dense;
pub use model::Model;
pub use sparse::{RowStore, sparse, sparse_configs};

use regatta_tensor::Rng;

/// A sequence of choices that a failing test can print and repeat.
#[derive(Debug)]
pub(crate) struct Choices {
    rng: Rng,
    at: u64,
}

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Choices { rng: Rng::named(seed, "suite"), at: 0 }
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.at += 1;
        (self.rng.u64(self.at) % n as u64) as usize
    }

    /// Keys of a small set, so that they meet again; some are large, some appear twice.
    pub(crate) fn keys(&mut self) -> Vec<u64> {
        let n = self.below(60);
        let key = |choices: &mut Self| match choices.below(80) as u64 {
            small @ 0..60 => small,
            large => u64::MAX - large * (1 << 40),
        };
        (0..n).map(|_| key(self)).collect()
    }

    /// The same without duplicates.
    pub(crate) fn distinct_keys(&mut self) -> Vec<u64> {
        let mut keys = self.keys();
        let mut seen = std::collections::HashSet::new();
        keys.retain(|key| seen.insert(*key));
        keys
    }

    /// Numbers between -1 and 1.
    pub(crate) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.below(2001) as f32 / 1000.0 - 1.0).collect()
    }
}

/// Compares bit by bit: a sign of zero or a NaN would be seen.
pub(crate) fn assert_same_bits(got: &[f32], wanted: &[f32], what: &str) {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(wanted), "{what}: got {got:?}, wanted {wanted:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regatta_optim::{Adagrad, Adam, Lamb, Momentum, Rule, Sgd, Sum, Summary};

    use super::*;
    use crate::SparseTable;

    #[test]
    fn every_sparse_table_conforms() {
        for config in sparse_configs() {
            for seed in 0..4 {
                sparse::<SparseTable>(&config, seed, 120);
            }
        }
    }

    #[test]
    fn dense_tables_conform() {
        let rules = [
            Rule::Sgd(Sgd {}),
            Rule::Momentum(Momentum::default()),
            Rule::Adagrad(Adagrad::default()),
            Rule::Adam(Adam::default()),
            Rule::Sum(Sum {}),
            Rule::Summary(Summary::default()),
        ];
        for rule in rules {
            for n_servers in [1, 2, 3, 100] {
                dense(rule, n_servers, n_servers as u64, 40);
            }
        }
        dense(Rule::Lamb(Lamb::default()), 1, 5, 40);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        /// In particular: a push that names ids without a row shifts no gradient of the others.
        #[test]
        fn any_table_conforms_for_any_seed(which in 0usize..25, seed: u64, n_steps in 1usize..150) {
            let configs = sparse_configs();
            sparse::<SparseTable>(&configs[which % configs.len()], seed, n_steps);
        }
    }
}
