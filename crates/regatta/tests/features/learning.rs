//! Features that hold the structure of the data make better models.

use crate::log::{Log, NAMES, config};
use crate::support::Scratch;

/// The AUC on test data after training.
fn auc(model: &str, features: &str, log: &Log, hyper: &str) -> f64 {
    let s = Scratch::new();
    s.write("c.yaml", &(config(model, features) + hyper));
    s.write("train/a.csv", &log.csv(NAMES));
    s.write("test/a.csv", &Log { seed: 9, rows: 3000, ..log.clone() }.csv(NAMES));
    s.run(&["train", "-m", "c.yaml"]).ok();
    let args = ["infer", "-m", "c.yaml", "-o", "runner.infer_start_epoch=1"];
    let out = s.run(&args).ok();
    let line = out.lines().rfind(|line| line.contains(" done, auc: ")).unwrap();
    line.split("auc: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn din_needs_items_that_are_the_same_in_history_and_target() {
    let features = "  label: {kind: label, column: clicked}
  item: {kind: hash, buckets: 1000, dim: 8}
  history: {kind: sequence, of: item, split: '|', length: 8}";
    // So many users that nothing is known of one but the history.
    let shared = Log { rows: 12_000, users: 100_000, ..Log::default() };
    let apart = Log { history_prefix: "seen: ", ..shared.clone() };
    let with = auc("din", features, &shared, "  act: relu\n");
    let without = auc("din", features, &apart, "  act: relu\n");
    assert!(with > without + 0.03, "{with} with the same ids, {without} with others");
}

#[test]
fn tags_help_where_items_are_new() {
    let features = "  label: {kind: label, column: clicked}
  user: {kind: hash, buckets: 1000}
  item: {kind: hash, buckets: 100000}";
    let tags = format!("{features}\n  tags: {{kind: hash, buckets: 500, split: '|'}}");
    // Most items are seen once or not at all.
    let log = Log { rows: 12_000, users: 40, items: 20_000, ..Log::default() };
    let hyper = "  fc_sizes: [16]\n";
    let (with, without) = (auc("deepfm", &tags, &log, hyper), auc("deepfm", features, &log, hyper));
    assert!(with > without + 0.1, "{with} with tags, {without} without");
}
