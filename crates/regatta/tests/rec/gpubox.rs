//! `sync_mode: gpubox` as PaddleRec's document starts it: its own file, its environment, servers in
//! the process of the worker or beside it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::configs::{TO_MULTISLOT, epochs, paddle_config};
use crate::support::{Ran, Scratch};

const CONFIG: &str = "models/rank/dnn/config_gpubox.yaml";
/// What the reader of PaddleRec does, without a package that it needs.
const NO_PIPE: [&str; 2] = ["-o", "runner.pipe_command="];

/// PaddleRec's file beside its sample, and a reader where its root has it.
fn paddlerec() -> Scratch {
    let s = Scratch::with_model("rank/dnn");
    paddle_config(&s, "config_gpubox.yaml");
    s.write("models/rank/dnn/queuedataset_reader.py", "# run by bin/python\n");
    s.write("bin/python", &format!("#!/bin/sh\n[ -f \"$1\" ] || exit 9\n{TO_MULTISLOT}"));
    let status = Command::new("chmod").arg("+x").arg(s.path("bin/python")).status().unwrap();
    assert!(status.success());
    s
}

/// A program in the scratch directory, with the stand-in for Python and these variables.
fn run(s: &Scratch, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Ran {
    // A shell puts the stand-in before everything else that it finds.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "PATH=\"$PWD/bin:$PATH\" exec \"$0\" \"$@\"", program]);
    command.args(args).current_dir(s.path("."));
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, err) = (text(output.stdout), text(output.stderr));
    Ran { code: output.status.code().unwrap_or(-1), out, err }
}

fn regatta(s: &Scratch, args: &[&str]) -> Ran {
    run(s, env!("CARGO_BIN_EXE_regatta"), args, &[])
}

/// The mean losses of the epochs.
fn losses(out: &str) -> Vec<String> {
    let cost = |l: &&str| l.split("cost: ").nth(1).map(|c| c[..8].to_string());
    epochs(out).iter().filter_map(cost).collect()
}

fn rows(s: &Scratch, report: &str) -> (u64, usize) {
    let report: serde_json::Value = serde_json::from_str(&s.read(report)).unwrap();
    let tables = report["servers"][0]["tables"].as_object().unwrap().clone();
    (tables.values().map(|t| t["rows"].as_u64().unwrap()).sum(), tables.len())
}

#[test]
fn paddlerecs_file_trains_on_the_cpu() {
    let s = paddlerec();
    let args = ["train", "-m", CONFIG, "--report", "r.json", "-o", "runner.use_gpu=False"];
    let out = regatta(&s, &args).ok();
    assert_eq!(out.matches("note: sync_mode gpubox computes on the CPU").count(), 1, "{out}");
    assert_eq!(epochs(&out).len(), 3, "{out}");
    // Every id of the sample is a row of the one table, whatever sparse_feature_number says.
    assert_eq!(rows(&s, "r.json"), (1055, 1));
    let cpu = ["runner.use_gpu=False", "runner.model_save_path=in_order", "runner.device=cpu"];
    let args = [&["train", "-m", CONFIG], &NO_PIPE[..], &cpu].concat();
    assert_eq!(losses(&regatta(&s, &args).ok()), losses(&out));
    let infer = ["infer", "-m", CONFIG, "-o", "runner.use_gpu=False"];
    assert_eq!(epochs(&regatta(&s, &infer).ok()).len(), 3);
}

#[test]
fn servers_beside_the_worker_train_the_same() {
    let s = paddlerec();
    let alone = regatta(&s, &["train", "-m", CONFIG, "-o", "runner.use_gpu=False"]).ok();
    let both = ["train", "-m", CONFIG, "-o", "runner.use_gpu=False", "runner.use_fleet=True"];
    let job = [&both[..], &["--servers", "2", "--workers", "1"]].concat();
    let out = regatta(&s, &job).ok();
    assert!(out.contains("1 worker, 2 servers, mode gpubox"), "{out}");
    assert_eq!(losses(&out), losses(&alone));
    let launch = ["--server_num=1", "--worker_num=1", "--gpus=0,1", "regatta"];
    let fleetrun = [&launch[..], &both[..]].concat();
    let out = run(&s, env!("CARGO_BIN_EXE_fleetrun"), &fleetrun, &[]).ok();
    assert_eq!(losses(&out), losses(&alone), "{out}");
    let ranks = [&both[..], &["--ranks", "2"]].concat();
    let words = ["runner.sync_mode: gpubox trains with servers, not with ranks", "fleetrun"];
    regatta(&s, &ranks).fails(2, &words);
}

#[test]
fn the_script_runs_with_a_plain_shell() {
    let s = paddlerec();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/run_gpubox.sh");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let servers = format!("127.0.0.1:{port}");
    let command = format!("{} train -m {CONFIG}", env!("CARGO_BIN_EXE_regatta"));
    let variables = [
        ("SC", command.as_str()),
        ("PADDLE_PSERVERS_IP_PORT_LIST", servers.as_str()),
        ("PADDLE_PSERVER_NUMS", "1"),
        ("FLAGS_selected_gpus", "0,1"),
        ("FLAGS_LAUNCH_BARRIER", "0"),
        ("NCCL_LAUNCH_MODE", "GROUP"),
    ];
    let shell = if std::path::Path::new("/bin/dash").exists() { "/bin/dash" } else { "/bin/sh" };
    let out = run(&s, shell, &[script, "-o", "runner.use_gpu=False"], &variables).ok();
    assert!(out.contains("worker 0, devices 0,1, log ./log/worker.0.log"), "{out}");
    assert_eq!(epochs(&s.read("log/worker.0.log")).len(), 3);
    assert!(s.read("log/pserver.0.log").contains(&format!("Server listening on {servers}")));
    // The exit code is the worker's, and no server is left to hold the port.
    let wrong = run(&s, shell, &[script, "-o", "runner.epochs=x"], &variables);
    wrong.fails(2, &["the worker failed with exit code 2", "-o runner.epochs"]);
}

#[test]
fn what_the_mode_does_not_take() {
    let s = paddlerec();
    let queue = ["train", "-m", CONFIG, "-o", "runner.reader_type=QueueDataset"];
    regatta(&s, &queue).fails(2, &["sync_mode gpubox reads InmemoryDataset only"]);
    let device = ["train", "-m", CONFIG, "-o", "runner.device=gpu"];
    regatta(&s, &device).fails(2, &["-o runner.device: should be auto, cpu, opencl"]);
    let gpu = ["train", "-m", CONFIG];
    let words = ["runner.use_gpu: no device", "OpenCL", "CUDA", "-o runner.use_gpu=False"];
    regatta(&s, &gpu).fails(2, &words);
    assert!(!s.path("models/rank/dnn/output_model_dnn_queue/0").exists());
}

/// Rows of the sample on a software device; none where there is no such device.
fn on_device(s: &Scratch, more: &[&str]) -> Option<Ran> {
    let args = ["train", "-m", CONFIG, "--report", "d.json", "-o", "runner.device=opencl-cpu"];
    let ran = regatta(s, &[&args[..], more].concat());
    let is_missing = ran.code == 2 && ran.err.contains("no device for");
    is_missing.then(|| eprintln!("left out: {}", ran.err));
    (!is_missing).then_some(ran)
}

#[test]
fn a_named_device_trains_as_the_cpu_does() {
    let s = paddlerec();
    let Some(ran) = on_device(&s, &[]) else { return };
    let out = ran.ok();
    assert!(out.contains("note: sync_mode gpubox computes on opencl-cpu:0 ("), "{out}");
    assert_eq!(rows(&s, "d.json"), (1055, 1));
    let report: serde_json::Value = serde_json::from_str(&s.read("d.json")).unwrap();
    assert!(report["device"].as_str().unwrap().starts_with("opencl-cpu:0 ("), "{report}");
    let cpu = ["train", "-m", CONFIG, "-o", "runner.use_gpu=False"];
    for (a, b) in losses(&out).iter().zip(losses(&regatta(&s, &cpu).ok())) {
        let apart = (a.parse::<f64>().unwrap() - b.parse::<f64>().unwrap()).abs();
        assert!(apart < 1e-5, "{a} {b}");
    }
    // 27 floats of 4 bytes are a row, and a batch has more than 9 of them.
    let small = ["table_parameters.SparseFeatFactors.device_mb=0.001"];
    let words = ["distinct rows", "room for 9", "device_mb to at least 1"];
    on_device(&s, &small).unwrap().fails(2, &words);
    let unknown = ["table_parameters.emb.device_mb=1"];
    on_device(&s, &unknown).unwrap().fails(2, &["there is no table 'emb'", "SparseFeatFactors"]);
    let number = ["train", "-m", CONFIG, "-o", "runner.device=opencl-cpu:77"];
    regatta(&s, &number).fails(2, &["runner.device: no device for 'opencl-cpu:77'", "OpenCL has"]);
}

/// A job of two workers with a device each, whose batches come from a generator.
const TWO_WORKERS: [&str; 8] = [
    "runner.train_data_dir=synthetic://ctr?slots=26&vocab=500&dense=13&seed=1&examples=1500",
    "runner.train_batch_size=64",
    "runner.print_interval=1",
    "runner.epochs=3",
    "runner.model_save_path=two",
    "runner.use_auc=False",
    "table_parameters.SparseFeatFactors.device_mb=0.3",
    "runner.thread_num=1",
];

/// The command of such a job, on a device or on the CPU.
fn two_workers<'a>(device: [&'a str; 2], more: &[&'a str]) -> Vec<&'a str> {
    let job = ["train", "-m", CONFIG, "--servers", "2", "--workers", "2"];
    [&job[..], more, &["-o"], &device, &TWO_WORKERS].concat()
}

const ON_DEVICE: [&str; 2] = ["runner.use_gpu=True", "runner.device=opencl-cpu"];
const ON_CPU: [&str; 2] = ["runner.use_gpu=False", "runner.device=cpu"];

#[test]
fn two_workers_with_devices_train_as_on_the_cpu() {
    let s = Scratch::with_model("rank/dnn");
    if on_device(&s, &["runner.epochs=1"]).is_none() {
        return;
    }
    let cpu = losses(&regatta(&s, &two_workers(ON_CPU, &[])).ok());
    let out = regatta(&s, &two_workers(ON_DEVICE, &["--report", "r.json"])).ok();
    for worker in ["[worker 0]", "[worker 1]"] {
        let note = format!("{worker} note: sync_mode gpubox computes on opencl-cpu:0 (");
        assert!(out.contains(&note), "{out}");
    }
    assert_eq!(cpu.len(), 3);
    let is_close = |losses: &[String]| {
        let number = |text: &String| text.parse::<f64>().unwrap();
        let pairs = losses.iter().zip(&cpu).map(|(a, b)| (number(a) - number(b)).abs());
        losses.len() == cpu.len() && pairs.fold(0.0, f64::max) < 1e-5
    };
    assert!(is_close(&losses(&out)), "{cpu:?} {:?}", losses(&out));
    // The model that servers save is the same for another machine without devices.
    let infer = ["infer", "-m", CONFIG, "-o", "runner.use_gpu=False", "runner.infer_load_path=two"];
    assert_eq!(epochs(&regatta(&s, &infer).ok()).len(), 1);

    // The launcher gives each worker its part of the devices.
    let job = two_workers(ON_DEVICE, &[]);
    let place = job.iter().position(|arg| *arg == "--servers").unwrap();
    let job = [&job[..place], &job[place + 4..]].concat();
    let fleetrun = ["--server_num=2", "--worker_num=2", "--gpus=0,1", "regatta"];
    let devices = [("POCL_DEVICES", "pthread pthread")];
    let fleetrun = [&fleetrun[..], &job].concat();
    let out = run(&s, env!("CARGO_BIN_EXE_fleetrun"), &fleetrun, &devices).ok();
    assert!(is_close(&losses(&out)), "{cpu:?} {out}");
    assert!(s.read("log/workerlog.1").contains("gpubox computes on opencl-cpu:1 ("));

    let arena = ["table_parameters.SparseFeatFactors.device_mb=0.01"];
    let small = [&two_workers(ON_DEVICE, &[])[..], &arena];
    let words = ["worker 0: table 'SparseFeatFactors'", "distinct rows", "device_mb to at least 1"];
    regatta(&s, &small.concat()).fails(2, &words);
    let loss = two_workers(ON_DEVICE, &["--allow-worker-loss"]);
    regatta(&s, &loss).fails(2, &["--allow-worker-loss cannot be honoured: rows", "checkpoint"]);
    let seconds = ["runner.checkpoint.dir=ck", "runner.checkpoint.seconds=5"];
    let seconds = [&two_workers(ON_DEVICE, &[])[..], &seconds].concat();
    regatta(&s, &seconds).fails(2, &["use step_interval"]);
}

/// The process of worker 1 of a job.
fn second_worker(job: u32) -> u32 {
    let list = std::fs::read_to_string(format!("/proc/{job}/task/{job}/children")).unwrap();
    let is_second = |pid: &u32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |pair: &str| variables.split(|b| *b == 0).any(|v| v == pair.as_bytes());
        has("TRAINING_ROLE=TRAINER") && has("PADDLE_TRAINER_ID=1")
    };
    list.split_whitespace().map(|pid| pid.parse().unwrap()).find(is_second).unwrap()
}

#[test]
fn a_killed_worker_with_a_device_ends_the_job_which_resumes() {
    let s = Scratch::with_model("rank/dnn");
    if on_device(&s, &["runner.epochs=1"]).is_none() {
        return;
    }
    kill_and_resume(&s, "table_parameters.entry=none", ["ck0", "runner.model_save_path=again0"]);
    let entry = "table_parameters.entry=count_filter_entry:3";
    kill_and_resume(&s, entry, ["ck1", "runner.model_save_path=again1"]);
}

fn kill_and_resume(s: &Scratch, entry: &str, [checkpoints, model]: [&str; 2]) {
    let whole = losses(&regatta(s, &[&two_workers(ON_DEVICE, &[])[..], &[entry]].concat()).ok());
    let keep = ["--checkpoint-dir", checkpoints, "--checkpoint-steps", "7"];
    let mut args = two_workers(ON_DEVICE, &keep);
    args.extend([model, entry]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.args(&args).current_dir(s.path(".")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok).filter(|line| line.contains("checkpoint"));
    assert!(lines.nth(1).is_some(), "no checkpoints were made");
    let killed = Command::new("kill").args(["-9", &second_worker(child.id()).to_string()]).status();
    assert!(killed.unwrap().success());
    lines.for_each(drop);
    let ended = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && text.contains("worker 1"), "{text}");
    let out = regatta(s, &args).ok();
    assert!(out.contains("resum"), "{out}");
    let left = losses(&out);
    assert!(!left.is_empty() && whole.ends_with(&left), "{whole:?} {left:?}");
}

#[test]
fn a_killed_run_on_a_device_resumes_to_the_same_model() {
    let s = paddlerec();
    let more = ["runner.train_batch_size=4", "runner.epochs=8", "runner.print_interval=1"];
    let Some(whole) = on_device(&s, &more) else { return };
    let whole = losses(&whole.ok());
    let train = ["train", "-m", CONFIG, "--checkpoint-dir", "ck", "--checkpoint-steps", "5"];
    let with = ["-o", "runner.device=opencl-cpu", "runner.model_save_path=again"];
    let arena = ["table_parameters.SparseFeatFactors.device_mb=0.05"];
    let args = [&train[..], &with, &more, &arena].concat();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "PATH=\"$PWD/bin:$PATH\" exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_regatta")).args(&args).current_dir(s.path("."));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut made = lines.map_while(Result::ok).filter(|line| line.contains("checkpoint"));
    assert!(made.nth(2).is_some(), "no checkpoints were made");
    child.kill().unwrap();
    child.wait().unwrap();
    let out = regatta(&s, &args).ok();
    assert!(out.contains("resum"), "{out}");
    // What is left of the run gives the numbers of the undisturbed one.
    let left = losses(&out);
    assert!(!left.is_empty() && whole.ends_with(&left), "{whole:?} {left:?}");
}
