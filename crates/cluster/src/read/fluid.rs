//! A parameter-server job in the older names: one port for all servers, which differ in their
//! addresses.

use super::{job, role_is_server, worker};
use crate::names::*;
use crate::{Env, Error, PsPlace, PsRole, endpoints};

/// The port if none is said.
const DEFAULT_PORT: u16 = 6174;

pub(super) fn read(env: &Env, because: &str) -> Result<PsPlace, Error> {
    let why = format!("{because} is, so this is a parameter-server job");
    let is_server = role_is_server(env, FLUID_ROLE, &why)?;
    let port = env.parse::<u16>(FLUID_PORT, "a port")?.unwrap_or(DEFAULT_PORT);
    let ips = env.required(FLUID_IPS, &why)?;
    let list: Vec<String> = ips.split(',').map(|ip| format!("{}:{port}", ip.trim())).collect();
    let servers = endpoints::parse(FLUID_IPS, &list.join(","))?;
    let workers = env.count(FLUID_TRAINERS)?.ok_or_else(|| Error::missing(FLUID_TRAINERS, &why))?;
    let role = if is_server {
        server(env, &servers, port)?
    } else {
        let index = env.index(TRAINER_ID)?;
        let index = index.ok_or_else(|| Error::missing(TRAINER_ID, "a worker needs its index"))?;
        worker(index, TRAINER_ID, workers, FLUID_TRAINERS)?
    };
    Ok(PsPlace { role, servers, workers, worker_endpoints: Vec::new(), job: job(env)? })
}

fn server(env: &Env, servers: &[String], port: u16) -> Result<PsRole, Error> {
    let why = "a server finds its own entry in PADDLE_PSERVER_IPS by it";
    let ip = env.required(FLUID_CURRENT_IP, why)?;
    let found = servers.iter().position(|server| *server == format!("{ip}:{port}"));
    found.map(PsRole::Server).ok_or_else(|| {
        let reason = format!("{ip} is not one of the servers");
        Error::contradiction(FLUID_CURRENT_IP, FLUID_IPS, reason)
    })
}
