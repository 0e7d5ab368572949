//! Any number of servers takes over what any number has saved, to the last bit.

use regatta_checkpoint::server_parts::ServerParts;
use regatta_optim::{Adam, Rule, Sgd};
use regatta_ps::{AsyncConfig, Client, Mode};
use regatta_table::{Admission, Initializer, SaveMode};

use crate::common::*;

fn adam(servers: usize) -> Job {
    let mut job = Job::new(servers, 1, Mode::HalfAsync);
    job.rule = Rule::Adam(Adam::default());
    job.initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
    job
}

fn train(client: &Client, steps: std::ops::Range<u64>) {
    for step in steps {
        let v = gradients(0, step);
        pull(client, step, &v.keys, false);
        let ticket = with_gradients(&v, step, |g| client.push(g).unwrap());
        client.finish_push(ticket).unwrap();
    }
}

fn bits(values: (Vec<f32>, Vec<f32>)) -> Vec<u32> {
    values.0.iter().chain(&values.1).map(|x| x.to_bits()).collect()
}

#[test]
fn another_number_of_servers_goes_on_with_the_same_bits() {
    let all = tempfile::tempdir().unwrap();
    let (keys, _, _) = expected(1, 9, 1.0);
    let dir = |n: usize| all.path().join(n.to_string()).to_str().unwrap().to_string();
    let (results, _) = adam(3).run(|_, client| {
        begin(client);
        train(client, 0..5);
        client.save(&dir(3), SaveMode::All).unwrap();
        let saved = bits(pull(client, 5, &keys, true));
        train(client, 5..9);
        (saved, bits(pull(client, 9, &keys, true)))
    });
    // From three servers to one, from one to eight (more than there are dense floats), and so on.
    for (from, to) in [(3, 1), (1, 8), (8, 2), (2, 3)] {
        let (again, _) = adam(to).run(|_, client| {
            client.load(&dir(from), &[]).unwrap();
            let saved = bits(pull(client, 5, &keys, true));
            if to != 3 {
                client.save(&dir(to), SaveMode::All).unwrap();
            }
            train(client, 5..9);
            (saved, bits(pull(client, 9, &keys, true)))
        });
        assert_eq!(again, results, "from {from} servers to {to}");
    }
    let mut rows = Vec::new();
    let parts = ServerParts::open(dir(8)).unwrap();
    parts.rows("t", DIM, |key, row| rows.push((key, row[0].to_bits()))).unwrap();
    rows.sort_unstable();
    let held: Vec<u64> = rows.iter().map(|r| r.0).collect();
    assert_eq!(held, expected(1, 5, 1.0).0);
    let dense = parts.dense("w", DENSE).unwrap();
    let saved = &results[0].0[results[0].0.len() - DENSE..];
    assert_eq!(dense.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), saved);
}

#[test]
fn servers_try_where_they_will_write() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    adam(2).run(|_, client| {
        client.try_save(folder.path().join("new").to_str().unwrap()).unwrap();
        let error = client.try_save(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("server 0"), "{error}");
        assert!(error.contains(&format!("{}: it is in the way", file.display())), "{error}");
    });
    assert!(!folder.path().join("new").exists());
}

#[test]
fn a_damaged_part_is_named_and_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    adam(2).run(|_, client| {
        begin(client);
        train(client, 0..3);
        client.save(dir, SaveMode::All).unwrap();
        let path = folder.path().join("server-1-of-2.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = client.load(dir, &[]).unwrap_err().to_string();
        assert!(error.contains("server-1-of-2.safetensors: it is damaged"), "{error}");
    });
}

#[test]
fn a_table_of_many_blocks_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    // More than each of the threads that load a file reads at once.
    let keys: Vec<u64> = (1..=100_000).collect();
    let (saved, _) = adam(2).run(|_, client| {
        begin(client);
        let made = bits(pull(client, 0, &keys, false));
        client.save(dir, SaveMode::All).unwrap();
        made
    });
    for servers in [1, 3] {
        let (again, _) = adam(servers).run(|_, client| {
            client.load(dir, &[]).unwrap();
            bits(pull(client, 0, &keys, true))
        });
        assert_eq!(again, saved, "by {servers} servers");
    }
    let mut held = Vec::new();
    ServerParts::open(dir).unwrap().rows("t", DIM, |key, _| held.push(key)).unwrap();
    held.sort_unstable();
    assert_eq!(held, keys);
}

#[test]
fn candidates_and_days_survive() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let mut job = Job::new(3, 1, Mode::Async(AsyncConfig::default()));
    job.admission = Admission::CountFilter(2);
    job.run(|_, client| {
        begin(client);
        pull(client, 0, &[1, 2, 3], false);
        pull(client, 0, &[1], false);
        client.end_day().unwrap();
        assert_eq!(client.shrink(Some(5)).unwrap(), 0);
        client.save(dir, SaveMode::All).unwrap();
    });
    let job = Job { servers: 2, ..job };
    job.run(|_, client| {
        client.load(dir, &["t".into()]).unwrap();
        let seen = |id| client.inspect("t", id).unwrap().unwrap().detail;
        assert_eq!(seen(2), "not admitted yet, seen 1 times");
        assert!(seen(1).starts_with("unseen for 1 days"), "{}", seen(1));
        // Only the table was asked for, so the dense parameters have no values.
        let keys: &[&[u64]] = &[&[]];
        let ticket = client.pull(&wanted(0, keys, true)).unwrap();
        let refused = client.finish_pull(ticket, &mut [&mut []], &mut [&mut [0.0; DENSE]]);
        assert!(refused.is_err());
    });
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let all = tempfile::tempdir().unwrap();
    let dir = all.path().join("saved").to_str().unwrap().to_string();
    adam(3).run(|_, client| {
        begin(client);
        train(client, 0..2);
        client.save(&dir, SaveMode::All).unwrap();
    });
    let refused = |job: Job, dir: &str, names: &[String]| {
        job.run(|_, client| client.load(dir, names).unwrap_err().to_string()).0.remove(0)
    };
    let error = refused(adam(2), &dir, &["nonsense".into()]);
    assert!(error.contains("'nonsense' (known: t, w)"), "{error}");
    let error = refused(Job { rule: Rule::Sgd(Sgd {}), ..adam(2) }, &dir, &[]);
    assert!(error.contains("another optimizer"), "{error}");
    let error = refused(adam(2), all.path().join("nowhere").to_str().unwrap(), &[]);
    assert!(error.contains("nowhere"), "{error}");

    let part = |i: usize| format!("{dir}/server-{i}-of-3.safetensors");
    let kept = std::fs::read(part(1)).unwrap();
    std::fs::write(part(1), &kept[..kept.len() - 5]).unwrap();
    let error = refused(adam(2), &dir, &[]);
    assert!(error.contains("server-1-of-3"), "{error}");
    std::fs::remove_file(part(1)).unwrap();
    let error = refused(adam(2), &dir, &[]);
    assert!(error.contains("is not complete: server-1-of-3.safetensors missing"), "{error}");
    // A part of another save in its place.
    adam(3).run(|_, client| {
        begin(client);
        let other = format!("{dir}-other");
        client.save(&other, SaveMode::All).unwrap();
        if client.worker() == 0 {
            std::fs::copy(format!("{other}/server-1-of-3.safetensors"), part(1)).unwrap();
        }
    });
    let error = refused(adam(2), &dir, &[]);
    assert!(error.contains("are parts of different saves"), "{error}");
    std::fs::write(format!("{dir}/server-0-of-1.safetensors"), b"").unwrap();
    let error = refused(adam(2), &dir, &[]);
    assert!(error.contains("parts of jobs with"), "{error}");
}
