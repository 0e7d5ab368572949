//! Every place that a launcher writes is the place that the child reads.

use std::time::Duration;

use proptest::prelude::*;
use regatta_cluster::{
    CollectivePlace, Env, JobIdentity, Place, PsPlace, PsRole, Tls, TlsFiles, TlsMode,
};

fn job() -> impl Strategy<Value = JobIdentity> {
    ("[a-z][a-z0-9-]{0,9}", proptest::option::of("[0-9a-f]{32}"), 1u64..10_000_000).prop_map(
        |(id, token, ms)| {
            let modes = [TlsMode::On, TlsMode::Off, TlsMode::Always];
            let path = |name: &str| format!("/{name}.pem").into();
            let files = TlsFiles { cert: path("cert"), key: path("key"), ca: path("ca") };
            let tls =
                Tls { mode: modes[ms as usize % 3], files: (ms % 2 == 0).then(|| Box::new(files)) };
            JobIdentity { id, token, start_timeout: Duration::from_millis(ms), tls }
        },
    )
}

/// Distinct addresses on a few hosts.
fn addresses(n: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::btree_set((0u8..3, 1u16..), n).prop_map(|set| {
        let hosts = ["10.0.0.1", "node-2.train", "[fe80::3]"];
        set.into_iter().map(|(host, port)| format!("{}:{port}", hosts[host as usize])).collect()
    })
}

fn ps() -> impl Strategy<Value = Place> {
    (
        addresses(1..6),
        addresses(1..6),
        any::<bool>(),
        any::<prop::sample::Index>(),
        any::<bool>(),
        job(),
    )
        .prop_map(|(servers, workers, is_server, index, known, job)| {
            let role = if is_server {
                PsRole::Server(index.index(servers.len()))
            } else {
                PsRole::Worker(index.index(workers.len()))
            };
            let n = workers.len();
            let worker_endpoints = if known { workers } else { vec![] };
            Place::ParameterServer(PsPlace { role, servers, workers: n, worker_endpoints, job })
        })
}

fn collective() -> impl Strategy<Value = Place> {
    (addresses(1..9), any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1usize..4)
        .prop_flat_map(|(endpoints, rank, local, nodes)| {
            let n = endpoints.len();
            let local_size = local.index(n) + 1;
            let master = proptest::option::of(Just("10.0.0.1:6768".to_string()));
            let devices = proptest::collection::vec("[0-9]", 0..3);
            (
                Just((endpoints, rank.index(n), nodes, local_size)),
                0..local_size,
                master,
                devices,
                (any::<bool>(), job()),
            )
        })
        .prop_map(
            |((endpoints, rank, nodes, local_size), local_rank, master, devices, (known, job))| {
                let world_devices = endpoints.iter().flat_map(|_| devices.clone()).collect();
                // Without addresses they meet at the master.
                let size = endpoints.len();
                let endpoints = if known || master.is_none() { endpoints } else { Vec::new() };
                Place::Collective(CollectivePlace {
                    rank,
                    size,
                    endpoints,
                    local_rank,
                    local_size,
                    nodes,
                    master,
                    devices,
                    world_devices,
                    job,
                })
            },
        )
}

proptest! {
    #[test]
    fn a_place_written_is_the_place_read(place in prop_oneof![ps(), collective()]) {
        let env: Env = place.to_env().into_iter().collect();
        prop_assert_eq!(Place::from_env(&env), Ok(place));
    }

    /// Whatever is in the environment, the answer is a place or an error.
    #[test]
    fn no_environment_makes_it_panic(
        values in proptest::collection::vec(
            "[0-9]{1,3}|a:1|a:1,b:2|PSERVER|TRAINER|x\\[1-2\\]|2\\(x2\\)",
            60,
        ),
        present in proptest::collection::vec(any::<bool>(), 60),
    ) {
        let names = regatta_cluster::names::PLACE.iter().copied().chain([
            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_ID",
            "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
        ]);
        let chosen = names.zip(values).zip(present).filter(|(_, p)| *p).map(|(pair, _)| pair);
        let env: Env = chosen.collect();
        let _ = Place::from_env(&env);
    }
}
