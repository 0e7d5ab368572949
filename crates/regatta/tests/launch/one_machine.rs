//! All processes on one machine.

use std::net::TcpListener;
use std::process::Command;

use regatta_cluster::{JobIdentity, Place, PsPlace, PsRole};

use super::{
    Running, addresses, assert_gone, clean, is_alive, launch, pids, regatta, script, text, train,
};

#[test]
fn two_servers_and_two_workers_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = clean(Command::new(env!("CARGO_BIN_EXE_fleetrun")));
    command.current_dir(dir.path()).args(["--worker_num=2", "--server_num", "2", "--timing"]);
    let output = command.arg("regatta").args(train(dir.path(), 4000)).output().unwrap();
    let all = text(&output);
    assert!(output.status.success(), "{all}");
    assert!(all.contains("[worker 0] epoch: 0 done"), "{all}");
    let log = |name: &str| std::fs::read_to_string(dir.path().join("log").join(name)).unwrap();
    for i in 0..2 {
        assert!(log(&format!("serverlog.{i}")).contains("Server listening on 127.0.0.1:"), "{all}");
        log(&format!("workerlog.{i}"));
    }
    let timing = all.lines().find(|line| line.starts_with("timing: ")).unwrap();
    assert!(timing.contains("servers listening after "), "{timing}");
    assert!(timing.contains("first training step of all workers after "), "{timing}");
    assert!(dir.path().join("model/0/server-1-of-2.safetensors").exists());
}

#[test]
fn workers_of_servers_have_their_devices() {
    let run = |flags: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let mut command = clean(Command::new(env!("CARGO_BIN_EXE_fleetrun")));
        command.current_dir(dir.path()).args(flags).args(["sh", "-c"]);
        let output = command.arg("echo devices: $FLAGS_selected_gpus.").output().unwrap();
        (output.status.code(), text(&output))
    };
    let (code, all) = run(&["--server_num=1", "--worker_num=1", "--gpus=0,1"]);
    assert!(code == Some(0) && all.contains("[worker 0] devices: 0,1."), "{all}");
    let (code, all) = run(&["--server_num=1", "--worker_num=2", "--gpus=2,3"]);
    assert!(code == Some(0) && all.contains("[worker 1] devices: 3."), "{all}");
    let (code, all) = run(&["--server_num=1", "--worker_num=2", "--gpus=0"]);
    assert!(
        code == Some(2) && all.contains("1 device cannot be shared evenly by 2 workers"),
        "{all}"
    );
}

/// A job of one server and two workers, started by hand.
fn place(role: PsRole, servers: &[String], seconds: f64) -> Place {
    let start_timeout = std::time::Duration::from_secs_f64(seconds);
    let job = JobIdentity { start_timeout, ..JobIdentity::default() };
    let (servers, workers) = (servers.to_vec(), 2);
    Place::ParameterServer(PsPlace { role, servers, workers, worker_endpoints: vec![], job })
}

#[test]
fn every_start_order_trains() {
    use PsRole::{Server, Worker};
    let (s, a, b) = (Server(0), Worker(0), Worker(1));
    let orders = [[s, a, b], [s, b, a], [a, s, b], [b, s, a], [a, b, s], [b, a, s]];
    let threads = orders.map(|order| std::thread::spawn(move || run_in_order(order)));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn run_in_order(order: [PsRole; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let servers = addresses("127.0.0.1", 1);
    let mut has_server = false;
    let mut started = Vec::new();
    for role in order {
        let mut command = regatta();
        command.args(train(dir.path(), 1000)).envs(place(role, &servers, 30.0).to_env());
        let mut process = Running::new(&mut command);
        if role == PsRole::Server(0) {
            has_server = true;
            process.wait_for(&format!("Server listening on {}", servers[0]));
        } else if !has_server {
            process.wait_for(&format!("waiting for server 0 at {} (3 s)", servers[0]));
        }
        started.push(process);
    }
    for process in started {
        let (code, all) = process.end();
        assert_eq!(code, 0, "{order:?}\n{all}");
    }
}

#[test]
fn a_worker_that_never_comes_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let servers = addresses("127.0.0.1", 1);
    let start = |role| {
        let mut command = regatta();
        command.args(train(dir.path(), 1000)).envs(place(role, &servers, 1.0).to_env());
        Running::new(&mut command)
    };
    let (server, worker) = (start(PsRole::Server(0)), start(PsRole::Worker(0)));
    for process in [server, worker] {
        let (code, all) = process.end();
        assert_eq!(code, 1, "{all}");
        assert!(all.contains("worker 1 did not come within 1 s"), "{all}");
    }
}

#[test]
fn a_server_that_never_comes_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let servers = addresses("127.0.0.1", 1);
    let mut command = regatta();
    command.args(train(dir.path(), 1000)).envs(place(PsRole::Worker(0), &servers, 1.0).to_env());
    let (code, all) = Running::new(&mut command).end();
    assert_eq!(code, 1, "{all}");
    assert!(all.contains(&format!("server 0 at {} could not be reached", servers[0])), "{all}");
}

/// Leaves the number of the process, and fails as `who` or stays.
fn crash(who: &str, code: &str) -> String {
    format!(
        "echo $$ > $TRAINING_ROLE.$PADDLE_TRAINER_ID.pid\n\
         if [ $TRAINING_ROLE$PADDLE_TRAINER_ID = {who} ]; then\n\
         while [ $(ls *.pid | wc -l) -lt 3 ]; do :; done\n\
         echo before; echo something is wrong >&2; {code}\n\
         fi\n\
         exec sleep 1000"
    )
}

#[test]
fn the_first_failing_process_decides_and_all_stop() {
    for (who, code, expected, message) in [
        ("TRAINER1", "exit 7", 7, "worker 1 failed with exit code 7"),
        ("PSERVER", "exit 9", 9, "failed with exit code 9"),
        ("TRAINER0", "kill -9 $$", 137, "worker 0 is lost: ended by signal 9 (SIGKILL)"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "run.sh", &crash(who, code));
        let output =
            launch(dir.path(), &["--worker_num=2", "--server_num=1", "run.sh"]).output().unwrap();
        let all = text(&output);
        assert_eq!(output.status.code(), Some(expected), "{all}");
        assert!(all.contains(message), "{all}");
        if who == "PSERVER" {
            assert!(all.contains("error: server 0 at 127.0.0.1:"), "{all}");
        }
        let shown_again = all.rsplit("its last lines:").next().unwrap();
        assert!(shown_again.contains("] before"), "{all}");
        assert!(shown_again.contains("] something is wrong"), "{all}");
        assert_eq!(pids(dir.path()).len(), 3);
        assert_gone(&pids(dir.path()));
    }
}

/// Every process has a child in the background, one of which has left the group; one does not want
/// to end.
const STUBBORN: &str = "\
    i=$PADDLE_TRAINER_ID\n\
    sleep 1000 & echo $! > child.$i.pid\n\
    setsid sleep 1000 & echo $! > away.$i.pid\n\
    [ $i = 1 ] && trap '' TERM INT\n\
    echo $$ > own.$i.pid\n\
    echo ready $i\n\
    while :; do sleep 1; done";

fn stubborn(dir: &std::path::Path) -> Running {
    script(dir, "run.sh", STUBBORN);
    let mut job = Running::new(&mut launch(dir, &["--nproc_per_node=2", "run.sh"]));
    job.wait_for("ready");
    job.wait_for("ready");
    assert!(pids(dir).len() == 6 && pids(dir).into_iter().all(is_alive));
    job
}

#[test]
fn signals_leave_no_process() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let dir = tempfile::tempdir().unwrap();
        let job = stubborn(dir.path());
        job.signal(signal);
        let (ended, all) = job.end();
        assert_eq!(ended, code, "{all}");
        let left: Vec<u32> = pids(dir.path()).into_iter().filter(|pid| is_alive(*pid)).collect();
        assert!(left.is_empty(), "{left:?}\n{all}");
    }
}

#[test]
fn killing_the_launcher_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let job = stubborn(dir.path());
    job.signal("-KILL");
    assert_eq!(job.end().0, 137);
    assert_gone(&pids(dir.path()));
}

#[test]
fn an_occupied_port_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let servers = format!("--servers={}", taken.local_addr().unwrap());
    let output = launch(dir.path(), &[&servers, "--worker_num=1", "true"]).output().unwrap();
    let all = text(&output);
    assert_eq!(output.status.code(), Some(2), "{all}");
    let endpoint = taken.local_addr().unwrap();
    assert!(all.contains(&format!("server 0 cannot listen on {endpoint}")), "{all}");
    assert!(all.contains(&format!("process {}", std::process::id())), "{all}");
}

#[test]
fn a_failed_worker_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let text_of = "echo try; [ $PADDLE_TRAINER_ID = 0 ] || exit 0\n\
                   echo x >> tries; [ $(wc -l < tries) = 3 ] && exit 0; exit 4";
    script(dir.path(), "run.sh", text_of);
    let output =
        launch(dir.path(), &["--nproc_per_node=2", "--max_restart=2", "run.sh"]).output().unwrap();
    let all = text(&output);
    assert!(output.status.success(), "{all}");
    assert!(all.contains("rank 0 failed with exit code 4; starting it again (2 of 2)"), "{all}");
    let log = std::fs::read_to_string(dir.path().join("log/workerlog.0")).unwrap();
    assert_eq!(log.lines().filter(|line| *line == "try").count(), 3, "{log}");
    std::fs::remove_file(dir.path().join("tries")).unwrap();
    let output =
        launch(dir.path(), &["--nproc_per_node=2", "--max_restart=1", "run.sh"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
}

#[test]
fn servers_that_do_not_end_are_ended_after_the_workers() {
    let dir = tempfile::tempdir().unwrap();
    let text_of = "[ $TRAINING_ROLE = TRAINER ] && exit 0; echo $$ > server.pid; exec sleep 1000";
    script(dir.path(), "run.sh", text_of);
    let output =
        launch(dir.path(), &["--worker_num=1", "--server_num=1", "run.sh"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_gone(&pids(dir.path()));
}

#[test]
fn flags_that_are_gone_fail_with_what_to_use() {
    let dir = tempfile::tempdir().unwrap();
    let output = launch(dir.path(), &["--cluster_node_ips=10.0.0.1", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let all = text(&output);
    assert!(all.contains("no such argument: --cluster_node_ips; use --ips"), "{all}");
}

#[test]
fn a_misspelt_flag_is_no_program() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "run.sh", "echo started with $*");
    for flags in [&["--worker_nun", "2"][..], &["--server_num=1", "--worker_nun=2"]] {
        let output = launch(dir.path(), flags).arg("run.sh").output().unwrap();
        let all = text(&output);
        assert_eq!(output.status.code(), Some(2), "{all}");
        assert!(
            all.contains("no such argument: --worker_nun; did you mean --worker_num?"),
            "{all}"
        );
        assert!(!dir.path().join("log").exists(), "{all}");
    }
    // Those after the program are its own.
    let output = launch(dir.path(), &["run.sh", "--worker_nun", "--gpus=1"]).output().unwrap();
    let all = text(&output);
    assert!(output.status.success(), "{all}");
    assert!(all.contains("[rank 0] started with --worker_nun --gpus=1"), "{all}");
}

/// Stands for the package: says what it was asked to run.
#[test]
fn programs_of_paddle_are_given_to_the_package() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("lib/regatta");
    std::fs::create_dir_all(&package).unwrap();
    script(&package, "__init__.py", "");
    let said = "import os, sys; print(sys.argv[1:], os.environ['REGATTA_PADDLE'])";
    script(&package, "paddle.py", said);
    script(dir.path(), "train.py", "print('not on Regatta', __import__('sys').argv[1:])");
    let run = |args: &[&str]| {
        let mut command = launch(dir.path(), args);
        let output = command.env("PYTHONPATH", dir.path().join("lib")).output().unwrap();
        (output.status.code(), text(&output))
    };
    for (args, expected) in [
        (&["--paddle", "train.py", "-m", "x"][..], "['train.py', '-m', 'x'] 1"),
        (&["--gpus=0", "--paddle", "-m", "train", "x"], "['-m', 'train', 'x'] 1"),
        (&["-m", "train", "--paddle"], "not on Regatta ['--paddle']"),
        (&["train.py", "--paddle"], "not on Regatta ['--paddle']"),
    ] {
        let (code, all) = run(args);
        assert_eq!(code, Some(0), "{all}");
        assert!(all.contains(&format!("[rank 0] {expected}")), "{all}");
    }
    let (code, all) = run(&["--paddle", "sh", "train.py"]);
    assert_eq!(code, Some(2), "{all}");
    assert!(all.contains("--paddle runs programs of PaddlePaddle, but sh is no script"), "{all}");
}

/// The library of MPI is asked for by its feature; the wheel's tests look at the default build.
#[cfg(not(feature = "mpi"))]
#[test]
fn the_binaries_need_only_the_c_library() {
    for binary in [env!("CARGO_BIN_EXE_regatta"), env!("CARGO_BIN_EXE_fleetrun")] {
        let output = Command::new("ldd").arg(binary).output().unwrap();
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        let known = [
            "linux-vdso",
            "libc.so",
            "libm.so",
            "libgcc_s.so",
            "libpthread.so",
            "libdl.so",
            "librt.so",
            "ld-linux",
            "statically linked",
        ];
        for line in list.lines() {
            assert!(known.iter().any(|name| line.contains(name)), "{binary}: {line}");
        }
    }
}
