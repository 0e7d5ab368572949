//! From training to predictions with real processes: what is exported scores as the training side's
//! own evaluation does, whoever trained it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use regatta_predict::files::{ParameterSpec, read_weights};

const DATA: &str = "synthetic://ctr?slots=26&vocab=300&dense=13&seed=1&examples=3000";

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name).join("config.yaml")
}

fn regatta(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    // Folders of runs are made where it is.
    let here = tempfile::tempdir().unwrap();
    command.args(args).current_dir(&here).stdin(Stdio::null()).output().unwrap()
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
    // The folder of the epoch, what training exported there, and the checkpoint as it is: all say
    // themselves what they are.
    let epoch = job.path("epochs/0");
    for model in [&epoch, &job.path("epochs/0/inference_model"), &checkpoints] {
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

    plain_files_hold_the_table(&job, &checkpoints);
    damage_is_named(&job, &checkpoints, &epoch);
}

/// Plain files: text read back is the same table.
fn plain_files_hold_the_table(job: &Job, checkpoints: &str) {
    let [text, npy, safetensors] = ["text", "npy", "safetensors"].map(|format| {
        let to = job.path(format);
        done(&["export", checkpoints, "--to", &to, "--format", format]);
        PathBuf::from(to)
    });
    let loaded = regatta_checkpoint::load_tensors(safetensors.join("weights.safetensors")).unwrap();
    let names = fs::read_to_string(text.join("names.txt")).unwrap();
    let name = names.split_whitespace().nth(1).unwrap().to_string();
    let wanted = ParameterSpec { name: name.clone(), shape: vec![20001, 1], is_table: true };
    let rows = read_weights(&text, &[wanted], None).unwrap().tables.remove(&name).unwrap();
    assert_eq!(rows.ids, loaded.tensors[&format!("{name}.ids")].u64());
    assert_eq!(rows.values, loaded.tensors[&format!("{name}.rows")].f32());
    let npy = fs::read(npy.join(format!("{name}.rows.npy"))).unwrap();
    assert!(npy.starts_with(b"\x93NUMPY\x01\x00") && npy.len() == 128 + 4 * rows.values.len());
}

fn damage_is_named(job: &Job, checkpoints: &str, epoch: &str) {
    // A shard that is gone is named.
    fs::remove_file(job.dir.path().join("epochs/0/server-1-of-2.safetensors")).unwrap();
    let error = refused(&["export", epoch, "--to", "/nowhere/x"]);
    assert!(error.contains("server-1-of-2.safetensors missing"), "{error}");
    // So is a part of a checkpoint that is damaged or gone.
    let parts = contents(Path::new(checkpoints));
    let part = parts.keys().rfind(|path| path.extension().is_some_and(|e| e == "rows")).unwrap();
    let (checkpoint, file) = (part.parent().unwrap(), part.file_name().unwrap().to_string_lossy());
    let (checkpoint, path) = (dir_of(checkpoints, checkpoint), Path::new(checkpoints).join(part));
    fs::write(&path, &parts[part][..parts[part].len() / 2]).unwrap();
    for _ in 0..2 {
        let error = refused(&["export", &checkpoint, "--to", &job.path("never")]);
        assert!(error.contains(&*file), "{error}");
        let _ = fs::remove_file(&path);
    }
    assert!(!Path::new(&job.path("never")).exists());
}

fn dir_of(root: &str, below: &Path) -> String {
    Path::new(root).join(below).to_string_lossy().into_owned()
}

/// Names and contents of all files below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(path.strip_prefix(dir).unwrap().to_path_buf(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

#[test]
fn text_becomes_the_same_model_again() {
    // Normalised over the batch: there are statistics that servers do not hold.
    let mut job = Job::new("rank/dcn");
    job.settings.push("hyper_parameters.fc_sizes=[16,8]".into());
    job.settings.push("hyper_parameters.dnn_use_bn=True".into());
    let servers = ["runner.sync_mode=sync", "--servers", "2", "--workers", "1"];
    job.run("train", &servers);
    let auc = job.evaluated();
    let epoch = job.path("epochs/0");
    let (scores, predicted) = job.predicted(&epoch, &[]);
    assert_eq!(predicted, auc);
    assert_eq!(job.predicted(&job.path("epochs/0/inference_model"), &[]).1, auc);

    let settings: Vec<&str> = job.settings.iter().map(String::as_str).collect();
    for format in ["text", "block"] {
        let [text, back, again] =
            ["", "-imported", "-again"].map(|end| job.path(&format!("{format}{end}")));
        done(&["export", &epoch, "--to", &text, "--format", format]);
        let mut args = vec!["import", &text, "--to", &back, "-m", &job.config, "-o"];
        args.extend(&settings);
        let said = done(&args);
        assert!(said.contains("table SparseFeatFactors: "), "{said}");
        assert_eq!(job.predicted(&back, &[]).0, scores);
        done(&["export", &back, "--to", &again, "--format", format]);
        let (before, after) = (contents(Path::new(&text)), contents(Path::new(&again)));
        assert!(before == after, "{:?}", before.keys().collect::<Vec<_>>());
        assert!(before.len() > 10);
        // It is not written over.
        let error = refused(&args);
        assert!(error.contains("it is there already"), "{error}");
        // A bit that flipped in a digit is not another weight.
        let is_table = |path: &&PathBuf| {
            path.to_string_lossy().ends_with("0.txt") || { path.ends_with("part-000-00000") }
        };
        let table = before.keys().find(is_table).unwrap();
        let path = Path::new(&text).join(table);
        let mut changed = before[table].clone();
        let digit = changed.iter().rposition(u8::is_ascii_digit).unwrap();
        changed[digit] ^= 1;
        fs::write(&path, changed).unwrap();
        args[3] = "never";
        let error = refused(&args);
        assert!(error.contains(&*path.to_string_lossy()) && error.contains("damaged"), "{error}");
        assert_eq!(regatta(&["verify", &text]).status.code(), Some(1));
        fs::write(&path, &before[table]).unwrap();
        assert_eq!(done(&["verify", &text]), "1 export is whole\n");
    }

    // Servers begin with it, with a fresh state of the optimizer. At this rate nothing moves.
    let init = format!("runner.model_init_path={}", job.path("text-imported"));
    let save = format!("runner.model_save_path={}", job.path("more"));
    let still = "hyper_parameters.optimizer.learning_rate=1e-30";
    let mut flags = vec![init.as_str(), save.as_str(), still];
    flags.extend(servers);
    job.run("train", &flags);
    let more = job.path("more-text");
    done(&["export", &job.path("more/0"), "--to", &more, "--format", "text"]);
    let (before, after) = (contents(Path::new(&job.path("text"))), contents(Path::new(&more)));
    let names = String::from_utf8(before[Path::new("names.txt")].clone()).unwrap();
    for line in names.lines().filter(|line| !line.contains("mean") && !line.contains("variance")) {
        let folder = Path::new(line.split_once(' ').unwrap().0);
        let same = |(path, bytes): &(&PathBuf, &Vec<u8>)| after.get(*path) == Some(*bytes);
        assert!(
            before.iter().filter(|(path, _)| path.starts_with(folder)).all(|e| same(&e)),
            "{line}"
        );
    }
}

#[test]
fn onnx_and_its_limit() {
    let job = Job::new("rank/logistic_regression");
    job.run("train", &[]);
    let (epoch, to) = (job.path("epochs/0"), job.path("onnx"));
    let said = done(&["export", &epoch, "--to", &to, "--format", "onnx"]);
    assert!(said.contains("input 1: int64[batch, 1], ids"), "{said}");
    assert!(said.contains("input dense_input: float[batch, 13], numbers"), "{said}");
    assert!(fs::metadata(Path::new(&to).join("model.onnx")).unwrap().len() > 4 * 20_001);
    let never = job.path("never");
    let small = ["export", &epoch, "--to", &never, "--format", "onnx", "--table-limit", "0"];
    let error = refused(&small);
    assert!(error.contains("20001 rows of 1 floats"), "{error}");
    assert!(error.contains("--table-limit"), "{error}");
    assert!(!Path::new(&never).exists());
    let fewer = ["export", &epoch, "--to", &never, "--format", "onnx", "--quantize", "int8"];
    let error = refused(&fewer);
    assert!(error.contains("--quantize is for models that predict"), "{error}");
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
