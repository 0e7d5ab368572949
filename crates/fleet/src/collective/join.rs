//! A place in a collective job becomes a group of all ranks.

use std::io::Write;
use std::sync::Arc;

use regatta_cluster::CollectivePlace;
use regatta_collective::{Group, GroupConfig};
use regatta_ps::JobToken;

use crate::Error;

/// Joins the other ranks: by their endpoints, or at the master if those are unknown. Who is missing
/// is said on standard error.
///
/// # Errors
/// If ranks do not come in time or do not belong together, naming them.
pub fn join(place: &CollectivePlace) -> Result<Group, Error> {
    let token = JobToken::new(place.secret()?);
    let mut config = GroupConfig::new(place.rank, place.endpoints.clone(), token);
    config.job.clone_from(&place.job.id);
    config.start_timeout = place.job.start_timeout;
    config.observer = Arc::new(|event| {
        // Training goes on when nobody reads its lines any more.
        let _ = writeln!(std::io::stderr(), "{event}");
    });
    match &place.master {
        Some(master) if place.endpoints.is_empty() => Ok(Group::meet(config, master, place.size)?),
        _ => Ok(Group::connect(config)?),
    }
}
