//! One rank of a collective job.

use super::{counted, counts, job, scheduler, there_are};
use crate::names::*;
use crate::{CollectivePlace, Env, Error, endpoints};

pub(super) fn read(env: &Env, because: &str) -> Result<CollectivePlace, Error> {
    let why = format!("{because} is and there are no servers, so this is a collective job");
    if let Some(role) = env.get(TRAINING_ROLE)
        && role != "TRAINER"
    {
        return Err(Error::invalid(TRAINING_ROLE, role, "it must be TRAINER or PSERVER"));
    }
    if let (None, Some(master)) = (env.get(TRAINER_ENDPOINTS), env.get(MASTER)) {
        return meeting(env, master, &why);
    }
    let list = env.required(TRAINER_ENDPOINTS, &why)?;
    let endpoints = endpoints::parse(TRAINER_ENDPOINTS, list)?;
    let rank = rank(env, &endpoints)?;
    for name in [TRAINERS_NUM, GLOBAL_SIZE] {
        if let Some(n) = env.count(name)?
            && n != endpoints.len()
        {
            let reason = counts((n, "rank"), (endpoints.len(), "address"));
            return Err(Error::contradiction(name, TRAINER_ENDPOINTS, reason));
        }
    }
    let (local_rank, local_size) = within_node(env, &endpoints, rank)?;
    let nodes = env.count(NNODES)?.unwrap_or_else(|| distinct_hosts(&endpoints));
    Ok(CollectivePlace {
        rank,
        size: endpoints.len(),
        local_rank,
        local_size,
        nodes,
        master: env.get(MASTER).map(str::to_string),
        devices: devices(env, OWN_DEVICES),
        world_devices: devices(env, &[WORLD_DEVICES]),
        endpoints,
        job: job(env)?,
    })
}

/// A rank that knows where to meet the others, and not where they are.
fn meeting(env: &Env, master: &str, why: &str) -> Result<CollectivePlace, Error> {
    let master = endpoints::parse(MASTER, master)?;
    let [master] = <[String; 1]>::try_from(master).map_err(|all| {
        Error::invalid(MASTER, &all.join(","), "it must be one address: host:port")
    })?;
    let count = env.first_set(&[TRAINERS_NUM, GLOBAL_SIZE]).unwrap_or(TRAINERS_NUM);
    let size = env.count(count)?.ok_or_else(|| {
        Error::missing(count, format!("{why}; without {TRAINER_ENDPOINTS} it must say how many"))
    })?;
    let (rank, name) = match scheduler::index(env, Some(TRAINER_ID))? {
        Some(said) => said,
        None => match env.index(GLOBAL_RANK)? {
            Some(rank) => (rank, GLOBAL_RANK),
            None => return Err(Error::missing(TRAINER_ID, "a process needs its rank")),
        },
    };
    if rank >= size {
        let reason = format!("{count} says that {}, from 0", there_are(size, "rank"));
        return Err(Error::invalid(name, &rank.to_string(), reason));
    }
    Ok(CollectivePlace {
        rank,
        size,
        endpoints: Vec::new(),
        local_rank: env.index(LOCAL_RANK)?.or(env.index(RANK_IN_NODE)?).unwrap_or(0),
        local_size: env.count(LOCAL_SIZE)?.unwrap_or(1),
        nodes: env.count(NNODES)?.unwrap_or(1),
        master: Some(master),
        devices: devices(env, OWN_DEVICES),
        world_devices: devices(env, &[WORLD_DEVICES]),
        job: job(env)?,
    })
}

const OWN_DEVICES: &[&str] = &[LOCAL_DEVICES, SELECTED_GPUS, SELECTED_ACCELERATORS];

fn devices(env: &Env, names: &[&str]) -> Vec<String> {
    let found = env.first_set(names).and_then(|name| env.get(name)).unwrap_or_default();
    found.split(',').map(str::trim).filter(|d| !d.is_empty()).map(str::to_string).collect()
}

/// The rank as it is said, or as this process's own address implies.
fn rank(env: &Env, endpoints: &[String]) -> Result<usize, Error> {
    let own = env.get(CURRENT_ENDPOINT);
    let found = own.map(|own| {
        endpoints.iter().position(|e| e == own).ok_or_else(|| {
            let reason = format!("{own} is not one of {}", endpoints.join(","));
            Error::contradiction(CURRENT_ENDPOINT, TRAINER_ENDPOINTS, reason)
        })
    });
    let found = found.transpose()?;
    let said = scheduler::index(env, Some(TRAINER_ID))?;
    if let (Some(at), Some((rank, name))) = (found, said)
        && at != rank
    {
        let reason = format!("rank {rank}, but entry {at} of {TRAINER_ENDPOINTS}");
        return Err(Error::contradiction(name, CURRENT_ENDPOINT, reason));
    }
    let (rank, name) = match (said, found) {
        (Some(said), _) => said,
        (None, Some(at)) => (at, CURRENT_ENDPOINT),
        (None, None) => return Err(Error::missing(TRAINER_ID, "a process needs its rank")),
    };
    if let Some(again) = env.index(GLOBAL_RANK)?
        && again != rank
    {
        let reason = format!("rank {rank} and rank {again}");
        return Err(Error::contradiction(name, GLOBAL_RANK, reason));
    }
    if rank >= endpoints.len() {
        let reason = format!("{TRAINER_ENDPOINTS} has {}", counted(endpoints.len(), "rank"));
        return Err(Error::invalid(name, &rank.to_string(), reason));
    }
    Ok(rank)
}

/// Which rank this is on its machine, and how many there are. If it is not said, ranks with the
/// same host are on the same machine.
fn within_node(env: &Env, endpoints: &[String], rank: usize) -> Result<(usize, usize), Error> {
    let own = endpoints::host(&endpoints[rank]);
    let same = |list: &[String]| list.iter().filter(|e| endpoints::host(e) == own).count();
    let (said, name) = match env.index(LOCAL_RANK)? {
        Some(local) => (Some(local), LOCAL_RANK),
        None => (env.index(RANK_IN_NODE)?, RANK_IN_NODE),
    };
    let local_size = env.count(LOCAL_SIZE)?.unwrap_or_else(|| same(endpoints));
    let local_rank = said.unwrap_or_else(|| same(&endpoints[..rank]));
    if local_rank < local_size && local_size <= endpoints.len() {
        return Ok((local_rank, local_size));
    }
    let reason = format!(
        "rank {local_rank} on this machine, of {local_size} here and {} everywhere",
        endpoints.len()
    );
    Err(Error::contradiction(name, LOCAL_SIZE, reason))
}

fn distinct_hosts(endpoints: &[String]) -> usize {
    let hosts: std::collections::BTreeSet<&str> =
        endpoints.iter().map(|e| endpoints::host(e)).collect();
    hosts.len()
}
