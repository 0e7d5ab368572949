//! A place becomes environment variables.

use crate::names::*;
use crate::{CollectivePlace, JobIdentity, Place, PsPlace, PsRole, endpoints};

type Pairs = Vec<(String, String)>;

impl Place {
    /// The variables that say this place; [`Place::from_env`] reads them back. Nothing for a local
    /// run.
    pub fn to_env(&self) -> Vec<(String, String)> {
        match self {
            Place::Local => Vec::new(),
            Place::ParameterServer(place) => place.to_env(),
            Place::Collective(place) => place.to_env(),
        }
    }
}

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
        put(&mut pairs, WITH_GLOO, 0);
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
