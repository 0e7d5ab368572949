//! Snapshots over real sockets: every server takes the same moment while workers train, and what is
//! written is that moment, for any number of servers.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use regatta_checkpoint::server_parts::ServerParts;
use regatta_checkpoint::{
    Check, CheckpointDir, Content, Draft, Kind, Manifest, Metadata, Part, Progress, Topology,
    verify, write_tensors,
};
use regatta_net::fault::{Faults, Wrap};
use regatta_net::{ClientOptions, ServerOptions};
use regatta_optim::{Adam, Rule, Schedule};
use regatta_ps::{AsyncConfig, Client, Mode, Pulled, SnapshotOrder, SnapshotScope};
use regatta_table::{Initializer, SaveMode};
use regatta_tensor::Tensor;

use crate::common::*;

/// Pulls for a step; comes to snapshots as often as values are held back. Gives how often that was.
fn pull_past_snapshots(client: &Client, step: u64, keys: &[u64], state: &str) -> u64 {
    let mut snapshots = 0;
    loop {
        let ticket = client.pull(&wanted(step, &[keys], false)).unwrap();
        let (mut rows, mut dense) = (vec![0.0; keys.len() * DIM], vec![0.0; DENSE]);
        match client.finish_pull(ticket, &mut [&mut rows], &mut [&mut dense]).unwrap() {
            Pulled::Values => return snapshots,
            Pulled::Deferred => {
                client.ready(state, false).unwrap();
                snapshots += 1;
            }
        }
    }
}

fn push(client: &Client, worker: usize, step: u64) {
    let v = gradients(worker, step);
    let ticket = with_gradients(&v, step, |g| client.push(g).unwrap());
    client.finish_push(ticket).unwrap();
}

fn publish(dir: &CheckpointDir, serial: u64, draft: Draft, parts: Vec<Part>) {
    let mut manifest = Manifest::new("hash", Topology::default(), Progress::default());
    manifest.parts = parts;
    draft.publish(manifest).unwrap();
    assert!(verify(&dir.path_of(serial), Check::Checksums).is_empty());
}

fn order(draft: &Draft, scope: SnapshotScope) -> SnapshotOrder {
    SnapshotOrder { dir: draft.path().to_path_buf(), scope }
}

/// Rows and dense parameters after a checkpoint was restored by so many servers.
fn restored(job: &Job, dir: &Path, keys: &[u64]) -> (Vec<f32>, Vec<f32>) {
    let dir = dir.to_str().unwrap();
    let (values, stats) = job.run(|worker, client| {
        if worker == 0 {
            client.restore(dir, false).unwrap();
        }
        client.barrier("restored").unwrap();
        pull(client, 0, keys, true)
    });
    // Workers keep training without values: nothing was pushed, and the count is the checkpoint's.
    assert!(stats.iter().all(|s| s.steps == stats[0].steps));
    values.into_iter().next().unwrap()
}

#[test]
fn a_snapshot_is_one_moment_of_all_servers_in_every_mode() {
    const STEPS: u64 = 30;
    let modes = [
        Mode::Sync,
        Mode::HalfAsync,
        Mode::Async(AsyncConfig::default()),
        Mode::Bounded { staleness: 1 },
    ];
    for mode in modes {
        let all = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::open(all.path());
        let job = Job::new(3, 3, mode);
        // How many steps each worker had pushed when it was ready, as worker 0 hears it.
        let ready_worker: Mutex<Vec<u64>> = Mutex::default();
        job.run(|worker, client| {
            begin(client);
            client.resume(0, None).unwrap();
            for step in 0..STEPS {
                let keys = gradients(worker, step).keys;
                let mut draft = None;
                if worker == 0 && step == 11 {
                    let new = dir.begin(0).unwrap();
                    client.open_snapshot(&order(&new, SnapshotScope::Whole)).unwrap();
                    draft = Some(new);
                }
                if mode == Mode::Sync && worker == 0 && step == 11 {
                    // The step that is being collected still comes before the snapshot.
                    assert_eq!(pull_past_snapshots(client, 11, &keys, "11"), 0);
                    push(client, worker, step);
                    let taken = client.ready("12", false).unwrap();
                    note_states(&ready_worker, taken.states);
                } else if let Some(draft) = &draft {
                    let ticket = client.pull(&wanted(step, &[&keys], false)).unwrap();
                    let (mut rows, mut dense) = (vec![0.0; keys.len() * DIM], vec![0.0; DENSE]);
                    let pulled = client.finish_pull(ticket, &mut [&mut rows], &mut [&mut dense]);
                    assert_eq!(pulled.unwrap(), Pulled::Deferred, "{}", draft.serial());
                    let taken = client.ready(&step.to_string(), false).unwrap();
                    note_states(&ready_worker, taken.states);
                    assert_eq!(pull_past_snapshots(client, step, &keys, ""), 0);
                    push(client, worker, step);
                } else {
                    pull_past_snapshots(client, step, &keys, &step.to_string());
                    push(client, worker, step);
                }
                if let Some(draft) = draft {
                    let parts = client.finish_written(client.written().unwrap()).unwrap();
                    publish(&dir, 0, draft, parts);
                }
            }
            client.rest().unwrap();
            while client.idle().unwrap() == regatta_ps::Idle::Snapshot {
                client.ready(&STEPS.to_string(), false).unwrap();
            }
        });
        let steps = ready_worker.into_inner().unwrap();
        assert_eq!(steps.len(), 3, "{mode:?}");
        if mode == Mode::Sync {
            assert_eq!(steps, [12, 12, 12]);
        }
        let scale = if mode == Mode::Sync { -1.0 / 3.0 } else { -1.0 };
        let (keys, rows, dense) = expected_at(&steps, scale);
        for servers in [1, 3, 4] {
            let job = Job { servers, workers: 1, ..job.clone() };
            let (got_rows, got_dense) = restored(&job, &dir.path_of(0), &keys);
            assert_near(&got_rows, &rows, &format!("{mode:?} {servers} rows"));
            assert_near(&got_dense, &dense, &format!("{mode:?} {servers} dense"));
        }
    }
}

fn note_states(ready_worker: &Mutex<Vec<u64>>, states: Vec<(usize, String)>) {
    let steps = states.into_iter().map(|(_, text)| text.parse::<u64>().unwrap());
    ready_worker.lock().unwrap().extend(steps);
}

/// The sums of the first steps of each worker.
fn expected_at(steps: &[u64], scale: f32) -> (Vec<u64>, Vec<f32>, Vec<f32>) {
    let mut rows: std::collections::BTreeMap<u64, [f32; DIM]> = Default::default();
    let mut dense = vec![0.0; DENSE];
    for (worker, &n) in steps.iter().enumerate() {
        for step in 0..n {
            let v = gradients(worker, step);
            for (key, row) in v.keys.iter().zip(v.rows.chunks(DIM)) {
                let sum = rows.entry(*key).or_default();
                sum.iter_mut().zip(row).for_each(|(s, g)| *s += scale * g);
            }
            dense.iter_mut().zip(&v.dense).for_each(|(s, g)| *s += scale * g);
        }
    }
    (rows.keys().copied().collect(), rows.values().flatten().copied().collect(), dense)
}

fn assert_near(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
    assert!(a.iter().zip(b).all(near), "{what}: {a:?} and {b:?}");
}

/// Adam with a schedule: the state of the optimizer and the step of the schedule come back, so that
/// training goes on with the same bits, on another number of servers too.
#[test]
fn a_restored_job_goes_on_with_the_same_bits() {
    let all = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(all.path());
    let adam = |servers: usize| {
        let mut job = Job::new(servers, 1, Mode::HalfAsync);
        job.rule = Rule::Adam(Adam::default());
        job.initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
        job.schedule = Schedule::Exponential { decay_steps: 3, decay_rate: 0.5, staircase: false };
        job
    };
    let (keys, _, _) = expected(1, 20, 1.0);
    let bits = |v: (Vec<f32>, Vec<f32>)| -> Vec<u32> {
        v.0.iter().chain(&v.1).map(|x| x.to_bits()).collect()
    };
    let steps = |client: &Client, range: Range<u64>| {
        for step in range {
            pull_past_snapshots(client, step, &gradients(0, step).keys, "");
            push(client, 0, step);
        }
    };
    let (results, _) = adam(2).run(|_, client| {
        begin(client);
        steps(client, 0..8);
        let draft = dir.begin(0).unwrap();
        client.open_snapshot(&order(&draft, SnapshotScope::Whole)).unwrap();
        client.ready("", false).unwrap();
        // While it is written, training goes on and does not touch what is written.
        steps(client, 8..20);
        let parts = client.finish_written(client.written().unwrap()).unwrap();
        publish(&dir, 0, draft, parts);
        bits(pull(client, 20, &keys, true))
    });
    for servers in [1, 2, 5] {
        let (again, stats) = adam(servers).run(|_, client| {
            client.restore(dir.path_of(0).to_str().unwrap(), false).unwrap();
            steps(client, 8..20);
            bits(pull(client, 20, &keys, true))
        });
        assert_eq!(again, results, "{servers} servers");
        assert!(stats.iter().all(|s| s.steps == 20), "{stats:?}");
    }
}

/// A whole checkpoint and checkpoints of changes: each gives the bits that servers held at its
/// snapshot, on any number of servers; a restored job goes on to count changes from where it
/// begins.
#[test]
fn changes_on_top_of_a_whole_checkpoint_are_the_servers() {
    let all = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(all.path());
    let adam = |servers: usize| {
        let mut job = Job::new(servers, 1, Mode::HalfAsync);
        job.rule = Rule::Adam(Adam::default());
        job.initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
        job
    };
    let (keys, _, _) = expected(1, 40, 1.0);
    let bits = |v: (Vec<f32>, Vec<f32>)| -> Vec<u32> {
        v.0.iter().chain(&v.1).map(|x| x.to_bits()).collect()
    };
    let steps = |client: &Client, range: Range<u64>| {
        for step in range {
            pull_past_snapshots(client, step, &gradients(0, step).keys, "");
            push(client, 0, step);
        }
    };
    // Takes a snapshot, trains on while it is written, and publishes it unless the disk is full.
    let save = |client: &Client, serial, base: Option<u64>, works, next: Range<u64>| {
        let scope = base.map_or(SnapshotScope::Base, |_| SnapshotScope::Changes);
        let draft = dir.begin(serial).unwrap();
        client.open_snapshot(&order(&draft, scope)).unwrap();
        client.ready("", false).unwrap();
        steps(client, next);
        let parts = client.finish_written(client.written().unwrap()).unwrap();
        let rows = |part: &Part| match part.content {
            Content::Table { rows, .. } => rows,
            _ => 0,
        };
        let n: u64 = parts.iter().map(rows).sum();
        if works {
            let mut manifest = Manifest::new("hash", Topology::default(), Progress::default());
            manifest.parts = parts;
            manifest.kind = base.map_or(Kind::Full, |base| Kind::Delta { base });
            draft.publish(manifest).unwrap();
        }
        client.stored(works).unwrap();
        n
    };
    let (results, _) = adam(2).run(|_, client| {
        begin(client);
        steps(client, 0..8);
        // All keys exist, so that values can be compared without creating rows.
        pull(client, 8, &keys, true);
        let whole = save(client, 0, None, true, 8..9);
        let lost = save(client, 1, Some(0), false, 9..10);
        let changes = save(client, 1, Some(0), true, 10..10);
        let at_1 = bits(pull(client, 10, &keys, true));
        steps(client, 10..12);
        save(client, 2, Some(1), true, 12..12);
        assert!(0 < lost && lost <= changes && changes < whole, "{whole} {lost} {changes}");
        (at_1, bits(pull(client, 12, &keys, true)))
    });
    let (at_1, at_2) = &results[0];
    for servers in [1, 2, 3] {
        for (serial, expected) in [(1, at_1), (2, at_2)] {
            assert!(verify(&dir.path_of(serial), Check::Checksums).is_empty());
            let (again, _) = adam(servers).run(|_, client| {
                client.restore(dir.path_of(serial).to_str().unwrap(), true).unwrap();
                bits(pull(client, 12, &keys, true))
            });
            assert_eq!(&again[0], expected, "checkpoint {serial} on {servers} servers");
        }
    }
    let (results, _) = adam(3).run(|_, client| {
        client.restore(dir.path_of(2).to_str().unwrap(), true).unwrap();
        steps(client, 12..14);
        save(client, 3, Some(2), true, 14..14);
        bits(pull(client, 14, &keys, true))
    });
    let (again, _) = adam(2).run(|_, client| {
        client.restore(dir.path_of(3).to_str().unwrap(), false).unwrap();
        bits(pull(client, 14, &keys, true))
    });
    assert_eq!(again, results);
}

#[test]
fn parts_of_workers_are_waited_for_and_failures_are_told() {
    let all = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(all.path());
    let reported = AtomicU64::new(0);
    Job::new(2, 2, Mode::HalfAsync).run(|worker, client| {
        begin(client);
        for serial in 0..2 {
            let mut draft = None;
            if worker == 0 {
                let new = dir.begin(serial).unwrap();
                client.open_snapshot(&order(&new, SnapshotScope::Whole)).unwrap();
                draft = Some(new);
            }
            let taken = client.ready(&format!("worker {worker}"), worker == 1).unwrap();
            if worker == 1 {
                assert!(taken.states.is_empty());
                let tensor = Tensor::from_f32(&[1], vec![7.0]).unwrap();
                let draft = Path::new(&taken.dir);
                let part = write_tensors(draft, "worker-1", [("x", &tensor)], &Metadata::new());
                let part = part.map_err(|e| e.to_string());
                reported.fetch_add(1, Ordering::SeqCst);
                client.own_part(if serial == 0 { part } else { Err("disk full".into()) }).unwrap();
            }
            if let Some(draft) = draft {
                let states: Vec<_> = taken.states.iter().map(|s| s.1.as_str()).collect();
                assert_eq!(states, ["worker 0", "worker 1"]);
                let written = client.finish_written(client.written().unwrap());
                assert!(reported.load(Ordering::SeqCst) > serial);
                match serial {
                    0 => publish(&dir, 0, draft, written.unwrap()),
                    _ => assert!(written.unwrap_err().to_string().contains("disk full")),
                }
            }
            client.barrier("next").unwrap();
        }
    });
    assert_eq!(dir.list().unwrap().len(), 1);
}

#[test]
fn base_and_deltas_are_the_whole_and_days_pass() {
    let all = tempfile::tempdir().unwrap();
    let path = |name: &str| all.path().join(name).to_str().unwrap().to_string();
    let job = Job::new(2, 1, Mode::HalfAsync);
    let (keys, _, _) = expected(1, 9, 1.0);
    let train = |client: &Client, steps: Range<u64>| {
        for step in steps {
            pull(client, step, &gradients(0, step).keys, false);
            push(client, 0, step);
        }
    };
    let (whole, _) = job.run(|_, client| {
        begin(client);
        train(client, 0..3);
        client.save(&path("base"), SaveMode::Base).unwrap();
        train(client, 3..6);
        client.save(&path("delta-1"), SaveMode::Delta).unwrap();
        train(client, 6..9);
        client.save(&path("delta-2"), SaveMode::Delta).unwrap();
        client.save(&path("day"), SaveMode::Day).unwrap();
        let detail = client.inspect("t", 1).unwrap().unwrap().detail;
        assert!(detail.starts_with("unseen for 1 days"), "{detail}");
        pull(client, 9, &keys, true)
    });
    let rows = |dir: &str| {
        let mut n = 0;
        ServerParts::open(path(dir)).unwrap().rows("t", DIM, |_, _| n += 1).unwrap();
        n
    };
    // Keys 1, 2 and 100 in every step, and one key of each step.
    assert_eq!((rows("base"), rows("delta-1"), rows("day")), (6, 6, 12));
    let job = Job { servers: 3, ..job };
    let (together, _) = job.run(|_, client| {
        client.load(&path("base"), &[]).unwrap();
        client.load_delta(&path("delta-1"), &[]).unwrap();
        client.load_delta(&path("delta-2"), &[]).unwrap();
        pull(client, 9, &keys, true)
    });
    assert_eq!(whole, together);
}

/// The connection breaks at some byte of what the server says. A worker that asks again gets the
/// positions of all workers: a checkpoint without them could not be resumed.
#[test]
fn a_snapshot_whose_answer_was_lost_is_answered_again() {
    let folder = tempfile::tempdir().unwrap();
    for at in (300..3000).step_by(37) {
        let mut job = Job::new(1, 1, Mode::HalfAsync);
        let connections = AtomicU64::new(0);
        let wrap: Wrap = Arc::new(move |stream| {
            let is_first = connections.fetch_add(1, Ordering::Relaxed) == 0;
            let cut = is_first.then_some(at);
            Faults { cut_after_written: cut, ..Faults::default() }.on(stream)
        });
        job.tune_client = Some(Arc::new(|o: &mut ClientOptions| o.shortcut = false));
        job.tune_server = Some(Arc::new(move |o: &mut ServerOptions| {
            o.shortcut = false;
            o.wrap = Some(wrap.clone());
        }));
        let dir = CheckpointDir::open(folder.path().join(at.to_string()));
        job.run(|_, client| {
            begin(client);
            let draft = dir.begin(0).unwrap();
            client.open_snapshot(&order(&draft, SnapshotScope::Whole)).unwrap();
            let state = "where it is ".repeat(50);
            let taken = client.ready(&state, false).unwrap();
            assert_eq!(taken.states, [(0, state)], "cut at {at}");
            assert_eq!(Path::new(&taken.dir), draft.path(), "cut at {at}");
        });
    }
}
