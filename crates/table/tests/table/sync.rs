//! Synchronous steps equal those of one process, whatever the order of arrival.

use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, CtrConfig, Error, PlainConfig, PullMode, Scratch, SparseConfig, SparseSync,
    SparseTable, TableId, Weighting,
};

use crate::{pull, random_config, sgd_config};

#[test]
fn a_step_is_that_of_the_joined_batch() {
    let rule = Rule::Adam(Adam::default());
    let accessor = Accessor::Plain(PlainConfig::new(2, rule));
    let config = SparseConfig { accessor, ..random_config(2) };
    let joined = SparseTable::new(config.clone()).unwrap();
    let orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0]];
    let tables: Vec<SparseTable> =
        orders.iter().map(|_| SparseTable::new(config.clone()).unwrap()).collect();
    let all: Vec<u64> = (0..6).collect();
    tables.iter().chain([&joined]).for_each(|table| drop(pull(table, &all, PullMode::Train)));
    // Batches of 1, 2 and 5 examples; gradients are means over each batch.
    let pushes: [(u64, &[u64], &[f32]); 3] = [
        (1, &[0, 1], &[8.0, 8.0, 16.0, 16.0]),
        (2, &[1, 2, 1], &[4.0, 4.0, 8.0, 8.0, 4.0, 4.0]),
        (5, &[3, 0], &[1.6, 1.6, 3.2, 3.2]),
    ];
    let mut scratch = Scratch::default();
    let syncs: Vec<SparseSync> =
        tables.iter().map(|_| SparseSync::new(TableId(1), 3, Weighting::ByExamples)).collect();
    for step in 0..10 {
        let sums = [3.0, 3.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0];
        joined.push(&[0, 1, 2, 3], &sums, 0.1, &mut scratch).unwrap();
        for ((table, sync), order) in tables.iter().zip(&syncs).zip(orders) {
            for (nth, worker) in order.into_iter().enumerate() {
                let (examples, keys, values) = pushes[worker];
                let complete = sync.add(worker, step, examples, keys, values, table).unwrap();
                assert_eq!(complete, nth == 2);
            }
            let counts = sync.apply(table, 0.1, &mut scratch).unwrap();
            assert_eq!(counts.updated, 4);
        }
        let wanted = pull(&joined, &all, PullMode::Test);
        let first = pull(&tables[0], &all, PullMode::Test);
        assert!(first.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5), "step {step}");
        for table in &tables[1..] {
            assert_eq!(pull(table, &all, PullMode::Test), first, "the same bits in any order");
        }
    }
}

#[test]
fn contributions_are_counted_once_and_in_their_step() {
    let table = SparseTable::new(sgd_config(1)).unwrap();
    pull(&table, &[1], PullMode::Train);
    let sync = SparseSync::new(TableId(1), 2, Weighting::Sum);
    let mut scratch = Scratch::default();
    assert_eq!(sync.add(0, 0, 1, &[1], &[1.0], &table), Ok(false));
    let twice = sync.add(0, 0, 1, &[1], &[1.0], &table);
    assert_eq!(twice, Err(Error::ContributedTwice { worker: 0, step: 0 }));
    let ahead = sync.add(1, 1, 1, &[1], &[1.0], &table).unwrap_err();
    assert_eq!(ahead.to_string(), "worker 1 contributes to step 1 while step 0 is collected");
    assert!(sync.add(2, 0, 1, &[1], &[1.0], &table).is_err(), "no such worker");
    let early = sync.apply(&table, 1.0, &mut scratch).unwrap_err();
    assert_eq!(early.to_string(), "step 0 waits for workers [1]");
    assert_eq!(sync.add(1, 0, 1, &[], &[], &table), Ok(true), "without keys");
    sync.apply(&table, 1.0, &mut scratch).unwrap();
    assert_eq!(pull(&table, &[1], PullMode::Test), [-1.0]);
    assert_eq!((sync.step(), sync.missing()), (Ok(1), Ok(vec![0, 1])));
}

#[test]
fn who_leaves_is_not_waited_for() {
    let table = SparseTable::new(sgd_config(1)).unwrap();
    pull(&table, &[1], PullMode::Train);
    let sync = SparseSync::new(TableId(1), 3, Weighting::ByExamples);
    let mut scratch = Scratch::default();
    sync.add(0, 0, 4, &[1], &[1.0], &table).unwrap();
    assert_eq!(sync.leave(0), Ok(false), "its last contribution stays");
    sync.add(1, 0, 4, &[1], &[2.0], &table).unwrap();
    assert_eq!(sync.leave(2), Ok(true));
    sync.apply(&table, 1.0, &mut scratch).unwrap();
    assert_eq!(pull(&table, &[1], PullMode::Test), [-1.5]);
    assert_eq!(sync.missing(), Ok(vec![1]));
    assert!(sync.add(0, 1, 4, &[1], &[1.0], &table).is_err());
    assert_eq!(sync.add(1, 1, 0, &[1], &[2.0], &table), Ok(true));
    let counts = sync.apply(&table, 1.0, &mut scratch).unwrap();
    assert_eq!(counts.updated, 0, "no examples, no step");
    assert_eq!(sync.leave(1), Ok(false), "nothing is left to apply");
}

#[test]
fn statistics_are_not_weighted() {
    let ctr = CtrConfig { embedx_dim: 1, ..CtrConfig::default() };
    let table = SparseTable::new(SparseConfig::new(TableId(2), 0, Accessor::Ctr(ctr))).unwrap();
    let sync = SparseSync::new(TableId(2), 2, Weighting::ByExamples);
    sync.add(0, 0, 1, &[9], &[3.0, 4.0, 1.0, 0.0, 0.0], &table).unwrap();
    sync.add(1, 0, 3, &[9], &[3.0, 2.0, 1.0, 0.0, 0.0], &table).unwrap();
    sync.apply(&table, 1.0, &mut Scratch::default()).unwrap();
    assert_eq!(pull(&table, &[9], PullMode::Test)[..2], [6.0, 2.0]);
}
