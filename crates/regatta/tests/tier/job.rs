//! A small job whose rows do not fit into a megabyte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The table of the model.
pub(crate) const TABLE: &str = "SparseFeatFactors";

pub(crate) struct Job {
    pub(crate) servers: usize,
    pub(crate) workers: usize,
    pub(crate) mode: String,
    pub(crate) batch: u64,
    pub(crate) examples: u64,
    pub(crate) folder: tempfile::TempDir,
}

impl Job {
    pub(crate) fn new(servers: usize, workers: usize, mode: &str) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let (batch, examples) = (64, 6400);
        Job { servers, workers, mode: mode.into(), batch, examples, folder }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    /// Where rows on disk are.
    pub(crate) fn cold(&self) -> PathBuf {
        self.dir().join("cold")
    }

    /// About 50,000 rows of 108 bytes are trained.
    pub(crate) fn command(&self, overrides: &[String]) -> Command {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn");
        let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
        command.current_dir(&self.folder).arg("train").arg("-m").arg(config.join("config.yaml"));
        let data = "synthetic://ctr?slots=26&vocab=4000&zipf=0.7&dense=13&seed=1";
        command.args(["-o", "runner.epochs=1", "runner.split_file_list=True"]);
        command.arg(format!("runner.train_data_dir={data}&examples={}", self.examples));
        command.arg(format!("runner.model_save_path={}", self.dir().join("model").display()));
        command.arg(format!("runner.train_batch_size={}", self.batch));
        command.arg(format!("runner.sync_mode={}", self.mode));
        command.args(["hyper_parameters.sparse_feature_number=104001", "runner.geo_step=5"]);
        command.args(["hyper_parameters.fc_sizes=[16]", "runner.print_interval=1"]);
        command.args(overrides);
        if self.servers > 0 {
            command.args(["--servers", &self.servers.to_string()]);
            command.args(["--workers", &self.workers.to_string()]);
        }
        command.arg("--report").arg(self.dir().join("report.json"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Trains, and gives what was printed.
    pub(crate) fn train(&self, overrides: &[String]) -> String {
        let output = self.command(overrides).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{errors}");
        text
    }

    /// Fails with exit code 2 or 1, and gives what was said about it.
    pub(crate) fn fail(&self, overrides: &[String]) -> String {
        let output = self.command(overrides).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{text}\n{errors}");
        assert!(!text.contains("batch_id: 0,"), "a step was made\n{text}\n{errors}");
        format!("{text}\n{errors}")
    }

    pub(crate) fn report(&self) -> serde_json::Value {
        let text = std::fs::read(self.dir().join("report.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

/// Overrides for so many megabytes of rows in the memory of each server.
pub(crate) fn tier(dir: &Path, memory_mb: u64) -> [String; 2] {
    let key = format!("table_parameters.{TABLE}");
    [format!("{key}.memory_mb={memory_mb}"), format!("{key}.ssd_dir={}", dir.display())]
}

/// The trained values and states of the saved model, by file. The head of a file has the number of
/// its save, which is another one every time.
pub(crate) fn model(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let epoch = dir.join("model/0");
    let files = entries(&epoch).into_iter().filter(|name| name.starts_with("server-"));
    let values = |name: &String| {
        let bytes = std::fs::read(epoch.join(name)).unwrap();
        let head = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + head..].to_vec()
    };
    files.map(|name| (name.clone(), values(&name))).collect()
}

/// Names in a folder; none if there is no such folder.
pub(crate) fn entries(dir: &Path) -> Vec<String> {
    let Ok(list) = std::fs::read_dir(dir) else { return vec![] };
    let mut names: Vec<String> =
        list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
