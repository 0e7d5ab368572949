//! Workers that do not come, end early or disagree.

use std::thread;
use std::time::{Duration, Instant};

use regatta_ps::message::{MAX_GATHER_BYTES, ReduceOp};
use regatta_ps::{AsyncConfig, Mode};

use crate::common::*;

#[test]
fn a_worker_that_never_comes_is_named() {
    for mode in [Mode::Sync, Mode::Async(AsyncConfig::default()), Mode::Geo { every: 1 }] {
        let mut job = Job::new(2, 2, mode);
        job.start_timeout = Duration::from_millis(300);
        let (servers, endpoints) = job.start();
        thread::scope(|s| {
            let servers: Vec<_> = servers.into_iter().map(|v| s.spawn(|| v.run())).collect();
            let client = job.connect(&endpoints, 0).unwrap();
            let error = client.barrier("begin").unwrap_err().to_string();
            assert!(error.contains("worker 1 did not come within 0.3 s"), "{error}");
            drop(client);
            for server in servers {
                // A server may see the worker end before it finds out itself.
                let error = server.join().unwrap().unwrap_err().to_string();
                let named = ["worker 1 did not come", "worker 1 has not come"];
                assert!(named.iter().any(|text| error.contains(text)), "{error}");
            }
        });
    }
}

#[test]
fn a_job_may_begin_without_a_worker_that_never_comes() {
    let mut job = Job::new(1, 2, Mode::Sync);
    (job.start_timeout, job.allow_worker_loss) = (Duration::from_millis(300), true);
    let (mut servers, endpoints) = job.start();
    let server = servers.remove(0);
    thread::scope(|s| {
        let server = s.spawn(|| server.run().unwrap());
        let client = job.connect(&endpoints, 0).unwrap();
        begin(&client);
        let v = gradients(0, 0);
        let ticket = with_gradients(&v, 0, |g| client.push(g).unwrap());
        client.finish_push(ticket).unwrap();
        client.leave().unwrap();
        drop(client);
        let stats = server.join().unwrap();
        assert_eq!(stats.lost, ["worker 1 did not come within 0.3 s"]);
    });
}

/// A worker whose connection is closed in good order, but that has not left.
#[test]
fn a_worker_that_ends_without_leaving_is_lost_at_once() {
    let mut job = Job::new(2, 3, Mode::Sync);
    job.worker_timeout = Duration::from_secs(60);
    let (servers, endpoints) = job.start();
    let work = |w: usize| {
        let client = job.connect(&endpoints, w).unwrap();
        begin(&client);
        if w == 1 {
            return None;
        }
        let v = gradients(w, 0);
        let ticket = with_gradients(&v, 0, |g| client.push(g).unwrap());
        let start = Instant::now();
        let error = client.finish_push(ticket).unwrap_err().to_string();
        assert!(start.elapsed() < Duration::from_secs(10));
        Some(error)
    };
    thread::scope(|s| {
        let servers: Vec<_> = servers.into_iter().map(|v| s.spawn(|| v.run())).collect();
        let work = &work;
        let workers: Vec<_> = (0..3).map(|w| s.spawn(move || work(w))).collect();
        let errors: Vec<_> = workers.into_iter().filter_map(|w| w.join().unwrap()).collect();
        assert_eq!(errors.len(), 2);
        for error in errors {
            assert!(error.contains("worker 1 is lost: it ended without leaving"), "{error}");
            assert!(error.contains("at 127.0.0.1:"), "{error}");
        }
        servers.into_iter().for_each(|s| assert!(s.join().unwrap().is_err()));
    });
}

#[test]
fn reductions_are_the_same_for_everybody() {
    let job = Job::new(2, 3, Mode::HalfAsync);
    let (results, _) = job.run(|w, client| {
        let x = w as f64 + 0.1;
        let sum = client.reduce("s", ReduceOp::Sum, &[x, f64::NAN, -0.0]).unwrap();
        assert_eq!(sum[0].to_bits(), (0.1 + 1.1 + 2.1f64).to_bits());
        assert!(sum[1].is_nan());
        let max = client.reduce("m", ReduceOp::Max, &[x, f64::NEG_INFINITY]).unwrap();
        assert_eq!(max, [2.1, f64::NEG_INFINITY]);
        assert_eq!(client.reduce("n", ReduceOp::Min, &[x]).unwrap(), [0.1]);
        let own = vec![x; w];
        assert_eq!(client.reduce("g", ReduceOp::Gather, &own).unwrap(), [1.1, 2.1, 2.1]);
        // A disagreement is everybody's error and not the end.
        let what = if w == 2 { "apples" } else { "pears" };
        let error = client.reduce(what, ReduceOp::Sum, &[]).unwrap_err().to_string();
        assert!(error.contains("apples") && error.contains("pears"), "{error}");
        let error = client.reduce("length", ReduceOp::Sum, &vec![1.0; w]).unwrap_err();
        assert!(error.to_string().contains("'length'"), "{error}");
        let op = if w == 2 { ReduceOp::Max } else { ReduceOp::Min };
        assert!(client.reduce("op", op, &[1.0]).is_err());
        client.barrier("end").is_ok()
    });
    assert_eq!(results, [true; 3]);
}

#[test]
fn everybody_gathers_the_bytes_of_all_workers_in_order() {
    let job = Job::new(2, 3, Mode::HalfAsync);
    let (results, _) = job.run(|w, client| {
        let own = vec![w as u8 + 1; w * 1000];
        let all = client.gather("bytes", &own).unwrap();
        assert_eq!(all, [vec![], vec![2; 1000], vec![3; 2000]]);
        // Gathers and reductions are counted together.
        assert_eq!(client.reduce("n", ReduceOp::Sum, &[1.0]).unwrap(), [3.0]);
        assert_eq!(client.gather("nothing", &[]).unwrap(), [[0u8; 0]; 3]);
        // A disagreement is everybody's error and not the end.
        let error = if w == 2 {
            client.reduce("apples", ReduceOp::Sum, &[]).unwrap_err()
        } else {
            client.gather("apples", &[]).unwrap_err()
        };
        let error = error.to_string();
        assert!(
            error.contains("worker 0 gathers 'apples' while worker 2 sums 'apples'"),
            "{error}"
        );
        if w == 0 {
            // Too much is noticed before anything is sent, so nobody else need come.
            let error = client.gather("much", &vec![0; MAX_GATHER_BYTES + 1]).unwrap_err();
            assert!(error.to_string().contains("'much': 67108865 bytes of worker 0"), "{error}");
        }
        if w == 1 {
            return true;
        }
        client.barrier("one has left").unwrap();
        let all = client.gather("of those that are left", &[7]).unwrap();
        all == [vec![7], vec![], vec![7]]
    });
    assert_eq!(results, [true; 3]);
}

/// Worker 0 has fewer batches than worker 1: in sync mode the rest is worker 1's alone.
#[test]
fn a_worker_that_leaves_in_the_middle_of_a_round_is_not_waited_for() {
    let job = Job::new(2, 2, Mode::Sync);
    let (results, stats) = job.run(|w, client| {
        begin(client);
        pull(client, 0, &[1], false);
        client.barrier("rows").unwrap();
        let steps = if w == 0 { 2 } else { 5 };
        for step in 0..steps {
            let v = Values { keys: vec![1], rows: vec![2.0; DIM], dense: vec![2.0; DENSE] };
            let ticket = with_gradients(&v, step, |g| client.push(g).unwrap());
            client.finish_push(ticket).unwrap();
        }
        if w == 1 { pull(client, 5, &[1], true).0[0] } else { -10.0 }
    });
    assert_eq!(results, [-10.0; 2]);
    assert!(stats.iter().all(|s| s.steps == 5));
}

/// Such steps are applied and answered by several threads.
#[test]
fn large_synchronous_steps_are_exact() {
    const WORKERS: usize = 4;
    const STEPS: u64 = 3;
    let keys: Vec<u64> = (1..=20_000).collect();
    let (results, _) = Job::new(1, WORKERS, Mode::Sync).run(|worker, client| {
        begin(client);
        let mut values = pull(client, 0, &keys, false);
        client.barrier("rows are there").unwrap();
        for step in 0..STEPS {
            let rows = (0..keys.len() * DIM).map(|i| number(worker, step, i)).collect();
            let dense = (0..DENSE).map(|i| number(worker, step, 50 + i)).collect();
            let v = Values { keys: keys.clone(), rows, dense };
            let ticket = with_gradients(&v, step, |g| {
                client.push_pull(g, &wanted(step + 1, &[&keys], false)).unwrap()
            });
            let (rows, dense) = (&mut values.0, &mut values.1);
            client.finish_pull(ticket, &mut [rows], &mut [dense]).unwrap();
        }
        values
    });
    // Quarters of whole numbers: nothing is rounded.
    let held = |at: usize| {
        let of = |worker| (0..STEPS).map(|step| number(worker, step, at)).sum::<f32>();
        -(0..WORKERS).map(of).sum::<f32>() / WORKERS as f32
    };
    let rows: Vec<f32> = (0..keys.len() * DIM).map(held).collect();
    let dense: Vec<f32> = (0..DENSE).map(|i| held(50 + i)).collect();
    assert!(results.into_iter().all(|values| values == (rows.clone(), dense.clone())));
}

#[test]
fn steps_out_of_order_are_refused_in_sync_mode() {
    Job::new(1, 1, Mode::Sync).run(|_, client| {
        begin(client);
        let v = gradients(0, 0);
        let ticket = with_gradients(&v, 3, |g| client.push(g).unwrap());
        let error = client.finish_push(ticket).unwrap_err().to_string();
        assert!(error.contains("worker 0 is at step 3, but the job is at step 0"), "{error}");
    });
}
