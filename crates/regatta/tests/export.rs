//! From training to predictions with real processes: what is exported scores as the training side's
//! own evaluation does, whoever trained it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use regatta_predict::files::read_text;

const DATA: &str = "synthetic://ctr?slots=26&vocab=300&dense=13&seed=1&examples=3000";

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name).join("config.yaml")
}

fn regatta(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs a command that must succeed; gives what it printed.
fn done(args: &[&str]) -> String {
    let output = regatta(args);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}\n{out}\n{err}");
    out.into_owned()
}

/// What a command that must fail says.
fn refused(args: &[&str]) -> String {
    let output = regatta(args);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Job {
    dir: tempfile::TempDir,
    config: String,
    settings: Vec<String>,
}

impl Job {
    fn new(name: &str) -> Job {
        let dir = tempfile::tempdir().unwrap();
        let save = dir.path().join("epochs");
        let settings = vec![
            format!("runner.train_data_dir={DATA}"),
            format!("runner.test_data_dir={DATA}"),
            format!("runner.model_save_path={}", save.display()),
            format!("runner.infer_load_path={}", save.display()),
            "runner.infer_start_epoch=0".into(),
            "runner.infer_end_epoch=1".into(),
            "runner.epochs=1".into(),
            "runner.train_batch_size=100".into(),
            "runner.infer_batch_size=100".into(),
            "runner.use_inference=True".into(),
            "hyper_parameters.sparse_feature_number=20001".into(),
        ];
        let config = model(name).to_string_lossy().into_owned();
        Job { dir, config, settings }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    fn run(&self, command: &str, flags: &[&str]) -> String {
        let mut args = vec![command, "-m", &self.config, "-o"];
        args.extend(self.settings.iter().map(String::as_str));
        args.extend(flags);
        done(&args)
    }

    /// The AUC of the training side's own evaluation.
    fn evaluated(&self) -> f64 {
        let report = self.path("infer.json");
        self.run("infer", &["--report", &report]);
        let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
        report["epochs"][0]["auc"].as_f64().unwrap()
    }

    /// Scores and AUC of a model.
    fn predicted(&self, model: &str, flags: &[&str]) -> (Vec<f32>, f64) {
        let out = self.path("scores.csv");
        let mut args = vec!["predict", "-m", model, "--data", DATA, "--out", &out];
        args.extend(flags);
        let text = done(&args);
        let auc =
            text.lines().find_map(|line| line.strip_prefix("auc: ")).unwrap().parse().unwrap();
        let scores = fs::read_to_string(&out).unwrap();
        let scores = scores.lines().skip(1).map(|line| line.rsplit(',').next().unwrap());
        (scores.map(|s| s.parse().unwrap()).collect(), auc)
    }
}

fn near(a: &[f32], b: &[f32], by: f32) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= by), "{a:?} {b:?}");
}

#[test]
fn a_model_of_two_servers_predicts_on_one_machine() {
    let job = Job::new("rank/logistic_regression");
    let checkpoints = job.path("checkpoints");
    let flags = [
        "runner.sync_mode=sync",
        "--servers",
        "2",
        "--workers",
        "1",
        "--checkpoint-dir",
        &checkpoints,
    ];
    job.run("train", &flags);
    let auc = job.evaluated();
    assert!(auc > 0.55, "{auc}");

    // An export of the last checkpoint, which says itself what it is.
    let export = job.path("export");
    let said = done(&["export", &checkpoints, "--to", &export]);
    assert!(said.contains("rows of 1 floats"), "{said}");
    let (scores, predicted) = job.predicted(&export, &["--missing-ids", "error", "--verify"]);
    assert_eq!((scores.len(), predicted), (3000, auc));
    // The folder of the epoch, what training exported there, and the checkpoint as it is.
    let epoch = job.path("epochs/0");
    let settings: Vec<&str> = job.settings.iter().map(String::as_str).collect();
    let mut flags = vec!["--config", &job.config, "-o"];
    flags.extend(&settings);
    let (same, predicted) = job.predicted(&epoch, &flags);
    assert_eq!(predicted, auc);
    near(&same, &scores, 1e-6);
    for model in [&job.path("epochs/0/inference_model"), &checkpoints] {
        let (same, predicted) = job.predicted(model, &["--threads", "2"]);
        assert_eq!(predicted, auc);
        near(&same, &scores, 1e-6);
    }
    assert!(
        !fs::read_dir(job.dir.path())
            .unwrap()
            .any(|e| { e.unwrap().file_name().to_string_lossy().ends_with(".model") })
    );

    // Fewer bits.
    for bits in ["bf16", "int8"] {
        let small = job.path(bits);
        let said = done(&["export", &checkpoints, "--to", &small, "--quantize", bits]);
        assert!(said.contains(&format!("as {bits}, off by")), "{said}");
        near(&job.predicted(&small, &[]).0, &scores, 0.02);
    }

    // Plain files: text read back is the same table.
    let [text, npy, safetensors] = ["text", "npy", "safetensors"].map(|format| {
        let to = job.path(format);
        done(&["export", &checkpoints, "--to", &to, "--format", format]);
        PathBuf::from(to)
    });
    let rows = read_text(&text.join("000"), 0, 1).unwrap();
    let loaded = regatta_checkpoint::load_tensors(safetensors.join("weights.safetensors")).unwrap();
    let names = fs::read_to_string(text.join("names.txt")).unwrap();
    let name = names.split_whitespace().nth(1).unwrap().to_string();
    assert_eq!(rows.ids, loaded.tensors[&format!("{name}.ids")].u64());
    assert_eq!(rows.values, loaded.tensors[&format!("{name}.rows")].f32());
    let npy = fs::read(npy.join(format!("{name}.rows.npy"))).unwrap();
    assert!(npy.starts_with(b"\x93NUMPY\x01\x00") && npy.len() == 128 + 4 * rows.values.len());

    // A shard that is gone is named.
    fs::remove_file(job.dir.path().join("epochs/0/server-1-of-2.safetensors")).unwrap();
    let mut args = vec!["export", &epoch, "--to", "/nowhere/x", "-m", &job.config, "-o"];
    args.extend(&settings);
    let error = refused(&args);
    assert!(error.contains("server-1-of-2.safetensors missing"), "{error}");
}

#[test]
fn a_model_of_one_process_predicts_and_its_whole_table_is_there() {
    let job = Job::new("rank/dnn");
    let small = ["hyper_parameters.fc_sizes=[16,8]"];
    let checkpoints = job.path("checkpoints");
    job.run("train", &[small[0], "--checkpoint-dir", &checkpoints]);
    let report = job.path("infer.json");
    job.run("infer", &[small[0], "--report", &report]);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let auc = report["epochs"][0]["auc"].as_f64().unwrap();
    let export = job.path("export");
    let said = done(&["export", &checkpoints, "--to", &export]);
    assert!(said.contains("20001 rows of 9 floats"), "{said}");
    assert_eq!(job.predicted(&export, &["--missing-ids", "error"]).1, auc);
    assert_eq!(job.predicted(&job.path("epochs/0/inference_model"), &[]).1, auc);
}

#[test]
fn what_is_no_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let error = refused(&["predict", "-m", path]);
    assert!(error.contains("there is no checkpoint, no saved epoch and no model"), "{error}");
    let error = refused(&["export", path, "--to", path]);
    assert!(error.contains("there is no checkpoint"), "{error}");
    fs::write(dir.path().join("manifest.json"), "{}").unwrap();
    let error = refused(&["export", path, "--to", "/nowhere/x"]);
    assert!(error.contains("manifest"), "{error}");
}
