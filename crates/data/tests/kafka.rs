//! Messages of a topic of Kafka, from the mock cluster of librdkafka.

use std::path::PathBuf;
use std::time::Duration;

use regatta_data::arrivals::{End, Messages, MessagesOptions, PassPlan, Planner, Upcoming};
use regatta_data::kafka_server::KafkaServer;
use regatta_data::{
    Dataset, Error, Format, Position, QueueDataset, QueueOptions, Schema, Slot, Source,
};

fn messages(address: &str, per_pass: u64) -> Messages {
    let end = End { idle: Some(Duration::ZERO), stop_file: None };
    let address = address.to_string();
    Messages::new(MessagesOptions { address, per_pass, linger: Duration::ZERO, end }).unwrap()
}

fn next(messages: &mut Messages, after: Option<&PassPlan>) -> Option<PassPlan> {
    match messages.next_pass(after).unwrap() {
        Upcoming::Pass(plan) => Some(plan),
        Upcoming::End(_) => None,
        Upcoming::Later(what) => panic!("nobody waits for {what}"),
    }
}

fn dataset(plan: &PassPlan) -> QueueDataset {
    let schema = Schema::new(vec![Slot::label("label"), Slot::fixed_ids("id", 1)]).unwrap();
    let parts = plan.parts.iter().map(PathBuf::from).collect();
    let source = Source::arrived(schema, Format::MultiSlot, parts).unwrap();
    QueueDataset::new(source, QueueOptions::new(4)).unwrap()
}

/// The ids of a data pass, and where it stood after N batches.
fn read(plan: &PassPlan, from: &Position, batches: usize) -> Result<(Vec<u64>, Position), Error> {
    let mut pass = dataset(plan).resume(0, from)?;
    let mut ids = Vec::new();
    for _ in 0..batches {
        let Some(batch) = pass.next()? else { break };
        ids.extend(batch.get("id").unwrap().as_dense().unwrap().u64());
    }
    Ok((ids, pass.position().clone()))
}

fn send(server: &KafkaServer, topic: &str, partition: i32, ids: std::ops::Range<u64>) {
    let lines: Vec<String> = ids.map(|id| format!("1 1 1 {id}")).collect();
    server.send(topic, partition, lines.iter().map(String::as_str));
}

#[test]
fn every_message_is_in_one_pass_and_passes_resume() {
    let server = KafkaServer::start(&[("clicks", 2)]);
    send(&server, "clicks", 0, 0..30);
    send(&server, "clicks", 1, 100..110);
    let address = server.address("clicks");
    let mut planner = messages(&address, 16);
    let (mut plans, mut ids): (Vec<PassPlan>, Vec<u64>) = (Vec::new(), Vec::new());
    while let Some(plan) = next(&mut planner, plans.last()) {
        // Interrupted and resumed.
        let (first, position) = read(&plan, &Position::default(), 2).unwrap();
        let (rest, _) = read(&plan, &position, usize::MAX).unwrap();
        ids.extend(first.into_iter().chain(rest));
        plans.push(plan);
    }
    assert_eq!(plans.iter().map(|plan| plan.parts.len()).collect::<Vec<_>>(), [2, 2, 1]);
    ids.sort_unstable();
    assert_eq!(ids, (0..30).chain(100..110).collect::<Vec<_>>());
    // Another process continues, and the same pass can be read again.
    send(&server, "clicks", 1, 110..113);
    let more = next(&mut messages(&address, 16), plans.last()).unwrap();
    assert_eq!(read(&more, &Position::default(), usize::MAX).unwrap().0, [110, 111, 112]);
    let again = read(&plans[0], &Position::default(), usize::MAX).unwrap().0;
    assert_eq!(again, (0..8).chain(100..108).collect::<Vec<_>>());
}

#[test]
fn what_comes_before_the_start_is_left_out_if_that_is_asked_for() {
    let server = KafkaServer::start(&[("clicks", 1)]);
    send(&server, "clicks", 0, 0..10);
    let mut planner = messages(&format!("{}?from=latest", server.address("clicks")), 16);
    assert_eq!(next(&mut planner, None), None);
    send(&server, "clicks", 0, 10..13);
    let plan = next(&mut planner, None).unwrap();
    assert_eq!(read(&plan, &Position::default(), usize::MAX).unwrap().0, [10, 11, 12]);
}

#[test]
fn what_cannot_be_read_is_named() {
    let server = KafkaServer::start(&[("clicks", 1)]);
    send(&server, "clicks", 0, 0..10);
    let address = server.address("clicks");
    // A checkpoint of another topic, with a position that is not there.
    let after = PassPlan { next: r#"{"0":"99"}"#.into(), ..PassPlan::default() };
    let error = messages(&address, 16).next_pass(Some(&after)).unwrap_err().to_string();
    assert!(error.contains("has the messages 0 to 10, and 99 is the next"), "{error}");
    server.send("clicks", 0, ["1 1 1 x"].into_iter());
    let plan = next(&mut messages(&address, 16), None).unwrap();
    let error = read(&plan, &Position::default(), usize::MAX).unwrap_err().to_string();
    assert!(error.starts_with(&plan.parts[0]) && error.contains(":11: column 7"), "{error}");
    let options = MessagesOptions {
        address: format!("{address},other"),
        per_pass: 1,
        linger: Duration::ZERO,
        end: End::default(),
    };
    let error = Messages::new(options).err().unwrap().to_string();
    assert!(error.ends_with("expected one topic"), "{error}");
}
