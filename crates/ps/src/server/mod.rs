//! The server's side: holds its part of the parameters, applies what workers push, answers what
//! they pull, and lets them wait for each other where the mode says so.

mod admin;
mod apply;
mod control;
mod core;
mod dense;
mod exchange;
mod geo;
mod monitor;
mod prefetch;
mod reduce;
mod request;
mod roles;
mod round;
mod rows;
mod shards;
mod slot_reuse;
mod snapshot;
mod thread_pool;
mod weight_prediction;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use regatta_net::memory::Network;
use regatta_net::{
    Disconnect, Endpoint, Handler, Identity, JobToken, Observer, Peer, Request, Responder,
};
use regatta_net::{Server as Listener, ServerOptions, Serving};
use regatta_optim::{Rule, Schedule};
use regatta_table::SparseConfig;

use self::core::Core;
use crate::message::ServerStats;
use crate::{Error, Mode};

/// A table as its server makes it.
#[derive(Debug, Clone)]
pub struct TableSetup {
    /// Name of the parameter.
    pub name: String,
    /// What rows are like.
    pub config: SparseConfig,
    /// Factor on the learning rate.
    pub lr_scale: f32,
}

/// A piece of a dense parameter as its server makes it.
#[derive(Debug, Clone)]
pub struct DenseSetup {
    /// Name of the parameter.
    pub param: String,
    /// First float of the flattened parameter.
    pub start: usize,
    /// Number of floats.
    pub len: usize,
    /// Update rule.
    pub rule: Rule,
    /// Factor on the learning rate.
    pub lr_scale: f32,
}

/// Everything about one server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Its number.
    pub index: usize,
    /// Number of servers.
    pub servers: usize,
    /// Number of workers.
    pub workers: usize,
    /// Where it listens.
    pub endpoint: String,
    /// The endpoint is a name in this network of the process, for workers in the same process.
    pub network: Option<Network>,
    /// Secret of the job.
    pub token: JobToken,
    /// What the job is; workers of another are refused.
    pub job: String,
    /// Consistency.
    pub mode: Mode,
    /// Tables in order.
    pub tables: Vec<TableSetup>,
    /// Its pieces of the dense parameters, in order.
    pub dense: Vec<DenseSetup>,
    /// Names of all tables and dense parameters of the job, on this server or not.
    pub params: Vec<String>,
    /// Base learning rate.
    pub learning_rate: f64,
    /// How it changes with the updates.
    pub schedule: Schedule,
    /// Go on without workers that are lost or do not come, where the job would fail otherwise:
    /// because others wait for them, in sync and bounded mode, or because they never came.
    pub allow_worker_loss: bool,
    /// How long a worker may take to appear; then the job fails in any mode.
    pub start_timeout: Duration,
    /// How long a worker may be away before it counts as lost.
    pub worker_timeout: Duration,
    /// Told about trouble with connections.
    pub observer: Observer,
    /// Told about workers that are lost.
    pub notices: NoticeObserver,
    /// Changes the options of the listener, for tests.
    pub tune: Option<Tune<ServerOptions>>,
}

/// What a server notices of its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A worker is lost. In modes that do not wait for it, others take over its data.
    Lost {
        /// Its number.
        worker: usize,
        /// How.
        reason: String,
        /// It has closed its connections in good order: its process ends by itself.
        has_ended: bool,
    },
    /// A worker that was lost takes part again.
    Rejoined {
        /// Its number.
        worker: usize,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notice::Lost { reason, .. } => write!(f, "{reason}"),
            Notice::Rejoined { worker } => write!(f, "worker {worker} has rejoined the job"),
        }
    }
}

/// Hears notices.
pub type NoticeObserver = Arc<dyn Fn(&Notice) + Send + Sync>;

/// Changes options before they are used.
pub type Tune<T> = Arc<dyn Fn(&mut T) + Send + Sync>;

/// A running server.
pub struct Server {
    core: Arc<Core>,
    serving: Serving,
}

impl Server {
    /// Makes the tables and begins to listen.
    ///
    /// # Errors
    /// If a table cannot be made or the endpoint is taken.
    pub fn start(config: ServerConfig) -> Result<Server, Error> {
        Server::start_with(config, |_| Ok(()))
    }

    /// As [`Server::start`], with values from a directory that servers have saved: of the tables
    /// and parameters of these names, or of all if there are none.
    ///
    /// # Errors
    /// As [`Server::start`], or if the directory does not hold what is asked for.
    pub fn start_from(config: ServerConfig, dir: &str, names: &[String]) -> Result<Server, Error> {
        Server::start_with(config, |core| core.load(dir, names, false))
    }

    /// `prepare` is done before the first worker is served.
    fn start_with(
        config: ServerConfig,
        prepare: impl FnOnce(&Core) -> Result<(), Error>,
    ) -> Result<Server, Error> {
        let me = Identity::server(config.index as u32);
        let mut options = ServerOptions::new(me, config.token.clone());
        options.observer = config.observer.clone();
        if let Some(tune) = &config.tune {
            tune(&mut options);
        }
        let endpoint = endpoint(config.network.as_ref(), &config.endpoint);
        let core = Arc::new(Core::new(config)?);
        let _ = core.me.set(Arc::downgrade(&core));
        let listener = Listener::bind(endpoint, options)?;
        prepare(&core)?;
        let serving = listener.serve(Service(core.clone()))?;
        Ok(Server { core, serving })
    }

    /// Where it listens; differs from the configuration if that asked for any free port.
    pub fn endpoint(&self) -> String {
        self.serving.endpoint().to_string()
    }

    /// Numbers so far.
    pub fn stats(&self) -> ServerStats {
        self.core.stats()
    }

    /// Serves until all workers have left.
    ///
    /// # Errors
    /// If a worker never came or was lost, naming it.
    pub fn run(self) -> Result<ServerStats, Error> {
        self.run_unless(&AtomicBool::new(false))
    }

    /// As [`Server::run`], and stops soon after `stop` is set, whatever the workers do.
    ///
    /// # Errors
    /// As [`Server::run`], and if it was stopped.
    pub fn run_unless(self, stop: &AtomicBool) -> Result<ServerStats, Error> {
        let outcome = self.core.watch(stop);
        self.core.finish_writing();
        let stats = self.core.stats();
        let Server { core, serving } = self;
        serving.shutdown(LAST_REQUESTS);
        release_tables(core);
        outcome.map(|()| stats)
    }
}

/// An address, or a name inside this process.
pub(crate) fn endpoint(network: Option<&Network>, name: &str) -> Endpoint {
    network.map_or_else(|| Endpoint::from(name), |network| network.endpoint(name))
}

/// How long the last requests may take after everything is done.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// Lets go of the tables. Those with rows on disk remove their files, which must be done before the
/// process ends: threads of connections that are closing hold the tables for a moment.
fn release_tables(core: Arc<Core>) {
    let has_files = core.tables.iter().any(|table| table.setup.config.tier.is_some());
    let until = Instant::now() + LAST_REQUESTS;
    while has_files && Arc::strong_count(&core) > 1 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Hands requests of the network to the core.
struct Service(Arc<Core>);

impl Handler for Service {
    fn request(&self, request: Request, responder: Responder) {
        self.0.handle(request.kind, request.id, request.payload, responder);
    }

    fn connected(&self, peer: &Peer) {
        self.0.connected(peer);
    }

    fn disconnected(&self, peer: &Peer, how: &Disconnect) {
        self.0.disconnected(peer, how);
    }
}
