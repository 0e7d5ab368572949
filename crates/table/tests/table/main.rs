//! Tables through their public interface.

mod ctr;
mod dense;
mod life;
mod snapshot;
mod sparse;
mod stress;

use regatta_optim::{Rule, Sgd};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable, TableId,
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

fn pull(table: &SparseTable, keys: &[u64], mode: PullMode<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; keys.len() * table.pull_width()];
    table.pull(keys, &mut out, mode, &mut Scratch::default()).unwrap();
    out
}
