//! Ranks that know only a master address find each other, or say who is missing.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use regatta_collective::{Error, Group, GroupConfig, ReduceOp, Transport, Wire};
use regatta_net::JobToken;

/// Where rank 0 will listen, and the socket for it.
struct Master {
    address: String,
    listener: Arc<TcpListener>,
}

impl Master {
    fn new() -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Master { address: listener.local_addr().unwrap().to_string(), listener: Arc::new(listener) }
    }

    fn config(&self, rank: usize, seconds: u64) -> GroupConfig {
        let mut config = GroupConfig::new(rank, Vec::new(), JobToken::new("meeting"));
        config.start_timeout = Duration::from_secs(seconds);
        config.transport = Transport::Tcp;
        if rank == 0 {
            config.listener = Some(self.listener.clone());
        }
        config
    }

    /// A rank on a thread of its own.
    fn rank(&self, config: GroupConfig, size: usize) -> JoinHandle<Result<Group, Error>> {
        let address = self.address.clone();
        thread::spawn(move || Group::meet(config, &address, size))
    }
}

fn refusal(outcome: Result<Group, Error>) -> String {
    outcome.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn ranks_find_each_other_by_the_master_alone() {
    let master = Master::new();
    let size = 4;
    // A stranger who says nothing, and one who says nonsense, delay nobody.
    let silent = TcpStream::connect(&master.address).unwrap();
    TcpStream::connect(&master.address).unwrap().write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let ranks: Vec<_> =
        (0..size).rev().map(|rank| master.rank(master.config(rank, 60), size)).collect();
    let sums: Vec<_> = ranks
        .into_iter()
        .map(|rank| rank.join().unwrap().unwrap())
        .map(|mut group| {
            thread::spawn(move || {
                let mut data = [group.rank() as f32, 1.0];
                group.all_reduce("x", &mut data, ReduceOp::Sum, Wire::F32).unwrap();
                data
            })
        })
        .collect();
    for sum in sums {
        assert_eq!(sum.join().unwrap(), [6.0, 4.0]);
    }
    drop(silent);
}

#[test]
fn missing_ranks_are_named_to_all_who_have_come() {
    let master = Master::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut first = master.config(0, 2);
    first.report_every = Duration::from_millis(100);
    let lines = seen.clone();
    first.observer = Arc::new(move |event| lines.lock().unwrap().push(event.to_string()));
    let ranks = [master.rank(first, 4), master.rank(master.config(2, 60), 4)];
    let [first, second] = ranks.map(|rank| refusal(rank.join().unwrap()));
    let missing = "rank 1 (it has not come), rank 3 (it has not come)";
    assert_eq!(first, format!("rank 0 waited 2 s for {missing}"));
    let address = &master.address;
    assert_eq!(second, format!("rank 2 cannot join rank 0 at {address}: {first}"));
    let seen = seen.lock().unwrap();
    assert!(seen.iter().any(|line| line.contains(missing)), "{seen:?}");
}

#[test]
fn a_master_that_never_comes_is_named() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let mut config = GroupConfig::new(1, Vec::new(), JobToken::new("meeting"));
    config.start_timeout = Duration::from_secs(1);
    let error = refusal(Group::meet(config, &address, 2));
    let expected = format!("rank 1 waited 1 s for rank 0 ({address}: ");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn who_does_not_fit_is_turned_away_and_the_others_go_on() {
    let master = Master::new();
    let first = master.rank(master.config(0, 60), 3);
    let second = master.rank(master.config(1, 60), 3);
    let other_size = refusal(master.rank(master.config(2, 60), 4).join().unwrap());
    assert!(other_size.ends_with("rank 0 was told of 3 ranks, rank 2 of 4"), "{other_size}");
    let beyond = refusal(master.rank(master.config(3, 60), 4).join().unwrap());
    assert!(beyond.ends_with("there is no rank 3 among 3 ranks"), "{beyond}");
    let stranger = GroupConfig { token: JobToken::new("another"), ..master.config(2, 1) };
    let stranger = refusal(master.rank(stranger, 3).join().unwrap());
    assert!(stranger.contains("the job token is another one"), "{stranger}");
    let third = master.rank(master.config(2, 60), 3);
    for rank in [first, second, third] {
        assert_eq!(rank.join().unwrap().unwrap().size(), 3);
    }
}

#[test]
fn a_rank_that_comes_twice_is_refused() {
    let master = Master::new();
    let first = master.rank(master.config(0, 60), 3);
    let twins = [1, 1].map(|rank| master.rank(master.config(rank, 60), 3));
    // One of the twins is told at once; the other waits for rank 2.
    let (done, waiting) = loop {
        let [a, b] = &twins;
        match (a.is_finished(), b.is_finished()) {
            (true, _) => break (0, 1),
            (_, true) => break (1, 0),
            _ => thread::yield_now(),
        }
    };
    let third = master.rank(master.config(2, 60), 3);
    let mut twins: Vec<_> = twins.into_iter().map(Some).collect();
    let refused = refusal(twins[done].take().unwrap().join().unwrap());
    assert!(refused.ends_with("another process is rank 1 already"), "{refused}");
    for rank in [first, twins[waiting].take().unwrap(), third] {
        assert!(rank.join().unwrap().is_ok());
    }
}
