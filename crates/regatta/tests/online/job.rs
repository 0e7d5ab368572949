//! A job, its lines, and the models that it has saved.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use regatta_checkpoint::load_tensors;
use regatta_cluster::{Env, Place};
use regatta_tensor::Data;
use rustix::process::{Pid, Signal, kill_process};

/// Events of a test: each has an id of its own.
pub(crate) const EVENTS: usize = 2400;
pub(crate) const BATCH: usize = 8;

/// Events as text of `multislot`: label, id, and a float that adds nothing.
pub(crate) fn events(ids: std::ops::Range<usize>) -> String {
    let mut text = String::new();
    for id in ids {
        writeln!(text, "1 {} 1 {} 1 0.0", id % 2, id + 1).unwrap();
    }
    text
}

pub(crate) fn model(group: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank").join(group).join(file)
}

/// `regatta train` of events in a folder of its own, with a checkpoint every three steps.
pub(crate) fn command(dir: &Path, data: &str, mode: &[&str], settings: &[&str]) -> Command {
    let mut command = regatta();
    command.arg("train").arg("-m").arg(model("logistic_regression", "config.yaml")).arg("-o");
    command.arg(format!("runner.train_data_dir={data}"));
    command.arg(format!("runner.model_save_path={}", dir.join("model").display()));
    command.arg(format!("runner.train_batch_size={BATCH}"));
    command.args(["runner.data_format=multislot", "runner.reader_type=QueueDataset"]);
    command.args(["runner.print_interval=1", "hyper_parameters.optimizer.class=adam"]);
    command.args(["hyper_parameters.sparse_inputs_slots=2", "hyper_parameters.dense_input_dim=1"]);
    command.arg(format!("hyper_parameters.sparse_feature_number={}", EVENTS + 1));
    command.args(settings).args(mode);
    command.arg("--checkpoint-dir").arg(dir.join("checkpoints"));
    command.args(["--checkpoint-steps", "3"]);
    command
}

/// Sends a signal to a process of a job.
pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

pub(crate) fn regatta() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    for name in regatta_cluster::names::PLACE {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Two servers and two workers that take their steps together.
pub(crate) const SYNC: [&str; 4] = ["--servers", "2", "--workers", "2"];

/// A running command and what it has printed.
pub(crate) struct Job {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    errors: JoinHandle<String>,
    pub(crate) out: String,
}

impl Job {
    pub(crate) fn start(mut command: Command) -> Job {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Job { child, lines, errors, out: String::new() }
    }

    /// Reads lines until one of them has that text; false at the end.
    pub(crate) fn wait_for(&mut self, text: &str) -> bool {
        while let Some(Ok(line)) = self.lines.next() {
            self.out += &line;
            self.out.push('\n');
            if line.contains(text) {
                return true;
            }
        }
        false
    }

    /// Reads lines until the job is at that moment and has a checkpoint to resume from.
    #[track_caller]
    pub(crate) fn reach(&mut self, moment: &str) {
        assert!(self.wait_for(moment), "'{moment}' is not in: {}", self.out);
        let made = "checkpoint ";
        let is_made = |line: &str| line.contains(made) && line.contains("written in");
        while !self.out.lines().any(is_made) {
            assert!(self.wait_for(made), "no checkpoint was made: {}", self.out);
        }
    }

    /// The process of a worker.
    pub(crate) fn worker(&self, index: usize) -> u32 {
        let job = self.child.id();
        let list = std::fs::read_to_string(format!("/proc/{job}/task/{job}/children")).unwrap();
        let place = |pid: &u32| {
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let pairs = variables.split(|b| *b == 0).map(String::from_utf8_lossy);
            let pairs = pairs.filter_map(|p| p.split_once('=').map(|(k, v)| (k.into(), v.into())));
            let env: Env = pairs.collect::<Vec<(String, String)>>().into_iter().collect();
            Place::from_env(&env).map(|place| place.to_string()).unwrap_or_default()
        };
        let mut all = list.split_whitespace().filter_map(|pid| pid.parse().ok());
        all.find(|pid| place(pid) == format!("worker {index}")).expect("the worker is there")
    }

    /// Kills the process that was started, and waits until all others have gone.
    #[track_caller]
    pub(crate) fn kill(mut self) -> String {
        assert!(self.child.try_wait().unwrap().is_none(), "it has ended: {}", self.out);
        self.child.kill().unwrap();
        while self.wait_for("\u{0}") {}
        self.child.wait().unwrap();
        self.errors.join().unwrap();
        self.out
    }

    /// Waits for the end: whether it went well, and all that was printed.
    pub(crate) fn end(mut self) -> (bool, String) {
        while self.wait_for("\u{0}") {}
        let ok = self.child.wait().unwrap().success();
        let errors = self.errors.join().unwrap();
        (ok, self.out + &errors)
    }

    #[track_caller]
    pub(crate) fn ok(self) -> String {
        let (ok, out) = self.end();
        assert!(ok, "{out}");
        out
    }
}

/// All values of a saved model, rows by id.
pub(crate) fn values(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut values = BTreeMap::new();
    let files = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in files.map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let tensors = load_tensors(&path).unwrap().tensors;
        for (name, tensor) in &tensors {
            let bytes = bytes(tensor.data());
            let row_of = name.strip_prefix("table/").and_then(|rest| rest.split_once('/'));
            let Some((table, what)) = row_of else {
                values.insert(name.clone(), bytes);
                continue;
            };
            let keys = bytes_of_keys(tensors[&format!("table/{table}/keys")].data());
            let width = bytes.len() / keys.len().max(1);
            for (key, row) in keys.iter().zip(bytes.chunks_exact(width.max(1))) {
                values.insert(format!("{table}/{what}/{key}"), row.to_vec());
            }
        }
    }
    assert!(!values.is_empty(), "{} has no model", folder.display());
    values
}

/// Ids that have a row.
pub(crate) fn ids(folder: &Path) -> Vec<u64> {
    let values = values(folder);
    let id = |name: &String| name.strip_prefix("SparseFeatWeights/keys/")?.parse().ok();
    let mut ids: Vec<u64> = values.keys().filter_map(id).collect();
    ids.sort_unstable();
    ids
}

fn bytes_of_keys(data: &Data) -> Vec<u64> {
    match data {
        Data::U64(keys) => keys.clone(),
        Data::I64(keys) => keys.iter().map(|key| *key as u64).collect(),
        other => panic!("{other:?}"),
    }
}

fn bytes(data: &Data) -> Vec<u8> {
    match data {
        Data::F32(v) => v.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
        Data::U64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        other => panic!("{other:?}"),
    }
}

/// The folder of the newest saved model.
pub(crate) fn newest(dir: &Path) -> PathBuf {
    let entries = std::fs::read_dir(dir.join("model")).unwrap();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u64>().ok();
    let newest = entries.flatten().filter_map(number).max().expect("no model was saved");
    dir.join("model").join(newest.to_string())
}
