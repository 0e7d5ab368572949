//! Days, shrinking, and saving while training goes on.

use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, Admission, Error, Inspection, PlainConfig, PullMode, Row, RowBody, SaveMode, Scratch,
    SparseConfig, SparseTable,
};

use crate::{pull, random_config, sgd_config};

#[test]
fn evicted_ids_change_nothing_until_they_are_pulled_again() {
    let table = SparseTable::new(random_config(2)).unwrap();
    let first = pull(&table, &[1, 2], PullMode::Train);
    let mut scratch = Scratch::default();
    (0..31).for_each(|_| table.end_day());
    table.push(&[1], &[0.5; 2], 1.0, &mut scratch).unwrap();
    let counts = table.shrink(None).unwrap();
    assert_eq!((counts.rows, counts.kept), (1, 1));
    let counts = table.push(&[2, 1], &[9.0, 9.0, 0.5, 0.5], 1.0, &mut scratch).unwrap();
    assert_eq!((counts.updated, counts.created, counts.ignored), (1, 0, 1));
    assert_eq!(pull(&table, &[1], PullMode::Test), [first[0] - 1.0, first[1] - 1.0]);
    assert_eq!(pull(&table, &[2], PullMode::Train), first[2..], "and then it begins anew");
    assert_eq!(table.stats().unwrap().evicted, 1);
}

#[test]
fn candidates_are_forgotten_after_days_too() {
    let admission = Admission::CountFilter(2);
    let table = SparseTable::new(SparseConfig { admission, ..sgd_config(1) }).unwrap();
    pull(&table, &[1], PullMode::Train);
    table.end_day();
    pull(&table, &[2], PullMode::Train);
    assert_eq!(table.shrink(Some(0)).unwrap().candidates, 1);
    assert_eq!(table.inspect(1).unwrap(), Inspection::Absent);
    assert!(matches!(table.inspect(2).unwrap(), Inspection::Candidate { .. }));
}

#[test]
fn memory_of_evicted_rows_is_used_again() {
    let table = SparseTable::new(SparseConfig { n_shards: 2, ..sgd_config(8) }).unwrap();
    let mut most = 0;
    for round in 0..20u64 {
        let keys: Vec<u64> = (round * 10_000..(round + 1) * 10_000).collect();
        pull(&table, &keys, PullMode::Train);
        most = most.max(table.stats().unwrap().bytes);
        table.end_day();
        assert_eq!(table.shrink(Some(0)).unwrap().rows, 10_000);
    }
    // 32 bytes of floats and about 22 of index per row, and the list of free slots.
    assert!(most < 10_000 * 64, "{most} bytes");
    table.clear().unwrap();
    assert_eq!(table.stats().unwrap().bytes, 2 * 4096);
}

#[test]
fn pushes_between_export_and_acknowledgement_still_count() {
    let table = SparseTable::new(SparseConfig { n_shards: 1, ..sgd_config(1) }).unwrap();
    pull(&table, &[1, 2], PullMode::Train);
    let ids = || -> Vec<u64> {
        let rows = table.export(0, SaveMode::Delta).unwrap();
        let mut ids: Vec<u64> = rows.rows().map(|row| row.key).collect();
        ids.sort();
        ids
    };
    let exported = table.export(0, SaveMode::Base).unwrap();
    table.push(&[2], &[1.0], 1.0, &mut Scratch::default()).unwrap();
    assert_eq!(ids(), [1, 2], "nothing is acknowledged yet");
    table.saved(&exported.receipt()).unwrap();
    assert_eq!(ids(), [2]);
}

#[test]
fn rows_move_between_tables_bit_by_bit() {
    let rule = Rule::Adam(Adam::default());
    let accessor = Accessor::Plain(PlainConfig::new(9, rule));
    let config = SparseConfig { accessor, admission: Admission::CountFilter(2), ..sgd_config(9) };
    let old = SparseTable::new(config.clone()).unwrap();
    let mut scratch = Scratch::default();
    let keys: Vec<u64> = (0..1000).collect();
    pull(&old, &keys, PullMode::Train);
    pull(&old, &keys[..900], PullMode::Train);
    for step in 0..5 {
        let gradients: Vec<f32> = (0..9000).map(|i| ((i + step) as f32).sin()).collect();
        old.push(&keys, &gradients, 0.01, &mut scratch).unwrap();
        old.end_day();
    }
    // Two servers instead of one, at another day.
    let new: Vec<SparseTable> = (0..2).map(|_| SparseTable::new(config.clone()).unwrap()).collect();
    new.iter().for_each(|table| table.set_day(1));
    for shard in 0..old.n_shards() {
        let rows = old.export(shard, SaveMode::All).unwrap();
        for (server, table) in new.iter().enumerate() {
            let own = rows.rows().filter(|row| row.key % 2 == server as u64);
            table.import(own).unwrap();
        }
    }
    for key in 0..1000 {
        let (from, to) = (old.inspect(key).unwrap(), new[key as usize % 2].inspect(key).unwrap());
        assert_eq!(from, to, "key {key}");
        assert_eq!(new[(key as usize + 1) % 2].inspect(key).unwrap(), Inspection::Absent);
    }
}

#[test]
fn rows_of_another_layout_are_refused() {
    let table = SparseTable::new(sgd_config(2)).unwrap();
    let row = |body| Row { key: 1, unseen_days: 0, changed: false, body };
    let error = table.import([row(RowBody::Base(&[1.0; 3]))]).unwrap_err();
    assert_eq!(error.to_string(), "table 1: an imported row has 3 values, expected 2");
    let error = table.import([row(RowBody::Extended(&[1.0; 3]))]).unwrap_err();
    assert!(matches!(error, Error::Length { expected: 0, .. }));
    let error = table.export(1000, SaveMode::All).unwrap_err();
    assert_eq!(error.to_string(), "table 1: shard 1000, but there are 16");
}
