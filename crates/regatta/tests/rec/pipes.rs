//! Pipe commands that hang: they are named, limited, and never outlive the job.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{SMALL_HYPER, Scratch};

fn on_pipe(s: &Scratch, runner: &str) {
    let base = "  train_data_dir: data\n  train_batch_size: 2\n  \
                data_format: multislot\n  reader_type: QueueDataset\n";
    s.write("c.yaml", &format!("model: dnn\nrunner:\n{base}{runner}\n{SMALL_HYPER}"));
    for name in ["data/a.txt", "data/b.txt"] {
        s.write(name, &"1 1 1 7 1 8 1 9 1 10 3 0.5 0.25 0.75\n".repeat(4));
    }
}

/// Processes with this text in their command line.
fn running(marker: &str) -> Vec<String> {
    let lines = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(marker)).collect()
}

/// Waits until it is so; a machine may be slow, but not that slow.
#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn start(s: &Scratch, flags: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.args(["train", "-m", "c.yaml"]).args(flags).current_dir(s.path("."));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Whether SIGINT is ignored here, as it is in what a script has started in the background.
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << 1) != 0
}

#[test]
fn no_pipe_command_outlives_the_job() {
    let servers = ["--servers", "1", "--workers", "2"];
    let cases: [(&str, &[&str]); 5] =
        [("-KILL", &[]), ("-TERM", &[]), ("-INT", &[]), ("-KILL", &servers), ("-TERM", &servers)];
    for (case, (signal, flags)) in cases.into_iter().enumerate() {
        if signal == "-INT" && ignores_interrupts() {
            eprintln!("left out: this test was started with Ctrl-C ignored, and so are its jobs");
            continue;
        }
        let s = Scratch::new();
        // A pipeline with something in the background that is deaf to polite signals.
        let marker = format!("60{case}.{}", std::process::id());
        let command = format!("trap '' TERM INT HUP; sleep {marker} & sleep {marker} | cat");
        on_pipe(&s, &format!("  reader_threads: 2\n  pipe_command: \"{command}\""));
        let mut job = start(&s, flags);
        let sleeping = |n: usize| running(&format!("sleep {marker}")).len() >= n;
        // Of each of two files: the shell that runs it and two sleeps.
        wait_until("the commands start", || sleeping(6) || job.try_wait().unwrap().is_some());
        assert_eq!(job.try_wait().unwrap(), None, "it ended by itself: {signal} {flags:?}");
        let sent = Command::new("kill").args([signal, &job.id().to_string()]).status().unwrap();
        assert!(sent.success());
        job.wait().unwrap();
        wait_until(&format!("{signal} {flags:?} leaves processes"), || running(&marker).is_empty());
    }
}

#[test]
fn a_silent_pipe_command_is_named_and_ends_with_an_error() {
    let s = Scratch::new();
    on_pipe(&s, "  pipe_command: \"sleep 600\"\n  pipe_timeout: 6");
    let ran = s.run(&["train", "-m", "c.yaml"]);
    let named = "waiting for pipe command `cd '";
    let limit = "sleep 600` wrote nothing for 6 s, the limit (pipe_timeout)";
    ran.fails(1, &[named, "sleep 600` on ", "data/a.txt to write something (5 s)", limit]);
    on_pipe(&s, "  pipe_command: \"cat\"");
    let printed = s.run(&["train", "-m", "c.yaml", "--print-config"]).ok();
    assert!(printed.contains("pipe_timeout: 600\n"), "{printed}");
    on_pipe(&s, "");
    let printed = s.run(&["train", "-m", "c.yaml", "--print-config"]).ok();
    assert!(!printed.contains("pipe_timeout"), "{printed}");
}
