//! Data of lost workers: others take them over, nothing is applied twice, and who was lost rejoins.

use std::sync::mpsc::sync_channel;
use std::thread;

use regatta_ps::message::ReduceOp;
use regatta_ps::partition::server_of;
use regatta_ps::{Client, DataStart, Error, Gradients, Idle, Mark, Mode, Progress};

use crate::common::*;

fn modes() -> [Mode; 3] {
    [Mode::default(), Mode::HalfAsync, Mode::Geo { every: 1 }]
}

fn start(pass: u64, worker: usize) -> Option<DataStart> {
    let shards = vec![(worker, Progress::default())];
    Some(DataStart { pass, readable_by_all: true, plan: None, shards })
}

/// Pushes ones for some keys, as the batch of a shard. `applied` names servers that have it.
fn push(
    (client, mode): (&Client, Mode),
    keys: &[u64],
    (shard, batches): (u64, u64),
    applied: &[bool],
) -> Result<(), Error> {
    let mark = Mark { shard, batches, examples: 8 * batches, ..Mark::default() };
    let (rows, dense) = (vec![-1.0; keys.len() * DIM], vec![-1.0; DENSE]);
    let (dense, tables) = ([&dense[..]], [(keys, &rows[..])]);
    let mark = Some((&mark, applied));
    if matches!(mode, Mode::Geo { .. }) {
        let ticket = client.geo(&dense, &tables, mark)?;
        return client.finish_geo(ticket, |_, _, _| {}, |_, _, _| {}).map(|_| ());
    }
    client.finish_pull(
        client.pull(&wanted(batches, &[keys], false))?,
        &mut [&mut vec![0.0; keys.len() * DIM]],
        &mut [&mut [0.0; DENSE]],
    )?;
    let gradients = Gradients { step: batches, examples: 8, dense: &dense, tables: &tables, mark };
    client.finish_push(client.push(&gradients)?)
}

/// Worker 1 ends in the middle of a data pass. Its last batch is on one of two servers only.
#[test]
fn the_shard_of_a_lost_worker_is_taken_over_exactly() {
    for mode in modes() {
        let job = Job::new(2, 2, mode);
        // A key of each server.
        let keys: Vec<u64> =
            [0, 1].map(|s| (1..).find(|key| server_of(*key, 2) == s).unwrap()).to_vec();
        let (servers, endpoints) = job.start();
        let (gone, has_gone) = sync_channel(1);
        thread::scope(|s| {
            let servers: Vec<_> = servers.into_iter().map(|v| s.spawn(|| v.run())).collect();
            let (job, endpoints, keys) = (&job, &endpoints, &keys);
            s.spawn(move || {
                let client = job.connect(endpoints, 1).unwrap();
                begin(&client);
                client.resume(0, start(3, 1)).unwrap();
                push((&client, mode), keys, (1, 1), &[]).unwrap();
                drop(client);
                gone.send(()).unwrap();
            });
            let client = job.connect(endpoints, 0).unwrap();
            begin(&client);
            client.resume(0, start(3, 0)).unwrap();
            push((&client, mode), keys, (0, 1), &[]).unwrap();
            has_gone.recv().unwrap();
            client.rest().unwrap();
            let Idle::TakeOver { shard: 1, step } = client.idle().unwrap() else {
                panic!("{mode:?}: the pass is over");
            };
            let taken = client.take_over(1, step).unwrap();
            let batches: Vec<u64> = taken.progress.iter().map(|p| p.batches).collect();
            assert_eq!(batches, [1, 1], "{mode:?}");
            // As if server 1 had got the next batch before the worker was lost.
            push((&client, mode), keys, (1, 2), &[false, true]).unwrap();
            client.rest().unwrap();
            assert_eq!(client.idle().unwrap(), Idle::PassOver { untrained: vec![] });
            // In the next pass the shard is there from the beginning.
            client.resume(9, start(4, 0)).unwrap();
            client.rest().unwrap();
            assert!(matches!(client.idle().unwrap(), Idle::TakeOver { shard: 1, .. }));
            let fresh = client.take_over(1, 9).unwrap();
            assert_eq!(fresh.progress, vec![Progress::default(); 2]);
            client.rest().unwrap();
            assert_eq!(client.idle().unwrap(), Idle::PassOver { untrained: vec![] });
            let (rows, _) = pull(&client, 9, keys, true);
            let sign = if matches!(mode, Mode::Geo { .. }) { -1.0 } else { 1.0 };
            assert_eq!([rows[0] * sign, rows[DIM] * sign], [3.0, 2.0], "{mode:?}");
            let lost = client.leave().unwrap();
            assert_eq!(lost, ["worker 1 is lost: it ended without leaving the job"]);
            drop(client);
            for server in servers {
                assert_eq!(server.join().unwrap().unwrap().lost, lost);
            }
        });
    }
}

/// Worker 1 is taken for lost while it is there: it hears so, takes part again, and is where the
/// others are.
#[test]
fn a_worker_that_was_lost_rejoins() {
    for mode in modes() {
        let job = Job::new(2, 2, mode);
        let (servers, endpoints) = job.start();
        let (pushed, has_pushed) = sync_channel(1);
        let (took, has_taken) = sync_channel(1);
        let (joined, has_joined) = sync_channel(1);
        thread::scope(|s| {
            let servers: Vec<_> = servers.into_iter().map(|v| s.spawn(|| v.run())).collect();
            let (job, endpoints) = (&job, &endpoints);
            let late = s.spawn(move || {
                let client = job.connect(endpoints, 1).unwrap();
                begin(&client);
                client.resume(0, start(0, 1)).unwrap();
                push((&client, mode), &[7], (1, 1), &[]).unwrap();
                pushed.send(()).unwrap();
                has_taken.recv().unwrap();
                let error = push((&client, mode), &[7], (1, 2), &[]).unwrap_err();
                assert!(matches!(error, Error::Dropped { .. }), "{mode:?}: {error}");
                let (again, rejoined) = client.rejoin(&mut |_| {}).unwrap();
                drop(client);
                assert_eq!(rejoined.pass, 0);
                joined.send(()).unwrap();
                assert_eq!(again.idle().unwrap(), Idle::PassOver { untrained: vec![] });
                let sum = again.reduce("sum", ReduceOp::Sum, &[2.0]).unwrap();
                again.resume(5, start(1, 1)).unwrap();
                push((&again, mode), &[7], (1, 1), &[]).unwrap();
                again.rest().unwrap();
                assert_eq!(again.idle().unwrap(), Idle::PassOver { untrained: vec![] });
                assert_eq!(again.leave().unwrap(), [""; 0]);
                sum
            });
            let client = job.connect(endpoints, 0).unwrap();
            begin(&client);
            client.resume(0, start(0, 0)).unwrap();
            has_pushed.recv().unwrap();
            // Server 0 would offer it; the others hear of the loss like this.
            let taken = client.take_over(1, 0).unwrap();
            assert_eq!(taken.progress[0].batches, 1);
            took.send(()).unwrap();
            push((&client, mode), &[7], (1, 2), &[]).unwrap();
            has_joined.recv().unwrap();
            client.rest().unwrap();
            assert_eq!(client.idle().unwrap(), Idle::PassOver { untrained: vec![] });
            assert_eq!(client.reduce("sum", ReduceOp::Sum, &[1.0]).unwrap(), [3.0]);
            client.resume(5, start(1, 0)).unwrap();
            client.rest().unwrap();
            assert_eq!(client.idle().unwrap(), Idle::PassOver { untrained: vec![] });
            let (rows, _) = pull(&client, 9, &[7], true);
            let sign = if matches!(mode, Mode::Geo { .. }) { -1.0 } else { 1.0 };
            assert_eq!(rows[0] * sign, 3.0, "{mode:?}");
            client.leave().unwrap();
            drop(client);
            assert_eq!(late.join().unwrap(), [3.0]);
            for server in servers {
                assert_eq!(server.join().unwrap().unwrap().lost, [""; 0]);
            }
        });
    }
}

/// Nobody but worker 0 can end a data pass, and nobody else can read data that only one worker has.
#[test]
fn what_nobody_can_take_over_is_said() {
    let job = Job::new(1, 2, Mode::HalfAsync);
    let (mut servers, endpoints) = job.start();
    let unreadable = |worker| start(0, worker).map(|s| DataStart { readable_by_all: false, ..s });
    thread::scope(|s| {
        let server = servers.remove(0);
        let server = s.spawn(|| server.run());
        let (job, endpoints) = (&job, &endpoints);
        let lost = s.spawn(move || {
            let client = job.connect(endpoints, 1).unwrap();
            begin(&client);
            client.resume(0, unreadable(1)).unwrap();
        });
        let client = job.connect(endpoints, 0).unwrap();
        begin(&client);
        client.resume(0, unreadable(0)).unwrap();
        lost.join().unwrap();
        client.rest().unwrap();
        assert_eq!(client.idle().unwrap(), Idle::PassOver { untrained: vec![1] });
        drop(client);
        let error = server.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("no job continues without worker 0"), "{error}");
    });
}

/// A server whose workers are all lost has not done its work.
#[test]
fn a_server_without_any_worker_left_fails() {
    let job = Job::new(1, 2, Mode::default());
    let (mut servers, endpoints) = job.start();
    let server = servers.remove(0);
    thread::scope(|s| {
        let server = s.spawn(|| server.run());
        let clients = [0, 1].map(|w| job.connect(&endpoints, w).unwrap());
        drop(clients);
        let error = server.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("all workers are lost: worker 0"), "{error}");
    });
}
