//! Several machines: launchers that each start their own part, on different loopback addresses.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::{
    Running, addresses, assert_gone, clean, launch, pids, script, text, token_file, train,
};

const NODES: [&str; 2] = ["127.0.0.2", "127.0.0.3"];

/// The flags of a job with a server and a worker on each of the two machines.
struct Job {
    dir: tempfile::TempDir,
    flags: Vec<String>,
}

impl Job {
    fn new() -> Job {
        let dir = tempfile::tempdir().unwrap();
        let on = NODES.map(|node| addresses(node, 3));
        let pair = |i: usize| format!("{},{}", on[0][i], on[1][i]);
        let token = token_file(dir.path(), "a secret of both\n");
        let flags = vec![
            format!("--servers={}", pair(0)),
            format!("--workers={}", pair(1)),
            format!("--master={}", on[0][2]),
            format!("--token-file={token}"),
        ];
        Job { dir, flags }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The command on one of the machines.
    fn on(&self, node: &str, more: &[&str], program: &[String]) -> Command {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let host = format!("--host={node}");
        let log = format!("--log_dir=log-{node}");
        let mut command = launch(self.path(), &[&flags[..], &[&host, &log], more].concat());
        command.args(program);
        command
    }
}

fn regatta_train(dir: &Path) -> Vec<String> {
    ["regatta".to_string()].into_iter().chain(train(dir, 2000)).collect()
}

#[test]
fn each_machine_starts_its_own_part() {
    for (first, second) in [(0, 1), (1, 0)] {
        let job = Job::new();
        let program = regatta_train(job.path());
        let mut one = Running::new(&mut job.on(NODES[first], &[], &program));
        // The other one comes when this one is already waiting.
        one.wait_for("waiting for");
        let two = Running::new(&mut job.on(NODES[second], &[], &program));
        for process in [one, two] {
            let (code, all) = process.end();
            assert_eq!(code, 0, "{all}");
        }
        for (i, node) in NODES.iter().enumerate() {
            let folder = std::fs::read_dir(job.path().join(format!("log-{node}"))).unwrap();
            let mut files: Vec<String> =
                folder.flatten().map(|f| f.file_name().into_string().unwrap()).collect();
            files.sort();
            assert_eq!(files, [format!("serverlog.{i}"), format!("workerlog.{i}")]);
        }
    }
}

#[test]
fn a_machine_that_does_not_come_is_named() {
    let job = Job::new();
    let output = job.on(NODES[0], &["--timeout=1", "true"], &[]).output().unwrap();
    let all = text(&output);
    assert_eq!(output.status.code(), Some(2), "{all}");
    assert!(all.contains("not all machines came within 1 s"), "{all}");
    assert!(all.contains("127.0.0.2                here"), "{all}");
    assert!(all.contains("127.0.0.3                missing"), "{all}");
    // The other way round the first one is missing.
    let output = job.on(NODES[1], &["--timeout=1", "true"], &[]).output().unwrap();
    let all = text(&output);
    assert!(all.contains("cannot meet at 127.0.0.2:"), "{all}");
}

#[test]
fn a_failure_on_one_machine_ends_the_others() {
    let job = Job::new();
    script(
        job.path(),
        "run.sh",
        "echo $$ > $TRAINING_ROLE$POD_IP.pid\n\
         if [ $TRAINING_ROLE$PADDLE_TRAINER_ID = TRAINER1 ]; then\n\
         while [ $(ls *.pid | wc -l) -lt 4 ]; do :; done; exit 5\n\
         fi; exec sleep 1000",
    );
    let both = NODES.map(|node| Running::new(&mut job.on(node, &["run.sh"], &[])));
    let [(one, first), (two, second)] = both.map(Running::end);
    assert_eq!((one, two), (1, 5), "{first}\n{second}");
    assert!(first.contains("on 127.0.0.3: worker 1 failed with exit code 5"), "{first}");
    assert_eq!(pids(job.path()).len(), 4);
    assert_gone(&pids(job.path()));
}

#[test]
fn commands_that_differ_and_tokens_that_differ_are_refused() {
    let job = Job::new();
    let mut other = Job::new();
    other.flags[2] = job.flags[2].clone();
    other.flags[3] = job.flags[3].clone();
    let one = Running::new(&mut job.on(NODES[0], &["true"], &[]));
    let two = Running::new(&mut other.on(NODES[1], &["true"], &[]));
    for (code, all) in [one.end(), two.end()] {
        assert_eq!(code, 2, "{all}");
        assert!(all.contains("were started with different commands"), "{all}");
    }
    let mut stranger = Job::new();
    stranger.flags = job.flags.clone();
    let token = token_file(stranger.path(), "the secret of another job");
    stranger.flags[3] = format!("--token-file={token}");
    let one = Running::new(&mut job.on(NODES[0], &["--timeout=3", "true"], &[]));
    let (code, all) = Running::new(&mut stranger.on(NODES[1], &["--timeout=2", "true"], &[])).end();
    assert_eq!(code, 2, "{all}");
    assert!(all.contains("refused the job token"), "{all}");
    assert_eq!(one.end().0, 2);
}

#[test]
fn without_a_token_it_says_how_to_make_one() {
    let job = Job::new();
    let flags: Vec<&str> = job.flags[..3].iter().map(String::as_str).collect();
    let output =
        launch(job.path(), &[&flags[..], &["--host=127.0.0.2", "true"]].concat()).output().unwrap();
    let all = text(&output);
    assert_eq!(output.status.code(), Some(2), "{all}");
    assert!(all.contains("--token-file") && all.contains("REGATTA_JOB_TOKEN"), "{all}");
}

#[test]
fn a_token_that_others_can_read_or_guess_is_refused() {
    let mut job = Job::new();
    let path = script(job.path(), "open", "a secret of both\n");
    for (flag, expected) in [
        (format!("--token-file={path}"), "others can read or write it"),
        (format!("--token-file={}", token_file(job.path(), "short")), "easy to guess"),
    ] {
        job.flags[3] = flag;
        let output = job.on(NODES[0], &["true"], &[]).output().unwrap();
        let all = text(&output);
        assert_eq!(output.status.code(), Some(2), "{all}");
        assert!(all.contains("--token-file") && all.contains(expected), "{all}");
    }
}

#[test]
fn machines_of_ranks_by_list_and_by_meeting() {
    let dir = tempfile::tempdir().unwrap();
    let text = "echo I am $PADDLE_TRAINER_ID of $PADDLE_TRAINERS_NUM\n\
                echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE\n\
                echo master $MASTER_ADDR:$MASTER_PORT";
    script(dir.path(), "run.sh", text);
    let token = token_file(dir.path(), "the secret of all ranks");
    let token = format!("--token-file={token}");
    let meeting = addresses("127.0.0.2", 1).remove(0);
    let master = format!("--master={meeting}");
    let by_list = ["--ips", "127.0.0.2, 127.0.0.3", "--nproc_per_node=2"];
    let by_meeting = ["--nnodes=2", "--nproc_per_node=2"];
    for how in [&by_list[..], &by_meeting[..]] {
        let mut command = |node: &str| {
            let host = format!("--host={node}");
            let log = format!("--log_dir=log-{node}");
            let own = [&*token, &*master, &*host, &*log];
            Running::new(&mut launch(dir.path(), &[how, &own[..], &["run.sh"]].concat()))
        };
        let both = NODES.map(&mut command);
        let ended = both.map(Running::end);
        let all = ended.each_ref().map(|(_, text)| text.as_str()).join("\n");
        assert!(ended.iter().all(|(code, _)| *code == 0), "{all}");
        for rank in 0..4 {
            assert!(all.contains(&format!("[rank {rank}] I am {rank} of 4")), "{all}");
            let torch = format!("[rank {rank}] rank {rank} of 4, {} of 2", rank % 2);
            assert!(all.contains(&torch), "{all}");
        }
        // All ranks know the same free port of the machine of the first one.
        let after = |text: &str| -> BTreeSet<String> {
            all.lines().filter_map(|line| Some(line.split_once(text)?.1.to_string())).collect()
        };
        let (masters, first) = (after("] master "), after("rank 0 at ").pop_first().unwrap());
        let host = first.split_once(':').unwrap().0;
        assert!(masters.len() == 1 && masters.first().unwrap().starts_with(host), "{all}");
        assert!(!masters.contains(&meeting), "{all}");
    }
}

#[test]
fn two_launchers_on_one_host_meet() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "run.sh", "echo I am $PADDLE_TRAINER_ID of $PADDLE_TRAINERS_NUM");
    let token = format!("--token-file={}", token_file(dir.path(), "a secret of both\n"));
    for ranks in [[None, None], [Some("--rank=1"), Some("--rank=0")]] {
        let master = format!("--master={}", addresses("127.0.0.1", 1)[0]);
        let mut n = 0;
        let both = ranks.map(|rank| {
            n += 1;
            let log = format!("--log_dir=log-{n}");
            let flags = ["--nnodes=2", "--nproc_per_node=2", &*token, &*master, &*log];
            let flags: Vec<&str> = flags.into_iter().chain(rank).chain(["run.sh"]).collect();
            Running::new(&mut launch(dir.path(), &flags))
        });
        let ended = both.map(Running::end);
        let all = ended.each_ref().map(|(_, text)| text.as_str()).join("\n");
        assert!(ended.iter().all(|(code, _)| *code == 0), "{all}");
        for rank in 0..4 {
            assert!(all.contains(&format!("[rank {rank}] I am {rank} of 4")), "{all}");
        }
    }
}

/// Ranks of `mpirun` are roles; skipped where there is none.
#[test]
fn under_mpirun_the_first_ranks_are_servers() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("skipped: there is no mpirun");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = clean(Command::new("mpirun"));
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "3"]);
    let port = regatta_launch::ports::free("127.0.0.1", 1).unwrap()[0].min(32_000);
    command.env("PADDLE_SERVER_NUM", "1").env("PADDLE_START_PORT", port.to_string());
    command.arg(env!("CARGO_BIN_EXE_regatta")).args(train(dir.path(), 1000));
    let (code, all) = Running::new(&mut command).end();
    assert_eq!(code, 0, "{all}");
    assert!(all.contains("epoch: 0 done"), "{all}");
}
