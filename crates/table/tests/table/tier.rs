//! Tables of which only a part is in memory: the same rows, less memory.

use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, Row, RowBody, SaveMode, Scope, Scratch,
    SparseConfig, SparseTable, TableId,
};
use regatta_tensor::Rng;

use crate::{pull, sgd_config, tiered};

fn adam_config() -> SparseConfig {
    let initializer = Initializer::Uniform { low: -0.1, high: 0.1 };
    let plain = PlainConfig { initializer, ..PlainConfig::new(9, Rule::Adam(Adam::default())) };
    SparseConfig::new(TableId(1), 3, Accessor::Plain(plain))
}

/// Distinct keys of a batch; small ones come often.
fn batch(i: u64) -> Vec<u64> {
    let rng = Rng::new(5, i);
    let mut keys: Vec<u64> = (0..600).map(|j| (rng.unit_f64(j).powi(4) * 2e4) as u64).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn train(table: &SparseTable, n_batches: u64, ahead: u64) {
    let (mut scratch, mut other) = (Scratch::default(), Scratch::default());
    (0..ahead).for_each(|i| table.prefetch(&batch(i), &mut other).unwrap());
    for i in 0..n_batches {
        if ahead > 0 {
            table.prefetch(&batch(i + ahead), &mut other).unwrap();
        }
        let keys = batch(i);
        let mut out = vec![0.0; 9 * keys.len()];
        table.pull(&keys, &mut out, PullMode::Train, &mut scratch).unwrap();
        let gradients: Vec<f32> = out.iter().map(|x| x * 0.5 + 0.01).collect();
        table.push(&keys, &gradients, 0.01, &mut scratch).unwrap();
    }
}

fn bits(table: &SparseTable) -> Vec<(u64, Vec<u32>)> {
    let shards = (0..table.n_shards()).map(|shard| table.export(shard, SaveMode::All).unwrap());
    let words = |row: Row<'_>| match row.body {
        RowBody::Base(words) => (row.key, words.iter().map(|w| w.to_bits()).collect()),
        other => panic!("{other:?}"),
    };
    shards.flat_map(|rows| rows.rows().map(words).collect::<Vec<_>>()).collect()
}

#[test]
fn training_with_few_rows_in_memory_gives_the_same_bits() {
    let all = SparseTable::new(adam_config()).unwrap();
    train(&all, 200, 0);
    let wanted = bits(&all);
    for ahead in [0, 4] {
        let (config, _folder) = tiered(adam_config(), wanted.len() / 10);
        let table = SparseTable::new(config).unwrap();
        train(&table, 200, ahead);
        assert!(bits(&table) == wanted);
        let stats = table.stats().unwrap();
        let budget = wanted.len() as u64 / 10;
        assert!(stats.rows - stats.cold <= budget && stats.rows == wanted.len() as u64);
        assert!(stats.demoted > 10 * budget && stats.cold_hits > 0, "{stats:?}");
        assert_eq!(stats.prefetched > 0, ahead > 0, "{stats:?}");
        // Files take twice what lives in them, and some segments that are not compacted yet.
        assert!(stats.disk_bytes <= 2 * stats.cold * 124 * 17 / 16 + 6 * (64 << 10), "{stats:?}");
    }
}

#[test]
fn looking_at_cold_rows_leaves_them_cold() {
    let (config, _folder) = tiered(sgd_config(2), 10);
    let table = SparseTable::new(config).unwrap();
    let keys: Vec<u64> = (0..500).collect();
    pull(&table, &keys, PullMode::Train);
    let gradients: Vec<f32> = (0..1000).map(|i| -(i as f32)).collect();
    table.push(&keys, &gradients, 1.0, &mut Scratch::default()).unwrap();
    let before = table.stats().unwrap();
    let wanted: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    assert_eq!(pull(&table, &keys, PullMode::Test), wanted);
    let after = table.stats().unwrap();
    assert_eq!((after.cold, after.demoted), (before.cold, before.demoted));
    assert!(after.cold >= 490 && after.hit_rate() < 1.0, "{after:?}");
    let mut keys_there = table.keys().unwrap();
    keys_there.sort_unstable();
    assert_eq!(keys_there, keys);
    let there = |key| table.inspect(key).unwrap();
    assert!((0..500).all(|key| matches!(there(key), regatta_table::Inspection::Row(_))));
    assert_eq!(there(500), regatta_table::Inspection::Absent);
}

#[test]
fn changes_read_only_cold_rows_that_changed() {
    let (config, _folder) = tiered(sgd_config(2), 100);
    let table = SparseTable::new(config).unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    pull(&table, &keys, PullMode::Train);
    table.begin_changes().unwrap();
    let some: Vec<u64> = (0..1000).collect();
    table.push(&some, &[1.0; 2000], 1.0, &mut Scratch::default()).unwrap();
    let before = table.stats().unwrap().cold_reads;
    let snapshot = table.snapshot(Scope::Changes).unwrap();
    let (mut exported, mut n) = (table.export_snapshot(&snapshot), 0);
    while exported.next(|_| n += 1).unwrap().is_some() {}
    table.end_snapshot(snapshot, true).unwrap();
    assert_eq!(n, 1000);
    let reads = table.stats().unwrap().cold_reads - before;
    assert!((900..=1000).contains(&reads), "{reads} reads");
}

/// Imports rows in order, as a restore does; all that does not fit goes to files.
#[test]
fn a_cold_row_takes_at_most_12_bytes_of_memory() {
    const N: u64 = 1_000_000;
    let config = SparseConfig { n_shards: 2, ..sgd_config(9) };
    let (config, _folder) = tiered(config, 1000);
    let table = SparseTable::new(config).unwrap();
    let mut keys: Vec<u64> = (0..N).collect();
    keys.sort_by_cached_key(|key| regatta_table::row_order(*key));
    table.reserve(N as usize).unwrap();
    let words: Vec<[f32; 9]> = keys.iter().map(|key| [*key as f32; 9]).collect();
    let row = |(key, words)| {
        let body = RowBody::Base(words);
        Row { key, unseen_days: 0, changed: false, body }
    };
    let rows = keys.iter().copied().zip(words.iter().map(|w| &w[..])).map(row);
    assert_eq!(table.import(rows).unwrap() as u64, N);
    let stats = table.stats().unwrap();
    assert!(stats.rows == N && stats.cold >= N - 1000, "{stats:?}");
    let per_row = stats.bytes as f64 / N as f64;
    assert!(per_row <= 12.0, "{per_row} bytes of memory per row");
    let some: Vec<u64> = (0..N).step_by(997).collect();
    let wanted: Vec<f32> = some.iter().flat_map(|key| [*key as f32; 9]).collect();
    assert_eq!(pull(&table, &some, PullMode::Train), wanted);
}
