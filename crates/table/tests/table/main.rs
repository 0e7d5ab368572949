//! Tables through their public interface.

mod ctr;
mod dense;
mod lease;
mod life;
mod snapshot;
mod sparse;
mod stress;
mod tier;

use regatta_optim::{Rule, Sgd};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable, TableId,
    TierConfig,
};

/// A table of plain rows with gradient descent, which start as zeros.
fn sgd_config(dim: usize) -> SparseConfig {
    let plain = PlainConfig::new(dim, Rule::Sgd(Sgd {}));
    SparseConfig::new(TableId(1), 3, Accessor::Plain(plain))
}

/// The same with random first values.
fn random_config(dim: usize) -> SparseConfig {
    let initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
    let plain = PlainConfig { initializer, ..PlainConfig::new(dim, Rule::Sgd(Sgd {})) };
    SparseConfig::new(TableId(1), 3, Accessor::Plain(plain))
}

/// The same table with at most so many rows in memory, and the folder for the others.
fn tiered(config: SparseConfig, n_rows: usize) -> (SparseConfig, tempfile::TempDir) {
    let parts = SparseTable::new(config.clone()).unwrap().row_parts();
    let words: usize = parts.iter().map(|(_, len)| len).sum();
    let folder = tempfile::tempdir().unwrap();
    let (memory_bytes, dir) = (4 * (n_rows * words) as u64, folder.path().join("cold"));
    let tier = Some(TierConfig { memory_bytes, dir, lookahead: 4 });
    (SparseConfig { tier, ..config }, folder)
}

fn pull(table: &SparseTable, keys: &[u64], mode: PullMode<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; keys.len() * table.pull_width()];
    table.pull(keys, &mut out, mode, &mut Scratch::default()).unwrap();
    out
}
