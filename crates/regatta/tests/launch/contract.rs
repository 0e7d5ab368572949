//! The environment that processes get, exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regatta_cluster::{Env, Place, PsRole};

use super::{launch, script, text};

/// Prints the variables of the contract as one line of JSON.
const PRINT: &str = "\
import json, os
names = ('PADDLE_', 'REGATTA_', 'FLAGS_', 'TRAINING_ROLE', 'POD_', 'http_proxy', 'RANK', 'WORLD_',
         'LOCAL_', 'MASTER_', 'TORCH')
print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(names)}))
";

type Variables = BTreeMap<String, String>;

fn run(dir: &Path, args: &[&str]) -> BTreeMap<String, Variables> {
    run_with(dir, args, &[]).0
}

/// What every process has in its environment, and what the launcher printed.
fn run_with(
    dir: &Path,
    args: &[&str],
    env: &[(&str, &str)],
) -> (BTreeMap<String, Variables>, String) {
    script(dir, "print.py", PRINT);
    let output = launch(dir, args)
        .env_remove("PADDLE_DISTRI_BACKEND")
        .envs(env.iter().copied())
        .arg("print.py")
        .env("http_proxy", "http://nowhere:1")
        .env("PADDLE_TRAINER_ID", "77")
        .envs([("RANK", "77"), ("MASTER_PORT", "77"), ("TORCHELASTIC_USE_AGENT_STORE", "True")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let files = std::fs::read_dir(dir.join("log")).unwrap().flatten();
    let read = |file: std::fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        let line = std::fs::read_to_string(file.path()).unwrap();
        (name, serde_json::from_str(&line).unwrap())
    };
    (files.map(read).collect(), text(&output))
}

/// Secrets and names that differ each time are checked and taken out.
fn without_random(mut variables: Variables) -> Variables {
    let token = variables.remove("REGATTA_JOB_TOKEN").expect("a token");
    assert_eq!(token.strip_prefix("random-").expect("it is a random one").len(), 32);
    assert!(variables.remove("REGATTA_STATUS").is_some());
    variables
}

/// Takes out a port for another framework: one that nothing of the job listens on.
fn take_port(variables: &mut Variables, name: &str, own: std::ops::Range<u16>) -> u16 {
    let value = variables.remove(name).expect(name);
    let port: u16 = value.rsplit(':').next().unwrap().parse().expect("a port");
    assert!(value.starts_with("127.0.0.1:") || value == port.to_string(), "{value}");
    assert!(!own.contains(&port) && port != 77, "{port}");
    port
}

fn expected(pairs: &[(&str, &str)]) -> Variables {
    let common =
        [("PADDLE_JOB_ID", "ads"), ("REGATTA_START_TIMEOUT", "9.000"), ("PADDLE_LOG_DIR", "log")];
    pairs.iter().chain(&common).map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

#[test]
fn parameter_servers_and_workers() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_block(3);
    let args = ["--worker_num=2", "--server_num=1", "--job_id=ads", "--timeout=9"];
    let mut all = run(dir.path(), &[&args[..], &["--start_port", &port.to_string()]].concat());
    let address = |i: u16| format!("127.0.0.1:{}", port + i);
    let (servers, workers) = (address(0), format!("{},{}", address(1), address(2)));
    let lists = [
        ("PADDLE_PSERVERS_IP_PORT_LIST", &*servers),
        ("PADDLE_TRAINER_ENDPOINTS", &*workers),
        ("PADDLE_TRAINERS_NUM", "2"),
        ("PADDLE_WITH_GLOO", "1"),
        ("PADDLE_GLOO_RENDEZVOUS", "3"),
        ("POD_IP", "127.0.0.1"),
    ];
    let of = |own: &[(&str, &str)]| expected(&[&lists[..], own].concat());
    assert_eq!(all.len(), 3);
    let mut ports = |name: &str| -> BTreeSet<u16> {
        all.iter_mut()
            .filter(|(log, _)| name.starts_with("PADDLE") || log.starts_with("worker"))
            .map(|(_, variables)| take_port(variables, name, port..port + 3))
            .collect()
    };
    // The same for all, and two different ones.
    let (gloo, torch) = (ports("PADDLE_GLOO_HTTP_ENDPOINT"), ports("MASTER_PORT"));
    assert_eq!((gloo.len(), torch.len()), (1, 1));
    assert_ne!(gloo, torch);
    let own = [("TRAINING_ROLE", "PSERVER"), ("PADDLE_PORT", &*port.to_string())];
    assert_eq!(without_random(all["serverlog.0"].clone()), of(&own));
    let own_port = (port + 2).to_string();
    let own = [
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_TRAINER_ID", "1"),
        ("PADDLE_PORT", &*own_port),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
    ];
    assert_eq!(without_random(all["workerlog.1"].clone()), of(&own));
    assert_eq!(
        all["workerlog.0"]["REGATTA_JOB_TOKEN"], all["serverlog.0"]["REGATTA_JOB_TOKEN"],
        "one token for all"
    );
    // And the program reads its place back.
    let env: Env = all["workerlog.1"].clone().into_iter().collect();
    let Ok(Place::ParameterServer(place)) = Place::from_env(&env) else { panic!() };
    assert_eq!(place.role, PsRole::Worker(1));
}

#[test]
fn ranks_with_devices() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_block(2);
    let start = format!("--start_port={port}");
    let args = ["--gpus", "1, 3", "--job_id=ads", "--timeout=9", &start];
    // Wherever the test runs: the user says that there are devices.
    let (mut all, printed) = run_with(dir.path(), &args, &[("PADDLE_DISTRI_BACKEND", "nccl")]);
    assert!(!printed.contains("note: "), "{printed}");
    let (first, second) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
    let both = format!("{first},{second}");
    assert_eq!(all.len(), 2);
    let mut torch = all.values_mut().map(|v| take_port(v, "MASTER_PORT", port..port + 2));
    assert_eq!(torch.next(), torch.next());
    assert_eq!(
        without_random(all["workerlog.1"].clone()),
        expected(&[
            ("TRAINING_ROLE", "TRAINER"),
            ("PADDLE_TRAINER_ID", "1"),
            ("PADDLE_GLOBAL_RANK", "1"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_GLOBAL_SIZE", "2"),
            ("PADDLE_TRAINER_ENDPOINTS", &both),
            ("PADDLE_CURRENT_ENDPOINT", &second),
            ("PADDLE_RANK_IN_NODE", "1"),
            ("PADDLE_LOCAL_RANK", "1"),
            ("PADDLE_LOCAL_SIZE", "2"),
            ("PADDLE_NNODES", "1"),
            ("PADDLE_LOCAL_DEVICE_IDS", "3"),
            ("PADDLE_WORLD_DEVICE_IDS", "1,3"),
            ("FLAGS_selected_gpus", "3"),
            ("PADDLE_DISTRI_BACKEND", "nccl"),
            ("FLAGS_selected_accelerators", "3"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
        ])
    );
}

#[test]
fn devices_that_there_are_not_count_ranks() {
    let names = std::fs::read_dir("/dev").unwrap().flatten().map(|e| e.file_name());
    if names.filter_map(|n| n.into_string().ok()).any(|n| n.starts_with("nvidia") || n == "kfd") {
        eprintln!("skipped: this machine has an accelerator");
        return;
    }
    for (args, ranks, note) in [
        (&["--gpus=0,1"][..], 2, Some("devices 0,1: 2 ranks run on its processors")),
        (&["--gpus", "1, 3"], 2, Some("devices 1,3: 2 ranks run on its processors")),
        (&["--ips=127.0.0.1", "--gpus", "0,1"], 2, Some("devices 0,1: 2 ranks run")),
        (&[], 1, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (all, printed) = run_with(dir.path(), args, &[]);
        assert_eq!(all.len(), ranks, "{printed}");
        for variables in all.values() {
            assert_eq!(variables["PADDLE_TRAINERS_NUM"], ranks.to_string());
            assert_eq!(variables["PADDLE_DISTRI_BACKEND"], "gloo");
            assert!(!variables.keys().any(|name| name.starts_with("FLAGS_selected")), "{printed}");
        }
        let notes: Vec<&str> = printed.lines().filter(|l| l.starts_with("note: ")).collect();
        assert_eq!(notes.len(), usize::from(note.is_some()), "{printed}");
        assert!(note.is_none_or(|note| notes[0].contains(note)), "{printed}");
    }
}

/// As PyTorch does it: the first one listens, the others come.
#[test]
fn workers_of_another_framework_meet_at_the_master() {
    let dir = tempfile::tempdir().unwrap();
    let meet = "\
import os, socket, sys, time
if 'RANK' not in os.environ:
    sys.exit(os.environ['TRAINING_ROLE'] != 'PSERVER')
at = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
if os.environ['RANK'] == '0':
    server = socket.create_server(at)
    for _ in range(int(os.environ['WORLD_SIZE']) - 1):
        server.accept()
else:
    until = time.monotonic() + 30
    while socket.socket().connect_ex(at) != 0:
        assert time.monotonic() < until
print('met', os.environ['RANK'])
";
    script(dir.path(), "meet.py", meet);
    for (flags, who) in [
        (&["--nproc_per_node=2"][..], "rank"),
        (&["--worker_num=2", "--server_num=1"][..], "worker"),
    ] {
        let output = launch(dir.path(), flags).arg("meet.py").output().unwrap();
        let all = text(&output);
        assert!(output.status.success(), "{all}");
        assert!((0..2).all(|i| all.contains(&format!("[{who} {i}] met {i}"))), "{all}");
    }
}

/// The first of N free ports in a row.
fn free_block(n: usize) -> u16 {
    loop {
        let first = regatta_launch::ports::free("127.0.0.1", 1).unwrap()[0];
        let wanted: Vec<(String, String)> = (0..n as u16)
            .map(|i| (String::new(), format!("127.0.0.1:{}", first.saturating_add(i))))
            .collect();
        if regatta_launch::ports::hold(&wanted).is_ok() {
            return first;
        }
    }
}
