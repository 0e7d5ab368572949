//! What other users, and whoever kills processes, cannot do to a job.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use regatta_cluster::{Env, Place};
use serde_json::json;

use super::{Running, assert_gone, clean, is_alive, launch, pids, regatta, script, text, train};

const NOBODY: u32 = 65534;

/// Whether a test can act as another user; says so if not.
fn has_nobody() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let is_root = status.lines().any(|line| line.starts_with("Uid:\t0\t0"));
    if !is_root {
        eprintln!("skipped: acting as another user needs root");
    }
    is_root
}

fn as_nobody(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null());
    command
}

/// Waits for something that the system shows.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "no {what}");
        std::thread::yield_now();
    }
}

/// The guardian of a launcher, when it is ready for signals.
fn guardian(launcher: u32) -> u32 {
    let is_guardian = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // HUP, INT, QUIT and TERM.
        let is_ready = caught.unwrap_or(0) & 0x4007 == 0x4007;
        command.split(|byte| *byte == 0).nth(1) == Some(b"guardian") && is_ready
    };
    wait_for("guardian", || {
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
        let children = children.unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_guardian)
    })
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Waits until a folder is empty.
fn assert_emptied(folder: &Path) {
    let is_empty = || fs::read_dir(folder).unwrap().next().is_none();
    wait_for("empty folder", || is_empty().then_some(()));
}

#[test]
fn a_guardian_that_is_killed_is_replaced_and_the_job_ends_well() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "run.sh", "echo ready; while [ ! -e done ]; do sleep 0.1; done");
    let mut job = Running::new(&mut launch(dir.path(), &["--nproc_per_node=2", "run.sh"]));
    job.wait_for("ready");
    job.wait_for("ready");
    let mut before = 0;
    for _ in 0..3 {
        let now = guardian(job.child.id());
        assert_ne!(now, before);
        kill("-KILL", now);
        let line = job.wait_for("the guardian has ended");
        assert!(line.contains("signal: 9 (SIGKILL)); another one takes its place"), "{line}");
        before = now;
    }
    fs::write(dir.path().join("done"), "").unwrap();
    let (code, all) = job.end();
    assert_eq!(code, 0, "{all}");
}

#[test]
fn the_guardian_outlives_signals_for_the_job_and_its_successor_does_its_work() {
    let dir = tempfile::tempdir().unwrap();
    let text = "sleep 1000 & echo $! > child.pid; setsid sleep 1000 & echo $! > away.pid\n\
                echo $$ > own.pid; echo ready; while :; do sleep 1; done";
    script(dir.path(), "run.sh", text);
    let mut job = Running::new(&mut launch(dir.path(), &["--nproc_per_node=1", "run.sh"]));
    job.wait_for("ready");
    kill("-KILL", guardian(job.child.id()));
    job.wait_for("another one takes its place");
    let successor = guardian(job.child.id());
    for signal in ["-INT", "-TERM", "-HUP", "-QUIT"] {
        kill(signal, successor);
    }
    assert!(is_alive(successor));
    job.signal("-KILL");
    assert_eq!(job.end().0, 137);
    assert_eq!(pids(dir.path()).len(), 3);
    assert_gone(&pids(dir.path()));
    assert_gone(&[successor]);
}

/// Images without a shell can launch jobs, too.
#[test]
fn no_shell_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let hide = format!(
        "mount --bind /dev/null {} && exec {} launch --nproc_per_node=2 /bin/true",
        shell.display(),
        env!("CARGO_BIN_EXE_regatta")
    );
    let mut command = clean(Command::new("unshare"));
    command.current_dir(dir.path()).args(["-r", "-m", "--propagation", "private"]);
    let output = command.args(["/bin/sh", "-c", &hide]).output();
    let output = match output {
        Ok(output) if !text(&output).contains("unshare:") => output,
        _ => return eprintln!("skipped: a mount namespace of its own is not allowed"),
    };
    assert!(output.status.success(), "{}", text(&output));
}

/// Sends a status message; the first argument is the socket, the second the text.
const SEND: &str = "import socket, sys\n\
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
    s.sendto(sys.argv[2].encode(), '\\0' + sys.argv[1])";

fn lost(secret: &str, worker: u32) -> String {
    let lost = json!({ "worker": worker, "reason": "silent for 15 s" });
    let status = json!({ "lost-worker": lost });
    json!({ "secret": secret, "from": "server 0", "status": status }).to_string()
}

#[test]
fn status_messages_of_other_users_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let text = "echo $REGATTA_STATUS > status; echo $$ > $TRAINING_ROLE$PADDLE_TRAINER_ID.pid\n\
                echo ready; exec sleep 1000";
    script(dir.path(), "run.sh", text);
    let mut command = launch(dir.path(), &["--worker_num=2", "--server_num=1", "run.sh"]);
    let mut job = Running::new(&mut command);
    for _ in 0..3 {
        job.wait_for("ready");
    }
    let status = fs::read_to_string(dir.path().join("status")).unwrap();
    let (socket, secret) = status.trim().split_once(' ').unwrap();
    // Everybody sees the name of the socket.
    assert!(fs::read_to_string("/proc/net/unix").unwrap().contains(socket));
    let guess = ["-c", SEND, socket, &lost("", 0)];
    let mut stranger = if has_nobody() {
        let environ = format!("/proc/{}/environ", pids(dir.path())[0]);
        assert!(!as_nobody("cat", &[&environ]).output().unwrap().status.success());
        as_nobody("python3", &guess)
    } else {
        let mut command = Command::new("python3");
        command.args(guess);
        command
    };
    assert!(stranger.status().unwrap().success());
    job.wait_for("a status message that is not from this job was ignored");
    assert!(Command::new("python3").args(["-c", SEND, socket, &lost(secret, 1)]).status().is_ok());
    let line = job.wait_for("has lost it");
    let expected = "worker 1 is lost: server 0 has lost it: silent for 15 s; stopping all";
    assert!(line.starts_with(expected), "{line}");
    let (code, all) = job.end();
    assert_eq!(code, 137, "{all}");
    assert_gone(&pids(dir.path()));
}

/// Worker 0 stalls the first time. Both servers notice it, the second one when the worker is there
/// again; that is the same loss.
#[test]
fn a_worker_that_servers_have_lost_is_started_again_once() {
    let dir = tempfile::tempdir().unwrap();
    let program = format!(
        "import os, signal, sys, time\n\
         def until(name):\n    while not os.path.exists(name): time.sleep(0.01)\n\
         def make(name): open(name, 'w').close()\n\
         role = os.environ['TRAINING_ROLE'] + os.environ.get('PADDLE_TRAINER_ID', '')\n\
         if role == 'TRAINER0' and not os.path.exists('stalled'):\n\
         \x20   make('stalled'); os.kill(os.getpid(), signal.SIGSTOP)\n\
         elif role == 'TRAINER0':\n    make('again'); until('reported')\n\
         elif role == 'TRAINER1':\n    until('reported')\n\
         else:\n\
         \x20   servers = os.environ['PADDLE_PSERVERS_IP_PORT_LIST'].split(',')\n\
         \x20   first = servers[0].endswith(':' + os.environ['PADDLE_PORT'])\n\
         \x20   until('stalled' if first else 'again')\n\
         \x20   name, secret = os.environ['REGATTA_STATUS'].split()\n\
         \x20   text = '''{}'''.replace('SECRET', secret)\n\
         \x20   text = text if first else text.replace('server 0', 'server 1')\n\
         \x20   sys.argv = ['', name, text]\n\
         \x20   exec({SEND:?})\n\
         \x20   if not first: make('reported')\n",
        lost("SECRET", 0)
    );
    script(dir.path(), "run.py", &program);
    let flags = ["--worker_num=2", "--server_num=2", "--max_restart=1", "run.py"];
    let (code, all) = Running::new(&mut launch(dir.path(), &flags)).end();
    assert_eq!(code, 0, "{all}");
    let expected =
        "worker 0 is lost: server 0 has lost it: silent for 15 s; starting it again (1 of 1)";
    assert!(all.contains(expected), "{all}");
    for name in ["stalled", "again", "reported"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let flags = ["--worker_num=2", "--server_num=2", "run.py"];
    let (code, all) = Running::new(&mut launch(dir.path(), &flags)).end();
    assert_eq!(code, 137, "{all}");
    assert!(all.contains("silent for 15 s; stopping all processes"), "{all}");
}

/// The process of a launcher in this place.
fn process(launcher: u32, place: &str) -> u32 {
    let is_meant = |pid: &u32| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let pairs = variables.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let env: Env = pairs
            .filter_map(|p| p.split_once('=').map(|(k, v)| (k.to_string(), v.to_string())))
            .collect();
        Place::from_env(&env).is_ok_and(|found| found.to_string() == place)
    };
    wait_for(place, || {
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
        let children = children.unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_meant)
    })
}

/// In async mode the others can finish without a worker that is lost, but not begin without one:
/// they would wait for it until --timeout.
#[test]
fn a_worker_that_is_lost_before_it_has_joined_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let mut command = train_in(dir.path(), 100_000_000);
        command.args(["-o", "runner.sync_mode=async"]);
        let job = Running::new(&mut command);
        // Nobody joins a server that is stopped.
        kill("-STOP", process(job.child.id(), "server 0"));
        kill("-KILL", process(job.child.id(), "worker 1"));
        let (code, all) = job.end();
        assert_eq!(code, 137, "{all}");
        if all.contains("[worker 1] connected") {
            // The server was faster.
            continue;
        }
        let expected = "worker 1 is lost: ended by signal 9 (SIGKILL); stopping all processes";
        return assert!(all.contains(expected), "{all}");
    }
    panic!("the server is never stopped in time");
}

/// A small job with servers that keeps temporary files in a folder of the test.
fn train_in(dir: &Path, examples: u64) -> Command {
    let mut command = regatta();
    command.current_dir(dir).args(train(dir, examples)).args(["--servers=1", "--workers=2"]);
    command.arg("--report").arg(dir.join("report.json"));
    let tmp = dir.join("tmp");
    fs::create_dir_all(&tmp).unwrap();
    command.env("TMPDIR", tmp);
    command
}

#[test]
fn killing_the_launcher_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let tmp = dir.path().join("tmp");
    let endless = || {
        let mut job = Running::new(&mut train_in(dir.path(), 100_000_000));
        job.wait_for("epoch: 0, batch_id: ");
        assert_eq!(fs::read_dir(&tmp).unwrap().count(), 1);
        job
    };
    let job = endless();
    let guard = guardian(job.child.id());
    job.signal("-KILL");
    assert_eq!(job.end().0, 137);
    assert_gone(&[guard]);
    assert_emptied(&tmp);
    // If the guardian is killed with it, the next job removes the folder.
    let job = endless();
    job.signal("-STOP");
    kill("-KILL", guardian(job.child.id()));
    job.signal("-KILL");
    assert_eq!(job.end().0, 137);
    let left: Vec<_> = fs::read_dir(&tmp).unwrap().flatten().map(|e| e.path()).collect();
    assert_eq!(left.len(), 1);
    let (code, all) = Running::new(&mut train_in(dir.path(), 1000)).end();
    assert_eq!(code, 0, "{all}");
    assert!(dir.path().join("report.json").exists());
    assert_emptied(&tmp);
}

/// Another user puts folders and links where a job might write.
#[test]
fn folders_that_others_have_prepared_are_not_used() {
    if !has_nobody() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (tmp, victim) = (dir.path().join("tmp"), dir.path().join("victim"));
    let mut command = train_in(dir.path(), 1000);
    fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(&victim, "precious").unwrap();
    let plant = "import os, sys\n\
        os.umask(0)\n\
        pid = os.getpid()\n\
        names = [str(pid + i) for i in range(2000)] + ['job-%06d' % i for i in range(50)]\n\
        os.chdir(sys.argv[1])\n\
        for name in names:\n\
        \x20   os.mkdir('regatta-' + name, 0o777)\n\
        \x20   for worker in ['worker-0.json', 'worker-1.json']:\n\
        \x20       os.symlink(sys.argv[2], 'regatta-' + name + '/' + worker)\n\
        \x20       os.symlink(sys.argv[2], 'regatta-' + name + '/.' + worker + '.tmp')\n\
        os.symlink(os.path.dirname(sys.argv[2]), 'regatta-job-link')\n";
    let paths = [&tmp, &victim].map(|path| path.to_str().unwrap());
    let planted = as_nobody("python3", &["-c", plant, paths[0], paths[1]]).output().unwrap();
    assert!(planted.status.success(), "{}", text(&planted));
    let count = || fs::read_dir(&tmp).unwrap().count();
    let before = count();
    let (code, all) = Running::new(&mut command).end();
    assert_eq!(code, 0, "{all}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(dir.path().join("report.json").exists());
    assert_eq!(count(), before, "what belongs to others stays, and nothing is added");
    // The hidden file under which a report is written is a new one, too.
    symlink(&victim, dir.path().join(".report.json.tmp")).unwrap();
    let (code, all) = Running::new(&mut train_in(dir.path(), 1000)).end();
    assert_eq!(code, 0, "{all}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}
