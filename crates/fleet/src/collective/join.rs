//! A place in a collective job becomes a group of all ranks.

use std::sync::Arc;

use regatta_cluster::CollectivePlace;
use regatta_collective::{Group, GroupConfig, Transport};

use crate::{Error, job_token, notify};

/// Joins the other ranks: by their endpoints, at the master if those are unknown, or as ranks of
/// MPI. Who is missing is said on standard error.
///
/// # Errors
/// If ranks do not come in time or do not belong together, naming them; if `transport` is MPI, and
/// this program was built without it.
pub fn join(place: &CollectivePlace, transport: Transport) -> Result<Group, Error> {
    if transport == Transport::Mpi {
        return join_over_mpi(place);
    }
    let token = job_token(&place.job, &place.meeting_endpoints())?;
    let config = GroupConfig::new(place.rank, place.endpoints.clone(), token);
    let config = observed(GroupConfig { transport, ..config }, place);
    match &place.master {
        Some(master) if place.endpoints.is_empty() => Ok(Group::meet(config, master, place.size)?),
        _ => Ok(Group::connect(config)?),
    }
}

/// With what the job says, and lines for the user.
fn observed(mut config: GroupConfig, place: &CollectivePlace) -> GroupConfig {
    config.job.clone_from(&place.job.id);
    config.start_timeout = place.job.start_timeout;
    config.observer = Arc::new(|event| notify(event));
    config
}

#[cfg(feature = "mpi")]
fn join_over_mpi(place: &CollectivePlace) -> Result<Group, Error> {
    // The group keeps it.
    let mpi = regatta_collective::Mpi::start()?;
    if (mpi.rank(), mpi.size()) != (place.rank, place.size) {
        return Err(Error::Config(format!(
            "MPI says that this is rank {} of {}, the environment rank {} of {}: start the ranks \
             with mpirun",
            mpi.rank(),
            mpi.size(),
            place.rank,
            place.size
        )));
    }
    Ok(Group::connect(observed(mpi.config(&place.job.id)?, place))?)
}

#[cfg(not(feature = "mpi"))]
fn join_over_mpi(_: &CollectivePlace) -> Result<Group, Error> {
    Err(Error::Config(
        "this program was built without MPI; build it with: cargo build --release --features mpi \
         (needs an MPI library and libclang; Debian: libopenmpi-dev openmpi-bin libclang-dev)"
            .into(),
    ))
}
