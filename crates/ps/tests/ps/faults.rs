//! Connections that break in the middle of anything: every push is applied once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use regatta_net::fault::{Faults, Wrap};
use regatta_net::{ClientOptions, ServerOptions};
use regatta_ps::{AsyncConfig, Client, Mode};

use crate::common::*;

/// Lets the first connections break after so many bytes, one after the other.
fn breaking(faults: Vec<Faults>) -> Wrap {
    let next = AtomicU64::new(0);
    Arc::new(move |stream| {
        let at = next.fetch_add(1, Ordering::Relaxed) as usize;
        faults.get(at).cloned().unwrap_or_default().on(stream)
    })
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Client,
    Server,
}

fn with_faults(mut job: Job, side: Side, faults: Vec<Faults>) -> Job {
    match side {
        Side::Client => {
            let tune = move |o: &mut ClientOptions| {
                o.shortcut = false;
                o.reconnect_timeout = Duration::from_secs(20);
                // Only worker 0 has bad luck; the others wait for it.
                if o.me.index == 0 {
                    o.wrap = Some(breaking(faults.clone()));
                }
            };
            job.tune_client = Some(Arc::new(tune));
        }
        Side::Server => {
            let wrap = breaking(faults);
            job.tune_client = Some(Arc::new(|o: &mut ClientOptions| o.shortcut = false));
            job.tune_server = Some(Arc::new(move |o: &mut ServerOptions| {
                o.shortcut = false;
                o.wrap = Some(wrap.clone());
            }));
        }
    }
    job
}

const STEPS: u64 = 4;

/// Makes the rows, lets `push` push some steps, and gives what the servers hold in the end.
fn trained(client: &Client, workers: usize, push: impl FnOnce()) -> (Vec<f32>, Vec<f32>) {
    begin(client);
    let (keys, _, _) = expected(workers, STEPS, 1.0);
    pull(client, 0, &keys, false);
    client.barrier("rows are there").unwrap();
    push();
    client.barrier("pushed").unwrap();
    let result = pull(client, STEPS, &keys, true);
    client.barrier("read").unwrap();
    result
}

/// Pushes, and asks for the rows of the next step with it.
fn train(worker: usize, client: &Client, workers: usize) -> (Vec<f32>, Vec<f32>) {
    trained(client, workers, || {
        for step in 0..STEPS {
            let v = gradients(worker, step);
            let ticket = with_gradients(&v, step, |g| {
                client.push_pull(g, &wanted(step + 1, &[&v.keys], false)).unwrap()
            });
            let (mut rows, mut dense) = (vec![0.0; v.keys.len() * DIM], vec![0.0; DENSE]);
            client.finish_pull(ticket, &mut [&mut rows], &mut [&mut dense]).unwrap();
        }
    })
}

/// Pushes without waiting for each.
fn train_ahead(worker: usize, client: &Client, workers: usize) -> (Vec<f32>, Vec<f32>) {
    trained(client, workers, || {
        let push =
            |step| with_gradients(&gradients(worker, step), step, |g| client.push(g).unwrap());
        let tickets: Vec<_> = (0..STEPS).map(push).collect();
        tickets.into_iter().for_each(|ticket| client.finish_push(ticket).unwrap());
    })
}

/// Pushes and asks for dense values alone, which are answered before the rows are applied.
fn train_with_dense(worker: usize, client: &Client, workers: usize) -> (Vec<f32>, Vec<f32>) {
    trained(client, workers, || {
        for step in 0..STEPS {
            let asked = wanted(step + 1, &[&[]], true);
            let v = gradients(worker, step);
            let ticket = with_gradients(&v, step, |g| client.push_pull(g, &asked).unwrap());
            let mut dense = vec![0.0; DENSE];
            client.finish_pull(ticket, &mut [&mut []], &mut [&mut dense]).unwrap();
        }
    })
}

type Train = fn(usize, &Client, usize) -> (Vec<f32>, Vec<f32>);

/// Cuts at every so many bytes until a run is not cut any more; returns how many pushes came again.
fn cut_everywhere(mode: Mode, scale: f32, train: Train, side: Side, stride: u64) -> u64 {
    let workers = 2;
    let (_, rows, dense) = expected(workers, STEPS, scale);
    let (mut repeated, mut at) = (0, 1);
    loop {
        let cut = |n| Faults { cut_after_written: Some(n), ..Faults::default() };
        // A second break soon after the first, in the middle of what is sent again.
        let job = with_faults(Job::new(1, workers, mode), side, vec![cut(at), cut(at / 2 + 300)]);
        let (results, stats) = job.run(|w, client| train(w, client, workers));
        for (worker, (got_rows, got_dense)) in results.iter().enumerate() {
            let what = format!("{mode:?} {side:?} cut at {at}, worker {worker}");
            assert_eq!((got_rows, got_dense), (&rows, &dense), "{what}");
        }
        repeated += stats[0].repeated;
        if !job.heard("broke") && at > 1000 {
            return repeated;
        }
        at += stride;
    }
}

#[test]
fn nothing_is_applied_twice_or_lost_in_async_mode() {
    let mode = Mode::Async(AsyncConfig::default());
    let asked = cut_everywhere(mode, -1.0, train, Side::Client, 61);
    let answered = cut_everywhere(mode, -1.0, train, Side::Server, 61);
    let ahead = cut_everywhere(mode, -1.0, train_ahead, Side::Client, 61);
    let ahead_answered = cut_everywhere(mode, -1.0, train_ahead, Side::Server, 31);
    cut_everywhere(mode, -1.0, train_with_dense, Side::Client, 61);
    cut_everywhere(mode, -1.0, train_with_dense, Side::Server, 61);
    // A request that is cut is not applied; one whose answer is cut is, and comes again.
    assert!(answered + ahead_answered > 5, "{asked} {answered} {ahead} {ahead_answered}");
}

#[test]
fn nothing_is_applied_twice_or_lost_in_sync_mode() {
    // Two workers with as many examples: the mean of their gradients.
    cut_everywhere(Mode::Sync, -0.5, train, Side::Client, 61);
    assert!(cut_everywhere(Mode::Sync, -0.5, train, Side::Server, 61) > 0);
}

#[test]
fn nothing_is_applied_twice_or_lost_in_bounded_and_half_async_mode() {
    for mode in [Mode::Bounded { staleness: 1 }, Mode::HalfAsync] {
        cut_everywhere(mode, -1.0, train, Side::Client, 97);
        cut_everywhere(mode, -1.0, train, Side::Server, 97);
    }
}

/// Exchanges differences; a worker's copy is not needed to see what servers hold.
fn exchange(worker: usize, client: &Client, workers: usize) -> (Vec<f32>, Vec<f32>) {
    begin(client);
    for step in 0..STEPS {
        let v = gradients(worker, step);
        let ticket = client.geo(&[&v.dense], &[(&v.keys, &v.rows)], None).unwrap();
        client.finish_geo(ticket, |_, _, _| {}, |_, _, _| {}).unwrap();
    }
    client.barrier("exchanged").unwrap();
    let (keys, _, _) = expected(workers, STEPS, 1.0);
    let result = pull(client, 0, &keys, true);
    client.barrier("read").unwrap();
    result
}

#[test]
fn nothing_is_applied_twice_or_lost_in_geo_mode() {
    let mode = Mode::Geo { every: 1 };
    cut_everywhere(mode, 1.0, exchange, Side::Client, 61);
    assert!(cut_everywhere(mode, 1.0, exchange, Side::Server, 61) > 0);
}

/// Small pieces and delays make no difference either.
#[test]
fn chopped_streams_carry_the_same() {
    let (_, rows, dense) = expected(2, STEPS, -1.0);
    let faults = Faults { chop: Some(13), ..Faults::default() };
    let job = with_faults(Job::new(2, 2, Mode::HalfAsync), Side::Client, vec![faults; 4]);
    let (results, _) = job.run(|w, client| train(w, client, 2));
    assert!(results.iter().all(|r| (&r.0, &r.1) == (&rows, &dense)));
}

/// Several threads may push through one client: none of their pushes is taken for a repetition.
#[test]
fn pushes_of_several_threads_all_count() {
    let job = Job::new(2, 1, Mode::Async(AsyncConfig::default()));
    let n = 50;
    let (results, stats) = job.run(|_, client| {
        begin(client);
        pull(client, 0, &[1], false);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..n {
                        let v =
                            Values { keys: vec![1], rows: vec![1.0; DIM], dense: vec![1.0; DENSE] };
                        let ticket = with_gradients(&v, 0, |g| client.push(g).unwrap());
                        client.finish_push(ticket).unwrap();
                    }
                });
            }
        });
        pull(client, 0, &[1], true)
    });
    let sum = -4.0 * n as f32;
    assert_eq!(results[0], (vec![sum; DIM], vec![sum; DENSE]));
    assert!(stats.iter().all(|s| s.repeated == 0 && s.steps == 4 * n));
}
