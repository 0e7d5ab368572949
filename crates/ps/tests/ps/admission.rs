//! Ids become rows exactly when they have appeared often enough, whatever happens to connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use regatta_net::ServerOptions;
use regatta_net::fault::Faults;
use regatta_ps::{AsyncConfig, Client, Mode, PullSpec};
use regatta_table::Admission;

use crate::common::*;

fn counting(servers: usize) -> Job {
    let mut job = Job::new(servers, 1, Mode::Async(AsyncConfig::default()));
    job.admission = Admission::CountFilter(5);
    job.initializer = regatta_table::Initializer::Constant(1.0);
    job
}

/// Pulls to train; gives the first float of each row.
fn pull_counted(client: &Client, keys: &[u64], counts: &[u32]) -> Vec<f32> {
    let wanted = PullSpec { step: 0, test: false, dense: false, keys: &[keys], counts: &[counts] };
    let ticket = client.pull(&wanted).unwrap();
    let mut rows = vec![f32::NAN; keys.len() * DIM];
    client.finish_pull(ticket, &mut [&mut rows], &mut []).unwrap();
    rows.into_iter().step_by(DIM).collect()
}

#[test]
fn an_id_is_admitted_with_its_fifth_appearance() {
    counting(2).run(|_, client| {
        begin(client);
        assert_eq!(pull_counted(client, &[1, 2, 3, 4], &[4, 5, 1, 9]), [0.0, 1.0, 0.0, 1.0]);
        let candidate = client.inspect("t", 1).unwrap().unwrap();
        assert_eq!(candidate.detail, "not admitted yet, seen 4 times");
        // Looking does not count.
        pull(client, 0, &[1, 3], true);
        assert_eq!(pull_counted(client, &[3, 1], &[3, 1]), [0.0, 1.0]);
        assert_eq!(pull_counted(client, &[3], &[1]), [1.0]);
    });
}

#[test]
fn a_pull_whose_answer_was_lost_counts_once() {
    // Every answer is cut once, at some byte.
    for at in (350..1100).step_by(23) {
        let mut job = counting(1);
        let connections = AtomicU64::new(0);
        let wrap: regatta_net::fault::Wrap = Arc::new(move |stream| {
            let first = connections.fetch_add(1, Ordering::Relaxed) == 0;
            let cut = first.then_some(at);
            Faults { cut_after_written: cut, ..Faults::default() }.on(stream)
        });
        job.tune_server = Some(Arc::new(move |o: &mut ServerOptions| {
            o.shortcut = false;
            o.wrap = Some(wrap.clone());
        }));
        job.run(|_, client| {
            begin(client);
            for seen in 1..=6 {
                let expected = if seen >= 5 { 1.0 } else { 0.0 };
                assert_eq!(pull_counted(client, &[7], &[1]), [expected], "cut at {at}, {seen}");
            }
        });
    }
}

#[test]
fn a_push_changes_exactly_the_rows_it_names() {
    counting(2).run(|_, client| {
        begin(client);
        let keys: Vec<u64> = (1..=6).collect();
        // Odd ids are admitted, even ones are not.
        let counts: Vec<u32> = keys.iter().map(|k| if k % 2 == 1 { 5 } else { 2 }).collect();
        pull_counted(client, &keys, &counts);
        let push = |keys: &[u64]| {
            let rows = keys.iter().flat_map(|&k| vec![k as f32; DIM]).collect();
            let v = Values { keys: keys.to_vec(), rows, dense: vec![0.0; DENSE] };
            let ticket = with_gradients(&v, 0, |g| client.push(g).unwrap());
            client.finish_push(ticket).unwrap();
        };
        let firsts = |keys: &[u64]| -> Vec<f32> {
            pull(client, 0, keys, true).0.into_iter().step_by(DIM).collect()
        };
        push(&[6, 5, 4, 1, 2, 99]);
        assert_eq!(firsts(&keys), [0.0, 0.0, 1.0, 0.0, -4.0, 0.0]);
        assert_eq!(client.inspect("t", 2).unwrap().unwrap().parts, []);
        assert_eq!(client.inspect("t", 99).unwrap(), None);

        // Two days later only rows that were pushed in between are left.
        client.end_day().unwrap();
        assert_eq!(client.shrink(Some(1)).unwrap(), 0);
        push(&[5]);
        client.end_day().unwrap();
        assert_eq!(client.shrink(Some(1)).unwrap(), 2);
        push(&[1, 3, 5]);
        assert_eq!(firsts(&keys), [0.0, 0.0, 0.0, 0.0, -14.0, 0.0]);
    });
}
