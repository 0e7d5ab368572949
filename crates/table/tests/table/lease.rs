//! Rows that are updated elsewhere come back as if they had been pushed to.

use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, Admission, Initializer, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable,
    TableId,
};

use crate::pull;

const DIM: usize = 3;

fn adam() -> SparseTable {
    let mut plain = PlainConfig::new(DIM, Rule::Adam(Adam::default()));
    plain.initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
    SparseTable::new(SparseConfig::new(TableId(1), 3, Accessor::Plain(plain))).unwrap()
}

fn lease(table: &SparseTable, keys: &[u64]) -> Vec<f32> {
    let mut rows = vec![f32::NAN; keys.len() * table.row_width().unwrap()];
    let absent = table.lease(keys, &[], &mut rows, &mut Scratch::default()).unwrap();
    assert!(absent.is_empty());
    rows
}

/// Keys become rows when they were seen often enough; until then they are named, and get zeros.
#[test]
fn keys_that_are_not_admitted_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let tier = |memory_bytes| {
        let dir = dir.path().to_path_buf();
        regatta_table::TierConfig { memory_bytes, dir, lookahead: 2 }
    };
    for tier in [None, Some(tier(1 << 16))] {
        let mut config = adam().config().clone();
        (config.admission, config.tier) = (Admission::CountFilter(3), tier);
        let table = SparseTable::new(config).unwrap();
        let keys: Vec<u64> = (0..9000).map(|i| i * 7919).collect();
        let counts: Vec<u32> = (0..9000).map(|i| 1 + i % 2).collect();
        let width = table.row_width().unwrap();
        let mut rows = vec![f32::NAN; keys.len() * width];
        for round in 0..3 {
            let mut absent =
                table.lease(&keys, &counts, &mut rows, &mut Scratch::default()).unwrap();
            absent.sort_unstable();
            let is_absent = |at: &u32| round < 2 && (round + 1) * (1 + at % 2) < 3;
            let expected: Vec<u32> = (0..9000).filter(is_absent).collect();
            assert_eq!(absent, expected, "{round}");
            for (at, row) in rows.chunks(width).enumerate() {
                let is_zero = row.iter().all(|x| *x == 0.0);
                assert_eq!(is_zero, absent.binary_search(&(at as u32)).is_ok(), "{at} {row:?}");
            }
        }
    }
}

#[test]
fn rows_with_their_state_move_from_table_to_table() {
    let (trained, other) = (adam(), adam());
    let keys: Vec<u64> = (0..50).map(|i| i * 7919).collect();
    let first = lease(&trained, &keys);
    let width = trained.row_width().unwrap();
    assert_eq!(width, 3 * DIM);
    let weights: Vec<f32> = first.chunks(width).flat_map(|row| row[..DIM].to_vec()).collect();
    assert_eq!(weights, pull(&trained, &keys, PullMode::Test));
    let gradient = |step: usize| vec![0.1 + step as f32; keys.len() * DIM];
    for step in 0..4 {
        trained.push(&keys, &gradient(step), 0.01, &mut Scratch::default()).unwrap();
    }
    // The other table continues from the rows, and only then are they equal.
    lease(&other, &keys);
    other.give_back(&keys, &lease(&trained, &keys), &mut Scratch::default()).unwrap();
    other.set_steps(trained.steps());
    for table in [&trained, &other] {
        table.push(&keys, &gradient(9), 0.01, &mut Scratch::default()).unwrap();
    }
    assert_eq!(lease(&other, &keys), lease(&trained, &keys));
    // What is no row is not made one.
    other.give_back(&[1], &vec![1.0; width], &mut Scratch::default()).unwrap();
    assert_eq!(pull(&other, &[1], PullMode::Test), [0.0; DIM]);
}

/// A table with most rows on disk lends and takes back the same rows.
#[test]
fn rows_on_disk_move_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, tiered) = (adam(), {
        let mut config = adam().config().clone();
        let dir = dir.path().to_path_buf();
        config.tier = Some(regatta_table::TierConfig { memory_bytes: 1 << 16, dir, lookahead: 2 });
        SparseTable::new(config).unwrap()
    });
    let keys: Vec<u64> = (0..20_000).map(|i| i * 7919).collect();
    for part in keys.chunks(500) {
        let rows = lease(&plain, part);
        assert_eq!(lease(&tiered, part), rows);
        let changed: Vec<f32> = rows.iter().map(|x| x + 1.0).collect();
        for table in [&plain, &tiered] {
            table.give_back(part, &changed, &mut Scratch::default()).unwrap();
        }
    }
    for part in keys.chunks(500) {
        assert_eq!(lease(&tiered, part), lease(&plain, part));
    }
}
