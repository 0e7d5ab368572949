//! What this process is, from the environment or from the program itself.

use regatta_cluster::{CollectivePlace, Env, JobIdentity, Place, PsPlace, PsRole, Tls, endpoints};

use crate::Error;

/// Says what this process is.
#[derive(Debug, Clone)]
pub enum RoleMaker {
    /// The environment says it.
    PaddleCloud(PaddleCloudRoleMaker),
    /// The program says it.
    UserDefined(UserDefinedRoleMaker),
}

impl Default for RoleMaker {
    fn default() -> RoleMaker {
        PaddleCloudRoleMaker::new().into()
    }
}

impl From<PaddleCloudRoleMaker> for RoleMaker {
    fn from(role: PaddleCloudRoleMaker) -> RoleMaker {
        RoleMaker::PaddleCloud(role)
    }
}

impl From<UserDefinedRoleMaker> for RoleMaker {
    fn from(role: UserDefinedRoleMaker) -> RoleMaker {
        RoleMaker::UserDefined(role)
    }
}

/// Reads what launchers write into the environment; nothing there means a local run.
#[derive(Debug, Clone)]
pub struct PaddleCloudRoleMaker {
    env: Env,
    is_collective: bool,
}

impl Default for PaddleCloudRoleMaker {
    fn default() -> PaddleCloudRoleMaker {
        PaddleCloudRoleMaker::new()
    }
}

impl PaddleCloudRoleMaker {
    /// Takes the environment of this process, for training against parameter servers.
    pub fn new() -> PaddleCloudRoleMaker {
        PaddleCloudRoleMaker::from_env(Env::process())
    }

    /// Takes the environment of this process, for collective training.
    pub fn collective() -> PaddleCloudRoleMaker {
        PaddleCloudRoleMaker { is_collective: true, ..PaddleCloudRoleMaker::new() }
    }

    /// Takes other variables than those of this process.
    pub fn from_env(env: Env) -> PaddleCloudRoleMaker {
        PaddleCloudRoleMaker { env, is_collective: false }
    }
}

/// What a process does in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It trains.
    Worker,
    /// It holds parameters.
    Server,
}

/// A role that the program knows, from flags or files of its own.
///
/// ```
/// use regatta_fleet::{Fleet, Role, UserDefinedRoleMaker};
///
/// let servers = ["127.0.0.1:36011", "127.0.0.1:36012"];
/// let role = UserDefinedRoleMaker::new(0, Role::Server, 2, &servers)?;
/// let fleet = Fleet::init(role, false, None)?;
/// assert!(fleet.is_server() && fleet.server_index() == 0 && fleet.worker_num() == 2);
/// # Ok::<(), regatta_fleet::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct UserDefinedRoleMaker {
    place: Place,
}

impl UserDefinedRoleMaker {
    /// A process of a parameter-server job: the `current_id`-th worker or server, counted from 0.
    ///
    /// # Errors
    /// If there is no such worker or server, or an endpoint is malformed or listed twice.
    pub fn new(
        current_id: usize,
        role: Role,
        worker_num: usize,
        server_endpoints: &[&str],
    ) -> Result<UserDefinedRoleMaker, Error> {
        if worker_num == 0 {
            return Err(Error::Config("worker_num is 0, but a job needs a worker".into()));
        }
        let servers = endpoints::parse("server_endpoints", &server_endpoints.join(","))?;
        let (many, role) = match role {
            Role::Worker => (worker_num, PsRole::Worker(current_id)),
            Role::Server => (servers.len(), PsRole::Server(current_id)),
        };
        check_id(
            current_id,
            many,
            if matches!(role, PsRole::Worker(_)) { "workers" } else { "servers" },
        )?;
        let place = PsPlace {
            role,
            servers,
            workers: worker_num,
            worker_endpoints: Vec::new(),
            job: identity()?,
        };
        Ok(UserDefinedRoleMaker { place: Place::ParameterServer(place) })
    }

    /// A worker of a collective job: the `current_id`-th of these endpoints, counted from 0.
    ///
    /// # Errors
    /// If there is no such worker, or an endpoint is malformed or listed twice.
    pub fn collective(
        current_id: usize,
        worker_endpoints: &[&str],
    ) -> Result<UserDefinedRoleMaker, Error> {
        let endpoints = endpoints::parse("worker_endpoints", &worker_endpoints.join(","))?;
        check_id(current_id, endpoints.len(), "workers")?;
        let place = CollectivePlace {
            rank: current_id,
            local_rank: current_id,
            local_size: endpoints.len(),
            size: endpoints.len(),
            endpoints,
            nodes: 1,
            master: None,
            devices: Vec::new(),
            world_devices: Vec::new(),
            job: identity()?,
        };
        Ok(UserDefinedRoleMaker { place: Place::Collective(place) })
    }

    /// The same with a secret that all processes of the job share. A job that other machines can
    /// reach needs one.
    pub fn with_token(mut self, token: &str) -> UserDefinedRoleMaker {
        let job = match &mut self.place {
            Place::ParameterServer(place) => &mut place.job,
            Place::Collective(place) => &mut place.job,
            Place::Local => return self,
        };
        job.token = Some(token.to_string());
        self
    }
}

/// A job that says nothing of itself but what protects its connections.
fn identity() -> Result<JobIdentity, Error> {
    Ok(JobIdentity { tls: Tls::from_env(&Env::process())?, ..JobIdentity::default() })
}

fn check_id(current_id: usize, many: usize, what: &str) -> Result<(), Error> {
    if current_id < many {
        return Ok(());
    }
    Err(Error::Config(format!(
        "current_id is {current_id}, but with {many} {what} it is below {many}"
    )))
}

impl RoleMaker {
    /// The place of this process, and whether the training is collective.
    pub(crate) fn place(&self, is_collective: bool) -> Result<(Place, bool), Error> {
        let (place, is_collective) = match self {
            RoleMaker::PaddleCloud(role) => {
                (Place::from_env(&role.env)?, is_collective || role.is_collective)
            }
            RoleMaker::UserDefined(role) => {
                (role.place.clone(), is_collective || matches!(role.place, Place::Collective(_)))
            }
        };
        match (&place, is_collective) {
            (Place::Collective(_), false) => Err(Error::Config(
                "this process was started for collective training (it has a rank and no servers), \
                 but the program trains with parameter servers: pass is_collective, or start it \
                 with servers"
                    .into(),
            )),
            (Place::ParameterServer(_), true) => Err(Error::Config(
                "this process was started with parameter servers, but the program asks for \
                 collective training: leave out is_collective, or start it without servers"
                    .into(),
            )),
            _ => Ok((place, is_collective)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn user_defined_roles_are_checked() {
        let server = UserDefinedRoleMaker::new(1, Role::Server, 2, &["h:1", "h:2"]).unwrap();
        let (place, _) = RoleMaker::from(server).place(false).unwrap();
        assert_eq!(place.to_string(), "server 1");
        let new = UserDefinedRoleMaker::new;
        assert_eq!(
            refusal(new(2, Role::Server, 2, &["h:1", "h:2"])),
            "current_id is 2, but with 2 servers it is below 2"
        );
        assert_eq!(
            refusal(new(3, Role::Worker, 2, &["h:1"])),
            "current_id is 3, but with 2 workers it is below 2"
        );
        assert!(refusal(new(0, Role::Worker, 0, &["h:1"])).starts_with("worker_num is 0"));
        assert!(refusal(new(0, Role::Worker, 1, &["h:1", "h:1"])).contains("twice"));
        assert!(refusal(new(0, Role::Worker, 1, &["h"])).contains("server_endpoints"));
        assert!(refusal(UserDefinedRoleMaker::collective(2, &["h:1", "h:2"])).contains("workers"));
    }

    #[test]
    fn the_environment_must_fit_the_program() {
        let servers = PaddleCloudRoleMaker::from_env(Env::from([
            ("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:6000"),
            ("TRAINING_ROLE", "TRAINER"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_TRAINER_ID", "1"),
        ]));
        let (place, is_collective) = RoleMaker::from(servers.clone()).place(false).unwrap();
        assert_eq!((place.to_string().as_str(), is_collective), ("worker 1", false));
        let error = refusal(RoleMaker::from(servers).place(true));
        assert!(error.contains("leave out is_collective"), "{error}");
        let ranks = PaddleCloudRoleMaker::from_env(Env::from([
            ("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:6000,127.0.0.1:6001"),
            ("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:6001"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_TRAINER_ID", "1"),
        ]));
        let error = refusal(RoleMaker::from(ranks).place(false));
        assert!(error.contains("pass is_collective"), "{error}");
        let nothing = RoleMaker::from(PaddleCloudRoleMaker::from_env(Env::default()));
        assert_eq!(nothing.place(true).unwrap(), (Place::Local, true));
    }
}
