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
    use crate::{
        Error, PullCounts, PullMode, PushCounts, Row, SaveMode, Scratch, ShardRows, ShrinkCounts,
        SparseConfig, SparseTable, Stats, TierConfig,
    };

    /// A table of which some 16 rows are in memory, and that is sometimes told what comes.
    struct Tiered(SparseTable, #[expect(dead_code, reason = "removed last")] tempfile::TempDir);

    impl RowStore for Tiered {
        fn make(config: &SparseConfig) -> Result<Self, Error> {
            let words = SparseTable::new(config.clone())?.row_parts();
            let words: usize = words.iter().map(|(_, len)| len).sum();
            let folder = tempfile::tempdir().unwrap();
            let (memory_bytes, dir) = (64 * words as u64, folder.path().join("cold"));
            let tier = Some(TierConfig { memory_bytes, dir, lookahead: 1 });
            SparseTable::new(SparseConfig { tier, ..config.clone() }).map(|t| Tiered(t, folder))
        }
        fn pull(
            &self,
            keys: &[u64],
            out: &mut [f32],
            mode: PullMode<'_>,
            scratch: &mut Scratch,
        ) -> Result<PullCounts, Error> {
            match keys.len() % 3 {
                0 => self.0.prefetch(keys, scratch)?,
                1 => self.0.prefetch(&keys[..keys.len() / 2], &mut Scratch::default())?,
                _ => {}
            }
            self.0.pull(keys, out, mode, scratch)
        }
        fn push(
            &self,
            keys: &[u64],
            values: &[f32],
            lr: f32,
            scratch: &mut Scratch,
        ) -> Result<PushCounts, Error> {
            self.0.push(keys, values, lr, scratch)
        }
        fn widths(&self) -> (usize, usize) {
            self.0.widths()
        }
        fn end_day(&self) {
            self.0.end_day();
        }
        fn shrink(&self, unseen_days: Option<u32>) -> Result<ShrinkCounts, Error> {
            self.0.shrink(unseen_days)
        }
        fn clear(&self) -> Result<(), Error> {
            self.0.clear()
        }
        fn export(&self, mode: SaveMode) -> Result<Vec<ShardRows>, Error> {
            RowStore::export(&self.0, mode)
        }
        fn saved(&self, rows: &ShardRows) -> Result<(), Error> {
            RowStore::saved(&self.0, rows)
        }
        fn import<'a>(&self, rows: impl IntoIterator<Item = Row<'a>>) -> Result<usize, Error> {
            self.0.import(rows)
        }
        fn steps(&self) -> u64 {
            self.0.steps()
        }
        fn set_steps(&self, steps: u64) {
            self.0.set_steps(steps);
        }
        fn stats(&self) -> Result<Stats, Error> {
            let stats = self.0.stats()?;
            let hot = self.0.config().tier.as_ref().unwrap().memory_bytes;
            let rows = (stats.rows - stats.cold) * 4 * self.0.base_len() as u64;
            assert!(rows <= hot, "{stats:?}");
            Ok(stats)
        }
    }

    #[test]
    fn tiered_tables_conform() {
        for config in sparse_configs() {
            sparse::<Tiered>(&config, 1, 80);
        }
    }

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

        #[test]
        fn any_tiered_table_conforms(which in 0usize..25, seed: u64, n_steps in 1usize..100) {
            let configs = sparse_configs();
            sparse::<Tiered>(&configs[which % configs.len()], seed, n_steps);
        }
    }
}
