//! Geo mode on the servers' side: values are first values plus all differences, and every worker
//! hears of every change once.

use regatta_optim::{Rule, Sgd};
use regatta_ps::{Mode, Server};
use regatta_table::{Admission, Initializer, SaveMode};

use crate::common::*;

#[test]
fn values_are_first_values_plus_all_differences() {
    let mut job = Job::new(3, 3, Mode::Geo { every: 1 });
    job.initializer = Initializer::Constant(0.5);
    let steps = 5;
    let (results, _) = job.run(|w, client| {
        begin(client);
        for step in 0..steps {
            let v = gradients(w, step);
            let ticket = client.geo(&[&v.dense], &[(&v.keys, &v.rows)], None).unwrap();
            client.finish_geo(ticket, |_, _, _| {}, |_, _, _| {}).unwrap();
        }
        client.barrier("exchanged").unwrap();
        let (keys, _, _) = expected(3, steps, 1.0);
        let result = pull(client, 0, &keys, true);
        client.barrier("read").unwrap();
        result
    });
    let (_, mut rows, dense) = expected(3, steps, 1.0);
    rows.iter_mut().for_each(|x| *x += 0.5);
    assert!(results.iter().all(|(r, d)| (r, d) == (&rows, &dense)));
}

#[test]
fn every_worker_hears_of_every_change_once() {
    let job = Job::new(2, 2, Mode::Geo { every: 1 });
    job.run(|w, client| {
        begin(client);
        let exchange = |keys: &[u64]| {
            let deltas = vec![1.0; keys.len() * DIM];
            let ticket = client.geo(&[&[0.0; DENSE]], &[(keys, &deltas)], None).unwrap();
            let mut heard = Vec::new();
            let hear = |_, keys: &[u64], values: &[f32]| {
                heard.extend(keys.iter().copied().zip(values.iter().step_by(DIM).copied()));
            };
            client.finish_geo(ticket, hear, |_, _, _| {}).unwrap();
            heard.sort_by_key(|h| h.0);
            heard
        };
        // Worker 0 first, then worker 1, then both again without differences.
        if w == 0 {
            assert_eq!(exchange(&[10, 11]), [(10, 1.0), (11, 1.0)]);
        }
        client.barrier("worker 0 has sent").unwrap();
        if w == 1 {
            assert_eq!(exchange(&[11, 12]), [(10, 1.0), (11, 2.0), (12, 1.0)]);
        }
        client.barrier("worker 1 has sent").unwrap();
        if w == 0 {
            assert_eq!(exchange(&[]), [(11, 2.0), (12, 1.0)]);
        }
        assert_eq!(exchange(&[]), []);
    });
}

#[test]
fn loaded_rows_reach_every_copy() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let job = Job::new(2, 1, Mode::Geo { every: 1 });
    job.run(|_, client| {
        begin(client);
        let ticket = client.geo(&[&[2.0; DENSE]], &[(&[5, 6], &[3.0; 2 * DIM])], None).unwrap();
        client.finish_geo(ticket, |_, _, _| {}, |_, _, _| {}).unwrap();
        client.save(dir, SaveMode::All).unwrap();
    });
    Job::new(1, 2, Mode::Geo { every: 1 }).run(|w, client| {
        if w == 0 {
            client.load(dir, &[]).unwrap();
        }
        client.barrier("loaded").unwrap();
        let ticket = client.geo(&[&[0.0; DENSE]], &[(&[], &[])], None).unwrap();
        let (mut rows, mut dense) = (Vec::new(), Vec::new());
        client
            .finish_geo(
                ticket,
                |_, keys, values| rows.push((keys.to_vec(), values.to_vec())),
                |_, _, values| dense.extend_from_slice(values),
            )
            .unwrap();
        assert_eq!(rows, [(vec![5, 6], vec![3.0; 2 * DIM])]);
        assert_eq!(dense, [2.0; DENSE]);
    });
}

#[test]
fn what_does_not_go_with_geo_is_refused() {
    let job = Job::new(1, 1, Mode::Geo { every: 1 });
    let refused = |job: &Job| Server::start(job.server_config(0)).err().unwrap().to_string();
    let error = refused(&Job { rule: Rule::Sgd(Sgd {}), ..job.clone() });
    assert!(error.contains("'t' cannot be trained in geo mode"), "{error}");
    let error = refused(&Job { admission: Admission::CountFilter(2), ..job });
    assert!(error.contains("admitted"), "{error}");
}
