//! Who may ask a server for what, verb by verb.

use std::time::Duration;

use regatta_net::{Client as Wire, ClientOptions, Identity, JobToken};
use regatta_ps::message::{Control, Hello, Kind, ReduceOp};
use regatta_ps::{Client, Mode, SnapshotScope};
use regatta_table::SaveMode;

use crate::common::{DENSE, Job};

/// The sentence of a refusal; none for who may.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Rule {
    FirstWorker,
    Workers,
    Readers,
}

fn verbs(dir: &str) -> Vec<(Kind, Vec<u8>, Rule)> {
    use Rule::{FirstWorker, Readers, Workers};
    let dir = dir.to_string();
    let reduce = Control::Reduce { round: 1, what: "x".into(), op: ReduceOp::Sum, values: vec![] };
    let state = String::new();
    let snapshot = Control::Snapshot { id: 1, dir: dir.clone(), scope: SnapshotScope::Whole };
    let save = Control::Save { dir: dir.clone(), id: 1, mode: SaveMode::All };
    let load = Control::Load { dir: dir.clone(), names: vec![], over: false };
    let control = [
        (reduce, Workers),
        (Control::Rest, Workers),
        (Control::Resume { step: 1, data: None }, Workers),
        (Control::TakeOver { shard: 0, step: 1 }, Workers),
        (Control::Idle, Workers),
        (snapshot, FirstWorker),
        (Control::Stored { id: 1, stored: true }, FirstWorker),
        (Control::Ready { id: 1, state, own_part: false }, Workers),
        (Control::OwnPart { id: 1, part: Err("no".into()) }, Workers),
        (Control::Written { id: 1 }, Workers),
        (Control::Leave, Workers),
        (save, FirstWorker),
        (Control::TrySave { dir: dir.clone() }, FirstWorker),
        (load, FirstWorker),
        (Control::Restore { dir, count_changes: false }, FirstWorker),
        (Control::Shrink { max_unseen_days: Some(0) }, FirstWorker),
        (Control::EndDay, FirstWorker),
        (Control::Stats, Readers),
        (Control::Inspect { table: "t".into(), id: 1 }, Readers),
    ];
    let data = [
        (Kind::Pull, vec![0; 24], Workers),
        (Kind::Push, vec![0; 48], Workers),
        (Kind::PushPull, vec![0; 72], Workers),
        (Kind::Geo, vec![0; 48], Workers),
        (Kind::SetDense, vec![0; 8], FirstWorker),
    ];
    let control = control.into_iter().map(|(verb, who)| (Kind::Control, verb.encode(), who));
    control.chain(data).collect()
}

fn ask(wire: &Wire, kind: Kind, payload: &[u8]) -> String {
    let pending = wire.send(kind as u16, 0, &[payload]).unwrap();
    let reply = pending.wait(Duration::from_secs(20)).unwrap();
    String::from_utf8_lossy(&reply.payload).into_owned()
}

#[test]
fn every_verb_is_for_those_it_is_meant_for() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("saved");
    let job = Job::new(1, 2, Mode::HalfAsync);
    let (mut servers, endpoints) = job.start();
    let server = servers.remove(0);
    let connect = |me| {
        let options = ClientOptions::new(me, Identity::server(0), JobToken::new(&job.token));
        Wire::connect(endpoints[0].as_str(), options).unwrap()
    };
    let second = connect(Identity::worker(1));
    let hello = Hello { job: job.name.clone(), workers: 2, servers: 1 };
    ask(&second, Kind::Control, &Control::Hello(hello).encode());
    let others = [(Identity::tool(0), true), (Identity::rank(0), false)];
    let others = others.map(|(me, reads)| (me, connect(me), reads));
    for (kind, payload, rule) in verbs(&target.to_string_lossy()) {
        let what = String::from_utf8_lossy(&payload).into_owned();
        if rule == Rule::FirstWorker {
            let text = ask(&second, kind, &payload);
            let refused = text.contains("only worker 0 may") && text.contains("this is worker 1");
            assert!(refused, "{kind:?} {what}: {text}");
        }
        for (me, wire, reads) in &others {
            let text = ask(wire, kind, &payload);
            let refused = text.contains("only worker") && text.contains(&format!("this is {me}"));
            assert_eq!(
                refused,
                !(*reads && rule == Rule::Readers),
                "{me}, {kind:?} {what}: {text}"
            );
        }
    }
    assert!(!target.exists(), "nothing was written for them");
    drop((second, others));
    // The first worker saves, loads and ends days.
    let first: Client = job.connect(&endpoints, 0).unwrap();
    first.set_dense(&[&[0.0; DENSE]]).unwrap();
    first.save(&target.to_string_lossy(), SaveMode::All).unwrap();
    assert!(target.exists());
    first.load(&target.to_string_lossy(), &[]).unwrap();
    first.end_day().unwrap();
    first.shrink(None).unwrap();
    drop(first);
    drop(server);
}
