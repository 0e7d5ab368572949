//! A place becomes environment variables.

use crate::names::*;
use crate::{CollectivePlace, JobIdentity, Place, PsPlace, PsRole, endpoints};

type Pairs = Vec<(String, String)>;

impl Place {
    /// The variables that say this place; [`Place::from_env`] reads them back. Nothing for a local
    /// run. What other frameworks need beside them: [`OtherFrameworks`].
    pub fn to_env(&self) -> Vec<(String, String)> {
        match self {
            Place::Local => Vec::new(),
            Place::ParameterServer(place) => place.to_env(),
            Place::Collective(place) => place.to_env(),
        }
    }
}

/// Where processes of other frameworks meet: on ports that are free and that Regatta leaves alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherFrameworks {
    /// The first worker or rank listens there: that of PyTorch, or a rank of PaddlePaddle.
    pub torch: String,
    /// Gloo of PaddlePaddle, in jobs with servers: the first of them listens there.
    pub gloo: Option<String>,
    /// The value of `PADDLE_WITH_GLOO`.
    pub with_gloo: u8,
}

impl OtherFrameworks {
    /// The variables by which a process in this place of a job joins the others if it is not
    /// Regatta: those of `torchrun`, and what PaddlePaddle needs. They go after those of
    /// [`Place::to_env`], whose `PADDLE_MASTER` they replace: ranks that know each other do not
    /// meet there. Servers have no rank, as PyTorch knows workers only.
    pub fn to_env(&self, place: &Place) -> Vec<(String, String)> {
        let mut pairs = Pairs::new();
        if let (Place::ParameterServer(_), Some(gloo)) = (place, &self.gloo) {
            put(&mut pairs, WITH_GLOO, self.with_gloo);
            put(&mut pairs, GLOO_RENDEZVOUS, GLOO_OVER_HTTP);
            put(&mut pairs, GLOO_ENDPOINT, gloo);
        }
        let (rank, size, local_rank, local_size) = match place {
            Place::Local => return pairs,
            Place::Collective(c) => (c.rank, c.size, c.local_rank, c.local_size),
            Place::ParameterServer(ps) => match ps.role {
                PsRole::Server(_) => return pairs,
                PsRole::Worker(i) => {
                    let (local_rank, local_size) = ps.beside(i);
                    (i, ps.workers, local_rank, local_size)
                }
            },
        };
        put(&mut pairs, TORCH_RANK, rank);
        put(&mut pairs, TORCH_SIZE, size);
        put(&mut pairs, TORCH_LOCAL_RANK, local_rank);
        put(&mut pairs, TORCH_LOCAL_SIZE, local_size);
        if let Place::Collective(CollectivePlace { master: Some(_), .. }) = place {
            // The first rank of PaddlePaddle listens there; where launchers meet, one of them does.
            put(&mut pairs, MASTER, &self.torch);
        }
        if let Some((host, port)) = endpoints::split(&self.torch) {
            put(&mut pairs, TORCH_MASTER, endpoints::bare(host));
            put(&mut pairs, TORCH_PORT, port);
        }
        pairs
    }
}

/// The number that stands for it in `PADDLE_GLOO_RENDEZVOUS`.
const GLOO_OVER_HTTP: u8 = 3;

fn put(pairs: &mut Pairs, name: &str, value: impl ToString) {
    pairs.push((name.to_string(), value.to_string()));
}

impl JobIdentity {
    fn put(&self, pairs: &mut Pairs) {
        put(pairs, JOB_ID, &self.id);
        if let Some(token) = &self.token {
            put(pairs, JOB_TOKEN, token);
        }
        pairs.extend(self.tls.to_env());
        put(pairs, START_TIMEOUT, format!("{:.3}", self.start_timeout.as_secs_f64()));
    }
}

impl PsPlace {
    /// Which of the workers on its machine a worker is, and how many there are.
    fn beside(&self, worker: usize) -> (usize, usize) {
        let Some(own) = self.worker_endpoints.get(worker) else { return (0, 1) };
        let is_beside = |other: &&String| endpoints::host(other) == endpoints::host(own);
        let before = self.worker_endpoints[..worker].iter().filter(is_beside).count();
        (before, self.worker_endpoints.iter().filter(is_beside).count())
    }

    fn to_env(&self) -> Pairs {
        let mut pairs = Pairs::new();
        put(&mut pairs, SERVERS, self.servers.join(","));
        if !self.worker_endpoints.is_empty() {
            put(&mut pairs, TRAINER_ENDPOINTS, self.worker_endpoints.join(","));
        }
        put(&mut pairs, TRAINERS_NUM, self.workers);
        match self.role {
            PsRole::Server(_) => put(&mut pairs, TRAINING_ROLE, "PSERVER"),
            PsRole::Worker(i) => {
                put(&mut pairs, TRAINING_ROLE, "TRAINER");
                put(&mut pairs, TRAINER_ID, i);
            }
        }
        if let Some((host, port)) = self.endpoint().and_then(endpoints::split) {
            put(&mut pairs, POD_IP, host);
            put(&mut pairs, PORT, port);
        }
        self.job.put(&mut pairs);
        pairs
    }
}

impl CollectivePlace {
    fn to_env(&self) -> Pairs {
        let mut pairs = Pairs::new();
        put(&mut pairs, TRAINING_ROLE, "TRAINER");
        put(&mut pairs, TRAINER_ID, self.rank);
        put(&mut pairs, GLOBAL_RANK, self.rank);
        put(&mut pairs, TRAINERS_NUM, self.world_size());
        put(&mut pairs, GLOBAL_SIZE, self.world_size());
        if !self.endpoints.is_empty() {
            put(&mut pairs, TRAINER_ENDPOINTS, self.endpoints.join(","));
        }
        if let Some(own) = self.endpoints.get(self.rank) {
            put(&mut pairs, CURRENT_ENDPOINT, own);
        }
        put(&mut pairs, RANK_IN_NODE, self.local_rank);
        put(&mut pairs, LOCAL_RANK, self.local_rank);
        put(&mut pairs, LOCAL_SIZE, self.local_size);
        put(&mut pairs, NNODES, self.nodes);
        if let Some(master) = &self.master {
            put(&mut pairs, MASTER, master);
        }
        self.put_devices(&mut pairs);
        self.job.put(&mut pairs);
        pairs
    }

    fn put_devices(&self, pairs: &mut Pairs) {
        if self.devices.is_empty() {
            return put(pairs, BACKEND, "gloo");
        }
        let own = self.devices.join(",");
        put(pairs, LOCAL_DEVICES, &own);
        put(pairs, SELECTED_GPUS, &own);
        put(pairs, SELECTED_ACCELERATORS, &own);
        if !self.world_devices.is_empty() {
            put(pairs, WORLD_DEVICES, self.world_devices.join(","));
        }
    }
}
