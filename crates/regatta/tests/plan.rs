//! `regatta plan` as users call it.

use std::path::PathBuf;
use std::process::{Command, Output};

fn model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn/config.yaml")
}

fn plan(cluster: &str, more: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.yaml");
    std::fs::write(&file, cluster).unwrap();
    Command::new(env!("CARGO_BIN_EXE_regatta"))
        .arg("plan")
        .arg("-m")
        .arg(model())
        .arg("--cluster")
        .arg(&file)
        .args(more)
        .output()
        .unwrap()
}

const CLUSTER: &str = "
servers: {count: [1, 1000], cores: 8, memory_gib: 32, network_gbit: 10}
workers: {count: [1, 4000], cores: 4, memory_gib: 8, network_gbit: 10}
data: {rows: 2e9}
wanted_examples_per_sec: 1e6
";

#[test]
fn sizes_and_advice_are_printed_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("plan.json");
    let out =
        plan(CLUSTER, &["--report", report.to_str().unwrap(), "-o", "runner.sync_mode=async"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("a server needs") && text.contains("servers instead of 1"), "{text}");
    assert!(text.contains("cores of workers"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    let sizes = json["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 4);
    let rate = |i: usize| sizes[i]["examples_per_sec"].as_f64().unwrap();
    assert!(rate(3) > 1e6 && rate(3) > 1000.0 * rate(2), "{text}");
    assert_eq!(sizes[3]["advice"], serde_json::json!([]));
}

#[test]
fn mistakes_in_the_file_are_told_with_their_lines() {
    let out = plan(&CLUSTER.replace("memory_gib: 32", "memory_gb: 32"), &[]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2));
    assert!(told.contains("cluster.yaml:2: servers.memory_gib is missing"), "{told}");
    assert!(told.contains("unknown key 'servers.memory_gb'; did you mean 'memory_gib'?"), "{told}");
    let nothing = Command::new(env!("CARGO_BIN_EXE_regatta"))
        .args(["plan", "-m"])
        .arg(model())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("--cluster"));
}
