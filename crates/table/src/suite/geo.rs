//! The suite of geo tables.

use std::collections::{BTreeMap, BTreeSet};

use super::{Choices, assert_same_bits};
use crate::init::RowInit;
use crate::{Changes, Error, GeoConfig, GeoTable, Scratch};

/// Runs `n_steps` random requests against a table and a naive model.
///
/// # Panics
/// If they ever differ.
pub fn geo(config: &GeoConfig, seed: u64, n_steps: usize) {
    let table = ok(GeoTable::new(config.clone()));
    let mut choices = Choices::new(seed);
    let mut scratch = Scratch::default();
    let mut changes = Changes::default();
    let mut model = Model {
        init: RowInit::new(config.seed, config.table, &config.stream, config.initializer),
        config: config.clone(),
        rows: BTreeMap::new(),
        changed: vec![BTreeSet::new(); config.n_trainers],
    };
    for step in 0..n_steps {
        let what = format!("{}, seed {seed}, step {step}", config.table);
        let trainer = choices.below(config.n_trainers);
        match choices.below(8) {
            0..4 => {
                let keys = choices.keys();
                let deltas = choices.values(keys.len() * config.dim);
                ok(table.push_delta(trainer, &keys, &deltas, &mut scratch));
                model.write(&keys, &deltas, |old, delta| old + delta);
            }
            4 => {
                let keys = choices.keys();
                let values = choices.values(keys.len() * config.dim);
                ok(table.set(&keys, &values, &mut scratch));
                model.write(&keys, &values, |_, new| new);
            }
            5 => {
                let keys = choices.keys();
                let mut out = vec![f32::NAN; keys.len() * config.dim];
                ok(table.pull(&keys, &mut out, &mut scratch));
                let wanted: Vec<f32> = keys.iter().flat_map(|key| model.row(*key)).collect();
                assert_same_bits(&out, &wanted, &what);
            }
            _ => {
                ok(table.pull_changed(trainer, &mut changes));
                let keys: Vec<u64> =
                    std::mem::take(&mut model.changed[trainer]).into_iter().collect();
                assert_eq!(changes.keys, keys, "{what}");
                let wanted: Vec<f32> = keys.iter().flat_map(|key| model.row(*key)).collect();
                assert_same_bits(&changes.values, &wanted, &what);
            }
        }
        assert_eq!(ok(table.n_rows()), model.rows.len(), "{what}");
    }
    ok(table.export(&mut changes));
    assert_eq!(changes.keys, model.rows.keys().copied().collect::<Vec<_>>());
    let wanted: Vec<f32> = model.rows.values().flatten().copied().collect();
    assert_same_bits(&changes.values, &wanted, "export");
}

fn ok<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

struct Model {
    config: GeoConfig,
    init: RowInit,
    rows: BTreeMap<u64, Vec<f32>>,
    changed: Vec<BTreeSet<u64>>,
}

impl Model {
    fn row(&self, key: u64) -> Vec<f32> {
        let mut first = vec![0.0; self.config.dim];
        if Some(key) != self.config.padding_idx {
            self.init.fill(key, self.config.dim, 0, &mut first);
        }
        self.rows.get(&key).cloned().unwrap_or(first)
    }

    fn write(&mut self, keys: &[u64], values: &[f32], change: impl Fn(f32, f32) -> f32) {
        for (key, values) in keys.iter().zip(values.chunks(self.config.dim)) {
            if Some(*key) == self.config.padding_idx {
                continue;
            }
            let row = self.row(*key).iter().zip(values).map(|(old, v)| change(*old, *v)).collect();
            self.rows.insert(*key, row);
            self.changed.iter_mut().for_each(|changed| {
                changed.insert(*key);
            });
        }
    }
}
