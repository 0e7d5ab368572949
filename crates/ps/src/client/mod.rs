//! The worker's side. A request is in flight as soon as the call that makes it returns; a ticket
//! stands for its reply.
//!
//! Reading order: `exchange.rs` (pull and push), `prefetch.rs` (what will be pulled), `geo.rs`,
//! `meeting.rs` (all workers together), `shards.rs` (data of lost workers), `snapshot.rs`,
//! `admin.rs`.

mod admin;
mod exchange;
mod geo;
mod meeting;
mod prefetch;
mod rows;
mod shards;
mod snapshot;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use regatta_net::memory::Network;
use regatta_net::{
    Buf, Client as Connection, ClientOptions, Identity, JobToken, Observer, Pending, Pool,
};

pub use exchange::{PullTicket, Pulled, PushTicket};
pub use geo::GeoTicket;
pub use shards::{Rejoined, TakenShard};
pub use snapshot::WrittenTicket;

use crate::Error;
pub use crate::message::Idle;
use crate::message::reply::Refusal;
use crate::message::{Control, ControlReply, Hello, Kind, Wire, reply};
use crate::partition::Piece;
use crate::route::Destination;
use crate::server::{Tune, endpoint as endpoint_in};

/// What a worker must know of the job to talk to its servers.
#[derive(Clone)]
pub struct ClientConfig {
    /// This worker's number.
    pub worker: usize,
    /// Number of workers.
    pub workers: usize,
    /// Addresses of the servers, in order.
    pub endpoints: Vec<String>,
    /// The addresses are names in this network of the process.
    pub network: Option<Network>,
    /// Secret of the job.
    pub token: JobToken,
    /// What the job is; servers refuse workers of another.
    pub job: String,
    /// The tables in order.
    pub tables: Vec<ClientTable>,
    /// Which pieces of the dense parameters each server holds.
    pub pieces: Vec<Vec<Piece>>,
    /// How gradients and values travel.
    pub wire: Wire,
    /// How long servers may take to come up.
    pub connect_timeout: Duration,
    /// How long an answer may take; in sync and bounded mode it waits for other workers.
    pub reply_timeout: Duration,
    /// Told about trouble with connections.
    pub observer: Observer,
    /// Changes the options of a connection, for tests.
    pub tune: Option<Tune<ClientOptions>>,
}

/// What a worker must know of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTable {
    /// Name of the parameter.
    pub name: String,
    /// Floats of a row.
    pub dim: usize,
    /// Servers want to know how often ids appear, because they admit them by that.
    pub counted: bool,
    /// Batches ahead of training whose keys servers hear, because they keep rows of the table on
    /// disk; 0 where all rows are in memory.
    pub lookahead: usize,
}

/// Connections to all servers of a job.
///
/// Requests are in flight as soon as the call that makes them returns; a ticket stands for the
/// answer. A push whose ticket is dropped may be lost with the connection, and servers then refuse
/// the next one.
pub struct Client {
    config: ClientConfig,
    connections: Vec<Connection>,
    /// Number of the next push; held until the push is sent, so that pushes arrive in order.
    sequence: Mutex<u64>,
    round: AtomicU64,
    /// Snapshots that this worker has taken part in. All workers take part in all of them, so
    /// everybody knows the number of the next one.
    snapshots: AtomicU64,
}

impl Client {
    /// Connects to every server, waiting for those that are not there yet, and makes sure that both
    /// sides mean the same job.
    ///
    /// # Errors
    /// If a server does not come up in time, is another one, or belongs to another job.
    pub fn connect(config: ClientConfig) -> Result<Client, Error> {
        let client = Client::dial(config)?;
        client.control_all(&Control::Hello(client.hello()))?;
        Ok(client)
    }

    fn hello(&self) -> Hello {
        let (job, workers) = (self.config.job.clone(), self.config.workers);
        Hello { job, workers, servers: self.servers() }
    }

    /// Connections that nobody has introduced yet.
    fn dial(config: ClientConfig) -> Result<Client, Error> {
        let pool = Pool::default();
        let mut connections = Vec::new();
        for (i, name) in config.endpoints.iter().enumerate() {
            let me = Identity::worker(config.worker as u32);
            let server = Identity::server(i as u32);
            let mut options = ClientOptions::new(me, server, config.token.clone());
            options.connect_timeout = config.connect_timeout;
            options.pool = pool.clone();
            options.observer = config.observer.clone();
            if let Some(tune) = &config.tune {
                tune(&mut options);
            }
            let endpoint = endpoint_in(config.network.as_ref(), name);
            connections.push(Connection::connect(endpoint, options)?);
        }
        let (sequence, round, snapshots) = (Mutex::new(1), AtomicU64::new(1), AtomicU64::new(0));
        Ok(Client { config, connections, sequence, round, snapshots })
    }

    /// Number of servers.
    pub fn servers(&self) -> usize {
        self.connections.len()
    }

    /// Addresses of the servers, in order.
    pub fn endpoints(&self) -> &[String] {
        &self.config.endpoints
    }

    /// This worker's number.
    pub fn worker(&self) -> usize {
        self.config.worker
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.config.workers
    }

    /// How gradients and values travel.
    pub fn wire(&self) -> Wire {
        self.config.wire
    }

    /// The tables, in order.
    pub fn tables(&self) -> &[ClientTable] {
        &self.config.tables
    }

    fn destination(&self, server: usize) -> Destination<'_> {
        let ClientConfig { tables, pieces, .. } = &self.config;
        Destination { server, tables, pieces: &pieces[server] }
    }

    /// A buffer for a request to a server.
    fn room(&self, server: usize, bytes: usize) -> Buf {
        self.connections[server].buffer(bytes)
    }

    fn send(&self, wire: Wire, server: usize, kind: Kind, buf: Buf) -> Result<Pending, Error> {
        let buf = wire.pack(kind, buf, |n| self.room(server, n))?;
        Ok(self.connections[server].send_owned(wire.kind(kind), 0, vec![buf])?)
    }

    fn send_control(&self, server: usize, request: &Control) -> Result<Pending, Error> {
        let payload = request.encode();
        Ok(self.connections[server].send(Kind::Control as u16, 0, &[&payload])?)
    }

    fn control_all(&self, request: &Control) -> Result<Vec<ControlReply>, Error> {
        let pending = (0..self.servers())
            .map(|server| self.send_control(server, request))
            .collect::<Result<Vec<_>, Error>>()?;
        let replies = pending.into_iter().enumerate();
        replies.map(|(s, p)| ControlReply::decode(&self.payload(s, p)?)).collect()
    }

    fn control(&self, server: usize, request: &Control) -> Result<ControlReply, Error> {
        let pending = self.send_control(server, request)?;
        ControlReply::decode(&self.payload(server, pending)?)
    }

    fn payload(&self, server: usize, pending: Pending) -> Result<Buf, Error> {
        self.payload_and_snapshot(server, pending).map(|(payload, _)| payload)
    }

    /// The payload, and whether the server wants this worker to come to a snapshot.
    fn payload_and_snapshot(&self, server: usize, pending: Pending) -> Result<(Buf, bool), Error> {
        self.checked(server, pending.wait(self.config.reply_timeout)?)
    }

    fn checked(&self, server: usize, reply: regatta_net::Reply) -> Result<(Buf, bool), Error> {
        reply::read(reply).map_err(|Refusal { reason, is_dropped }| {
            let endpoint = self.config.endpoints[server].clone();
            match is_dropped {
                true => Error::Dropped { server, endpoint, reason },
                false => Error::Refused { server, endpoint, reason },
            }
        })
    }
}
