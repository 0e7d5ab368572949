//! The distributed examples as a user runs them: real processes that find each other by environment
//! variables, learn, and end by themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use regatta::prelude::*;

/// How long a job may take before it counts as stuck.
const LIMIT: Duration = Duration::from_secs(120);

/// Examples are built together with the tests.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built: type cargo build -p regatta --examples",
        path.display()
    );
    path
}

fn source(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(format!("{name}.rs"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with("//!")).map(str::to_string).collect()
}

/// Lines of `b` that are not in `a`, by the longest common subsequence.
fn added(a: &[String], b: &[String]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for line in a {
        let mut diagonal = 0;
        for (j, other) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if line == other { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    b.len() - row[b.len()]
}

#[test]
fn ten_lines_make_a_program_distributed() {
    for (local, distributed) in [
        ("fleet_mlp_local", "fleet_mlp_ps"),
        ("fleet_mlp_local", "fleet_mlp_collective"),
        ("fluid_fit_a_line_local", "fluid_fit_a_line_ps"),
    ] {
        let n = added(&source(local), &source(distributed));
        assert!(n <= 10, "{distributed} has {n} lines that {local} has not");
    }
}

struct Job {
    children: Vec<(String, Child)>,
}

impl Job {
    fn new() -> Job {
        Job { children: Vec::new() }
    }

    fn start(&mut self, who: &str, command: &mut Command) {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        self.children.push((who.to_string(), child));
    }

    /// Waits for everybody to end by itself.
    fn wait(mut self) -> BTreeMap<String, Output> {
        let until = Instant::now() + LIMIT;
        let mut running: BTreeMap<String, u32> =
            self.children.iter().map(|(who, child)| (who.clone(), child.id())).collect();
        // Output is read by threads, so that nobody stops at a full pipe.
        let (sender, ended) = sync_channel(running.len());
        for (who, child) in std::mem::take(&mut self.children) {
            let sender = sender.clone();
            std::thread::spawn(move || sender.send((who, child.wait_with_output().unwrap())));
        }
        let mut outputs = BTreeMap::new();
        while !running.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok((who, output)) = ended.recv_timeout(left) else {
                for id in running.values() {
                    let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
                }
                panic!("{:?} did not end within {LIMIT:?}", running.keys());
            };
            running.remove(&who);
            outputs.insert(who, output);
        }
        outputs
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn assert_success(who: &str, output: &Output) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{who}: {}\n{errors}", output.status);
}

fn free_ports(n: usize) -> Vec<u16> {
    regatta_launch::ports::free("127.0.0.1", n).unwrap()
}

/// A process of the PaddleCloud contract.
fn ps_process(name: &str, ports: &[u16], workers: usize) -> Command {
    let list: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut command = Command::new(example(name));
    command
        .env_clear()
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .env("PADDLE_PSERVERS_IP_PORT_LIST", list.join(","))
        .env("PADDLE_TRAINERS_NUM", workers.to_string());
    command
}

/// Costs in the lines of a worker.
fn costs(lines: &str) -> Vec<f32> {
    let number = |line: &str| line.rsplit_once('=').and_then(|(_, cost)| cost.trim().parse().ok());
    lines.lines().filter(|line| line.contains("cost")).filter_map(number).collect()
}

fn assert_learned(who: &str, costs: &[f32]) {
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
    assert_eq!(costs.len(), 1001, "{who}");
    let (first, last) = (mean(&costs[..100]), mean(&costs[901..]));
    assert!(last < first - 0.02, "{who}: {first} at first, {last} at the end");
}

#[test]
fn the_guides_classifier_learns_on_one_machine() {
    let output = Command::new(example("fleet_mlp_local")).env_clear().output().unwrap();
    assert_success("local", &output);
    assert!(text(&output).starts_with("step0 cost="));
    assert_learned("local", &costs(&text(&output)));
    // Without variables the distributed programs are the same.
    for name in ["fleet_mlp_ps", "fleet_mlp_collective"] {
        let alone = Command::new(example(name)).env_clear().output().unwrap();
        assert_success(name, &alone);
        assert_eq!(costs(&text(&alone)), costs(&text(&output)), "{name}");
    }
}

/// The program calls neither `init_worker` nor `stop_worker`, as the guide's does not.
#[test]
fn the_guides_classifier_learns_with_parameter_servers() {
    let ports = free_ports(2);
    let mut job = Job::new();
    for worker in 0..2 {
        let mut command = ps_process("fleet_mlp_ps", &ports, 2);
        command.env("TRAINING_ROLE", "TRAINER").env("PADDLE_TRAINER_ID", worker.to_string());
        job.start(&format!("worker {worker}"), &mut command);
    }
    for (server, port) in ports.iter().enumerate() {
        let mut command = ps_process("fleet_mlp_ps", &ports, 2);
        command
            .env("TRAINING_ROLE", "PSERVER")
            .env("POD_IP", "127.0.0.1")
            .env("PADDLE_PORT", port.to_string());
        job.start(&format!("server {server}"), &mut command);
    }
    let outputs = job.wait();
    for (who, output) in &outputs {
        assert_success(who, output);
    }
    for worker in 0..2 {
        let lines = text(&outputs[&format!("worker {worker}")]);
        assert!(lines.starts_with(&format!("worker_index: {worker}, step0 cost = ")), "{lines}");
        assert_learned(&format!("worker {worker}"), &costs(&lines));
    }
    let server = text(&outputs["server 1"]);
    let listening = format!("Server listening on 127.0.0.1:{}", ports[1]);
    assert!(server.contains(&listening) && server.ends_with("pserver ended\n"), "{server}");
}

/// Costs of the guide's classifier in one process, on the examples of both workers of a step.
fn costs_of_merged_batches(steps: u64) -> Vec<f32> {
    let mut b = builder(42);
    let x = b.data("x", DType::F32, &[-1, 32]).unwrap();
    let y = b.data("y", DType::I64, &[-1, 1]).unwrap();
    let hidden = b.fc(&x, 128, Act::Tanh).unwrap();
    let hidden = b.fc(&hidden, 128, Act::Tanh).unwrap();
    let prediction = b.fc(&hidden, 2, Act::Softmax).unwrap();
    let cost = b.cross_entropy(&prediction, &y, false).unwrap();
    let cost = b.mean(&cost).unwrap();
    let optimizer = Optimizer::new(Rule::Sgd(Sgd {}), 0.01);
    let programs =
        minimize(&b.finish(), cost.name(), &optimizer, &Backward::default()).unwrap().programs;
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    let mut executor = Executor::new(programs.main, Options::default()).unwrap();
    let step = |step: u64| {
        let part = |batch: u64| {
            let rng = regatta::tensor::Rng::new(7, batch);
            (0..128 * 32).map(move |i| rng.unit_f32(i))
        };
        let x: Vec<f32> = part(2 * step).chain(part(2 * step + 1)).collect();
        let class = |row: &[f32]| row[..16].iter().sum::<f32>() > row[16..].iter().sum::<f32>();
        let y = x.chunks(32).map(|row| i64::from(class(row))).collect();
        let x: Value = Tensor::from_f32(&[256, 32], x).unwrap().into();
        let y: Value = Tensor::from_i64(&[256, 1], y).unwrap().into();
        executor.run(&mut scope, &[("x", &x), ("y", &y)], &[cost.name()]).unwrap()[0].f32()[0]
    };
    (0..steps).map(step).collect()
}

/// Nobody calls `init_worker` or `stop_worker`. That workers have the same parameters shows in
/// their costs: the mean of both is that of one process on the examples of both.
#[test]
fn the_guides_classifier_learns_with_workers_that_add_up_gradients() {
    let ends: Vec<String> = free_ports(2).iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut job = Job::new();
    for (worker, end) in ends.iter().enumerate() {
        let mut command = Command::new(example("fleet_mlp_collective"));
        command
            .env_clear()
            .env("HOME", env!("CARGO_TARGET_TMPDIR"))
            .env("PADDLE_TRAINER_ID", worker.to_string())
            .env("PADDLE_TRAINERS_NUM", "2")
            .env("PADDLE_TRAINER_ENDPOINTS", ends.join(","))
            .env("PADDLE_CURRENT_ENDPOINT", end);
        job.start(&format!("worker {worker}"), &mut command);
    }
    let outputs = job.wait();
    let of = |worker: usize| {
        let who = format!("worker {worker}");
        assert_success(&who, &outputs[&who]);
        let lines = text(&outputs[&who]);
        assert!(lines.starts_with(&format!("worker_index: {worker}, step0 cost = ")), "{lines}");
        let costs = costs(&lines);
        assert_learned(&who, &costs);
        costs
    };
    let (first, second) = (of(0), of(1));
    assert_ne!(first, second, "they train on different examples");
    for (step, cost) in costs_of_merged_batches(200).into_iter().enumerate() {
        let mean = (first[step] + second[step]) / 2.0;
        assert!((mean - cost).abs() < 1e-4, "step {step}: {mean}, one process {cost}");
    }
}

/// Starts the book's program by the variables of the cluster guide.
fn book_job(dir: &Path, port: u16, arguments: &[&str]) -> BTreeMap<String, Output> {
    let mut job = Job::new();
    let process = |role: &str| {
        let mut command = Command::new(example("fluid_fit_a_line_ps"));
        command
            .env_clear()
            .env("HOME", env!("CARGO_TARGET_TMPDIR"))
            .env("PADDLE_PSERVER_PORT", port.to_string())
            .env("PADDLE_PSERVER_IPS", "127.0.0.1")
            .env("PADDLE_TRAINERS", "2")
            .env("PADDLE_CURRENT_IP", "127.0.0.1")
            .env("PADDLE_TRAINING_ROLE", role)
            .current_dir(dir)
            .args(arguments);
        command
    };
    for worker in 0..2 {
        let mut command = process("TRAINER");
        command.env("PADDLE_TRAINER_ID", worker.to_string());
        job.start(&format!("worker {worker}"), &mut command);
    }
    job.start("server", process("PSERVER").env("PADDLE_TRAINER_ID", "1"));
    job.wait()
}

#[test]
fn the_books_regression_reaches_its_goal() {
    let dir = tempfile::tempdir().unwrap();
    let local = Command::new(example("fluid_fit_a_line_local"))
        .env_clear()
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_success("local", &local);
    let outputs = book_job(dir.path(), free_ports(1)[0], &[]);
    for (who, output) in &outputs {
        assert_success(who, output);
    }
    assert!(text(&outputs["worker 0"]).contains("cost "));
    // Three passes are too few.
    let outputs = book_job(dir.path(), free_ports(1)[0], &["20", "1"]);
    assert_eq!(outputs["worker 0"].status.code(), Some(1));
    assert_success("server", &outputs["server"]);
}

/// Two trainers with batches of 20 are one with batches of 40.
#[test]
fn synchronous_trainers_equal_one_on_the_merged_batch() {
    let dir = tempfile::tempdir().unwrap();
    let local = Command::new(example("fluid_fit_a_line_local"))
        .env_clear()
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .current_dir(dir.path())
        .args(["40", "2"])
        .output()
        .unwrap();
    assert_eq!(local.status.code(), Some(1));
    let saved = dir.path().join("fit_a_line.model");
    let file = regatta::checkpoint::load_tensors(saved.join("persistables.safetensors")).unwrap();
    std::fs::remove_dir_all(&saved).unwrap();
    book_job(dir.path(), free_ports(1)[0], &["20", "2"]);
    for (name, len) in [("fc_0.w_0", 13), ("fc_0.b_0", 1)] {
        let own = file.tensors[name].f32();
        let parts = regatta_checkpoint::server_parts::ServerParts::open(&saved).unwrap();
        let servers = parts.dense(name, len).unwrap();
        for (a, b) in own.iter().zip(&servers) {
            assert!((a - b).abs() < 1e-4, "{name}: {a} {b}");
        }
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Server and worker give up, and say who is missing.
#[test]
fn nobody_waits_for_ever_for_a_worker_that_never_comes() {
    let ports = free_ports(1);
    let mut job = Job::new();
    let mut server = ps_process("fleet_mlp_ps", &ports, 2);
    server
        .env("REGATTA_START_TIMEOUT", "1")
        .env("TRAINING_ROLE", "PSERVER")
        .env("POD_IP", "127.0.0.1")
        .env("PADDLE_PORT", ports[0].to_string());
    job.start("server", &mut server);
    let mut worker = ps_process("fleet_mlp_ps", &ports, 2);
    worker.env("TRAINING_ROLE", "TRAINER").env("PADDLE_TRAINER_ID", "0");
    job.start("worker", &mut worker);
    for (who, output) in job.wait() {
        assert!(!output.status.success(), "{who}");
        let reason = errors(&output);
        assert!(reason.contains("worker 1 did not come within 1 s"), "{who}: {reason}");
    }
}

/// A trainer that is pointed at a place without a server says where it looked.
#[test]
fn a_missing_server_is_named_by_its_address() {
    let ports = free_ports(1);
    let mut worker = ps_process("fleet_mlp_ps", &ports, 1);
    worker
        .env("REGATTA_START_TIMEOUT", "1")
        .env("TRAINING_ROLE", "TRAINER")
        .env("PADDLE_TRAINER_ID", "0");
    let mut job = Job::new();
    job.start("worker", &mut worker);
    let output = &job.wait()["worker"];
    assert!(!output.status.success());
    let address = format!("server 0 at 127.0.0.1:{}", ports[0]);
    assert!(errors(output).contains(&address), "{}", errors(output));
}

/// A variable that is missing is named before anything starts.
#[test]
fn a_missing_variable_is_named() {
    let mut worker = ps_process("fleet_mlp_ps", &free_ports(1), 2);
    let output = worker.env("TRAINING_ROLE", "TRAINER").output().unwrap();
    assert!(!output.status.success());
    assert!(errors(&output).contains("PADDLE_TRAINER_ID"), "{}", errors(&output));
}
