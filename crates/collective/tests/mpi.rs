//! The suite over MPI. This program is both the test and the ranks: it starts itself by `mpirun`,
//! once for every number of ranks.

mod suite;

use std::process::{Command, ExitCode};

use regatta_collective::{Error, Group, GroupConfig, Mpi, Transport};
use regatta_net::JobToken;

/// Seconds after which a run hangs.
const HANG: &str = "240";

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|arg| arg == "rank") {
        rank_main();
        return ExitCode::SUCCESS;
    }
    for ranks in ["1", "2", "3", "4"] {
        let status = Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "--timeout", HANG, "-n", ranks])
            .arg(std::env::current_exe().expect("the path of this program"))
            .arg("rank")
            .status();
        let fine = match status {
            Ok(status) => status.success(),
            Err(error) => {
                println!("mpirun cannot be started ({error}): install openmpi-bin");
                false
            }
        };
        println!(
            "test the suite over MPI, {ranks} ranks ... {}",
            if fine { "ok" } else { "FAILED" }
        );
        if !fine {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn rank_main() {
    let mpi = Mpi::start().unwrap();
    refuses_other_ranks(&mpi);
    // Twice: a group that has ended leaves nothing behind.
    for _ in 0..2 {
        let mut group = Group::connect(mpi.config("conformance").unwrap()).unwrap();
        assert_eq!((group.rank(), group.size()), (mpi.rank(), mpi.size()));
        assert_eq!(group.transport(), "MPI");
        for (name, check) in suite::CHECKS {
            if group.rank() == 0 {
                println!("{name}, {group:?}");
            }
            check(&mut group);
        }
    }
}

/// A list of endpoints that is not that of MPI.
fn refuses_other_ranks(mpi: &Mpi) {
    let endpoints = vec!["127.0.0.1:1".to_owned(); mpi.size() + 1];
    let config = GroupConfig::new(mpi.rank(), endpoints, JobToken::new("x"));
    let error = Group::connect(GroupConfig { transport: Transport::Mpi, ..config }).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!(error.to_string().contains(&format!("of {} for MPI", mpi.size())), "{error}");
}
