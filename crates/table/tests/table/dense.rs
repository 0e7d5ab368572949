//! Dense tables: errors and locks; the suite checks the numbers.

use regatta_optim::{Adam, Lamb, Rule, Sgd, Sum};
use regatta_table::{DenseConfig, DenseHistory, DenseParam, DenseTable, Error, TableId};

fn config(rule: Rule, range: std::ops::Range<usize>) -> DenseConfig {
    let params = vec![DenseParam::new("w", 6), DenseParam::new("b", 2)];
    DenseConfig { table: TableId(5), rule, params, range }
}

#[test]
fn what_cannot_be_honoured_is_named() {
    let error = DenseTable::new(config(Rule::Sgd(Sgd {}), 2..9)).unwrap_err();
    assert_eq!(error.to_string(), "table 5: `range` is 2..9, but there are 8 values");
    let lamb = Rule::Lamb(Lamb::default());
    let error = DenseTable::new(config(lamb, 2..8)).unwrap_err();
    assert!(error.to_string().contains("cuts `w`, of which lamb needs the norm"), "{error}");
    assert!(DenseTable::new(config(lamb, 6..8)).is_ok());
    let table = DenseTable::new(config(Rule::Sgd(Sgd {}), 2..8)).unwrap();
    assert_eq!(table.push(&[0.0; 6], 0.1), Err(Error::NotSet { table: TableId(5) }));
    table.set(&[0.0; 6]).unwrap();
    assert!(matches!(table.push(&[0.0; 5], 0.1), Err(Error::Length { expected: 6, .. })));
    assert!(table.pull(3..7, &mut [0.0; 4]).is_err());
    assert!(table.push_piece(2, &[0.0], 0.1).is_err());
    assert_eq!(table.pieces(), [0..4, 4..6]);
}

#[test]
fn each_parameter_counts_its_own_steps() {
    let table = DenseTable::new(config(Rule::Adam(Adam::default()), 0..8)).unwrap();
    table.set(&[1.0; 8]).unwrap();
    table.push_piece(0, &[1.0; 6], 0.1).unwrap();
    table.push_piece(0, &[1.0; 6], 0.1).unwrap();
    table.push_piece(1, &[1.0; 2], 0.1).unwrap();
    let pieces = table.export().unwrap();
    let pow = |idx: usize| pieces[idx].states.iter().find(|(n, _)| n == "beta1_pow").unwrap().1[0];
    assert!((pow(0) - 0.9f32.powi(3)).abs() < 1e-6 && (pow(1) - 0.81).abs() < 1e-6);
    let other = DenseTable::new(config(Rule::Sgd(Sgd {}), 0..8)).unwrap();
    let error = other.import(&pieces).unwrap_err();
    assert!(error.to_string().contains("`w` has states [], imported [\"moment1\""), "{error}");
}

#[test]
fn deltas_of_geo_training_are_added_whatever_the_threads() {
    let table = DenseTable::new(config(Rule::Sum(Sum {}), 0..8)).unwrap();
    table.set(&[0.5; 8]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| table.push(&[1.0; 8], 0.0).unwrap()));
        }
    });
    let mut out = [0.0; 8];
    table.pull(0..8, &mut out).unwrap();
    assert_eq!(out, [2000.5; 8]);
}

#[test]
fn the_history_holds_the_values_before_the_last_two_steps() {
    let table = DenseTable::new(config(Rule::Sgd(Sgd {}), 0..8)).unwrap();
    // Values now, before the last step and before the one before that; 0 where they are not kept.
    let history = |range: std::ops::Range<usize>| {
        let mut all = Vec::new();
        for version in 0..3 {
            let mut out = vec![0.0; range.len()];
            let write = |h: &DenseHistory<'_>, out: &mut [f32]| {
                let versions = [Some(h.now), h.before, h.earlier];
                if let Some(values) = versions[version] {
                    out.copy_from_slice(values);
                }
            };
            table.pull_history(range.clone(), &mut out, write).unwrap();
            all.push(out);
        }
        all
    };
    table.set(&[1.0; 8]).unwrap();
    assert_eq!(history(0..8), [[1.0; 8], [0.0; 8], [0.0; 8]]);
    table.push(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0], 0.25).unwrap();
    assert_eq!(history(4..8), [[0.75, 0.75, 0.5, 0.5], [1.0; 4], [0.0; 4]]);
    table.push(&[3.0; 8], 0.25).unwrap();
    assert_eq!(history(4..8), [[0.0, 0.0, -0.25, -0.25], [0.75, 0.75, 0.5, 0.5], [1.0; 4]]);
    table.push(&[0.0; 8], 0.25).unwrap();
    assert_eq!(history(5..7), [[0.0, -0.25], [0.0, -0.25], [0.75, 0.5]]);
    table.set(&[2.0; 8]).unwrap();
    assert_eq!(history(0..8), [[2.0; 8], [0.0; 8], [0.0; 8]]);
    table.push(&[1.0; 8], 0.25).unwrap();
    assert_eq!(history(0..8), [[1.75; 8], [2.0; 8], [0.0; 8]]);
}
