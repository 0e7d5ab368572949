//! The suite of dense tables: cut into any number of ranges, they are one flat vector.

use regatta_optim::{RowRule, Rule, StateMut};

use super::{Choices, assert_same_bits};
use crate::{DenseConfig, DenseParam, DenseTable, Error, TableId};

/// Three parameters with their own states, updated one by one.
struct Model {
    params: Vec<(DenseParam, Vec<f32>, Vec<Vec<f32>>)>,
}

/// Runs `n_steps` of a rule on tables that share a vector of three parameters between them, and on
/// the parameters themselves; with pulls of any range and a change of the number of servers in
/// between.
///
/// # Panics
/// If they ever differ.
pub fn dense(rule: Rule, n_servers: usize, seed: u64, n_steps: usize) {
    let mut choices = Choices::new(seed);
    let params = vec![
        DenseParam::new("w1", 37),
        DenseParam { lr_scale: 2.0, ..DenseParam::new("b1", 1) },
        DenseParam { lr_scale: 0.5, ..DenseParam::new("w2", 50) },
    ];
    let total: usize = params.iter().map(|param| param.len).sum();
    let mut model = Model { params: Vec::new() };
    for param in &params {
        let states = rule.states().iter().map(|s| vec![s.initial; s.len_for(param.len)]).collect();
        model.params.push((param.clone(), choices.values(param.len), states));
    }
    let mut tables = cut(rule, &params, n_servers);
    for (table, start) in &tables {
        let pulled = table.pull(0..table.len(), &mut vec![0.0; table.len()]);
        assert_eq!(pulled.is_err(), !table.is_empty(), "nothing to pull before values are set");
        ok(table.set(&model.flat()[*start..*start + table.len()]));
    }
    for step in 0..n_steps {
        let lr = 0.05 + choices.below(10) as f32 / 100.0;
        let gradient = choices.values(total);
        for (table, start) in &tables {
            ok(table.push(&gradient[*start..*start + table.len()], lr));
        }
        model.push(&rule, &gradient, lr);
        if choices.below(5) == 0 {
            let exported: Vec<_> =
                tables.iter().flat_map(|(table, _)| ok(table.export())).collect();
            let whole = matches!(rule, Rule::Lamb(_) | Rule::LarsMomentum(_));
            tables = cut(rule, &params, if whole { 1 } else { 1 + choices.below(4) });
            for (table, _) in &tables {
                assert_eq!(ok(table.import(&exported)), table.len());
            }
        }
        let wanted = model.flat();
        for (table, start) in &tables {
            let from = choices.below(table.len() + 1);
            let to = from + choices.below(table.len() - from + 1);
            let mut out = vec![f32::NAN; to - from];
            ok(table.pull(from..to, &mut out));
            let what = format!("{} seed {seed} step {step}", rule.name());
            assert_same_bits(&out, &wanted[start + from..start + to], &what);
        }
    }
}

fn ok<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Tables for equal ranges of the vector, and where they start; the last may be empty.
fn cut(rule: Rule, params: &[DenseParam], n_servers: usize) -> Vec<(DenseTable, usize)> {
    let total: usize = params.iter().map(|param| param.len).sum();
    let per_server = total / n_servers + 1;
    let table = |server: usize| {
        let start = (server * per_server).min(total);
        let range = start..(start + per_server).min(total);
        let config = DenseConfig { table: TableId(0), rule, params: params.to_vec(), range };
        (ok(DenseTable::new(config)), start)
    };
    (0..n_servers).map(table).collect()
}

impl Model {
    fn flat(&self) -> Vec<f32> {
        self.params.iter().flat_map(|(_, values, _)| values.clone()).collect()
    }

    fn push(&mut self, rule: &Rule, gradient: &[f32], lr: f32) {
        let mut rest = gradient;
        for (param, values, states) in &mut self.params {
            let (own, tail) = rest.split_at(param.len);
            let states: StateMut<'_> = states.iter_mut().collect();
            rule.update(lr * param.lr_scale, values, own, states);
            rest = tail;
        }
    }
}
