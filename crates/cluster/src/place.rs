//! The place of a process in its job, as one value.

use std::fmt;
use std::time::Duration;

use crate::{Env, Error, Tls, endpoints, names, token};

/// What this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Alone: no variable of the contract is set.
    Local,
    /// A server or worker of a parameter-server job.
    ParameterServer(PsPlace),
    /// One of several equal ranks.
    Collective(CollectivePlace),
}

/// Which process of a parameter-server job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PsRole {
    /// Holds parameters; an index into [`PsPlace::servers`].
    Server(usize),
    /// Trains; smaller than [`PsPlace::workers`].
    Worker(usize),
}

/// A server or worker of a parameter-server job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PsPlace {
    /// Which one.
    pub role: PsRole,
    /// Addresses of all servers, in order.
    pub servers: Vec<String>,
    /// Number of workers.
    pub workers: usize,
    /// Addresses of all workers, in order. Workers do not listen, so these may be unknown (empty).
    pub worker_endpoints: Vec<String>,
    /// The job.
    pub job: JobIdentity,
}

/// One rank of a collective job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectivePlace {
    /// Which one, from 0.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Addresses of all ranks, in order. Unknown (empty) when ranks find each other at
    /// [`master`](CollectivePlace::master).
    pub endpoints: Vec<String>,
    /// Which one of those on this machine.
    pub local_rank: usize,
    /// How many there are on this machine.
    pub local_size: usize,
    /// Number of machines.
    pub nodes: usize,
    /// Where machines meet, if that was said; where ranks meet, if their addresses are unknown.
    pub master: Option<String>,
    /// Devices that this rank may use.
    pub devices: Vec<String>,
    /// Devices of all ranks, in order.
    pub world_devices: Vec<String>,
    /// The job.
    pub job: JobIdentity,
}

/// What all processes of a job have in common.
#[derive(Clone, PartialEq, Eq)]
pub struct JobIdentity {
    /// Its name.
    pub id: String,
    /// The secret that its processes share, if one was given; see [`secret`](JobIdentity::secret).
    pub token: Option<String>,
    /// How long processes may take to appear.
    pub start_timeout: Duration,
    /// How its connections are protected.
    pub tls: Tls,
}

impl Default for JobIdentity {
    fn default() -> JobIdentity {
        let (token, tls) = (None, Tls::default());
        JobIdentity { id: "default".into(), token, start_timeout: DEFAULT_START_TIMEOUT, tls }
    }
}

/// How long processes may take to appear if nobody says otherwise.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

impl JobIdentity {
    /// The secret to authenticate with. Without a token, a job that stays on one machine (all
    /// endpoints are loopback addresses) uses one that only this user can read ([`token`]), with
    /// its name, which keeps jobs apart.
    ///
    /// # Errors
    /// If the token is easy to guess, or there is none and other machines could reach the job.
    pub fn secret(&self, endpoints: &[String]) -> Result<String, Error> {
        match &self.token {
            Some(token) => {
                token::check(names::JOB_TOKEN, token)?;
                Ok(token.clone())
            }
            None if endpoints.iter().all(|e| endpoints::is_loopback(e)) => {
                Ok(format!("{} job {}", token::of_user(&Env::process())?, self.id))
            }
            None => Err(Error::missing(
                names::JOB_TOKEN,
                format!(
                    "a job that other machines can reach needs a secret, the same on every \
                     machine; make one with: {}",
                    token::MAKE_ONE
                ),
            )),
        }
    }
}

/// Without the token: what is printed may end in a log.
impl fmt::Debug for JobIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobIdentity")
            .field("id", &self.id)
            .field("token", &self.token.as_ref().map(|_| "(secret)"))
            .field("start_timeout", &self.start_timeout)
            .field("tls", &self.tls)
            .finish()
    }
}

impl Place {
    /// The job, if there is one.
    pub fn job(&self) -> Option<&JobIdentity> {
        match self {
            Place::Local => None,
            Place::ParameterServer(place) => Some(&place.job),
            Place::Collective(place) => Some(&place.job),
        }
    }
}

impl PsPlace {
    /// The address of this process; a worker's may be unknown.
    pub fn endpoint(&self) -> Option<&str> {
        let endpoint = match self.role {
            PsRole::Server(i) => self.servers.get(i),
            PsRole::Worker(i) => self.worker_endpoints.get(i),
        };
        endpoint.map(String::as_str)
    }
}

impl CollectivePlace {
    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.size
    }

    /// The secret to authenticate with; see [`JobIdentity::secret`].
    ///
    /// # Errors
    /// If there is no token and other machines could reach the job.
    pub fn secret(&self) -> Result<String, Error> {
        self.job.secret(&self.meeting_endpoints())
    }

    /// Where ranks reach each other: the addresses of all, or that of the master if they are
    /// unknown.
    pub fn meeting_endpoints(&self) -> Vec<String> {
        match &self.master {
            Some(master) if self.endpoints.is_empty() => vec![master.clone()],
            _ => self.endpoints.clone(),
        }
    }
}

impl fmt::Display for PsRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PsRole::Server(i) => write!(f, "server {i}"),
            PsRole::Worker(i) => write!(f, "worker {i}"),
        }
    }
}

/// `local`, `server 1`, `worker 0` or `rank 3`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Local => f.write_str("local"),
            Place::ParameterServer(place) => place.role.fmt(f),
            Place::Collective(place) => write!(f, "rank {}", place.rank),
        }
    }
}
