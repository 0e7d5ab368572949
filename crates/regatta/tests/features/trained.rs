//! Training on declared features, and what is wrong with them.

use crate::log::{FEATURES, Log, NAMES, config};
use crate::support::Scratch;

fn with_data(text: &str) -> Scratch {
    let s = Scratch::new();
    s.write("c.yaml", text);
    s.write("train/a.csv", &Log::default().csv(NAMES));
    s.write("test/a.csv", &Log { seed: 2, rows: 500, ..Log::default() }.csv(NAMES));
    s
}

fn auc(out: &str) -> f64 {
    let line = out.lines().rfind(|line| line.contains(" done, auc: ")).unwrap();
    line.split("auc: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

/// Every click model and multi-task model learns something from the same columns.
#[test]
fn all_models_take_them() {
    let weighted = FEATURES.replace(
        "tags: {kind: hash, buckets: 200, split: '|', pooling: mean}",
        "tags: {kind: hash, buckets: 200, split: '|', weight: '=', length: 3}",
    );
    for model in [
        "dnn",
        "wide_deep",
        "deepfm",
        "fm",
        "xdeepfm",
        "dcn",
        "dcn_v2",
        "dlrm",
        "logistic_regression",
        "slot_dnn",
        "din",
    ] {
        let text = config(model, if model == "dcn" { &weighted } else { FEATURES });
        let small = match model {
            "dlrm" => {
                "  sparse_feature_dim: 9\n  bot_layer_sizes: [16, 9]\n  \
                       top_layer_sizes: [16, 2]\n"
            }
            "xdeepfm" => "  layer_sizes_dnn: [16]\n  layer_sizes_cin: [4]\n",
            "slot_dnn" => "  layer_sizes: [16]\n  emb_dim: 9\n",
            "fm" | "logistic_regression" => "",
            "din" => "  cat_emb_size: 9\n",
            "dcn_v2" => {
                "  fc_sizes: [16]\n  sparse_feature_dim: 9\n  low_rank: 4\n  \
                         dropout_rate: 0.0\n"
            }
            _ => "  fc_sizes: [16]\n",
        };
        let s = with_data(&(text + small));
        let out = s.run(&["train", "-m", "c.yaml"]).ok();
        assert!(auc(&out) > 0.55, "{model}: {out}");
        s.run(&["infer", "-m", "c.yaml"]).ok();
    }
}

#[test]
fn several_labels() {
    let two = FEATURES.replace(
        "label: {kind: label, column: clicked}",
        "click: {kind: label, column: clicked}\n  \
         conversion: {kind: label, column: age, threshold: 40, default: 0}",
    );
    let s = with_data(&config("esmm", &two));
    let out = s.run(&["train", "-m", "c.yaml"]).ok();
    assert!(out.contains("auc_ctr: ") && out.contains("auc_ctcvr: "), "{out}");
    let lacking = config("esmm", FEATURES);
    s.write("c.yaml", &lacking);
    let said = ["model esmm learns 'click', and no feature of kind label has that name"];
    s.run(&["train", "-m", "c.yaml"]).fails(2, &said);
}

/// What columns are called does not matter, nor in which order they are.
#[test]
fn other_names_of_columns_change_nothing() {
    let s = with_data(&config("deepfm", FEATURES));
    s.run(&["train", "-m", "c.yaml"]).ok();
    s.run(&["predict", "-m", "epochs/1", "--data", "test", "--out", "a.csv"]).ok();
    let other = ["y", "who", "what", "labels", "before", "years", "euro"];
    let renamed = "  user_age: {kind: cross, column: [who, years], buckets: 5000}
  label: {kind: label, column: y}
  user: {kind: vocabulary, column: who}
  item: {kind: hash, buckets: 1000, dim: 9, column: what}
  tags: {kind: hash, buckets: 200, split: '|', pooling: mean, column: labels}
  history: {kind: sequence, of: item, split: '|', length: 5, pooling: mean, column: before}
  age: {kind: bucketize, quantiles: 8, column: years}
  price: {kind: standardize, column: euro}
  cost: {kind: log, column: euro, default: 1}";
    let t = Scratch::new();
    t.write("c.yaml", &config("deepfm", renamed));
    t.write("train/a.csv", &Log::default().csv(other));
    t.write("test/a.csv", &Log { seed: 2, rows: 500, ..Log::default() }.csv(other));
    t.run(&["train", "-m", "c.yaml"]).ok();
    t.run(&["predict", "-m", "epochs/1", "--data", "test", "--out", "a.csv"]).ok();
    assert_eq!(s.read("a.csv"), t.read("a.csv"));
}

#[test]
fn mistakes_are_named() {
    let s = with_data(&config("deepfm", FEATURES));
    let fails = |features: &str, words: &[&str]| {
        s.write("c.yaml", &config("deepfm", features));
        s.run(&["train", "-m", "c.yaml"]).fails(2, words);
    };
    let label = "  label: {kind: label, column: clicked}\n";
    fails(&format!("{label}  user: {{kind: hash}}"), &["features.user.buckets: must be set"]);
    fails(
        &format!("{label}  user: {{kind: hsah, buckets: 9}}"),
        &["c.yaml:12: features.user.kind: should be one of label, id, hash", "but is hsah"],
    );
    fails(
        &format!("{label}  user: {{kind: hash, buckts: 9}}"),
        &["unknown key 'features.user.buckts'"],
    );
    fails(
        &format!("{label}  price: {{kind: log, buckets: 9}}"),
        &["c.yaml:12: features.price.buckets: has no meaning for kind log"],
    );
    fails(
        &format!("{label}  past: {{kind: sequence, of: film}}"),
        &["feature 'past': is a sequence of 'film', but there is no such feature"],
    );
    fails("  user: {kind: hash, buckets: 9}", &["model deepfm learns 'label'"]);
    s.write("c.yaml", &config("word2vec", FEATURES));
    s.run(&["train", "-m", "c.yaml"]).fails(2, &["model word2vec takes no features"]);
    s.write("c.yaml", &config("deepfm", FEATURES).replace("csv", "multislot"));
    s.run(&["train", "-m", "c.yaml"]).fails(2, &["features need csv, tsv or parquet"]);
}

#[test]
fn a_bad_value_names_file_line_and_column() {
    let s = with_data(&config("deepfm", FEATURES));
    let csv = Log::default().csv(NAMES);
    s.write("train/a.csv", &csv.replacen("\n1.0,", "\n5-star,", 1));
    let line = csv.lines().position(|line| line.starts_with("1.0,")).unwrap() + 1;
    let expected = format!("a.csv:{line}: column 1: expected a label (a whole number)");
    s.run(&["train", "-m", "c.yaml"]).fails(1, &[&expected, "'5-star'"]);
    // A sigmoid model has labels 0 and 1.
    s.write("train/a.csv", &csv.replacen("\n1.0,", "\n5.0,", 1));
    let expected = format!("a.csv:{line}: expected a label from 0 to 1 in slot 'label', found 5");
    s.run(&["train", "-m", "c.yaml"]).fails(1, &[&expected]);
}

/// What was learned belongs to the model: other data do not change it when training continues.
#[test]
fn a_training_that_resumes_knows_what_it_has_learned() {
    let s = with_data(&config("deepfm", FEATURES));
    let train = |more: &[&str]| {
        let args = ["train", "-m", "c.yaml", "--checkpoint-dir", "saved"];
        s.run(&[&args[..], more].concat()).ok()
    };
    let out = train(&["-o", "runner.epochs=1"]);
    assert!(out.contains("note: feature user: a vocabulary of 200"), "{out}");
    s.write("train/b.csv", &Log { seed: 3, users: 300, ..Log::default() }.csv(NAMES));
    let out = train(&["--resume", "latest"]);
    assert!(!out.contains("note: learning"), "{out}");
    let learned = s.read("epochs/1/about.json");
    assert!(learned.contains("\"u199\"") && !learned.contains("\"u250\""));
    let text = s.run(&["features", "-m", "c.yaml", "--learn", "learned.json", "--lines", "0"]).ok();
    assert!(text.contains("3 features learned, written to learned.json"), "{text}");
    assert!(s.read("learned.json").contains("\"u250\""));
}

#[test]
fn what_lines_become_is_shown() {
    let s = with_data(&config("deepfm", FEATURES));
    let text = s.run(&["features", "-m", "c.yaml", "--data", "test/a.csv", "--lines", "1"]).ok();
    for words in ["row 1\n  read    age=", "becomes item = ", "9 features, 500 rows", "collisions"]
    {
        assert!(text.contains(words), "'{words}' is not in:\n{text}");
    }
    let id = s.run(&["features", "--hash", "Film \"7\"", "--buckets", "1000"]).ok();
    assert_eq!(id.trim(), regatta_features::hash_id(b"Film \"7\"", 1000).to_string());
}
