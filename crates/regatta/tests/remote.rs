//! Checkpoints and models in a store that speaks S3, with real processes: what one machine has
//! made, another one resumes from; a store that fails loses nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use regatta_store::s3_server::S3Server;

const DATA: &str = "synthetic://ctr?slots=26&vocab=50&dense=13&seed=1&examples=1000";

struct Place {
    dir: tempfile::TempDir,
    server: S3Server,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("buckets/bucket")).unwrap();
        Place { server: S3Server::start(&dir.path().join("buckets")), dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    /// Where an object of the bucket is on disk.
    fn object(&self, name: &str) -> PathBuf {
        self.dir.path().join("buckets/bucket").join(name)
    }

    fn regatta(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
        command.args(args).stdin(Stdio::null()).envs(self.server.settings());
        command.current_dir(&self.dir);
        command.env("REGATTA_STORE_RETRY_SECONDS", "1").env("TMPDIR", self.dir.path());
        command
    }

    /// A training with checkpoints in the bucket, written on `machine` first.
    fn train(&self, machine: &str, epochs: u64, flags: &[&str]) -> Command {
        let config = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../models/rank/logistic_regression/config.yaml");
        let mut command = self.regatta(&["train", "-m", config.to_str().unwrap()]);
        command.args(["--checkpoint-dir", "s3://bucket/job", "--checkpoint-steps", "5"]);
        command.args(["--checkpoint-keep", "2"]).args(flags).arg("-o").args([
            format!("runner.train_data_dir={DATA}"),
            format!("runner.test_data_dir={DATA}"),
            format!("runner.model_save_path={}", self.path(&format!("{machine}/epochs"))),
            format!("runner.checkpoint.local_dir={}", self.path(&format!("{machine}/made"))),
            format!("runner.epochs={epochs}"),
            "runner.train_batch_size=100".into(),
            "hyper_parameters.sparse_feature_number=1301".into(),
        ]);
        command
    }

    fn auc(&self, model: &str, flags: &[&str]) -> String {
        let text = done(self.regatta(&["predict", "-m", model, "--data", DATA]).args(flags));
        text.lines()
            .find(|line| line.starts_with("auc: "))
            .unwrap_or_else(|| panic!("{text}"))
            .into()
    }

    fn checkpoints(&self) -> Vec<String> {
        let entries = fs::read_dir(self.object("job")).into_iter().flatten().flatten();
        let complete = entries.filter(|e| e.path().join("manifest.json").exists());
        let mut names: Vec<String> =
            complete.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

/// What a command that must fail says.
fn failed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(!output.status.success(), "{command:?}\n{out}");
    out + &err
}

#[test]
fn another_machine_goes_on_and_predicts() {
    let place = Place::new();
    done(&mut place.train("first", 1, &["--servers", "2", "--workers", "1"]));
    let made = place.checkpoints();
    assert_eq!(made.len(), 2, "{made:?}");

    // Another machine has nothing but the bucket.
    let text = done(&mut place.train("second", 2, &["--servers", "1", "--workers", "1"]));
    assert!(text.contains("was fetched from s3://bucket/job"), "{text}");
    assert!(text.contains("epoch: 1 done") && !text.contains("epoch: 0 done"), "{text}");
    assert_ne!(place.checkpoints(), made);

    // From the bucket to the bucket; predicted from a copy, which is kept.
    done(&mut place.regatta(&["export", "s3://bucket/job", "--to", "s3://bucket/model"]));
    assert!(place.object("model/manifest.json").exists());
    let cache = place.path("cache");
    let auc = place.auc("s3://bucket/model", &["--cache", &cache]);
    assert_eq!(auc, place.auc("s3://bucket/job", &[]));
    assert_eq!(auc, place.auc(&place.path("second/made"), &[]));
    let values = fs::read_dir(place.object("model")).unwrap().map(|e| e.unwrap().path());
    let values = values.into_iter().find(|p| p.extension().is_some_and(|e| e == "values")).unwrap();
    let mut bytes = fs::read(&values).unwrap();
    bytes[10] ^= 1;
    fs::write(&values, bytes).unwrap();
    assert_eq!(auc, place.auc("s3://bucket/model", &["--cache", &cache]));
    // A copy of something damaged is not used.
    let other = place.path("other");
    let error =
        failed(&mut place.regatta(&["predict", "-m", "s3://bucket/model", "--cache", &other]));
    assert!(error.contains("values") && error.contains("checksum"), "{error}");
    assert!(!Path::new(&other).join("copy").exists());
}

#[test]
fn wrong_credentials_and_missing_things_are_named() {
    let place = Place::new();
    let mut wrong = place.train("first", 1, &[]);
    wrong.env("AWS_SECRET_ACCESS_KEY", "do-not-print-me");
    let error = failed(&mut wrong);
    assert!(error.contains("s3://bucket/job: access denied"), "{error}");
    assert!(!error.contains("do-not-print-me"), "{error}");
    let error = failed(&mut place.regatta(&["predict", "-m", "s3://bucket/none"]));
    assert!(error.contains("s3://bucket/none: there is no model and no checkpoint"), "{error}");
}

#[test]
fn a_store_that_goes_away_loses_nothing() {
    let place = Place::new();
    done(&mut place.train("first", 1, &[]));
    let sent = place.checkpoints();
    // The bucket can be listed, but nothing can be written into it.
    let job = place.object("job");
    fs::rename(&job, place.object("away")).unwrap();
    fs::write(&job, "a file where a folder should be").unwrap();
    let error = failed(&mut place.train("first", 2, &[]));
    let made = place.path("first/made");
    assert!(error.contains("s3://bucket/job/") && error.contains(&made), "{error}");
    assert!(error.contains("epoch: 1 done"), "the training itself has ended well: {error}");
    assert!(Path::new(&place.path("first/epochs/1")).exists());

    // When the store is there again, the next run sends everything.
    fs::remove_file(&job).unwrap();
    fs::rename(place.object("away"), &job).unwrap();
    done(&mut place.train("first", 2, &[]));
    assert_ne!(place.checkpoints(), sent);
    assert_eq!(place.checkpoints().len(), 2);
}
