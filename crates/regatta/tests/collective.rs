//! Collective jobs with real processes: ranks train and report together, a lost rank is named,
//! nothing is left behind.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

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
    command.args(["-o", &data, &save, "runner.epochs=1"]);
    command.args(["runner.train_batch_size=100", "runner.print_interval=5"]);
    command.args(overrides).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", of(&output.stdout), of(&output.stderr))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn ranks_share_the_data_and_report_together() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    // The last batch of each rank is short, and they have as many.
    let overrides = ["runner.drop_last=False", "runner.use_fleet=True"];
    let flags = ["--ranks", "2", "--report", report.to_str().unwrap()];
    let output = command(dir.path(), 6100, &overrides, &flags).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let report = read(&report);
    assert_eq!(report["epochs"][0]["examples"], 6100);
    assert!(report["epochs"][0]["auc"].as_f64().unwrap() > 0.55, "{report}");
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    assert!(ranks.iter().all(|r| r["epochs"][0]["examples"] == 3050), "{report}");
    assert!(has_model(dir.path()));
    let printed = text(&output);
    assert!(printed.contains("2 ranks; 200 examples in a step of all ranks"), "{printed}");
}

fn has_model(dir: &Path) -> bool {
    std::fs::read_dir(dir.join("model/0")).is_ok_and(|entries| entries.count() > 0)
}

/// One rank with batches of 200 sees what two ranks with batches of 100 see, if both ranks read
/// all.
#[test]
fn two_ranks_that_read_the_same_data_equal_one() {
    let loss = |flags: &[&str], overrides: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("report.json");
        let mut flags = flags.to_vec();
        flags.extend(["--report", report.to_str().unwrap()]);
        let output = command(dir.path(), 2000, overrides, &flags).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        read(&report)["epochs"][0]["loss"].as_f64().unwrap()
    };
    let one = loss(&[], &[]);
    let two = loss(&["--ranks", "2"], &["runner.split_file_list=False"]);
    let fleet = loss(&[], &["runner.use_fleet=True"]);
    assert!((one - two).abs() < 1e-5, "{one} {two}");
    assert!((one - fleet).abs() < 1e-6, "{one} {fleet}");
}

#[test]
fn a_strategy_file_is_honoured_or_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("strategy.yaml");
    let strategy = format!("runner.strategy={}", file.display());
    std::fs::write(&file, "gradient_merge: true\ngradient_merge_configs: {k_steps: 2}\n").unwrap();
    let output = command(dir.path(), 1000, &[&strategy], &["--ranks", "2"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    std::fs::write(&file, "localsgd: true\ndgc: true\n").unwrap();
    let output = command(dir.path(), 1000, &[&strategy], &["--ranks", "2"]).output().unwrap();
    let printed = text(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(printed.contains("localsgd and dgc exclude each other"), "{printed}");
    assert!(!printed.contains("2 ranks;"), "{printed}");
}

/// Numbers of the children of a process by rank.
fn ranks(pid: u32) -> Vec<(String, u32)> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let rank = |pid: u32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let pairs = variables.split(|b| *b == 0).map(String::from_utf8_lossy);
        let env = pairs.filter_map(|p| p.split_once('=').map(|(k, v)| (k.into(), v.into())));
        let env: regatta_cluster::Env =
            env.collect::<Vec<(String, String)>>().into_iter().collect();
        regatta_cluster::Place::from_env(&env).unwrap().to_string()
    };
    list.split_whitespace().map(|p| p.parse().unwrap()).map(|pid| (rank(pid), pid)).collect()
}

#[test]
fn a_killed_rank_ends_the_job_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(dir.path(), 60_000_000, &[], &["--ranks", "3"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begun = lines.by_ref().map_while(Result::ok).any(|l| l.contains("batch_id: 5,"));
    assert!(begun, "training did not begin");
    let mut errors = child.stderr.take().unwrap();
    let rest = std::thread::spawn(move || {
        let mut text: Vec<String> = lines.map_while(Result::ok).collect();
        let mut err = String::new();
        let _ = errors.read_to_string(&mut err);
        text.push(err);
        text.join("\n")
    });
    let started = ranks(child.id());
    let pid = started.iter().find(|(rank, _)| rank == "rank 1").unwrap().1;
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    assert!(!child.wait().unwrap().success());
    let printed = rest.join().unwrap();
    assert!(printed.contains("rank 1 is lost"), "{printed}");
    for (rank, pid) in started {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z"), "{rank} is still there");
    }
}

/// An address that nobody listens on.
fn free_address() -> String {
    format!("127.0.0.1:{}", regatta_launch::ports::free("127.0.0.1", 1).unwrap()[0])
}

#[test]
fn ranks_that_know_the_master_alone_train_together() {
    let (dir, master) = (tempfile::tempdir().unwrap(), free_address());
    let report = dir.path().join("report.json");
    let rank = |rank: &str| {
        let flags = ["--ranks", "3", "--rank", rank, "--master", &master];
        let mut command = command(dir.path(), 1500, &[], &flags);
        if rank == "0" {
            command.arg("--report").arg(&report);
        }
        command.spawn().unwrap()
    };
    // The one that the others look for comes last.
    let started = ["2", "1", "0"].map(rank);
    for child in started {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
    assert_eq!(read(&report)["epochs"][0]["examples"], 1500);
}

#[test]
fn a_rank_that_does_not_come_to_the_master_is_named() {
    let (dir, master) = (tempfile::tempdir().unwrap(), free_address());
    let rank = |rank: &str| {
        let mut command = command(dir.path(), 1500, &[], &[]);
        command.env("PADDLE_MASTER", &master).env("PADDLE_TRAINERS_NUM", "3");
        command.env("PADDLE_TRAINER_ID", rank).env("REGATTA_START_TIMEOUT", "3");
        command.spawn().unwrap()
    };
    for child in ["0", "2"].map(rank) {
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("for rank 1 (it has not come)"), "{}", text(&output));
    }
}

#[test]
fn every_rank_has_its_own_cores_unless_told_otherwise() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let allowed = |flags: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let mut flags = flags.to_vec();
        flags.extend(["--ranks", "2"]);
        let mut child = command(dir.path(), 60_000_000, &[], &flags).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|l| l.contains("batch_id: 0,")));
        let of = |(_, pid): (String, u32)| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
            list.unwrap().trim().to_string()
        };
        let mut started = ranks(child.id());
        started.retain(|(rank, _)| rank.starts_with("rank"));
        let found: Vec<String> = started.into_iter().map(of).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.len(), 2);
        found[0] != found[1]
    };
    assert_eq!(allowed(&[]), cores >= 2);
    assert!(!allowed(&["--no-bind"]));
}

#[test]
fn what_carries_the_data_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| {
        let output = command(dir.path(), 1000, &[], flags).output().unwrap();
        (output.status.success(), text(&output))
    };
    let (ok, printed) = run(&["--ranks", "2", "--transport", "tcp"]);
    assert!(ok && printed.contains("rank 0 of 2 connected over TCP"), "{printed}");
    let (ok, printed) = run(&["--ranks", "2", "--transport", "mpi"]);
    assert!(!ok && printed.contains("use: mpirun -n 2 regatta train"), "{printed}");
    let (ok, printed) = run(&["--transport", "tcp"]);
    assert!(!ok && printed.contains("--transport is for ranks"), "{printed}");
}

#[cfg(feature = "mpi")]
#[test]
fn mpirun_trains_over_mpi() {
    let dir = tempfile::tempdir().unwrap();
    let own = command(dir.path(), 2000, &[], &["--transport", "mpi"]);
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "--timeout", "240", "-n", "2"]);
    let output = mpirun.arg(own.get_program()).args(own.get_args()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("rank 0 of 2 connected over MPI"), "{}", text(&output));
}
