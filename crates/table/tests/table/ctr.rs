//! The life of a click-through-rate row, by hand.

use regatta_optim::TableRule;
use regatta_optim::table_rule::{AdagradConfig, Naive, StdAdagrad};
use regatta_table::{
    Accessor, CtrConfig, InspectedRow, Inspection, PullMode, SaveMode, Scratch, SparseConfig,
    SparseTable, TableId,
};

use crate::pull;

fn table(ctr: CtrConfig) -> SparseTable {
    SparseTable::new(SparseConfig::new(TableId(2), 9, Accessor::Ctr(ctr))).unwrap()
}

fn row(table: &SparseTable, key: u64) -> InspectedRow {
    match table.inspect(key).unwrap() {
        Inspection::Row(row) => row,
        other => panic!("{other:?}"),
    }
}

fn push(table: &SparseTable, key: u64, values: &[f32]) {
    let counts = table.push(&[key], values, 1.0, &mut Scratch::default()).unwrap();
    assert_eq!(counts.updated, 1);
}

#[test]
fn defaults_are_those_of_the_table_description() {
    let ctr = CtrConfig::default();
    assert_eq!((ctr.embedx_dim, ctr.embedx_threshold), (8, 10.0));
    assert_eq!((ctr.nonclk_coeff, ctr.click_coeff), (0.1, 1.0));
    assert_eq!((ctr.base_threshold, ctr.delta_threshold, ctr.delta_keep_days), (1.5, 0.25, 16));
    assert_eq!((ctr.show_click_decay_rate, ctr.delete_threshold), (0.98, 0.8));
    assert_eq!((ctr.delete_after_unseen_days, ctr.show_scale, ctr.zero_init), (30, true, true));
    assert_eq!(ctr.embedx_rule.name(), "adagrad");
}

#[test]
fn a_row_is_created_by_a_push_and_extended_by_its_score() {
    let ctr = CtrConfig { embedx_dim: 2, embedx_threshold: 3.0, ..CtrConfig::default() };
    let table = table(ctr);
    assert_eq!((table.pull_width(), table.push_width()), (5, 6));
    assert_eq!(pull(&table, &[4], PullMode::Train), [0.0; 5]);
    assert_eq!(table.inspect(4).unwrap(), Inspection::Absent, "a pull creates nothing");

    // Slot 7, 10 shows, 1 click: score 0.9 + 1.
    push(&table, 4, &[7.0, 10.0, 1.0, 2.0, 5.0, 5.0]);
    let first = row(&table, 4);
    assert_eq!(first.part("slot"), Some(&[7.0][..]));
    assert!((first.score.unwrap() - 1.9).abs() < 1e-6);
    assert_eq!(first.part("embedx"), None);
    // q = 2 / 10 and no sum yet: w = -0.05 * 0.2; then the sum is 0.04.
    assert!((first.part("embed").unwrap()[0] + 0.01).abs() < 1e-8);
    assert!((first.part("embed_g2sum").unwrap()[0] - 0.04).abs() < 1e-8);
    let got = pull(&table, &[4], PullMode::Test);
    assert_eq!((got[0], got[1], &got[3..]), (10.0, 1.0, &[0.0, 0.0][..]));

    // The score reaches 3.8: embedx comes into being, and this push does not change it.
    push(&table, 4, &[8.0, 10.0, 1.0, 0.0, 5.0, 5.0]);
    let second = row(&table, 4);
    assert_eq!(second.part("slot"), Some(&[8.0][..]));
    let embedx = second.part("embedx").unwrap().to_vec();
    assert!(embedx.iter().all(|w| w.abs() <= 1e-4 && *w != 0.0), "{embedx:?}");
    assert_eq!(second.part("embedx_g2sum"), Some(&[0.0][..]));
    assert_eq!(table.stats().unwrap().extended, 1);
    assert_eq!(pull(&table, &[4], PullMode::Test)[3..], embedx);

    // From now on it learns.
    push(&table, 4, &[8.0, 2.0, 0.0, 0.0, 4.0, 0.0]);
    let third = row(&table, 4);
    assert_eq!(third.part("embedx").unwrap()[0], embedx[0] - 0.05 * 2.0);
    assert_eq!(third.part("embedx").unwrap()[1], embedx[1]);
    assert_eq!(third.part("show"), Some(&[22.0][..]));
}

#[test]
fn the_learning_rate_is_a_factor_and_the_scale_can_be_off() {
    let naive = TableRule::Naive(Naive { learning_rate: 0.5, ..Naive::default() });
    let adagrad = AdagradConfig { learning_rate: 0.1, ..AdagradConfig::default() };
    let ctr = CtrConfig {
        embedx_dim: 1,
        embedx_threshold: 0.0,
        show_scale: false,
        embed_rule: naive,
        embedx_rule: TableRule::StdAdagrad(StdAdagrad(adagrad)),
        ..CtrConfig::default()
    };
    let table = table(ctr);
    push(&table, 1, &[0.0, 4.0, 0.0, 0.0, 9.0]);
    let before = row(&table, 1).part("embedx").unwrap()[0];
    let mut scratch = Scratch::default();
    table.push(&[1], &[0.0, 4.0, 0.0, 1.0, 1.0], 0.25, &mut scratch).unwrap();
    let row = row(&table, 1);
    assert_eq!(row.part("embed"), Some(&[-0.125][..]));
    assert_eq!(row.part("embedx").unwrap()[0], before - 0.25 * 0.1);
}

#[test]
fn shrinking_decays_and_removes() {
    let ctr = CtrConfig { embedx_dim: 1, ..CtrConfig::default() };
    let table = table(ctr);
    push(&table, 1, &[0.0, 10.0, 0.0, 0.0, 0.0]); // score 1, stays above 0.8 for ten days
    push(&table, 2, &[0.0, 8.1, 0.0, 0.0, 0.0]); // score 0.81, falls below at once
    push(&table, 3, &[0.0, 900.0, 0.0, 0.0, 0.0]);
    let counts = table.shrink(None).unwrap();
    assert_eq!((counts.rows, counts.kept), (1, 2));
    assert!((row(&table, 1).part("show").unwrap()[0] - 9.8).abs() < 1e-5);
    assert_eq!(table.inspect(2).unwrap(), Inspection::Absent);
    (0..30).for_each(|_| table.end_day());
    push(&table, 1, &[0.0, 5.0, 0.0, 0.0, 0.0]);
    assert_eq!(row(&table, 1).unseen_days, 0);
    table.shrink(None).unwrap();
    assert_eq!(row(&table, 3).unseen_days, 30);
    table.end_day();
    assert_eq!(table.shrink(None).unwrap().rows, 1);
    assert_eq!(table.inspect(3).unwrap(), Inspection::Absent, "31 days are more than 30");
}

#[test]
fn the_short_form_of_an_extended_row_is_used_again() {
    let ctr = CtrConfig { embedx_threshold: 0.0, embedx_dim: 1, ..CtrConfig::default() };
    let config = SparseConfig::new(TableId(2), 9, Accessor::Ctr(ctr));
    let table = SparseTable::new(SparseConfig { n_shards: 1, ..config }).unwrap();
    let mut scratch = Scratch::default();
    for key in 0..10_000 {
        table.push(&[key], &[0.0, 1.0, 0.0, 0.0, 0.0], 1.0, &mut scratch).unwrap();
    }
    let stats = table.stats().unwrap();
    assert_eq!(stats.extended, 10_000);
    // 8 floats and about 22 bytes of index; one short row is enough for all of them.
    assert!(stats.bytes < 10_000 * (32 + 24), "{} bytes", stats.bytes);
}

#[test]
fn base_and_delta_saves_choose_by_score_and_days() {
    let table = table(CtrConfig { embedx_dim: 1, ..CtrConfig::default() });
    push(&table, 1, &[0.0, 20.0, 0.0, 0.0, 0.0]); // score 2
    push(&table, 2, &[0.0, 10.0, 0.0, 0.0, 0.0]); // score 1: below the base threshold
    let ids = |mode| -> Vec<u64> {
        let mut ids: Vec<u64> = Vec::new();
        for shard in 0..table.n_shards() {
            ids.extend(table.export(shard, mode).unwrap().rows().map(|row| row.key));
        }
        ids.sort_unstable();
        ids
    };
    let acknowledge = |mode| {
        for shard in 0..table.n_shards() {
            table.saved(&table.export(shard, mode).unwrap().receipt()).unwrap();
        }
    };
    assert_eq!(ids(SaveMode::All), [1, 2]);
    assert_eq!((ids(SaveMode::Base), ids(SaveMode::Delta)), (vec![1], vec![1]));
    acknowledge(SaveMode::Base);
    assert_eq!((ids(SaveMode::Base), ids(SaveMode::Delta)), (vec![1], vec![]));
    push(&table, 1, &[0.0, 2.0, 0.0, 0.0, 0.0]); // the score grows by 0.2
    assert_eq!(ids(SaveMode::Delta), []);
    push(&table, 1, &[0.0, 1.0, 0.0, 0.0, 0.0]); // and by 0.3 in all
    assert_eq!(ids(SaveMode::Delta), [1]);
    (0..17).for_each(|_| table.end_day());
    assert_eq!((ids(SaveMode::Base), ids(SaveMode::Delta)), (vec![], vec![]));
    assert_eq!(ids(SaveMode::Day), [1, 2]);
    assert_eq!(ids(SaveMode::Patch), [1, 2]);
}
