//! Messages of Redis streams, with the server of Debian's package `redis-server`.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::job::{BATCH, EVENTS, Job, SYNC, command, events, ids, newest, values};

/// A server of the test, which ends with it.
struct Redis {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Redis {
    /// None where there is no such program, which is said loudly.
    fn start() -> Option<Redis> {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "no"]).arg("--dir").arg(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            eprintln!("SKIPPED: redis-server is missing: install it (Debian: redis-server)");
            return None;
        };
        let redis = Redis { child, port, _dir: dir };
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(redis)
    }

    fn url(&self, streams: &str) -> String {
        format!("redis://127.0.0.1:{}/{streams}", self.port)
    }

    /// Sends commands and reads an answer for each.
    fn send(&self, commands: &[Vec<String>]) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut out = std::io::BufWriter::new(stream);
        for chunk in commands.chunks(200) {
            for words in chunk {
                write!(out, "*{}\r\n", words.len()).unwrap();
                words.iter().for_each(|w| write!(out, "${}\r\n{w}\r\n", w.len()).unwrap());
            }
            out.flush().unwrap();
            for _ in chunk {
                let mut line = String::new();
                answers.read_line(&mut line).unwrap();
                assert!(!line.starts_with('-') && !line.is_empty(), "{line}");
                if line.starts_with('$') {
                    answers.read_line(&mut line).unwrap();
                }
            }
        }
    }

    /// Adds events to streams, by turns.
    fn add(&self, streams: &[&str], ids: std::ops::Range<usize>) {
        let text = events(ids);
        let command = |(i, line): (usize, &str)| {
            let stream = streams[i % streams.len()];
            ["XADD", stream, "*", "line", line].map(str::to_string).to_vec()
        };
        let commands: Vec<Vec<String>> = text.lines().enumerate().map(command).collect();
        self.send(&commands);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Data passes of whole batches, so that every run has the same ones.
const PER_PASS: usize = 30 * BATCH;

fn settings(more: &[&str]) -> Vec<String> {
    const { assert!(EVENTS.is_multiple_of(PER_PASS)) };
    let passes = format!("runner.online.messages_per_pass={PER_PASS}");
    let ends = ["runner.online.linger_seconds=300", "runner.online.idle_seconds=12"];
    ends.into_iter().chain(more.iter().copied()).map(str::to_string).chain([passes]).collect()
}

fn start(dir: &Path, url: &str, mode: &[&str], more: &[&str]) -> Job {
    let settings = settings(more);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    Job::start(command(dir, url, mode, &settings))
}

#[test]
fn messages_are_trained_as_the_lines_of_a_file() {
    let Some(redis) = Redis::start() else { return };
    let (file, stream) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = file.path().join("data");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("all"), events(0..EVENTS)).unwrap();
    let once = ["runner.epochs=1"];
    Job::start(command(file.path(), &folder.display().to_string(), &[], &once)).ok();
    redis.add(&["clicks"], 0..EVENTS);
    let out = start(stream.path(), &redis.url("clicks"), &[], &[]).ok();
    assert!(out.contains(&format!("epoch 9 is {PER_PASS} messages")), "{out}");
    assert!(out.contains("nothing has come for 12 s"), "{out}");
    assert!(values(&newest(file.path())) == values(&newest(stream.path())));
}

#[test]
fn a_synchronous_job_that_is_killed_trains_every_event_once() {
    let Some(redis) = Redis::start() else { return };
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mode = ["runner.sync_mode=sync"];
    let streams = ["left", "right"];
    redis.add(&streams, 0..EVENTS);
    let url = redis.url("left,right");
    start(calm.path(), &url, &SYNC, &mode).ok();
    // The same events come to other streams while the job is killed again and again.
    let late = ["late-left", "late-right"];
    let url = redis.url("late-left,late-right");
    let mut resumed = 0;
    let chunk = EVENTS / 5;
    let moments = ["epoch: 0, batch_id: 9", "epoch: 2, batch_id: 3", "epoch: 4, batch_id: 12"];
    for (kill, moment) in moments.iter().enumerate() {
        redis.add(&late, kill * chunk..(kill + 1) * chunk);
        let mut job = start(stormy.path(), &url, &SYNC, &mode);
        job.reach(moment);
        resumed += usize::from(job.kill().contains("resuming from"));
    }
    redis.add(&late, 3 * chunk..EVENTS);
    let out = start(stormy.path(), &url, &SYNC, &mode).ok();
    resumed += usize::from(out.contains("resuming from"));
    assert_eq!(resumed, 3, "{out}");
    let (calm, stormy) = (newest(calm.path()), newest(stormy.path()));
    assert_eq!(ids(&stormy), (1..=EVENTS as u64).collect::<Vec<_>>());
    assert!(values(&calm) == values(&stormy), "an event was not trained exactly once");
}

#[test]
fn an_asynchronous_job_that_is_killed_trains_every_event() {
    let Some(redis) = Redis::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mode = ["runner.sync_mode=async"];
    redis.add(&["clicks"], 0..EVENTS / 2);
    let url = redis.url("clicks");
    for moment in ["epoch: 0, batch_id: 8", "epoch: 3, batch_id: 5"] {
        let mut job = start(dir.path(), &url, &SYNC, &mode);
        job.reach(moment);
        job.kill();
    }
    redis.add(&["clicks"], EVENTS / 2..EVENTS);
    start(dir.path(), &url, &SYNC, &mode).ok();
    assert_eq!(ids(&newest(dir.path())), (1..=EVENTS as u64).collect::<Vec<_>>());
}

#[test]
fn entries_that_are_lost_or_wrong_are_named() {
    let Some(redis) = Redis::start() else { return };
    let fails = |dir: &Path, url: &str, words: &str| {
        let more = ["runner.online.linger_seconds=0"];
        let (ok, out) = start(dir, url, &[], &more).end();
        assert!(!ok && out.contains(words), "'{words}' is not in: {out}");
    };
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url("clicks");
    fails(dir.path(), &format!("{url}?from=tomorrow"), "expected earliest or latest");
    fails(dir.path(), "redis://u:secret@127.0.0.1:1/a", "a password does not belong");
    redis.add(&["clicks"], 0..PER_PASS);
    fails(dir.path(), &format!("{url}?field=other"), "of clicks has no field 'other'");
    // Trained to the end; then more is added than is kept.
    start(dir.path(), &url, &[], &[]).ok();
    redis.add(&["clicks"], PER_PASS..3 * PER_PASS);
    let trim = ["XTRIM", "clicks", "MAXLEN", "10"].map(str::to_string).to_vec();
    redis.send(&[trim]);
    let lost = format!("{} entries of clicks after ", 2 * PER_PASS - 10);
    fails(dir.path(), &url, &lost);
    redis.send(&[["DEL", "clicks"].map(str::to_string).to_vec()]);
    redis.add(&["clicks"], 0..3);
    fails(dir.path(), &url, "clicks has had 3 entries, but 240 were read: it is another");
}
