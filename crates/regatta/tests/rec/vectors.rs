//! Vectors of items and users, and what a search among them finds.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::support::Scratch;

/// An array of numpy: its shape and its bytes.
fn npy(path: &Path, descr: &str) -> (Vec<usize>, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let length = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).unwrap();
    assert!(header.contains(&format!("'descr': '{descr}'")), "{header}");
    let shape = header.split('(').nth(1).unwrap().split(')').next().unwrap();
    let dims = shape.split(',').map(str::trim).filter(|d| !d.is_empty());
    (dims.map(|d| d.parse().unwrap()).collect(), bytes[10 + length..].to_vec())
}

/// Vectors by their ids.
fn vectors(dir: &Path, name: &str) -> BTreeMap<u64, Vec<f32>> {
    let (shape, bytes) = npy(&dir.join(format!("{name}.npy")), "<f4");
    let values: Vec<f32> =
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let (n, ids) = npy(&dir.join(format!("{name}.ids.npy")), "<u8");
    assert_eq!(n, [shape[0]]);
    let ids = ids.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
    ids.zip(values.chunks_exact(shape[1]).map(<[f32]>::to_vec)).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

const NCF: &str = "models/recall/ncf/config.yaml";

/// A model of users and items whose logits are products.
fn products(s: &Scratch, mode: &[&str]) {
    let data = "runner.train_data_dir=synthetic://ncf?users=500&items=300&groups=10&seed=1&\
                negatives=4&examples=10000";
    let keys = ["-o", data, "runner.epochs=1", "hyper_parameters.mode=NCF_GMF"];
    s.run(&[&["train", "-m", NCF, "--run-dir", "run"], &keys[..], mode].concat()).ok();
}

/// Scores of all items for some users, by `predict`.
fn scores(s: &Scratch, users: &[u64]) -> BTreeMap<(u64, u64), f64> {
    let pairs =
        users.iter().flat_map(|user| (0..300).map(move |item| format!("{user},{item},0\n")));
    s.write("pairs/a.csv", &pairs.collect::<String>());
    let keys = ["-o", "runner.infer_reader_path=movielens_reader"];
    let files = ["--data", "pairs", "--out", "scores.csv", "--keep", "0,1"];
    s.run(&[&["predict", "-m", "run/epochs/0"], &files[..], &keys].concat()).ok();
    let text = s.read("scores.csv");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let id = |i: usize| fields[i].parse::<u64>().unwrap();
        ((id(0), id(1)), fields[2].parse::<f64>().unwrap())
    };
    text.lines().skip(1).map(line).collect()
}

#[test]
fn products_of_users_and_items_are_logits() {
    for mode in [&[][..], &["--servers", "2", "--workers", "1"]] {
        let s = Scratch::with_model("recall/ncf");
        products(&s, mode);
        let out = s.run(&["export", "run/epochs/0", "--to", "v", "--vectors"]).ok();
        assert!(out.contains("items.npy: ") && out.contains("vectors of 8 floats"), "{out}");
        let (users, items) = (vectors(&s.path("v"), "users"), vectors(&s.path("v"), "items"));
        let some = [3, 77, 499];
        let scores = scores(&s, &some);
        assert_eq!(scores.len(), 900);
        // The bias is the same for all.
        let difference = |(pair, score): (&(u64, u64), &f64)| {
            let logit = (score / (1.0 - score)).ln();
            Some(logit - dot(users.get(&pair.0)?, items.get(&pair.1)?))
        };
        let differences: Vec<f64> = scores.iter().filter_map(difference).collect();
        assert!(differences.len() > 800, "{}", differences.len());
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let worst = differences.iter().map(|d| (d - mean).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-3, "{mode:?}: {worst}");
        s.run(&["export", "run/epochs/0", "--to", "v", "--vectors"])
            .fails(2, &["v is there already"]);
    }
}

const DSSM: &str = "models/match/dssm/config.yaml";
const PAIRS: &str = "synthetic://dssm?vocab=1000&topics=20&negatives=4&seed=1&examples=300";

fn towers(s: &Scratch) {
    let data = format!("runner.train_data_dir={PAIRS}");
    s.run(&["train", "-m", DSSM, "--run-dir", "run", "-o", &data, "runner.epochs=1"]).ok();
}

#[test]
fn products_of_towers_are_cosines() {
    let s = Scratch::with_model("match/dssm");
    towers(&s);
    s.run(&["export", "run/epochs/0", "--to", "v", "--vectors", "--data", PAIRS]).ok();
    let (queries, documents) =
        (vectors(&s.path("v"), "queries"), vectors(&s.path("v"), "documents"));
    assert_eq!((queries.len(), documents.len()), (300, 300));
    let alike = ["--data", PAIRS, "--out", "s.csv", "-o", "hyper_parameters.neg_num=0"];
    s.run(&[&["predict", "-m", "run/epochs/0"], &alike[..]].concat()).ok();
    for (i, line) in s.read("s.csv").lines().skip(1).enumerate() {
        let i = i as u64;
        assert!((dot(&queries[&i], &queries[&i]) - 1.0).abs() < 1e-5);
        let cosine: f64 = line.parse().unwrap();
        assert!((dot(&queries[&i], &documents[&i]) - cosine).abs() < 1e-4, "{i}: {line}");
    }
}

#[test]
fn vectors_of_words_and_models_without() {
    let s = Scratch::with_model("recall/word2vec");
    let config = "models/recall/word2vec/config.yaml";
    let data = "runner.train_data_dir=synthetic://corpus?pairs=20&topic_words=8&fillers=100&\
                window=5&negatives=5&seed=1&examples=500";
    s.run(&["train", "-m", config, "--run-dir", "run", "-o", data, "runner.epochs=1"]).ok();
    s.run(&["export", "run/epochs/0", "--to", "v", "--vectors"]).ok();
    let words = vectors(&s.path("v"), "words");
    assert_eq!((words.len(), words[&0].len()), (317, 32));
    let export = ["export", "run/epochs/0", "--to", "w", "--vectors"];
    s.run(&[&export[..], &["--data", PAIRS]].concat()).fails(2, &["for models with two towers"]);
    s.run(&[&export[..], &["--quantize", "int8"]].concat()).fails(2, &["--quantize"]);
    let s = Scratch::with_model("recall/ncf");
    let keys = ["-o", "runner.epochs=1", "hyper_parameters.mode=NCF_MLP"];
    s.run(&[&["train", "-m", NCF, "--run-dir", "run"], &keys[..]].concat()).ok();
    s.run(&export).fails(2, &["hyper_parameters.mode: NCF_MLP compares users and items"]);
    s.write("c.yaml", &crate::support::small(""));
    s.run(&["train", "-m", "c.yaml", "--run-dir", "dnn", "-o", "runner.epochs=1"]).ok();
    s.run(&["export", "dnn/epochs/0", "--to", "w", "--vectors"])
        .fails(2, &["model dnn has no vectors of items and users"]);
}

#[test]
#[ignore = "needs a Python with faiss, which bench/check_vectors installs"]
fn faiss_finds_the_items_with_the_highest_scores() {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/vectors");
    let s = Scratch::with_model("recall/ncf");
    products(&s, &[]);
    s.run(&["export", "run/epochs/0", "--to", "v", "--vectors"]).ok();
    let users = [0, 3, 77, 250, 499];
    let scores = scores(&s, &users);
    let best = |user: u64| -> Vec<u64> {
        let mut items: Vec<u64> = (0..300).collect();
        items.sort_by(|a, b| scores[&(user, *b)].total_cmp(&scores[&(user, *a)]));
        items[..10].to_vec()
    };
    let mut command = Command::new(bench.join("venv/bin/python"));
    command.arg(bench.join("neighbours.py")).arg(s.path("v")).args(["users", "items", "10"]);
    let output = command.args(users.map(|user| user.to_string())).output();
    let output = output.unwrap_or_else(|e| panic!("bench/check_vectors makes the Python: {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Vec<u64>> = text
        .lines()
        .map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect())
        .collect();
    assert_eq!(found, users.map(best).to_vec());
}
