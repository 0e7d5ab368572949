//! The suite over the transports of this crate, with ranks as threads.

mod suite;

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use regatta_collective::{Group, GroupConfig, ReduceOp, Transport, Wire};
use regatta_net::{Encryption, JobToken};

/// Runs every check on every rank; a panic on one rank fails the test.
fn run(groups: Vec<Group>) {
    let threads: Vec<_> = groups
        .into_iter()
        .map(|mut group| {
            thread::spawn(move || {
                for (name, check) in suite::CHECKS {
                    println!("{name}, {group:?}");
                    check(&mut group);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a rank failed");
    }
}

fn over_tcp(size: usize, encryption: Encryption) -> Vec<Group> {
    let listeners: Vec<_> =
        (0..size).map(|_| Arc::new(TcpListener::bind("127.0.0.1:0").unwrap())).collect();
    let endpoints: Vec<String> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    let threads: Vec<_> = listeners
        .into_iter()
        .enumerate()
        .map(|(rank, listener)| {
            let endpoints = endpoints.clone();
            thread::spawn(move || {
                let token = JobToken::new("conformance").encrypted(encryption);
                let config = GroupConfig::new(rank, endpoints, token);
                let listener = Some(listener);
                Group::connect(GroupConfig { listener, transport: Transport::Tcp, ..config })
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
}

#[test]
fn tcp() {
    for size in [1, 2, 3, 4] {
        run(over_tcp(size, Encryption::BetweenMachines));
    }
}

/// As between machines.
#[test]
fn tls() {
    for size in [2, 3, 4] {
        let groups = over_tcp(size, Encryption::Always);
        assert_eq!(groups[0].transport(), "TLS");
        run(groups);
    }
}

#[test]
fn unix_sockets() {
    for size in [2, 3, 5] {
        let unix = |config| GroupConfig { transport: Transport::Unix, ..config };
        run(Group::in_memory_with(size, unix).unwrap());
    }
}

#[test]
fn in_memory() {
    for size in [1, 2, 3, 4] {
        run(Group::in_memory(size).unwrap());
    }
}

/// A transport that this build does not have is refused, not replaced.
#[cfg(not(feature = "mpi"))]
#[test]
fn mpi_without_the_feature() {
    let mpi = |config| GroupConfig { transport: Transport::Mpi, ..config };
    let error = Group::in_memory_with(1, mpi).unwrap_err();
    assert!(error.to_string().contains("built without MPI"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Any number of ranks, any lengths one after the other, shorter than the number of ranks
    /// included.
    #[test]
    fn sums_are_right(
        size in 1usize..6,
        in_memory in any::<bool>(),
        lengths in prop::collection::vec(
            prop_oneof![0usize..8, 0usize..5000, 0usize..200_000],
            1..6,
        ),
    ) {
        let transport = if in_memory { Transport::SharedMemory } else { Transport::Unix };
        let groups = Group::in_memory_with(size, |config| GroupConfig { transport, ..config });
        let threads: Vec<_> = groups.unwrap().into_iter().map(|group| {
            let lengths = lengths.clone();
            thread::spawn(move || sums(group, &lengths))
        }).collect();
        for thread in threads {
            prop_assert!(thread.join().is_ok());
        }
    }
}

/// Whole numbers, whose sums are exact in any order.
fn sums(mut group: Group, lengths: &[usize]) {
    let (rank, size) = (group.rank(), group.size());
    for len in lengths {
        let value = |rank: usize, i: usize| ((i * 7 + rank * 13) % 101) as f32;
        let mut data: Vec<f32> = (0..*len).map(|i| value(rank, i)).collect();
        group.all_reduce("x", &mut data, ReduceOp::Sum, Wire::F32).unwrap();
        let wanted = |i: usize| (0..size).map(|rank| value(rank, i)).sum::<f32>();
        assert!((0..*len).all(|i| data[i] == wanted(i)), "{len} elements on {size} ranks");
    }
}
