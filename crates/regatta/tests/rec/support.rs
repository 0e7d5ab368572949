//! A scratch directory with configurations and data in it, and the binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// What a run of the binary came to.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Fails the test unless the run went well; returns its standard output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        self.out
    }

    /// Fails the test unless the run ended with that code and said all of the words.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "'{word}' is not in: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }
}

pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch { dir: tempfile::tempdir().unwrap() }
    }

    /// A scratch directory with PaddleRec's sample of a model in `models/GROUP/NAME`.
    pub(crate) fn with_model(folder: &str) -> Scratch {
        let scratch = Scratch::new();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(folder);
        copy(&from, &scratch.path(&format!("models/{folder}")));
        scratch
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs the binary in the scratch directory.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_in(".", args)
    }

    /// Runs the binary in a directory below.
    pub(crate) fn run_in(&self, dir: &str, args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
        let Output { status, stdout, stderr } =
            command.args(args).current_dir(self.path(dir)).output().unwrap();
        Ran {
            code: status.code().unwrap_or(-1),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }

    /// All files and directories below a directory, sorted.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        fn walk(dir: &Path, base: &Path, out: &mut Vec<String>) {
            for entry in std::fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                out.push(path.strip_prefix(base).unwrap().to_string_lossy().into_owned());
                if path.is_dir() {
                    walk(&path, base, out);
                }
            }
        }
        let (base, mut out) = (self.path(name), Vec::new());
        walk(&base, &base, &mut out);
        out.sort();
        out
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            if !entry.file_name().to_string_lossy().starts_with("output") {
                copy(&entry.path(), &target);
            }
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A small model on a small synthetic click log; keys may be appended to its runner section.
pub(crate) fn small(runner: &str) -> String {
    format!(
        "model: dnn
runner:
  train_data_dir: \"synthetic://ctr?slots=4&vocab=50&dense=3&examples=640\"
  test_data_dir: \"synthetic://ctr?slots=4&vocab=50&dense=3&examples=320&first=100000\"
  train_batch_size: 32
  epochs: 2
  use_auc: True
{runner}
{SMALL_HYPER}"
    )
}

pub(crate) const SMALL_HYPER: &str = "hyper_parameters:
  optimizer:
    class: Adam
    learning_rate: 0.01
  sparse_inputs_slots: 5
  sparse_feature_number: 201
  sparse_feature_dim: 4
  dense_input_dim: 3
  fc_sizes: [16]
";
