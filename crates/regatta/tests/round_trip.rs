//! The way of a model with real processes: trained by workers against two servers, evaluated by the
//! training side in one process and against running servers, exported, and predicted on one
//! machine. All of them must agree, also on ids that were never trained.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

const TRAIN: &str = "synthetic://ctr?slots=26&vocab=2000&dense=13&seed=1&examples=2000";
/// Other examples of the same kind, with ids that the training has not met.
const TEST: &str =
    "synthetic://ctr?slots=26&vocab=2000&dense=13&seed=1&examples=1150&first=1000000";

struct Job {
    dir: tempfile::TempDir,
    settings: Vec<String>,
}

impl Job {
    fn new() -> Job {
        let dir = tempfile::tempdir().unwrap();
        let epochs = dir.path().join("epochs").display().to_string();
        let settings = vec![
            format!("runner.train_data_dir={TRAIN}"),
            format!("runner.test_data_dir={TEST}"),
            format!("runner.model_save_path={epochs}"),
            format!("runner.infer_load_path={epochs}"),
            "runner.infer_start_epoch=0".into(),
            "runner.infer_end_epoch=1".into(),
            "runner.epochs=1".into(),
            "runner.train_batch_size=100".into(),
            "runner.infer_batch_size=100".into(),
            "runner.sync_mode=sync".into(),
            "hyper_parameters.sparse_feature_number=52001".into(),
            "hyper_parameters.fc_sizes=[16,8]".into(),
        ];
        Job { dir, settings }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    fn run(&self, command: &str, flags: &[&str]) -> String {
        let config =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn/config.yaml");
        let mut args = vec![command, "-m", config.to_str().unwrap()];
        args.extend(flags);
        args.push("-o");
        args.extend(self.settings.iter().map(String::as_str));
        done(&args)
    }

    /// The only epoch of an evaluation, and what the report says of servers.
    fn infer(&self, flags: &[&str]) -> (Value, Value, String) {
        let path = self.path("report.json");
        let mut all = vec!["--report", path.as_str()];
        all.extend(flags);
        let text = self.run("infer", &all);
        let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        (report["epochs"][0].clone(), report["servers"].clone(), text)
    }
}

fn done(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    // Folders of runs are made where it is.
    let here = tempfile::tempdir().unwrap();
    let output = command.args(args).current_dir(&here).stdin(Stdio::null()).output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}\n{out}\n{err}");
    out.into_owned()
}

/// A number that a line begins with the name of.
fn number(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// The lines of a file of scores, without its header.
fn scores_in(path: &str) -> Vec<Vec<f64>> {
    let text = fs::read_to_string(path).unwrap();
    let numbers = |line: &str| line.split(',').map(|x| x.parse().unwrap()).collect();
    text.lines().skip(1).map(numbers).collect()
}

/// Every score of every example is the same up to rounding.
fn assert_close(scores: &[Vec<f64>], wanted: &[Vec<f64>]) {
    assert_eq!(scores.len(), wanted.len());
    for (example, (scores, wanted)) in scores.iter().zip(wanted).enumerate() {
        assert_eq!(scores.len(), wanted.len());
        let close = scores.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= 1e-6);
        assert!(close, "example {example}: {scores:?}, not {wanted:?}");
    }
}

fn float(epoch: &Value, name: &str) -> f64 {
    let value = if name == "auc" { &epoch["auc"] } else { &epoch["metrics"][name] };
    value.as_f64().unwrap_or_else(|| panic!("no {name} in {epoch}"))
}

#[test]
fn evaluation_and_prediction_agree_wherever_they_run() {
    let job = Job::new();
    let checkpoints = job.path("checkpoints");
    let flags = ["--servers", "2", "--workers", "2", "--checkpoint-dir", &checkpoints];
    job.run("train", &flags);

    let judged = job.path("judged.csv");
    let (alone, _, text) = job.infer(&["--out", &judged]);
    let by_training = scores_in(&judged);
    assert_eq!(by_training.len(), 1150);
    assert_eq!(alone["examples"], 1150);
    let missing = alone["missing_ids"].as_u64().unwrap();
    assert!(missing > 0, "{alone}");
    assert!(text.contains(&format!("ids without a row, taken as zeros: {missing}")), "{text}");

    // On one machine, from an export of all servers' rows.
    let (export, scores) = (job.path("export"), job.path("scores.csv"));
    let said = done(&["export", &checkpoints, "--to", &export]);
    let rows = said.split(" rows").next().unwrap().rsplit(' ').next().unwrap();
    let rows: u64 = rows.parse().unwrap();
    for threads in ["1", "2"] {
        let flags = ["--data", TEST, "--out", &scores, "--threads", threads];
        let text = done(&[&["predict", "-m", &export][..], &flags].concat());
        assert_eq!(number(&text, "auc"), float(&alone, "auc"));
        assert_eq!(number(&text, "accuracy"), float(&alone, "accuracy"));
        assert!((number(&text, "log_loss") - float(&alone, "log_loss")).abs() < 1e-6);
        assert_close(&scores_in(&scores), &by_training);
        assert_eq!(number(&text, "ids without a row, taken as zeros"), missing as f64);
    }

    // Against running servers, of another number than trained it: one worker has the same batches.
    let (one, servers, text) = job.infer(&["--servers", "3", "--workers", "1", "--out", &judged]);
    assert_close(&scores_in(&judged), &by_training);
    assert_eq!(one["examples"], 1150);
    assert_eq!(one["missing_ids"].as_u64(), Some(missing), "{text}");
    for name in ["auc", "accuracy"] {
        assert_eq!(float(&one, name), float(&alone, name), "{name}");
    }
    assert!((float(&one, "log_loss") - float(&alone, "log_loss")).abs() < 1e-6);
    assert_eq!(held(&servers), (3, rows), "nothing was created");

    // Workers share the examples: each is counted once.
    let (two, servers, _) = job.infer(&["--servers", "2", "--workers", "2", "--out", &judged]);
    let parts = ["0", "1"].map(|worker| scores_in(&format!("{judged}.{worker}")).len());
    assert!(parts.iter().all(|n| *n > 0) && parts.iter().sum::<usize>() == 1150, "{parts:?}");
    assert_eq!(two["examples"], 1150);
    assert!(two["missing_ids"].as_u64().unwrap() > 0, "{two}");
    assert!((float(&two, "auc") - float(&alone, "auc")).abs() < 1e-6);
    assert!((float(&two, "log_loss") - float(&alone, "log_loss")).abs() < 1e-6);
    assert_eq!(held(&servers), (2, rows));
}

/// How many servers there are, and how many rows they hold.
fn held(servers: &Value) -> (usize, u64) {
    let servers = servers.as_array().unwrap();
    let tables = servers.iter().flat_map(|server| server["tables"].as_object().unwrap().values());
    (servers.len(), tables.map(|table| table["rows"].as_u64().unwrap()).sum())
}

#[test]
fn an_epoch_that_servers_cannot_load_is_named() {
    let job = Job::new();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn/config.yaml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.arg("infer").arg("-m").arg(config).args(["--servers", "1", "--workers", "2"]);
    let output = command.arg("-o").args(&job.settings).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("epochs/0"), "{text}");
}
