//! Several threads at once, with sums that are exact whatever the order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use regatta_table::{PullMode, Row, SaveMode, Scope, Scratch, SparseConfig, SparseTable};
use regatta_tensor::Rng;

use crate::{pull, sgd_config, tiered};

const N_THREADS: usize = 4;
const N_KEYS: u64 = 5_000;
const N_REQUESTS: usize = 200;

/// Distinct keys that differ per thread and request.
fn keys(thread: usize, request: usize) -> Vec<u64> {
    let rng = Rng::new(thread as u64, request as u64);
    let mut keys: Vec<u64> = (0..300).map(|i| rng.u64(i) % N_KEYS).collect();
    keys.sort_unstable();
    keys.dedup();
    if request.is_multiple_of(2) { keys.into_iter().rev().collect() } else { keys }
}

/// How often each key is pushed by all threads.
fn times() -> Vec<f32> {
    let mut times = vec![0.0; N_KEYS as usize];
    for thread in 0..N_THREADS {
        for request in 0..N_REQUESTS {
            keys(thread, request).iter().for_each(|key| times[*key as usize] += 1.0);
        }
    }
    times
}

#[test]
fn no_push_is_lost_and_no_row_is_torn() {
    check(SparseConfig { n_shards: 8, ..sgd_config(3) });
}

/// Rows of which a tenth fits into memory go and come all the time, in files of two hundred rows.
#[test]
fn no_push_is_lost_when_rows_move() {
    let (config, _folder) = tiered(SparseConfig { n_shards: 8, ..sgd_config(3) }, 500);
    check(config);
}

fn check(config: SparseConfig) {
    let tier = config.tier.is_some();
    let table = SparseTable::new(config).unwrap();
    let created = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (table, created, done) = (&table, &created, &done);
        let workers: Vec<_> = (0..N_THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut scratch = Scratch::default();
                    for request in 0..N_REQUESTS {
                        let keys = keys(thread, request);
                        if tier && request % 2 == 0 {
                            table.prefetch(&keys, &mut scratch).unwrap();
                        }
                        let mut out = vec![0.0; keys.len() * 3];
                        let counts = table.pull(&keys, &mut out, PullMode::Train, &mut scratch);
                        created.fetch_add(counts.unwrap().created, Ordering::Relaxed);
                        whole(&out);
                        let gradients = vec![-1.0; keys.len() * 3];
                        let counts = table.push(&keys, &gradients, 1.0, &mut scratch).unwrap();
                        assert_eq!((counts.updated, counts.ignored), (keys.len(), 0));
                        if request % 3 == 0 {
                            table.pull(&keys, &mut out, PullMode::Train, &mut scratch).unwrap();
                            whole(&out);
                        }
                    }
                })
            })
            .collect();
        let reader = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for shard in 0..table.n_shards() {
                    for row in table.export(shard, SaveMode::Base).unwrap().rows() {
                        let regatta_table::RowBody::Base(words) = row.body else { panic!("a row") };
                        whole(words);
                    }
                }
                let snapshot = table.snapshot(Scope::Rows(SaveMode::All)).unwrap();
                let mut exported = table.export_snapshot(&snapshot);
                let look = |row: Row<'_>| {
                    let regatta_table::RowBody::Base(words) = row.body else { panic!("a row") };
                    whole(words);
                };
                while exported.next(look).unwrap().is_some() {}
                table.end_snapshot(snapshot, true).unwrap();
                table.stats().unwrap();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let all: Vec<u64> = (0..N_KEYS).collect();
    let values = pull(&table, &all, PullMode::Test);
    for (key, times) in times().into_iter().enumerate() {
        assert_eq!(values[key * 3..key * 3 + 3], [times; 3], "key {key}");
    }
    let stats = table.stats().unwrap();
    assert_eq!(stats.rows, created.load(Ordering::Relaxed) as u64);
    assert_eq!(stats.created, stats.rows);
    let n_keys: usize = times().iter().map(|times| *times as usize).sum();
    assert_eq!((stats.pushes, stats.updated), (n_keys as u64, n_keys as u64));
}

/// All columns of a row move together, so a row that was seen half-changed has two values.
fn whole(rows: &[f32]) {
    assert!(rows.chunks_exact(3).all(|row| row[0] == row[1] && row[1] == row[2]));
}
