//! Environment variables become a place.

mod collective;
mod fluid;
mod paddle_cloud;
mod scheduler;

use std::time::Duration;

use crate::names::*;
use crate::{Env, Error, JobIdentity, Place, PsRole, Tls};

impl Place {
    /// The place that these variables say.
    ///
    /// - [`PADDLE_PSERVERS_IP_PORT_LIST`](crate::names::SERVERS): a parameter-server job;
    /// - `PADDLE_TRAINING_ROLE` or `PADDLE_PSERVER_IPS`: the same in the older names;
    /// - ranks and endpoints, or ranks and a master, without servers: a collective job;
    /// - nothing but the ranks of `mpirun` or `srun`: a job of their processes;
    /// - nothing at all: a local run.
    ///
    /// # Errors
    /// Each variable that is missing, senseless or contradicts another is named.
    pub fn from_env(env: &Env) -> Result<Place, Error> {
        if env.get(SERVERS).is_some() {
            if let Some(name) = env.first_set(&[FLUID_ROLE, FLUID_IPS]) {
                let reason = "these are two ways to say the same; set the variables of one of them";
                return Err(Error::contradiction(SERVERS, name, reason));
            }
            same_number_of_workers(env)?;
            return paddle_cloud::read(env).map(Place::ParameterServer);
        }
        if let Some(name) = env.first_set(&[FLUID_ROLE, FLUID_IPS, FLUID_TRAINERS]) {
            return fluid::read(env, name).map(Place::ParameterServer);
        }
        if let Some(role @ ("PSERVER" | "TRAINER")) = env.get(TRAINING_ROLE)
            && env.first_set(&[TRAINER_ENDPOINTS, CURRENT_ENDPOINT, MASTER]).is_none()
        {
            let why = format!("{TRAINING_ROLE} is {role}, so this is a parameter-server job");
            return Err(Error::missing(SERVERS, why));
        }
        match env.first_set(COLLECTIVE) {
            Some(name) => collective::read(env, name).map(Place::Collective),
            None => scheduler::read(env),
        }
    }
}

/// Scripts that start jobs set the number of workers under both names, one from the other.
fn same_number_of_workers(env: &Env) -> Result<(), Error> {
    match (env.count(FLUID_TRAINERS)?, env.count(TRAINERS_NUM)?) {
        (Some(old), Some(new)) if old != new => {
            let reason = format!("{new} and {old} workers");
            Err(Error::contradiction(TRAINERS_NUM, FLUID_TRAINERS, reason))
        }
        (Some(_), None) => {
            let reason = "with servers the number of workers is PADDLE_TRAINERS_NUM";
            Err(Error::contradiction(SERVERS, FLUID_TRAINERS, reason))
        }
        _ => Ok(()),
    }
}

/// Variables that, without servers, mean a collective job.
const COLLECTIVE: &[&str] = &[
    TRAINER_ENDPOINTS,
    CURRENT_ENDPOINT,
    TRAINERS_NUM,
    TRAINER_ID,
    GLOBAL_RANK,
    GLOBAL_SIZE,
    TRAINING_ROLE,
];

/// What the role variable says about which kind of process this is.
fn role_is_server(env: &Env, name: &str, why: &str) -> Result<bool, Error> {
    match env.required(name, why)? {
        "PSERVER" => Ok(true),
        "TRAINER" => Ok(false),
        other => Err(Error::invalid(name, other, "it must be TRAINER or PSERVER")),
    }
}

/// A number of things: `1 worker`, `2 addresses`.
fn counted(n: usize, noun: &str) -> String {
    let ending = match (n, noun.ends_with('s')) {
        (1, _) => "",
        (_, false) => "s",
        (_, true) => "es",
    };
    format!("{n} {noun}{ending}")
}

fn there_are(n: usize, noun: &str) -> String {
    format!("there {} {}", if n == 1 { "is" } else { "are" }, counted(n, noun))
}

/// Two numbers that should be equal.
fn counts((n, noun): (usize, &str), (m, others): (usize, &str)) -> String {
    format!("{}, but {}", counted(n, noun), counted(m, others))
}

/// The index of a worker, checked against their number.
fn worker(index: usize, name: &str, workers: usize, count: &str) -> Result<PsRole, Error> {
    if index < workers {
        return Ok(PsRole::Worker(index));
    }
    let reason = format!("{} ({count}), numbered from 0", there_are(workers, "worker"));
    Err(Error::invalid(name, &index.to_string(), reason))
}

fn job(env: &Env) -> Result<JobIdentity, Error> {
    let default = JobIdentity::default();
    let seconds = env.parse::<f64>(START_TIMEOUT, "a number of seconds")?;
    let start_timeout = match seconds {
        None => default.start_timeout,
        Some(s) if s > 0.0 && s < 1e9 => Duration::from_millis((s * 1000.0).round() as u64),
        Some(s) => {
            let reason = "it must be a number of seconds larger than 0";
            return Err(Error::invalid(START_TIMEOUT, &s.to_string(), reason));
        }
    };
    Ok(JobIdentity {
        id: env.get(JOB_ID).unwrap_or(&default.id).to_string(),
        token: env.get(JOB_TOKEN).map(str::to_string),
        start_timeout,
        tls: Tls::from_env(env)?,
    })
}
