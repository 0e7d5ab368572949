//! `regatta launch` with real processes: who is started, with what environment, how they end.

mod contract;
mod guarded;
mod one_machine;
mod several_machines;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `regatta train` for a small model on synthetic examples.
fn train(dir: &Path, examples: u64) -> Vec<String> {
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/rank/logistic_regression/config.yaml");
    let data = format!(
        "runner.train_data_dir=synthetic://ctr?slots=26&vocab=500&dense=13&seed=1&\
         examples={examples}"
    );
    let save = format!("runner.model_save_path={}", dir.join("model").display());
    let config = config.to_string_lossy().into_owned();
    let mut args: Vec<String> = vec!["train".into(), "-m".into(), config, "-o".into(), data, save];
    args.extend(
        ["runner.epochs=1", "runner.split_file_list=True", "runner.train_batch_size=100"]
            .map(String::from),
    );
    args.extend(["runner.print_interval=5", "runner.sync_mode=sync"].map(String::from));
    args
}

fn regatta() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_regatta")))
}

/// The tests themselves may run under something that sets these.
fn clean(mut command: Command) -> Command {
    for name in regatta_cluster::names::PLACE {
        command.env_remove(name);
    }
    command.env_remove("CUDA_VISIBLE_DEVICES");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `regatta launch` in a folder of its own.
fn launch(dir: &Path, args: &[&str]) -> Command {
    let mut command = regatta();
    command.current_dir(dir).arg("launch").args(args);
    command
}

fn script(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

/// A file with a token that nobody else can read.
fn token_file(dir: &Path, token: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = script(dir, "token", token);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// A process whose lines are read as they come.
struct Running {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    fn new(command: &mut Command) -> Running {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::sync_channel(100_000);
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        Running { child, lines, seen: Vec::new() }
    }

    /// Waits for a line with this in it.
    fn wait_for(&mut self, part: &str) -> String {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(_) => panic!("no '{part}' in\n{}", self.seen.join("\n")),
            }
        }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Exit code (128 and more for signals) and everything that was printed.
    fn end(mut self) -> (i32, String) {
        use std::os::unix::process::ExitStatusExt;
        let limit = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > limit {
                let _ = self.child.kill();
                self.seen.extend(self.lines.try_iter());
                panic!("it does not end:\n{}", self.seen.join("\n"));
            }
            std::thread::yield_now();
        };
        self.seen.extend(self.lines.iter());
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        (code, self.seen.join("\n"))
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z")
}

/// Waits until none of these processes is there any more.
fn assert_gone(pids: &[u32]) {
    let limit = Instant::now() + Duration::from_secs(10);
    while let Some(pid) = pids.iter().find(|pid| is_alive(**pid)) {
        assert!(Instant::now() < limit, "process {pid} is still there");
        std::thread::yield_now();
    }
}

/// The numbers that processes have left in files of a folder.
fn pids(dir: &Path) -> Vec<u32> {
    let files = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let is_pid = |path: &PathBuf| path.extension().is_some_and(|e| e == "pid");
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap().trim().parse().ok();
    files.filter(is_pid).filter_map(read).collect()
}

/// Addresses on free ports.
fn addresses(host: &str, n: usize) -> Vec<String> {
    let ports = regatta_launch::ports::free(host, n).unwrap();
    ports.into_iter().map(|port| format!("{host}:{port}")).collect()
}
