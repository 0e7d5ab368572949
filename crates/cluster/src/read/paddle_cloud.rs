//! A parameter-server job in the variables of `PaddleCloudRoleMaker`.

use super::{counted, counts, job, role_is_server, scheduler, worker};
use crate::names::*;
use crate::{Env, Error, PsPlace, PsRole, endpoints};

const WHY: &str = "PADDLE_PSERVERS_IP_PORT_LIST is, so this is a parameter-server job";

pub(super) fn read(env: &Env) -> Result<PsPlace, Error> {
    let servers = endpoints::parse(SERVERS, env.required(SERVERS, WHY)?)?;
    let is_server = role_is_server(env, TRAINING_ROLE, WHY)?;
    let workers = env.count(TRAINERS_NUM)?.ok_or_else(|| Error::missing(TRAINERS_NUM, WHY))?;
    let worker_endpoints = match env.get(TRAINER_ENDPOINTS) {
        Some(list) => endpoints::parse(TRAINER_ENDPOINTS, list)?,
        None => Vec::new(),
    };
    if !worker_endpoints.is_empty() && worker_endpoints.len() != workers {
        let reason = counts((workers, "worker"), (worker_endpoints.len(), "address"));
        return Err(Error::contradiction(TRAINERS_NUM, TRAINER_ENDPOINTS, reason));
    }
    let role = if is_server {
        server(env, &servers)?
    } else {
        let (index, name) = scheduler::index(env, Some(TRAINER_ID))?
            .ok_or_else(|| Error::missing(TRAINER_ID, "a worker needs its index"))?;
        worker(index, name, workers, TRAINERS_NUM)?
    };
    Ok(PsPlace { role, servers, workers, worker_endpoints, job: job(env)? })
}

/// A server is the entry of the list that is its own address.
fn server(env: &Env, servers: &[String]) -> Result<PsRole, Error> {
    let why = "a server finds its own entry in PADDLE_PSERVERS_IP_PORT_LIST by it";
    if env.first_set(&[POD_IP, PORT]).is_none()
        && let Some((index, name)) = scheduler::index(env, None)?
    {
        return if index < servers.len() {
            Ok(PsRole::Server(index))
        } else {
            let reason = format!("{SERVERS} has {}", counted(servers.len(), "server"));
            Err(Error::invalid(name, &index.to_string(), reason))
        };
    }
    let own = format!("{}:{}", env.required(POD_IP, why)?, env.required(PORT, why)?);
    let found = servers.iter().position(|server| *server == own);
    found.map(PsRole::Server).ok_or_else(|| {
        let reason = format!("{own} is not one of the servers {}", servers.join(","));
        Error::contradiction(&format!("{POD_IP}:{PORT}"), SERVERS, reason)
    })
}
