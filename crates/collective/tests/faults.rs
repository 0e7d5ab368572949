//! Faults with real processes: whatever happens to one rank, all others end soon, with an error
//! that names it, and no sum is ever wrong.
//!
//! This program is both the test and the ranks: started as `faults rank ...` it joins a group and
//! does what the scenario says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use regatta_collective::{Error, Group, GroupConfig, ReduceOp, Transport, Wire};
use regatta_net::JobToken;

/// After this, something hangs. Nothing should come near it, on a busy machine either.
const HANG: Duration = Duration::from_secs(180);

/// One process is started at a time: between its fork and its exec a child has copies of all
/// sockets of this process, and would hold the ports that another job's ranks are about to listen
/// on.
static STARTING: Mutex<()> = Mutex::new(());

/// Runs one scenario over the named transport.
type Test = fn(&'static str);

const TESTS: &[(&str, Test)] = &[
    ("a rank killed in the middle", killed),
    ("a rank that never starts", never_starts),
    ("a rank with another program", other_program),
    ("a rank with another token", other_token),
    ("a rank with other shapes", other_shapes),
    ("a rank that calls something else", other_operation),
    ("a rank that leaves early", leaves),
    ("a rank that stops", stops),
    ("ten thousand sums", many),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "rank") {
        return rank_main(&args[2..]);
    }
    let wanted =
        |name: &str| args[1..].iter().all(|a| a.starts_with('-') || name.contains(a.as_str()));
    let mut threads = Vec::new();
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        for transport in ["memory", "tcp"] {
            let title = format!("{name}, over {transport}");
            threads.push((title, thread::spawn(move || test(transport))));
        }
    }
    let mut failed = 0;
    for (title, thread) in threads {
        let outcome = thread.join();
        println!("test {title} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(outcome.is_err());
    }
    println!("\ntest result: {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

// The ranks.

/// `SCENARIO RANK TRANSPORT ENDPOINT...`
fn rank_main(args: &[String]) -> ExitCode {
    let [scenario, rank, transport, endpoints @ ..] = args else { panic!("too few arguments") };
    let rank: usize = rank.parse().expect("a rank");
    let token = if scenario == "other_token" && rank == 1 { "another" } else { "ours" };
    let mut config = GroupConfig::new(rank, endpoints.to_vec(), JobToken::new(token));
    config.start_timeout = Duration::from_secs(if scenario == "never_starts" { 2 } else { 30 });
    config.op_timeout = Duration::from_secs(if scenario == "stops" { 3 } else { 40 });
    config.stall_after = Duration::from_secs(2);
    config.report_every = Duration::from_millis(500);
    config.transport = if transport == "tcp" { Transport::Tcp } else { Transport::SharedMemory };
    config.job =
        if scenario == "other_program" && rank == 1 { "theirs" } else { "ours" }.to_owned();
    config.observer = Arc::new(|event| eprintln!("{event}"));
    match Group::connect(config).and_then(|group| perform(scenario, group)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn perform(scenario: &str, mut group: Group) -> Result<(), Error> {
    match scenario {
        "many" => many_sums(&mut group),
        "leaves" => {
            sums(&mut group, 5)?;
            if group.rank() == 1 { Ok(()) } else { sums(&mut group, usize::MAX) }
        }
        "other_shapes" => {
            sums(&mut group, 5)?;
            let len = if group.rank() == 1 { 100 } else { 100_000 };
            group.all_reduce("w", &mut vec![0.0; len], ReduceOp::Sum, Wire::F32)
        }
        "other_operation" => {
            sums(&mut group, 5)?;
            let mut data = [0.0; 100];
            match group.rank() {
                1 => group.reduce("v", &mut data, ReduceOp::Sum, 0),
                _ => group.all_reduce("w", &mut data, ReduceOp::Sum, Wire::F32),
            }
        }
        _ => sums(&mut group, usize::MAX),
    }
}

/// Sums of much data, checked. After a few it says so, for the parent to act.
fn sums(group: &mut Group, n: usize) -> Result<(), Error> {
    let size = group.size() as f32;
    for i in 0..n {
        let mut data = vec![(i % 1000) as f32; 100_000];
        group.all_reduce("w", &mut data, ReduceOp::Sum, Wire::F32)?;
        assert!(data.iter().all(|x| *x == (i % 1000) as f32 * size), "a wrong sum");
        if i == 3 {
            println!("going");
            std::io::stdout().flush().expect("the parent listens");
        }
    }
    Ok(())
}

/// Back to back, of many lengths, with little data most of the time.
fn many_sums(group: &mut Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    let mut state = 7u64;
    for i in 0..10_000usize {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let scale =
            [1, 8, 64, 512, 4096][(state >> 60) as usize % 5] * if i % 500 == 0 { 40 } else { 1 };
        let len = (state >> 33) as usize % (scale + 1);
        let value = |rank: usize, at: usize| ((i + at + 3 * rank) % 17) as f32;
        let mut data: Vec<f32> = (0..len).map(|at| value(rank, at)).collect();
        group.all_reduce("w", &mut data, ReduceOp::Sum, Wire::F32)?;
        for (at, x) in data.iter().enumerate() {
            let wanted: f32 = (0..size).map(|rank| value(rank, at)).sum();
            assert!(*x == wanted, "sum {i}, element {at} of {len}: {x} instead of {wanted}");
        }
    }
    println!("going");
    Ok(())
}

// The tests.

/// The ranks of a job; killed when dropped.
struct Job {
    ranks: Vec<(usize, Child)>,
}

impl Job {
    fn start(scenario: &str, transport: &str, size: usize, start: &[usize]) -> Job {
        // Ports that were free a moment ago, on an address of the loopback network that only this
        // job uses: nobody takes them in between.
        static JOBS: AtomicU32 = AtomicU32::new(1);
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let job = JOBS.fetch_add(1, Ordering::Relaxed);
        let host = format!("127.{}.{job}.1", std::process::id() % 250 + 1);
        let sockets: Vec<_> =
            (0..size).map(|_| TcpListener::bind(format!("{host}:0")).unwrap()).collect();
        let endpoints: Vec<String> =
            sockets.iter().map(|socket| socket.local_addr().unwrap().to_string()).collect();
        drop(sockets);
        let spawn = |rank: &usize| {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["rank", scenario, &rank.to_string(), transport])
                .args(&endpoints)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            (*rank, child)
        };
        Job { ranks: start.iter().map(spawn).collect() }
    }

    /// Waits until all ranks say that they work.
    fn await_going(&mut self) {
        for (rank, child) in &mut self.ranks {
            let stdout: &mut ChildStdout = child.stdout.as_mut().unwrap();
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).unwrap();
            assert_eq!(line, "going\n", "rank {rank}");
        }
    }

    fn child(&mut self, rank: usize) -> &mut Child {
        &mut self.ranks.iter_mut().find(|(at, _)| *at == rank).unwrap().1
    }

    /// Sends `signal` to `rank`.
    fn signal(&mut self, rank: usize, signal: &str) {
        let id = self.child(rank).id().to_string();
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// How `rank` ended, and what it wrote to its standard error.
    fn end(&mut self, rank: usize) -> (bool, String) {
        let child = self.child(rank);
        let deadline = Instant::now() + HANG;
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "rank {rank} hangs"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        let mut text = String::new();
        child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        (status.success(), text)
    }

    /// `rank` must fail and say all of `words` in its last line.
    fn fails(&mut self, rank: usize, words: &[&str]) {
        let (success, text) = self.end(rank);
        let last = text.lines().last().unwrap_or_default();
        assert!(!success, "rank {rank} succeeded");
        for word in words {
            assert!(last.contains(word), "rank {rank} does not say `{word}`:\n{text}");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (_, child) in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn killed(transport: &'static str) {
    let mut job = Job::start("killed", transport, 3, &[0, 1, 2]);
    job.await_going();
    job.signal(1, "-KILL");
    job.fails(0, &["rank 1"]);
    job.fails(2, &["rank 1"]);
}

fn never_starts(transport: &'static str) {
    let mut job = Job::start("never_starts", transport, 3, &[0, 2]);
    for rank in [0, 2] {
        let (success, text) = job.end(rank);
        assert!(!success);
        assert!(text.contains(&format!("rank {rank} waits for rank 1")), "{text}");
        assert!(text.lines().last().unwrap().contains("rank 1 ("), "{text}");
    }
}

fn other_program(transport: &'static str) {
    let mut job = Job::start("other_program", transport, 2, &[0, 1]);
    job.fails(0, &["rank 0", "rank 1", "`ours`", "`theirs`"]);
    job.fails(1, &["rank 0", "rank 1", "`ours`", "`theirs`"]);
}

/// Who has the right token waits for the rank to come, and so does who has the wrong one:
/// anybody may have said so. At the end that is the reason.
fn other_token(transport: &'static str) {
    let mut job = Job::start("other_token", transport, 2, &[0, 1]);
    job.fails(1, &["rank 1", "rank 0", "token"]);
}

fn other_shapes(transport: &'static str) {
    let mut job = Job::start("other_shapes", transport, 3, &[0, 1, 2]);
    for rank in 0..3 {
        job.fails(rank, &["rank 1", "`w`", "(100 f32)", "(100000 f32)"]);
    }
}

fn other_operation(transport: &'static str) {
    let mut job = Job::start("other_operation", transport, 3, &[0, 1, 2]);
    for rank in 0..3 {
        job.fails(rank, &["rank 1", "`v`", "`w`"]);
    }
}

fn leaves(transport: &'static str) {
    let mut job = Job::start("leaves", transport, 3, &[0, 1, 2]);
    let (success, text) = job.end(1);
    assert!(success, "rank 1 has done its part, and says:\n{text}");
    job.fails(0, &["rank 1 has left", "`w`"]);
    job.fails(2, &["rank 1 has left", "`w`"]);
}

/// A stalled rank is reported, then given up.
fn stops(transport: &'static str) {
    let mut job = Job::start("stops", transport, 3, &[0, 1, 2]);
    job.await_going();
    job.signal(1, "-STOP");
    let mut reported = 0;
    for rank in [0, 2] {
        let (success, text) = job.end(rank);
        assert!(!success);
        assert!(text.lines().last().unwrap().contains("rank 1"), "{text}");
        // The other rank may be one operation ahead or behind: it is then reported as well.
        let stall = text.lines().find(|line| line.contains("waits since")).unwrap_or_default();
        reported += usize::from(stall.contains("`w`") && stall.contains("rank 1 ("));
    }
    assert!(reported > 0, "no report of the stall");
}

fn many(transport: &'static str) {
    let mut job = Job::start("many", transport, 3, &[0, 1, 2]);
    for rank in 0..3 {
        let (success, text) = job.end(rank);
        assert!(success, "rank {rank}: {text}");
    }
}
