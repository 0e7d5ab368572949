//! Messages of a topic of Kafka, from the mock cluster of librdkafka: a server in this process that
//! the processes of the jobs connect to.

use std::path::Path;

use regatta_data::kafka_server::KafkaServer;

use crate::job::{BATCH, EVENTS, Job, SYNC, command, events, ids, newest, values};

/// Data passes of whole batches, so that every run has the same ones.
const PER_PASS: usize = 30 * BATCH;

fn start(dir: &Path, address: &str) -> Job {
    let passes = format!("runner.online.messages_per_pass={PER_PASS}");
    let ends = ["runner.online.linger_seconds=300", "runner.online.idle_seconds=12"];
    let settings = [ends[0], ends[1], "runner.sync_mode=sync", &passes];
    Job::start(command(dir, address, &SYNC, &settings))
}

/// Adds events to both partitions, by turns.
fn send(server: &KafkaServer, topic: &str, ids: std::ops::Range<usize>) {
    let text = events(ids);
    for partition in 0..2 {
        let lines = text.lines().skip(partition).step_by(2);
        server.send(topic, partition as i32, lines);
    }
}

#[test]
fn a_job_that_is_killed_trains_every_message_once() {
    let server = KafkaServer::start(&[("calm", 2), ("stormy", 2)]);
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    send(&server, "calm", 0..EVENTS);
    start(calm.path(), &server.address("calm")).ok();
    let address = server.address("stormy");
    let chunk = EVENTS / 5;
    let mut resumed = 0;
    for (kill, moment) in ["epoch: 1, batch_id: 4", "epoch: 3, batch_id: 11"].iter().enumerate() {
        send(&server, "stormy", kill * chunk..(kill + 1) * chunk);
        let mut job = start(stormy.path(), &address);
        job.reach(moment);
        resumed += usize::from(job.kill().contains("resuming from"));
    }
    send(&server, "stormy", 2 * chunk..EVENTS);
    let out = start(stormy.path(), &address).ok();
    resumed += usize::from(out.contains("resuming from"));
    assert_eq!(resumed, 2, "{out}");
    let (calm, stormy) = (newest(calm.path()), newest(stormy.path()));
    assert_eq!(ids(&stormy), (1..=EVENTS as u64).collect::<Vec<_>>());
    assert!(values(&calm) == values(&stormy), "a message was not trained exactly once");
}
