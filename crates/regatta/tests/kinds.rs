//! What a user sees is the same in every kind of training: the table of settings, curves, the stages of
//! the report, checkpoints.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// A kind of training with its flags, and the stages that take time in it beside reading.
struct Kind {
    name: &'static str,
    flags: &'static [&'static str],
    overrides: &'static [&'static str],
    /// Where the update is made: here, or on servers.
    updates_here: bool,
}

const SERVERS: &[&str] = &["--servers", "1", "--workers", "2"];

const KINDS: &[Kind] = &[
    Kind { name: "local", flags: &[], overrides: &[], updates_here: true },
    Kind {
        name: "sync",
        flags: SERVERS,
        overrides: &["runner.sync_mode=sync"],
        updates_here: false,
    },
    Kind {
        name: "async",
        flags: SERVERS,
        overrides: &["runner.sync_mode=async"],
        updates_here: false,
    },
    Kind {
        name: "geo",
        flags: SERVERS,
        overrides: &["runner.sync_mode=geo", "runner.geo_step=3"],
        updates_here: true,
    },
    Kind { name: "ranks", flags: &["--ranks", "2"], overrides: &[], updates_here: true },
];

/// What one job has shown and written.
struct Shown {
    text: String,
    report: Value,
    curves: String,
}

fn train(kind: &Kind, dir: &Path) -> Shown {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn/config.yaml");
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.current_dir(dir);
    command.arg("train").arg("-m").arg(config).arg("-o");
    command.arg("runner.train_data_dir=synthetic://ctr?slots=26&vocab=50&dense=13&examples=1200");
    command.arg(format!("runner.model_save_path={}", at("model")));
    command.args(["runner.epochs=1", "runner.train_batch_size=50", "runner.print_interval=4"]);
    command.args(["runner.split_file_list=True", "hyper_parameters.fc_sizes=[32,16]"]);
    command.args(["hyper_parameters.sparse_feature_number=1301"]);
    command.args(kind.overrides).args(kind.flags);
    command.args(["--logdir", &at("curves"), "--report", &at("report.json")]);
    command.args(["--checkpoint-dir", &at("checkpoints"), "--checkpoint-steps", "5"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{text}\n{errors}", kind.name);
    let report = std::fs::read(dir.join("report.json")).unwrap();
    let report = serde_json::from_slice(&report).unwrap();
    Shown { text, report, curves: curves(&dir.join("curves"), kind.name) }
}

/// The only file of curves.
fn curves(dir: &Path, kind: &str) -> String {
    let files = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{kind}: no curves: {e}"));
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{kind}: {files:?}") };
    String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn settings_curves_stages_and_checkpoints_are_the_same_in_every_kind_of_training() {
    let mut stages = BTreeSet::new();
    for kind in KINDS {
        let (dir, name) = (tempfile::tempdir().unwrap(), kind.name);
        let shown = train(kind, dir.path());
        // The table of settings, once.
        for key in ["runner.train_batch_size", "hyper_parameters.fc_sizes", "runner.seed"] {
            let lines = shown.text.lines().filter(|line| line.contains(key)).count();
            assert_eq!(lines, 1, "{name}: {key} in\n{}", shown.text);
        }
        for curve in ["batch/loss", "batch/auc", "batch/examples_per_sec", "epoch/auc"] {
            assert!(shown.curves.contains(curve), "{name}: no curve {curve}");
        }
        let epoch = &shown.report["epochs"][0];
        assert_eq!(epoch["examples"], 1200, "{name}: {epoch}");
        stages.insert(keys(&epoch["stages"]));
        for stage in ["parse", "batch", "forward", "backward", "save"] {
            let seconds = epoch["stages"][stage].as_f64().unwrap();
            assert!(seconds > 0.0, "{name}: stage {stage} of {epoch}");
        }
        let update = epoch["stages"]["update"].as_f64().unwrap();
        assert_eq!(update > 0.0, kind.updates_here, "{name}: {epoch}");
        let made = shown.report["checkpoints"].as_array().map_or(0, Vec::len);
        assert!(made >= 2, "{name}: {} in\n{}", shown.report["checkpoints"], shown.text);
        let printed = shown.text.matches("checkpoint ").count();
        assert!(printed >= made, "{name}: {made} checkpoints, but {printed} lines");
        assert!(shown.report["config"].is_object(), "{name}");
    }
    assert_eq!(stages.len(), 1, "reports differ: {stages:?}");
}
