//! Parameter-server jobs with real processes: every mode trains, lost processes are named, nothing
//! is left behind.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/logistic_regression/config.yaml")
}

/// `regatta train` of a small model on `examples` examples.
fn command(dir: &Path, examples: u64, overrides: &[&str], flags: &[&str]) -> Command {
    let data = format!(
        "runner.train_data_dir=synthetic://ctr?slots=26&vocab=500&dense=13&seed=1&\
         examples={examples}"
    );
    let save = format!("runner.model_save_path={}", dir.join("model").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.current_dir(dir);
    command.arg("train").arg("-m").arg(config());
    command.args(["-o", &data, &save, "runner.epochs=1", "runner.split_file_list=True"]);
    command.args(["runner.train_batch_size=100", "runner.print_interval=5"]);
    command.args(overrides).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

const TWO_AND_TWO: [&str; 4] = ["--servers", "2", "--workers", "2"];

#[test]
fn the_first_worker_says_what_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let overrides = ["runner.sync_mode=sync", "runner.staleness=3", "runner.geo_step=4"];
    let output = command(dir.path(), 600, &overrides, &TWO_AND_TWO).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    for key in ["staleness", "geo_step"] {
        let line = format!("ignored: runner.{key} (-o): ");
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
}

#[test]
fn every_mode_trains_and_reports() {
    let modes: [&[&str]; 7] = [
        &["runner.sync_mode=sync"],
        &["runner.sync_mode=async"],
        &["runner.sync_mode=half_async"],
        &["runner.sync_mode=bounded", "runner.staleness=2"],
        &["runner.sync_mode=geo", "runner.geo_step=4"],
        &["runner.sync_mode=async", "runner.wire=bf16"],
        &["runner.sync_mode=sync", "runner.wire=f16"],
    ];
    for mode in modes {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("report.json");
        let flags: Vec<&str> =
            TWO_AND_TWO.into_iter().chain(["--report", report.to_str().unwrap()]).collect();
        let output = command(dir.path(), 6000, mode, &flags).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{mode:?}\n{text}\n{errors}");
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["epochs"][0]["examples"], 6000, "{mode:?}");
        // Chance is 0.50 with a deviation of 0.007; 30 short steps of a worker do not get far
        // beyond.
        assert!(report["epochs"][0]["auc"].as_f64().unwrap() > 0.53, "{mode:?}: {report}");
        let workers = report["workers"].as_array().unwrap();
        assert_eq!(workers.len(), 2);
        for worker in workers {
            assert_eq!(worker["epochs"][0]["examples"], 3000, "{mode:?}");
        }
        let servers = report["servers"].as_array().unwrap();
        assert_eq!(servers.len(), 2, "{mode:?}");
        if !mode[0].ends_with("geo") {
            let steps = if mode[0].ends_with("=sync") { 30 } else { 60 };
            assert!(servers.iter().all(|s| s["steps"] == steps), "{mode:?}: {servers:?}");
        }
        for part in ["server-0-of-2", "server-1-of-2"] {
            let file = dir.path().join("model/0").join(format!("{part}.safetensors"));
            assert!(file.exists(), "{mode:?}: {}", file.display());
        }
    }
}

#[test]
fn geo_does_not_round_differences() {
    let dir = tempfile::tempdir().unwrap();
    let geo = ["runner.sync_mode=geo", "runner.geo_step=4", "runner.wire=bf16"];
    let output = command(dir.path(), 100, &geo, &TWO_AND_TWO).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(errors.contains("runner.wire: bf16 cannot be honoured"), "{errors}");
}

/// A job that is running: training has begun.
struct Job {
    child: Child,
    started: Vec<(String, u32)>,
    rest: Option<std::thread::JoinHandle<String>>,
}

impl Job {
    fn start(dir: &Path, mode: &str, flags: &[&str]) -> Job {
        let flags: Vec<&str> = TWO_AND_TWO.iter().chain(flags).copied().collect();
        let mode = format!("runner.sync_mode={mode}");
        let mut child = command(dir, 60_000_000, &[&mode], &flags).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let begun = lines.by_ref().map_while(Result::ok).any(|l| l.contains("batch_id: 5,"));
        assert!(begun, "training did not begin");
        let started = children(child.id());
        let mut errors = child.stderr.take().unwrap();
        let rest = std::thread::spawn(move || {
            let mut text: Vec<String> = lines.map_while(Result::ok).collect();
            let mut err = String::new();
            let _ = errors.read_to_string(&mut err);
            text.push(err);
            text.join("\n")
        });
        Job { child, started, rest: Some(rest) }
    }

    fn pid(&self, role: &str) -> u32 {
        self.started.iter().find(|(r, _)| r == role).unwrap_or_else(|| panic!("no {role}")).1
    }

    fn kill(&self, role: &str) {
        let status = Command::new("kill").args(["-9", &self.pid(role).to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end; returns whether it was a success, what was printed, and how long it took.
    fn end(mut self) -> (bool, String, Duration) {
        let start = Instant::now();
        let status = self.child.wait().unwrap();
        let text = self.rest.take().unwrap().join().unwrap();
        for (role, pid) in &self.started {
            assert!(!is_alive(*pid), "{role} is still there");
        }
        (status.success(), text, start.elapsed())
    }
}

/// Roles and process numbers of the children of a process.
fn children(pid: u32) -> Vec<(String, u32)> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let role = |pid: u32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let pairs = variables.split(|b| *b == 0).map(String::from_utf8_lossy);
        let env = pairs.filter_map(|p| p.split_once('=').map(|(k, v)| (k.into(), v.into())));
        let env: regatta_cluster::Env =
            env.collect::<Vec<(String, String)>>().into_iter().collect();
        regatta_cluster::Place::from_env(&env).unwrap().to_string()
    };
    let all = list.split_whitespace().map(|p| p.parse().unwrap());
    all.map(|pid| (role(pid), pid)).collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z")
}

#[test]
fn workers_that_wait_for_each_other_have_their_own_cores() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let differ = |mode: &str, flags: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::start(dir.path(), mode, flags);
        let of = |role: &str| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", job.pid(role)));
            let status = status.unwrap();
            let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
            list.unwrap().trim().to_string()
        };
        let differ = of("worker 0") != of("worker 1");
        assert_eq!(of("server 0"), of("server 1"), "servers run anywhere");
        job.kill("server 0");
        job.end();
        differ
    };
    assert_eq!(differ("sync", &[]), cores >= 2);
    assert!(!differ("sync", &["--no-bind"]));
    assert!(!differ("async", &[]));
}

#[test]
fn a_worker_lost_in_sync_mode_ends_the_job_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::start(dir.path(), "sync", &[]);
    job.kill("worker 1");
    let (ok, text, took) = job.end();
    assert!(!ok, "{text}");
    assert!(text.contains("worker 1 is lost"), "{text}");
    assert!(took < Duration::from_secs(20), "{took:?}\n{text}");
}

#[test]
fn a_lost_server_ends_the_job_and_is_named() {
    for mode in ["sync", "async"] {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::start(dir.path(), mode, &[]);
        job.kill("server 1");
        let (ok, text, took) = job.end();
        assert!(!ok, "{mode}: {text}");
        assert!(text.contains("server 1 at 127.0.0.1:"), "{mode}: {text}");
        assert!(took < Duration::from_secs(20), "{mode}: {took:?}\n{text}");
    }
}

#[test]
fn no_process_outlives_the_one_that_started_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = Job::start(dir.path(), "async", &[]);
    job.child.kill().unwrap();
    job.child.wait().unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    while job.started.iter().any(|(_, pid)| is_alive(*pid)) {
        assert!(Instant::now() < limit, "{:?}", job.started);
        std::thread::yield_now();
    }
    job.rest.take().unwrap().join().unwrap();
}
