//! The worker's side: keys and gradients go to the servers that hold them, values come back in the
//! order of the keys.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use regatta_net::{
    Buf, Client as Connection, ClientOptions, Identity, JobToken, Observer, Pending, Pool,
};

use regatta_checkpoint::Part;
use regatta_table::SaveMode;

use crate::cut::CutOrder;
use crate::message::{
    Control, ControlReply, CutTaken, Gather, GatherReply, GeoReply, Hello, Inspection, Kind,
    MAX_GATHER_BYTES, PullReply, ReduceOp, ServerStats, Wire,
};
use crate::partition::{Piece, server_of};
use crate::route::Route;
use crate::server::Tune;
use crate::{Error, STATUS_CUT, STATUS_OK};

/// What a worker must know of the job to talk to its servers.
#[derive(Clone)]
pub struct ClientConfig {
    /// This worker's number.
    pub worker: usize,
    /// Number of workers.
    pub workers: usize,
    /// Addresses of the servers, in order.
    pub endpoints: Vec<String>,
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
}

/// Connections to all servers of a job.
///
/// Requests are under way as soon as the call that makes them returns; a ticket stands for the
/// answer. A push whose ticket is dropped may be lost with the connection, and servers then refuse
/// the next one.
pub struct Client {
    config: ClientConfig,
    connections: Vec<Connection>,
    /// Number of the next push; held until the push is sent, so that pushes arrive in order.
    sequence: Mutex<u64>,
    round: AtomicU64,
    /// Cuts that this worker has taken part in. All workers take part in all of them, so everybody
    /// knows the number of the next one.
    cuts: AtomicU64,
}

/// Values on their way.
#[must_use = "the values are in what `finish_pull` writes"]
pub struct PullTicket {
    pending: Vec<Pending>,
    routes: Vec<Route>,
    dense: bool,
    wire: Wire,
}

/// What came of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulled {
    /// The values are there.
    Values,
    /// There are none before this worker has come to the cut; see [`Client::ready`].
    HeldBack,
}

/// A cut on its way to disk.
#[must_use = "only its answer says whether everything is written"]
pub struct WrittenTicket {
    pending: Vec<Option<Pending>>,
    parts: Vec<Part>,
    /// The first of them. It is told when all servers have answered: until then the others write,
    /// and the directory must stay.
    failure: Option<Error>,
}

impl WrittenTicket {
    /// Notes what one server has written.
    fn note(&mut self, written: Result<Vec<Part>, Error>) {
        match written {
            Ok(parts) => self.parts.extend(parts),
            Err(e) => self.failure = self.failure.take().or(Some(e)),
        }
    }

    fn outcome(&mut self) -> Result<Vec<Part>, Error> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(std::mem::take(&mut self.parts)),
        }
    }
}

/// Gradients on their way.
#[must_use = "a push that nobody waits for may be lost"]
pub struct PushTicket {
    pending: Vec<Pending>,
}

/// Differences on their way, changed values to come back.
#[must_use = "differences that nobody waits for may be lost"]
pub struct GeoTicket {
    pending: Vec<Option<Pending>>,
    replies: Vec<Option<Buf>>,
    /// A server wants this worker to come to a cut.
    cut: bool,
}

impl GeoTicket {
    /// Whether a server that has answered wants this worker to come to a cut.
    pub fn wants_cut(&self) -> bool {
        self.cut
    }
}

/// What is pushed: dense gradients by parameter, and keys with rows of gradients by table.
#[derive(Debug, Clone, Copy)]
pub struct Gradients<'a> {
    /// The worker's step.
    pub step: u64,
    /// Examples behind them.
    pub examples: u64,
    /// By parameter; empty if there are no dense ones.
    pub dense: &'a [&'a [f32]],
    /// By table: distinct keys and a row per key.
    pub tables: &'a [(&'a [u64], &'a [f32])],
}

/// What is pulled: distinct keys by table.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The worker's step that they are for.
    pub step: u64,
    /// Only look: create and count nothing.
    pub test: bool,
    /// Also the dense parameters.
    pub dense: bool,
    /// By table.
    pub keys: &'a [&'a [u64]],
    /// How often each key appears in the batch, by table; may be left out, and is sent for tables
    /// only that count.
    pub counts: &'a [&'a [u32]],
}

impl Client {
    /// Connects to every server, waiting for those that are not there yet, and makes sure that both
    /// sides mean the same job.
    ///
    /// # Errors
    /// If a server does not come up in time, is another one, or belongs to another job.
    pub fn connect(config: ClientConfig) -> Result<Client, Error> {
        let pool = Pool::default();
        let mut connections = Vec::new();
        for (i, endpoint) in config.endpoints.iter().enumerate() {
            let me = Identity::worker(config.worker as u32);
            let server = Identity::server(i as u32);
            let mut options = ClientOptions::new(me, server, config.token.clone());
            options.connect_timeout = config.connect_timeout;
            options.pool = pool.clone();
            options.observer = config.observer.clone();
            if let Some(tune) = &config.tune {
                tune(&mut options);
            }
            connections.push(Connection::connect(endpoint.as_str(), options)?);
        }
        let (sequence, round, cuts) = (Mutex::new(1), AtomicU64::new(1), AtomicU64::new(0));
        let client = Client { config, connections, sequence, round, cuts };
        let hello = Hello {
            job: client.config.job.clone(),
            workers: client.config.workers,
            servers: client.servers(),
        };
        client.control_all(&Control::Hello(hello))?;
        Ok(client)
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

    /// The tables, in order.
    pub fn tables(&self) -> &[ClientTable] {
        &self.config.tables
    }

    /// Asks for values.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull(&self, wanted: &Wanted<'_>) -> Result<PullTicket, Error> {
        self.pull_by(self.config.wire, wanted)
    }

    /// Asks for values as the servers have them, however others travel.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull_exactly(&self, wanted: &Wanted<'_>) -> Result<PullTicket, Error> {
        self.pull_by(Wire::F32, wanted)
    }

    fn pull_by(&self, wire: Wire, wanted: &Wanted<'_>) -> Result<PullTicket, Error> {
        let routes = self.routes(wanted.keys.iter().copied())?;
        let send = |server: usize| {
            let mut buf = self.connections[server].buffer(self.pull_bytes(wanted, &routes, server));
            self.write_pull(&mut buf, wanted, &routes, server);
            self.send_by(wire, server, Kind::Pull, buf)
        };
        let pending = (0..self.servers()).map(send).collect::<Result<_, _>>()?;
        Ok(PullTicket { pending, routes, dense: wanted.dense, wire })
    }

    /// Sends gradients.
    ///
    /// # Errors
    /// If a server is gone, or the gradients do not fit the tables.
    pub fn push(&self, gradients: &Gradients<'_>) -> Result<PushTicket, Error> {
        Ok(PushTicket { pending: self.send_gradients(Kind::Push, gradients, None)? })
    }

    /// Sends gradients and asks for the values after them, in one exchange per server.
    ///
    /// # Errors
    /// If a server is gone, or the gradients do not fit the tables.
    pub fn push_pull(
        &self,
        gradients: &Gradients<'_>,
        wanted: &Wanted<'_>,
    ) -> Result<PullTicket, Error> {
        let routes = self.routes(wanted.keys.iter().copied())?;
        let pending = self.send_gradients(Kind::PushPull, gradients, Some((wanted, &routes)))?;
        let wire = self.config.wire;
        Ok(PullTicket { pending, routes, dense: wanted.dense, wire })
    }

    /// Everything that carries a sequence number.
    fn send_gradients(
        &self,
        kind: Kind,
        gradients: &Gradients<'_>,
        pull: Option<(&Wanted<'_>, &[Route])>,
    ) -> Result<Vec<Pending>, Error> {
        let routes = self.routes(gradients.tables.iter().map(|t| t.0))?;
        for ((keys, grads), table) in gradients.tables.iter().zip(&self.config.tables) {
            if grads.len() != keys.len() * table.dim {
                let (n, len, name) = (keys.len(), grads.len(), &table.name);
                let dim = table.dim;
                return Err(Error::Job(format!(
                    "table '{name}': {len} floats for {n} keys of {dim}"
                )));
            }
        }
        let mut sequence = self.sequence.lock().unwrap_or_else(|e| e.into_inner());
        let send = |server: usize| {
            let pull_bytes =
                pull.map_or(0, |(wanted, routes)| self.pull_bytes(wanted, routes, server));
            let bytes = self.push_bytes(gradients, &routes, server) + pull_bytes;
            let mut buf = self.connections[server].buffer(bytes);
            self.write_push(&mut buf, gradients, &routes, *sequence, server);
            if let Some((wanted, routes)) = pull {
                self.write_pull(&mut buf, wanted, routes, server);
            }
            self.send_by(self.config.wire, server, kind, buf)
        };
        let pending = (0..self.servers()).map(send).collect();
        // Also after a failure: some servers have got it.
        *sequence += 1;
        pending
    }

    /// Waits for values: rows of each table in the order of its keys, dense parameters in order.
    /// Where the job comes to a cut, there are none, and what was written is to be ignored.
    ///
    /// # Errors
    /// If a server is gone, refuses, or answers something else.
    pub fn finish_pull(
        &self,
        ticket: PullTicket,
        rows: &mut [&mut [f32]],
        dense: &mut [&mut [f32]],
    ) -> Result<Pulled, Error> {
        let mut pulled = Pulled::Values;
        for (server, pending) in ticket.pending.into_iter().enumerate() {
            let (payload, cut) = self.payload_or_cut(server, pending)?;
            if cut {
                pulled = Pulled::HeldBack;
                continue;
            }
            let room = |n| self.connections[server].buffer(n);
            let payload = ticket.wire.unpack_answer(payload, room)?;
            let mut reply = PullReply::new(&payload);
            for ((route, rows), table) in
                ticket.routes.iter().zip(rows.iter_mut()).zip(&self.config.tables)
            {
                let dim = table.dim;
                let values = reply.floats(route.len_of(server) * dim)?;
                let Some(positions) = route.positions(server) else {
                    rows.copy_from_slice(values);
                    continue;
                };
                for (&position, row) in positions.iter().zip(values.chunks_exact(dim)) {
                    rows[position as usize * dim..][..dim].copy_from_slice(row);
                }
            }
            if ticket.dense {
                for piece in &self.config.pieces[server] {
                    let values = reply.floats_unpadded(piece.range.len())?;
                    dense[piece.param][piece.range.clone()].copy_from_slice(values);
                }
                reply.skip_padding()?;
            }
            reply.end()?;
        }
        Ok(pulled)
    }

    /// Waits until gradients are applied.
    ///
    /// # Errors
    /// If a server is gone or refuses.
    pub fn finish_push(&self, ticket: PushTicket) -> Result<(), Error> {
        for (server, pending) in ticket.pending.into_iter().enumerate() {
            self.payload(server, pending)?;
        }
        Ok(())
    }

    /// Gives the servers the first values of the dense parameters.
    ///
    /// # Errors
    /// If a server is gone or refuses.
    pub fn set_dense(&self, values: &[&[f32]]) -> Result<(), Error> {
        let send = |server: usize| {
            let mut buf = self.connections[server].buffer(self.dense_len(server) as usize * 4 + 16);
            put_u64(&mut buf, self.dense_len(server));
            self.put_dense(&mut buf, values, server);
            self.send(server, Kind::SetDense, buf)
        };
        let pending = (0..self.servers()).map(send).collect::<Result<_, _>>()?;
        self.finish_push(PushTicket { pending })
    }

    /// Sends differences; [`Client::try_geo`] and [`Client::finish_geo`] take the answer.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn geo(&self, dense: &[&[f32]], tables: &[(&[u64], &[f32])]) -> Result<GeoTicket, Error> {
        let gradients = Gradients { step: 0, examples: 0, dense, tables };
        let pending = self.send_gradients(Kind::Geo, &gradients, None)?;
        let pending: Vec<_> = pending.into_iter().map(Some).collect();
        let replies = (0..pending.len()).map(|_| None).collect();
        Ok(GeoTicket { pending, replies, cut: false })
    }

    /// Whether all servers have answered; never waits.
    ///
    /// # Errors
    /// If a server is gone or refuses.
    pub fn try_geo(&self, ticket: &mut GeoTicket) -> Result<bool, Error> {
        for server in 0..ticket.pending.len() {
            let Some(pending) = &mut ticket.pending[server] else { continue };
            if let Some(reply) = pending.try_take() {
                let (payload, cut) = self.checked(server, reply?)?;
                ticket.replies[server] = Some(payload);
                ticket.pending[server] = None;
                ticket.cut |= cut;
            }
        }
        Ok(ticket.pending.iter().all(Option::is_none))
    }

    /// Waits for all servers and hands their answers to `apply(table, keys, rows)` and the dense
    /// values to `dense(parameter, first element, values)`. Returns whether a server wants this
    /// worker to come to a cut.
    ///
    /// # Errors
    /// If a server is gone, refuses, or answers something else.
    pub fn finish_geo(
        &self,
        ticket: GeoTicket,
        mut apply: impl FnMut(usize, &[u64], &[f32]),
        mut dense: impl FnMut(usize, usize, &[f32]),
    ) -> Result<bool, Error> {
        let mut cut = ticket.cut;
        for (server, (pending, reply)) in ticket.pending.into_iter().zip(ticket.replies).enumerate()
        {
            let payload = match (reply, pending) {
                (Some(payload), _) => payload,
                (None, Some(pending)) => {
                    let (payload, wanted) = self.payload_or_cut(server, pending)?;
                    cut |= wanted;
                    payload
                }
                (None, None) => continue,
            };
            let reply = GeoReply::decode(&payload)?;
            let fits = |((keys, values), table): (&(&[u64], &[f32]), &ClientTable)| {
                values.len() == keys.len() * table.dim
            };
            let tables = &self.config.tables;
            if reply.tables.len() != tables.len() || !reply.tables.iter().zip(tables).all(fits) {
                return Err(Error::malformed(format!("server {server} sent other tables")));
            }
            for (table, (keys, values)) in reply.tables.iter().enumerate() {
                apply(table, keys, values);
            }
            let mut at = 0;
            for piece in &self.config.pieces[server] {
                let n = piece.range.len();
                let values = reply.dense.get(at..at + n).ok_or_else(|| {
                    Error::malformed(format!("server {server} sent too few dense values"))
                })?;
                dense(piece.param, piece.range.start, values);
                at += n;
            }
        }
        Ok(cut)
    }

    /// Combines values of all workers on server 0; every worker must call it, in the same order.
    ///
    /// # Errors
    /// If the server is gone, a worker was lost, or the values differ in number.
    pub fn reduce(&self, what: &str, op: ReduceOp, values: &[f64]) -> Result<Vec<f64>, Error> {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let what = what.to_string();
        let request = Control::Reduce { round, what, op, values: values.to_vec() };
        match self.control(0, &request)? {
            ControlReply::Values(values) => Ok(values),
            other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
        }
    }

    /// Brings bytes of every worker together on server 0 and gives all of them to everybody, by
    /// worker; a worker that has left or was lost has none. Every worker must call it, in the same
    /// order as [`Client::reduce`] and other gathers.
    ///
    /// # Errors
    /// If there are more than [`MAX_GATHER_BYTES`] of this worker or
    /// [`MAX_GATHER_REPLY_BYTES`](crate::message::MAX_GATHER_REPLY_BYTES) of all of them, the server
    /// is gone, a worker was lost, or workers gather different things.
    pub fn gather(&self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if bytes.len() > MAX_GATHER_BYTES {
            return Err(Error::Job(format!(
                "'{name}': {} bytes of worker {} to gather, more than {MAX_GATHER_BYTES}",
                bytes.len(),
                self.config.worker
            )));
        }
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let payload = Gather { round, name, bytes }.encode();
        let pending = self.connections[0].send(Kind::Gather as u16, 0, &[&payload])?;
        let payload = self.payload(0, pending)?;
        let reply = GatherReply::decode(&payload)?;
        if reply.parts.len() != self.config.workers {
            let (n, workers) = (reply.parts.len(), self.config.workers);
            return Err(Error::malformed(format!("bytes of {n} workers, there are {workers}")));
        }
        Ok(reply.parts.into_iter().map(<[u8]>::to_vec).collect())
    }

    /// Waits until all workers have come this far.
    ///
    /// # Errors
    /// As [`Client::reduce`].
    pub fn barrier(&self, what: &str) -> Result<(), Error> {
        self.reduce(what, ReduceOp::Sum, &[]).map(|_| ())
    }

    /// Says that this worker has no more batches in this pass.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn rest(&self) -> Result<(), Error> {
        self.control_all(&Control::Rest).map(|_| ())
    }

    /// Begins a pass; returns the step that all workers begin it with. Every worker must call it.
    ///
    /// # Errors
    /// If a server or worker is gone.
    pub fn resume(&self, step: u64) -> Result<u64, Error> {
        let steps = self.reduce("step", ReduceOp::Max, &[step as f64])?;
        let step = steps.first().map_or(step, |s| *s as u64);
        self.control_all(&Control::Resume { step })?;
        self.barrier("resume")?;
        Ok(step)
    }

    /// Waits until the pass is over for all workers (`false`) or a cut is open (`true`). To be called
    /// by a worker that rests.
    ///
    /// # Errors
    /// If the server is gone or a worker was lost.
    pub fn idle(&self) -> Result<bool, Error> {
        match self.control(0, &Control::Idle)? {
            ControlReply::Idle { cut } => Ok(cut),
            other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
        }
    }

    /// Opens a cut, whose parts servers write into a directory. Only worker 0 may; it then comes to
    /// the cut like all others. See [`crate::cut`].
    ///
    /// # Errors
    /// If a server is gone, or the last cut is not over.
    pub fn open_cut(&self, order: &CutOrder) -> Result<(), Error> {
        let id = self.cuts.load(Ordering::Relaxed) + 1;
        let (dir, scope) = (order.dir.to_string_lossy().into_owned(), order.scope);
        self.control_all(&Control::Cut { id, dir, scope }).map(|_| ())
    }

    /// Tells servers whether the checkpoint of the last cut is stored. Worker 0 does so after every
    /// cut that is not [`CutScope::Whole`](crate::CutScope::Whole), once it is written.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn stored(&self, stored: bool) -> Result<(), Error> {
        let id = self.cuts.load(Ordering::Relaxed);
        self.control_all(&Control::Stored { id, stored }).map(|_| ())
    }

    /// Comes to the cut with nothing under way, and waits until all servers have taken it. `state` is
    /// what this worker needs to go on from here; worker 0 gets those of all workers. With `own_part`
    /// the cut counts as written only after [`Client::own_part`].
    ///
    /// # Errors
    /// If a server or worker is gone, or a server cannot take its part.
    pub fn ready(&self, state: &str, own_part: bool) -> Result<CutTaken, Error> {
        let id = self.cuts.fetch_add(1, Ordering::Relaxed) + 1;
        // What a server does not need is not sent to it.
        let request = |server: usize| {
            let state = if server == 0 { state.to_string() } else { String::new() };
            Control::Ready { id, state, own_part: own_part && server == 0 }.encode()
        };
        let pending = (0..self.servers())
            .map(|s| Ok(self.connections[s].send(Kind::Control as u16, 0, &[&request(s)])?))
            .collect::<Result<Vec<_>, Error>>()?;
        let mut taken = CutTaken::default();
        for (server, pending) in pending.into_iter().enumerate() {
            match ControlReply::decode(&self.payload(server, pending)?)? {
                ControlReply::Taken(part) => {
                    let copy_seconds = taken.copy_seconds.max(part.copy_seconds);
                    if server == 0 {
                        taken = part;
                    }
                    taken.copy_seconds = copy_seconds;
                }
                other => return Err(Error::malformed(format!("unexpected answer {other:?}"))),
            }
        }
        Ok(taken)
    }

    /// Reports this worker's own part of the last cut, or why it could not be written.
    ///
    /// # Errors
    /// If the server is gone.
    pub fn own_part(&self, part: Result<Part, String>) -> Result<(), Error> {
        let id = self.cuts.load(Ordering::Relaxed);
        self.control(0, &Control::OwnPart { id, part }).map(|_| ())
    }

    /// Asks when the last cut is written; [`Client::try_written`] and [`Client::finish_written`] take
    /// the answer.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn written(&self) -> Result<WrittenTicket, Error> {
        let payload = Control::Written { id: self.cuts.load(Ordering::Relaxed) }.encode();
        let pending = (0..self.servers())
            .map(|s| Ok(Some(self.connections[s].send(Kind::Control as u16, 0, &[&payload])?)))
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(WrittenTicket { pending, parts: Vec::new(), failure: None })
    }

    /// What all servers have written, if they have; never waits.
    ///
    /// # Errors
    /// If a server is gone or could not write.
    pub fn try_written(&self, ticket: &mut WrittenTicket) -> Result<Option<Vec<Part>>, Error> {
        for server in 0..ticket.pending.len() {
            let Some(pending) = &mut ticket.pending[server] else { continue };
            if let Some(reply) = pending.try_take() {
                ticket.pending[server] = None;
                let payload = reply.map_err(Error::from).and_then(|r| self.checked(server, r));
                ticket.note(payload.and_then(|(payload, _)| written_parts(&payload)));
            }
        }
        match ticket.pending.iter().all(Option::is_none) {
            true => ticket.outcome().map(Some),
            false => Ok(None),
        }
    }

    /// Waits until all servers have written.
    ///
    /// # Errors
    /// As [`Client::try_written`].
    pub fn finish_written(&self, mut ticket: WrittenTicket) -> Result<Vec<Part>, Error> {
        for server in 0..ticket.pending.len() {
            if let Some(pending) = ticket.pending[server].take() {
                let payload = self.payload(server, pending);
                ticket.note(payload.and_then(|payload| written_parts(&payload)));
            }
        }
        ticket.outcome()
    }

    /// Says that this worker is done. Servers end when all workers have left.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn leave(&self) -> Result<(), Error> {
        self.control_all(&Control::Leave).map(|_| ())
    }

    /// Lets every server save the rows of its part that a mode asks for, and all of its dense
    /// parameters. After a base, delta or patch, what such a save counts begins anew; after a day
    /// save, a day is over.
    ///
    /// # Errors
    /// If a server is gone or cannot write.
    pub fn save(&self, dir: &str, mode: SaveMode) -> Result<(), Error> {
        // Random, so that parts of another save in the same place are noticed.
        let id = RandomState::new().hash_one(dir);
        self.control_all(&Control::Save { dir: dir.to_string(), id, mode }).map(|_| ())
    }

    /// Lets every server load its part of what any number of servers has saved: the named tables and
    /// parameters, or all. Other tables keep what they have.
    ///
    /// # Errors
    /// If a server is gone or cannot read, or there is no such table or parameter in this job or in
    /// the directory.
    pub fn load(&self, dir: &str, names: &[String]) -> Result<(), Error> {
        let request = Control::Load { dir: dir.to_string(), names: names.to_vec(), over: false };
        self.control_all(&request).map(|_| ())
    }

    /// As [`Client::load`] for a delta: rows that are there and not in the directory stay.
    ///
    /// # Errors
    /// As [`Client::load`].
    pub fn load_delta(&self, dir: &str, names: &[String]) -> Result<(), Error> {
        let request = Control::Load { dir: dir.to_string(), names: names.to_vec(), over: true };
        self.control_all(&request).map(|_| ())
    }

    /// Lets every server go on from its part of a checkpoint, which any number of servers has
    /// written. With `count_changes`, later cuts may ask for what has changed since.
    ///
    /// # Errors
    /// If a server is gone or cannot read.
    pub fn restore(&self, checkpoint: &str, count_changes: bool) -> Result<(), Error> {
        let request = Control::Restore { dir: checkpoint.to_string(), count_changes };
        self.control_all(&request).map(|_| ())
    }

    /// Ends a day: all rows have gone one more day without a push.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn end_day(&self) -> Result<(), Error> {
        self.control_all(&Control::EndDay).map(|_| ())
    }

    /// Lets statistics decay and drops rows that are not worth keeping, after so many days without a
    /// push or as the tables are configured; returns how many went.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn shrink(&self, max_unseen_days: Option<u32>) -> Result<u64, Error> {
        let replies = self.control_all(&Control::Shrink { max_unseen_days })?;
        let removed = |r: &ControlReply| if let ControlReply::Removed(n) = r { *n } else { 0 };
        Ok(replies.iter().map(removed).sum())
    }

    /// Numbers about every server.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn stats(&self) -> Result<Vec<ServerStats>, Error> {
        let replies = self.control_all(&Control::Stats)?;
        let stats = |r| if let ControlReply::Stats(s) = r { Some(s) } else { None };
        Ok(replies.into_iter().filter_map(stats).collect())
    }

    /// What is known of one id.
    ///
    /// # Errors
    /// If the server is gone or has no such table.
    pub fn inspect(&self, table: &str, id: u64) -> Result<Option<Inspection>, Error> {
        let server = server_of(id, self.servers());
        match self.control(server, &Control::Inspect { table: table.to_string(), id })? {
            ControlReply::Inspection(found) => Ok(found),
            other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
        }
    }

    fn control_all(&self, request: &Control) -> Result<Vec<ControlReply>, Error> {
        let payload = request.encode();
        let pending = (0..self.servers())
            .map(|s| Ok(self.connections[s].send(Kind::Control as u16, 0, &[&payload])?))
            .collect::<Result<Vec<_>, Error>>()?;
        let replies = pending.into_iter().enumerate();
        replies.map(|(s, p)| ControlReply::decode(&self.payload(s, p)?)).collect()
    }

    fn control(&self, server: usize, request: &Control) -> Result<ControlReply, Error> {
        let payload = request.encode();
        let pending = self.connections[server].send(Kind::Control as u16, 0, &[&payload])?;
        ControlReply::decode(&self.payload(server, pending)?)
    }

    /// A pull or a push.
    fn send_by(&self, wire: Wire, server: usize, kind: Kind, buf: Buf) -> Result<Pending, Error> {
        let buf = wire.pack(kind, buf, |n| self.connections[server].buffer(n))?;
        Ok(self.connections[server].send_owned(wire.kind(kind), 0, vec![buf])?)
    }

    fn send(&self, server: usize, kind: Kind, buf: Buf) -> Result<Pending, Error> {
        Ok(self.connections[server].send_owned(kind as u16, 0, vec![buf])?)
    }

    fn payload(&self, server: usize, pending: Pending) -> Result<Buf, Error> {
        self.payload_or_cut(server, pending).map(|(payload, _)| payload)
    }

    /// The payload, and whether the server wants this worker to come to a cut.
    fn payload_or_cut(&self, server: usize, pending: Pending) -> Result<(Buf, bool), Error> {
        self.checked(server, pending.wait(self.config.reply_timeout)?)
    }

    fn checked(&self, server: usize, reply: regatta_net::Reply) -> Result<(Buf, bool), Error> {
        if reply.status == STATUS_OK || reply.status == STATUS_CUT {
            return Ok((reply.payload, reply.status == STATUS_CUT));
        }
        Err(Error::Refused {
            server,
            endpoint: self.config.endpoints[server].clone(),
            reason: String::from_utf8_lossy(&reply.payload).into_owned(),
        })
    }

    fn routes<'a>(&self, keys: impl Iterator<Item = &'a [u64]>) -> Result<Vec<Route>, Error> {
        let routes: Vec<Route> = keys.map(|keys| Route::new(keys, self.servers())).collect();
        if routes.len() > self.config.tables.len() {
            let (n, tables) = (routes.len(), self.config.tables.len());
            return Err(Error::Job(format!("keys of {n} tables, but there are {tables}")));
        }
        Ok(routes)
    }

    fn dense_len(&self, server: usize) -> u64 {
        self.config.pieces[server].iter().map(|p| p.range.len() as u64).sum()
    }

    fn put_dense(&self, buf: &mut Buf, values: &[&[f32]], server: usize) {
        for piece in &self.config.pieces[server] {
            let part = &values[piece.param][piece.range.clone()];
            buf.extend_from_slice(bytemuck::cast_slice(part));
        }
        pad(buf);
    }

    fn write_push(
        &self,
        buf: &mut Buf,
        gradients: &Gradients<'_>,
        routes: &[Route],
        sequence: u64,
        server: usize,
    ) {
        let n_dense = if gradients.dense.is_empty() { 0 } else { self.dense_len(server) };
        put_u64(buf, sequence);
        put_u64(buf, gradients.step);
        put_u64(buf, gradients.examples);
        put_u64(buf, n_dense);
        put_u64(buf, gradients.tables.len() as u64);
        for (number, (route, table)) in routes.iter().zip(&self.config.tables).enumerate() {
            let n = route.len_of(server);
            put_u64(buf, number as u64);
            put_u64(buf, n as u64);
            put_u64(buf, (n * table.dim) as u64);
        }
        if n_dense > 0 {
            self.put_dense(buf, gradients.dense, server);
        }
        for ((route, table), (keys, grads)) in
            routes.iter().zip(&self.config.tables).zip(gradients.tables)
        {
            let positions = route.positions(server);
            put_array(buf, keys, 1, positions);
            put_array(buf, grads, table.dim, positions);
        }
    }

    fn push_bytes(&self, gradients: &Gradients<'_>, routes: &[Route], server: usize) -> usize {
        let n_dense = if gradients.dense.is_empty() { 0 } else { self.dense_len(server) };
        let rows = routes.iter().zip(&self.config.tables);
        let rows = rows.map(|(route, table)| route.len_of(server) * (8 + table.dim * 4) + 8);
        40 + routes.len() * 24 + n_dense as usize * 4 + 8 + rows.sum::<usize>()
    }

    /// The counts of a table, where they are given and wanted.
    fn counts<'a>(&self, wanted: &Wanted<'a>, table: usize) -> Option<&'a [u32]> {
        let counts = wanted.counts.get(table)?;
        self.config.tables[table].counted.then_some(*counts)
    }

    fn pull_bytes(&self, wanted: &Wanted<'_>, routes: &[Route], server: usize) -> usize {
        let keys: usize = routes.iter().map(|r| r.len_of(server)).sum();
        let counts = if wanted.counts.is_empty() { 0 } else { keys * 4 + routes.len() * 8 };
        24 + routes.len() * 24 + keys * 8 + counts
    }

    fn write_pull(&self, buf: &mut Buf, wanted: &Wanted<'_>, routes: &[Route], server: usize) {
        put_u64(buf, wanted.step);
        let flags = [wanted.test, wanted.dense];
        put_u64(buf, (0..).zip(flags).map(|(bit, flag)| u64::from(flag) << bit).sum());
        put_u64(buf, wanted.keys.len() as u64);
        for (table, route) in routes.iter().enumerate() {
            let n = route.len_of(server) as u64;
            put_u64(buf, table as u64);
            put_u64(buf, n);
            put_u64(buf, self.counts(wanted, table).map_or(0, |_| n));
        }
        for (table, (route, keys)) in routes.iter().zip(wanted.keys).enumerate() {
            let positions = route.positions(server);
            put_array(buf, keys, 1, positions);
            if let Some(counts) = self.counts(wanted, table) {
                put_array(buf, counts, 1, positions);
            }
        }
    }
}

fn written_parts(payload: &[u8]) -> Result<Vec<Part>, Error> {
    match ControlReply::decode(payload)? {
        ControlReply::Written(parts) => Ok(parts),
        other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
    }
}

fn put_u64(buf: &mut Buf, x: u64) {
    buf.extend_from_slice(&x.to_le_bytes());
}

/// All rows of `width` elements, or those at some positions, filled up to a multiple of 8 bytes.
fn put_array<T: bytemuck::Pod>(buf: &mut Buf, rows: &[T], width: usize, at: Option<&[u32]>) {
    match at {
        None => buf.extend_from_slice(bytemuck::cast_slice(rows)),
        Some(positions) => {
            let bytes = width * size_of::<T>();
            let to = buf.grow(positions.len() * bytes).chunks_exact_mut(bytes);
            for (to, &position) in to.zip(positions) {
                let row = &rows[position as usize * width..][..width];
                to.copy_from_slice(bytemuck::cast_slice(row));
            }
        }
    }
    pad(buf);
}

/// Arrays start at multiples of 8 bytes.
fn pad(buf: &mut Buf) {
    let over = buf.len() % 8;
    if over > 0 {
        buf.grow(8 - over).fill(0);
    }
}
