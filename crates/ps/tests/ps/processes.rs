//! Real processes, killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use regatta_ps::{AsyncConfig, Client, Mode, Server};
use serde::{Deserialize, Serialize};

use crate::common::*;

/// What a child process is told on its standard input.
#[derive(Serialize, Deserialize)]
struct Part {
    mode: Mode,
    servers: usize,
    workers: usize,
    /// A worker with this number, or else server 0.
    worker: Option<usize>,
    endpoints: Vec<String>,
}

/// The process that gets killed; it says on its standard output how far it is.
#[test]
#[ignore = "started by other tests"]
fn child() {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap() == 0 || line.trim().is_empty() {
        return;
    }
    let part: Part = serde_json::from_str(&line).unwrap();
    let job = Job::new(part.servers, part.workers, part.mode);
    match part.worker {
        None => {
            let server = Server::start(job.server_config(0)).unwrap();
            say(&server.endpoint());
            let _ = server.run();
        }
        Some(worker) => {
            let client = job.connect(&part.endpoints, worker).unwrap();
            begin(&client);
            for step in 0.. {
                exchange(&job, &client, step).unwrap();
                say(&step.to_string());
            }
        }
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "@{text}").unwrap();
    out.flush().unwrap();
}

/// A running child, and what it says. It does not outlive the test.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(part: &Part) -> Running {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{}", serde_json::to_string(part).unwrap()).unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    /// The next thing it says.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the child ended");
            // The test harness may have begun the line.
            if let Some((_, text)) = line.trim_end().split_once('@') {
                return text.to_string();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One step of a worker in any mode.
fn exchange(job: &Job, client: &Client, step: u64) -> Result<(), regatta_ps::Error> {
    let v = gradients(client.worker(), step);
    if matches!(job.mode, Mode::Geo { .. }) {
        let ticket = client.geo(&[&v.dense], &[(&v.keys, &v.rows)], None)?;
        return client.finish_geo(ticket, |_, _, _| {}, |_, _, _| {}).map(|_| ());
    }
    let ticket =
        with_gradients(&v, step, |g| client.push_pull(g, &wanted(step + 1, &[&v.keys], false)))?;
    let (mut rows, mut dense) = (vec![0.0; v.keys.len() * DIM], vec![0.0; DENSE]);
    client.finish_pull(ticket, &mut [&mut rows], &mut [&mut dense]).map(|_| ())
}

#[test]
fn a_killed_server_is_named_by_every_worker_within_ten_seconds() {
    for mode in [Mode::Sync, Mode::Async(AsyncConfig::default()), Mode::Geo { every: 1 }] {
        let job = Job::new(1, 2, mode);
        let part = Part { mode, servers: 1, workers: 2, worker: None, endpoints: vec![] };
        let mut server = Running::start(&part);
        let endpoint = server.hear();
        let (told, at_work) = std::sync::mpsc::sync_channel(2);
        thread::scope(|s| {
            let (job, endpoint) = (&job, &endpoint);
            let worker = |w: usize, told: std::sync::mpsc::SyncSender<()>| {
                let client = job.connect(std::slice::from_ref(endpoint), w).unwrap();
                begin(&client);
                exchange(job, &client, 0).unwrap();
                told.send(()).unwrap();
                let error = (1..).find_map(|step| exchange(job, &client, step).err()).unwrap();
                (error.to_string(), Instant::now())
            };
            let workers: Vec<_> = (0..2)
                .map(|w| {
                    let told = told.clone();
                    s.spawn(move || worker(w, told))
                })
                .collect();
            at_work.recv().unwrap();
            at_work.recv().unwrap();
            let killed = Instant::now();
            server.kill();
            for worker in workers {
                let (error, when) = worker.join().unwrap();
                assert!(error.contains(&format!("server 0 at {endpoint}")), "{mode:?}: {error}");
                let after = when - killed;
                assert!(after < Duration::from_secs(10), "{mode:?}: {after:?}");
            }
        });
    }
}

/// How the servers ended, how long it took, and what each worker says.
type Ended = (Result<(), String>, Duration, Vec<Result<Vec<String>, String>>);

/// Worker 1 is killed after some steps; worker 0 goes on until `steps` or an error.
fn kill_a_worker(job: &Job, steps: u64) -> Ended {
    let (servers, endpoints) = job.start();
    let part = Part {
        mode: job.mode,
        servers: job.servers,
        workers: job.workers,
        worker: Some(1),
        endpoints: endpoints.clone(),
    };
    let mut victim = Running::start(&part);
    thread::scope(|s| {
        let servers: Vec<_> = servers.into_iter().map(|v| s.spawn(|| v.run())).collect();
        let (tell, killed) = std::sync::mpsc::sync_channel(1);
        let endpoints = &endpoints;
        let survivor = s.spawn(move || {
            let client = job.connect(endpoints, 0).unwrap();
            begin(&client);
            let mut outcome = Ok(());
            let mut step = 0;
            // Until the other one is dead, and then so many steps.
            let mut last = None;
            while outcome.is_ok() && last.is_none_or(|last| step < last) {
                outcome = exchange(job, &client, step).map_err(|e| e.to_string());
                step += 1;
                if last.is_none() && killed.try_recv().is_ok() {
                    last = Some(step + steps);
                }
            }
            if outcome.is_ok() {
                // Those that are there wait for each other, not for the dead.
                client.barrier("end").unwrap();
                client.leave().unwrap();
            }
            (outcome, Instant::now())
        });
        while victim.hear() != "2" {}
        let start = Instant::now();
        victim.kill();
        tell.send(()).unwrap();
        let (outcome, when) = survivor.join().unwrap();
        let ends = servers.into_iter().map(|s| s.join().unwrap());
        let ends = ends.map(|e| e.map(|stats| stats.lost).map_err(|e| e.to_string())).collect();
        (outcome, when - start, ends)
    })
}

#[test]
fn a_killed_worker_is_named_in_sync_and_bounded_mode() {
    for mode in [Mode::Sync, Mode::Bounded { staleness: 2 }] {
        let mut job = Job::new(2, 2, mode);
        job.worker_timeout = Duration::from_secs(1);
        let (outcome, after, servers) = kill_a_worker(&job, u64::MAX / 2);
        let error = outcome.unwrap_err();
        assert!(error.contains("worker 1 is lost"), "{mode:?}: {error}");
        assert!(after < Duration::from_secs(4), "{mode:?}: {after:?}");
        for end in servers {
            assert!(end.unwrap_err().contains("worker 1 is lost"), "{mode:?}");
        }
    }
}

#[test]
fn others_go_on_where_they_may() {
    let sync = Job { allow_worker_loss: true, ..Job::new(2, 2, Mode::Sync) };
    let bounded = Job { mode: Mode::Bounded { staleness: 1 }, ..sync.clone() };
    let asynchronous = Job::new(2, 2, Mode::Async(AsyncConfig::default()));
    let geo = Job::new(2, 2, Mode::Geo { every: 1 });
    for mut job in [sync, bounded, asynchronous, geo] {
        job.worker_timeout = Duration::from_secs(1);
        let (outcome, _, servers) = kill_a_worker(&job, 20);
        assert_eq!(outcome, Ok(()), "{:?}", job.mode);
        for end in servers {
            let lost = end.unwrap();
            assert!(lost.len() == 1 && lost[0].contains("worker 1 is lost"), "{lost:?}");
        }
    }
}

/// A new process takes the number of one that was killed.
#[test]
fn a_restarted_worker_is_refused_and_counts_as_lost() {
    for mode in [Mode::Async(AsyncConfig::default()), Mode::Sync] {
        let mut job = Job::new(1, 2, mode);
        job.worker_timeout = Duration::from_secs(60);
        let (mut servers, endpoints) = job.start();
        let server = servers.remove(0);
        let part =
            Part { mode, servers: 1, workers: 2, worker: Some(1), endpoints: endpoints.clone() };
        let mut victim = Running::start(&part);
        thread::scope(|s| {
            let server = s.spawn(|| server.run());
            let client = job.connect(&endpoints, 0).unwrap();
            begin(&client);
            exchange(&job, &client, 0).unwrap();
            assert_eq!(victim.hear(), "0");
            victim.kill();
            // The server may not have noticed yet; then there is a worker 1 already.
            eventually("the server notices", || {
                let error = job.connect(&endpoints, 1).err().unwrap().to_string();
                assert!(error.contains("worker 1"), "{error}");
                error.contains("was restarted while the job was running")
            });
            if mode.is_sync() {
                let error = exchange(&job, &client, 1).unwrap_err().to_string();
                assert!(error.contains("worker 1 was restarted"), "{error}");
                drop(client);
                assert!(server.join().unwrap().is_err());
            } else {
                exchange(&job, &client, 1).unwrap();
                client.barrier("alone").unwrap();
                client.leave().unwrap();
                drop(client);
                let stats = server.join().unwrap().unwrap();
                assert_eq!(stats.lost, ["worker 1 was restarted while the job was running"]);
            }
        });
    }
}
