//! Measures of groups and slices, beside what a few loops over the scores say.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{SMALL_HYPER, Scratch};

const USERS: u64 = 25;

/// A click log with a user in slot 1; users 20 and above never click.
fn rows(n: u64) -> Vec<(u64, u64, f32)> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut row = || {
        // Some users are frequent.
        let user = draw(USERS).min(draw(USERS));
        let x = draw(1000) as f32 / 250.0 - 1.0;
        let click = u64::from(user < 20 && draw(4000) as f32 / 1000.0 < x + 1.0);
        (user, click, x)
    };
    (0..n).map(|_| row()).collect()
}

fn config(s: &Scratch, more: &str) {
    let line =
        |(user, click, x): &(u64, u64, f32)| format!("{click},{user},{},c,d,{x},0.5,1\n", user % 7);
    for (folder, n) in [("train", 600), ("test", 900)] {
        // As many files as two workers divide exactly.
        for (i, part) in rows(n).chunks(n as usize / 4).enumerate() {
            let text: String = part.iter().map(line).collect();
            s.write(&format!("{folder}/{i}.csv"), &format!("click,user,b,c,d,x,y,z\n{text}"));
        }
    }
    let runner = format!(
        "  train_data_dir: train\n  test_data_dir: test\n  train_batch_size: 20\n  epochs: 1\n  \
         sync_mode: sync\n  split_file_list: True\n  data_format: csv\n{more}"
    );
    let runner = format!("{runner}\n{FEATURES}");
    s.write("c.yaml", &format!("model: dnn\nrunner:\n{runner}\n{SMALL_HYPER}"));
}

const FEATURES: &str = "features:
  label: {kind: label, column: click}
  \"1\": {kind: id, buckets: 201, column: user}
  \"2\": {kind: hash, buckets: 200, column: b}
  \"3\": {kind: hash, buckets: 200, column: c}
  \"4\": {kind: hash, buckets: 200, column: d}
  numbers: {kind: raw, column: [x, y, z]}
";

const KEYS: [&str; 4] = [
    "-o",
    "runner.gauc_by=1",
    "runner.slice_by=[\"1\", \"dense_input[0]\"]",
    "runner.ranking_k=[2, 5]",
];

/// Share of pairs of a positive and a negative example that are in the right order.
fn auc(list: &[(f64, bool)]) -> Option<f64> {
    let (mut right, mut pairs) = (0.0, 0.0);
    for (a, _) in list.iter().filter(|x| x.1) {
        for (b, _) in list.iter().filter(|x| !x.1) {
            pairs += 1.0;
            right += if a > b { 1.0 } else { f64::from(u8::from(a == b)) / 2.0 };
        }
    }
    (pairs > 0.0).then(|| right / pairs)
}

fn log_loss(list: &[(f64, bool)]) -> f64 {
    let cost = |(p, y): &(f64, bool)| if *y { -p.ln() } else { -(1.0 - p).ln() };
    list.iter().map(cost).sum::<f64>() / list.len() as f64
}

/// Hit rate, recall and gain among the first k of each list.
fn ranked(lists: &BTreeMap<u64, Vec<(f64, bool)>>, k: usize) -> [f64; 3] {
    let (mut sums, mut n) = ([0.0; 3], 0.0);
    for list in lists.values().filter(|list| list.iter().any(|x| x.1)) {
        let mut list = list.clone();
        list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let positive = list.iter().filter(|x| x.1).count();
        let gain = |rank: usize| 1.0 / ((rank + 2) as f64).log2();
        let hits: Vec<usize> = (0..list.len().min(k)).filter(|rank| list[*rank].1).collect();
        let ideal: f64 = (0..positive.min(k)).map(gain).sum();
        sums[0] += if hits.is_empty() { 0.0 } else { 1.0 };
        sums[1] += hits.len() as f64 / positive as f64;
        sums[2] += hits.iter().map(|rank| gain(*rank)).sum::<f64>() / ideal;
        n += 1.0;
    }
    sums.map(|sum| sum / n)
}

fn near(found: &Value, expected: f64, what: &str) {
    let found = found.as_f64().unwrap_or_else(|| panic!("{what}: {found}"));
    assert!((found - expected).abs() < 1e-5, "{what}: {found} {expected}");
}

/// Compares the report of an epoch with the scores of the test data.
fn check(epoch: &Value, scores: &[f64]) {
    let rows = rows(900);
    assert_eq!(rows.len(), scores.len());
    let mut users: BTreeMap<u64, Vec<(f64, bool)>> = BTreeMap::new();
    let mut floats: BTreeMap<String, Vec<(f64, bool)>> = BTreeMap::new();
    for ((user, click, x), score) in rows.iter().zip(scores) {
        users.entry(*user).or_default().push((*score, *click == 1));
        let value = match (x.abs().log2().floor().exp2(), *x) {
            (_, 0.0) => "0".to_string(),
            (low, x) if x > 0.0 => format!("{low}..{}", low * 2.0),
            (low, _) => format!("-{}..-{low}", low * 2.0),
        };
        floats.entry(value).or_default().push((*score, *click == 1));
    }
    let (mut sum, mut n, mut counted) = (0.0, 0.0, 0);
    for list in users.values() {
        let Some(auc) = auc(list) else { continue };
        (sum, n, counted) = (sum + auc * list.len() as f64, n + list.len() as f64, counted + 1);
    }
    let metrics = &epoch["metrics"];
    near(&metrics["gauc"], sum / n, "gauc");
    assert_eq!(metrics["gauc_groups"], f64::from(counted));
    let left_out = users.len() - counted as usize;
    assert!(left_out > 0 && metrics["gauc_left_out"] == left_out as f64, "{metrics}");
    for k in [2, 5] {
        let names = ["hr", "recall", "ndcg"].map(|name| format!("{name}@{k}"));
        for (name, expected) in names.iter().zip(ranked(&users, k)) {
            near(&metrics[name], expected, name);
        }
    }
    let slices = epoch["slices"].as_array().unwrap();
    let of = |column: &str| -> Vec<&Value> {
        slices.iter().filter(|slice| slice["column"] == column).collect()
    };
    let by_user = of("1");
    assert_eq!(by_user.len(), 11);
    let mut sizes: Vec<usize> = users.values().map(Vec::len).collect();
    sizes.sort_by_key(|n| std::cmp::Reverse(*n));
    let mut others = users.clone();
    for (slice, size) in by_user.iter().zip(&sizes).take(10) {
        let user = slice["value"].as_str().unwrap().parse().unwrap();
        let list = others.remove(&user).unwrap();
        assert_eq!((slice["examples"].as_u64(), list.len()), (Some(*size as u64), *size));
        auc(&list).map_or_else(
            || assert_eq!(slice["auc"], Value::Null),
            |expected| near(&slice["auc"], expected, "auc of a slice"),
        );
        near(&slice["log_loss"], log_loss(&list), "log loss of a slice");
    }
    let others = others.into_values().flatten().collect::<Vec<_>>();
    assert_eq!(by_user[10]["value"], "other");
    near(&by_user[10]["auc"], auc(&others).unwrap(), "auc of the others");
    let by_float = of("dense_input[0]");
    let shown = by_float.iter().filter(|slice| slice["value"] != "other");
    for slice in shown {
        let list = &floats[slice["value"].as_str().unwrap()];
        assert_eq!(slice["examples"], list.len() as u64, "{slice}");
        near(&slice["log_loss"], log_loss(list), "log loss of a bucket");
    }
}

#[test]
fn groups_and_slices_are_those_of_the_scores() {
    for (mode, work) in [
        (&[][..], &[][..]),
        (&["--servers", "2", "--workers", "2"], &["--servers", "1", "--workers", "2"]),
    ] {
        let s = Scratch::new();
        config(&s, "");
        let train = [&["train", "-m", "c.yaml"], mode, &KEYS].concat();
        let valid = s.path("test").display().to_string();
        let valid = format!("runner.validation.data_dir={valid}");
        s.run(&[&train[..], &[&valid, "runner.validation.metric=gauc"]].concat()).ok();
        let trained: Value = serde_json::from_str(&s.read("runs/latest/report.json")).unwrap();
        let predict = ["predict", "-m", "runs/latest/epochs/0", "--out", "s.csv"];
        let said = s.run(&[&predict, &KEYS[..]].concat()).ok();
        let scores: Vec<f64> =
            s.read("s.csv").lines().skip(1).map(|line| line.parse().unwrap()).collect();
        check(&trained["epochs"][0]["validation"], &scores);
        for work in [&[][..], work] {
            let infer = [&["infer", "-m", "c.yaml", "--report", "i.json"], work, &KEYS].concat();
            let out = s.run(&infer).ok();
            assert!(out.contains("slice 1=other: auc: "), "{out}");
            let judged: Value = serde_json::from_str(&s.read("i.json")).unwrap();
            check(&judged["epochs"][0], &scores);
            // The same is printed by predict, which has the labels.
            let gauc = judged["epochs"][0]["metrics"]["gauc"].as_f64().unwrap();
            let line = said.lines().find(|line| line.starts_with("gauc: ")).unwrap();
            assert!((line[6..].parse::<f64>().unwrap() - gauc).abs() < 1e-6, "{line} {gauc}");
            assert!(said.contains("slice dense_input[0]="), "{said}");
        }
    }
}

#[test]
fn recall_models_have_lists() {
    let metrics = |s: &Scratch| -> Value {
        let report: Value = serde_json::from_str(&s.read("i.json")).unwrap();
        report["epochs"][0]["metrics"].clone()
    };
    let s = Scratch::with_model("recall/ncf");
    let base = "synthetic://ncf?users=500&items=300&groups=10&seed=1";
    let train = format!("runner.train_data_dir={base}&negatives=4&examples=20000");
    let test = format!("runner.test_data_dir={base}&negatives=49&examples=5000&first=10000000");
    let config = "models/recall/ncf/config.yaml";
    s.run(&["train", "-m", config, "-o", &train, "runner.epochs=1"]).ok();
    let first = ["-o", &test, "runner.infer_start_epoch=0", "runner.infer_end_epoch=1"];
    let infer = [&["infer", "-m", config, "--report", "i.json"], &first[..]].concat();
    s.run(&infer).ok();
    let usual = metrics(&s);
    s.run(&[&infer[..], &["runner.ranking_k=[1, 10, 50]"]].concat()).ok();
    let several = metrics(&s);
    for name in ["hr@10", "ndcg@10", "recall@10"] {
        assert_eq!(usual[name], several[name]);
    }
    // One positive example in 50.
    assert_eq!((&several["hr@50"], &several["recall@10"]), (&1.0.into(), &several["hr@10"]));
    assert_eq!(several["hr@1"], several["ndcg@1"]);
    assert!(several["hr@1"].as_f64() < several["hr@10"].as_f64());

    let s = Scratch::with_model("match/dssm");
    let config = "models/match/dssm/config.yaml";
    s.run(&["train", "-m", config, "-o", "runner.epochs=1"]).ok();
    let infer = ["infer", "-m", config, "--report", "i.json", "-o", "runner.infer_start_epoch=0"];
    s.run(&[&infer[..], &["runner.infer_end_epoch=1", "runner.ranking_k=[1, 5]"]].concat()).ok();
    let found = metrics(&s);
    assert!((found["hr@1"].as_f64().unwrap() - found["acc"].as_f64().unwrap()).abs() < 1e-3);
    assert_eq!(found["hr@5"], 1.0);
}

#[test]
fn columns_that_are_not_there_are_named() {
    let s = Scratch::new();
    config(&s, "  gauc_by: user\n  slice_by: [dense_input, \"dense_input[9]\"]");
    s.run(&["infer", "-m", "c.yaml"]).fails(
        2,
        &[
            "runner.gauc_by: model dnn: there is no slot 'user'",
            "runner.slice_by: model dnn: slot 'dense_input' has 3 values: name one of them",
            "slot 'dense_input' has 3 values: there is no dense_input[9]",
        ],
    );
    config(&s, "  ranking_k: [5]");
    s.run(&["train", "-m", "c.yaml"]).fails(2, &["runner.ranking_k: needs runner.gauc_by"]);
}
