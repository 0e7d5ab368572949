//! A server is killed at some moment of its evictions, compactions and saves, and the job resumes.
//!
//! `REGATTA_TIER_KILLS=100` kills that many times, with a seed each. A failed seed is printed.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::job::{Job, entries, model, tier};

/// Seeds in the gate; each takes two starts of a job.
const KILLS: u64 = 3;

fn job() -> Job {
    Job { examples: 3200, ..Job::new(1, 1, "sync") }
}

fn overrides(job: &Job) -> Vec<String> {
    let mut overrides = tier(&job.cold(), 1).to_vec();
    overrides.push(format!("runner.checkpoint.dir={}", job.dir().join("checkpoints").display()));
    overrides.extend([
        "runner.checkpoint.step_interval=4".into(),
        "runner.checkpoint.full_every=3".into(),
    ]);
    overrides
}

#[test]
fn a_killed_server_leaves_what_resumes_to_the_same_bits() {
    let env = regatta_cluster::Env::process();
    let kills = env.parse::<u64>("REGATTA_TIER_KILLS", "a number").unwrap();
    let undisturbed = job();
    undisturbed.train(&overrides(&undisturbed));
    let expected = model(&undisturbed.dir());
    assert!(!expected.is_empty());
    for seed in 0..kills.unwrap_or(KILLS) {
        let job = job();
        let random = Random(seed);
        // Somewhere in the run; a moment later, so that it is in the midst of something.
        let batch = random.below(0, 45);
        kill_after(&job, batch, Duration::from_micros(random.below(1, 20_000)));
        let text = job.train(&overrides(&job));
        assert!(model(&job.dir()) == expected, "seed {seed}: killed after batch {batch}\n{text}");
        assert!(entries(&job.cold()).is_empty(), "seed {seed}: {:?}", entries(&job.cold()));
    }
}

/// Starts a job and kills its server after a batch.
fn kill_after(job: &Job, batch: u64, later: Duration) {
    let mut child = job.command(&overrides(job)).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let sign = format!("batch_id: {batch},");
    let reached = lines.by_ref().map_while(Result::ok).any(|line| line.contains(&sign));
    if reached && let Some(server) = server_of(&child) {
        let until = Instant::now() + later;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let pid = rustix::process::Pid::from_raw(server as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    lines.map_while(Result::ok).for_each(drop);
    let mut errors = String::new();
    let _ = child.stderr.take().unwrap().read_to_string(&mut errors);
    child.wait().unwrap();
}

/// The process of the server of a job.
fn server_of(job: &Child) -> Option<u32> {
    let pid = job.id();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let is_server = |pid: &u32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|b| *b == 0).any(|v| v == b"TRAINING_ROLE=PSERVER")
    };
    list.split_whitespace().filter_map(|p| p.parse().ok()).find(is_server)
}

/// Numbers that follow from a seed and a position.
struct Random(u64);

impl Random {
    fn below(&self, position: u64, limit: u64) -> u64 {
        let mut x = (self.0 * 2 + position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ (x >> 27)) % limit
    }
}
