//! The calling side. In: requests from any thread. Out: [`Pending`] replies, through reconnects.
//!
//! Threads of one client: callers write their own requests, vectored, straight to the socket; a
//! reader thread delivers replies; a keeper thread sends heartbeats, and when the connection breaks
//! it reconnects and sends again what has no reply yet.

mod keeper;
mod pending;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::fault::Wrap;
use crate::frame::{FIRST_RESERVED_KIND, HEADER_LEN, Header};
use crate::identity::Identity;
use crate::observe::{Event, Observer, Traffic, TrafficCounters};
use crate::pool::{Buf, Pool};
use crate::stream::{Stream, write_all};
use crate::sync::{after, lock, wait_until};
use crate::token::{JobToken, random};

use pending::{Outgoing, Slot};
pub use pending::{Pending, Reply};

/// How a client behaves. Start from [`ClientOptions::new`] and change fields.
#[derive(Clone)]
pub struct ClientOptions {
    /// Who this process is.
    pub me: Identity,
    /// Who must answer at the endpoint.
    pub server: Identity,
    /// The secret of the job.
    pub token: JobToken,
    /// How long the first connection may take, the server's start included (60 s).
    pub connect_timeout: Duration,
    /// How long a broken connection may stay broken (5 s). Only a reply, or a connection that holds
    /// this long, ends the count.
    pub reconnect_timeout: Duration,
    /// Silence after which the server counts as gone (10 s). Heartbeats go out four times as often.
    pub peer_timeout: Duration,
    /// How long the handshake of one attempt may take (5 s).
    pub handshake_timeout: Duration,
    /// How long [`Client::send`] may wait for room, in the window or in the socket (60 s).
    pub send_timeout: Duration,
    /// How often [`Event::Waiting`] is reported (3 s).
    pub report_every: Duration,
    /// Requests without a reply before [`Client::send`] waits (64).
    pub max_in_flight: usize,
    /// Largest payload accepted in a reply (1 GiB).
    pub max_payload: u64,
    /// Whether to use a Unix socket and shared memory when the server is on this machine (true).
    pub shortcut: bool,
    /// Where buffers come from. Give all clients of a process the same one.
    pub pool: Pool,
    /// Notified of trouble; nobody by default.
    pub observer: Observer,
    /// For tests, see [`fault`](crate::fault).
    pub wrap: Option<Wrap>,
}

impl ClientOptions {
    /// Defaults for `me` talking to `server`.
    pub fn new(me: Identity, server: Identity, token: JobToken) -> ClientOptions {
        ClientOptions {
            me,
            server,
            token,
            connect_timeout: Duration::from_secs(60),
            reconnect_timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(5),
            send_timeout: Duration::from_secs(60),
            report_every: Duration::from_secs(3),
            max_in_flight: 64,
            max_payload: 1 << 30,
            shortcut: true,
            pool: Pool::default(),
            observer: Arc::new(|_| {}),
            wrap: None,
        }
    }
}

/// A connection to one server that repairs itself.
///
/// All methods take `&self`: share it between threads as it is. Requests reach the server in the
/// order in which `send` was called; replies come in any order. A request may reach the handler
/// more than once when the connection breaks, so the layer above must make repetition harmless.
pub struct Client {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// Figures of a client since its start.
#[derive(Debug, Clone)]
pub struct ClientStats {
    /// Bytes and frames.
    pub traffic: Traffic,
    /// Connections after the first.
    pub reconnects: u64,
    /// Requests that were sent again.
    pub resent: u64,
    /// Requests without a reply now.
    pub in_flight: usize,
    /// How the last connection broke.
    pub last_problem: Option<String>,
    /// `"tcp"`, `"tls"`, `"unix"` or `"memory"`.
    pub transport: &'static str,
}

struct Shared {
    endpoint: Endpoint,
    options: ClientOptions,
    session: u64,
    /// The smaller limit for requests: the server's.
    max_request: AtomicU64,
    writer: Mutex<Writer>,
    /// Memory that is shared with the server over the present connection.
    arena: Mutex<Option<Arc<Arena>>>,
    window: Mutex<Window>,
    /// A slot of the window became free, or the client failed.
    room: Condvar,
    link: Mutex<Link>,
    link_changed: Condvar,
    traffic: TrafficCounters,
    reconnects: AtomicU64,
    resent: AtomicU64,
}

/// The sending end. Whoever holds the lock writes a whole frame.
struct Writer {
    /// `None` while there is no connection, or when a frame was left half written on it.
    stream: Option<Arc<dyn Stream>>,
    next_request: u64,
}

/// Requests without a reply.
struct Window {
    requests: HashMap<u64, InFlight>,
    /// Slots taken: those in `requests` and those of callers about to write.
    taken: usize,
    /// Callers that wait for a slot.
    waiting: usize,
    /// Why nothing is accepted any more.
    failed: Option<Error>,
}

struct InFlight {
    slot: Arc<Slot>,
    outgoing: Arc<Outgoing>,
    /// The caller does not wait any more: not worth sending again.
    forgotten: bool,
}

/// What the keeper waits for.
#[derive(Default)]
struct Link {
    /// How the present connection ended.
    ended: Option<ConnectionEnd>,
    /// Found by a writer before the reader noticed; the better explanation.
    write_problem: Option<String>,
    closing: bool,
    last_problem: Option<String>,
    transport: &'static str,
}

enum ConnectionEnd {
    Broken(String),
    ServerStopped,
}

impl Client {
    /// Connects, waiting for the server to come up.
    ///
    /// # Errors
    /// At once when another process of the job answers ([`Error::WrongServer`]) or the server does
    /// not admit this one ([`Error::Refused`]). After `connect_timeout` [`Error::Unreachable`], or
    /// what somebody said there who has not proved to belong to the job ([`Error::WrongToken`],
    /// [`Error::WrongVersion`], [`Error::NotOurProtocol`], [`Error::Intercepted`],
    /// [`Error::Encryption`]).
    pub fn connect(endpoint: impl Into<Endpoint>, options: ClientOptions) -> Result<Client> {
        if options.max_in_flight == 0 {
            return Err(Error::Config("max_in_flight must be at least 1".to_owned()));
        }
        let shared = Arc::new(Shared {
            endpoint: endpoint.into(),
            options,
            session: u64::from_le_bytes(random()?),
            max_request: AtomicU64::new(0),
            writer: Mutex::new(Writer { stream: None, next_request: 1 }),
            arena: Mutex::default(),
            window: Mutex::new(Window {
                requests: HashMap::new(),
                taken: 0,
                waiting: 0,
                failed: None,
            }),
            room: Condvar::new(),
            link: Mutex::default(),
            link_changed: Condvar::new(),
            traffic: TrafficCounters::default(),
            reconnects: AtomicU64::new(0),
            resent: AtomicU64::new(0),
        });
        let keeper = keeper::start(&shared)?;
        Ok(Client { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// Sends a request whose payload is `parts`, one after the other.
    ///
    /// The parts are copied, so that they can be sent again; [`send_owned`](Client::send_owned)
    /// saves that copy. Blocks while `max_in_flight` requests have no reply, or while the server
    /// does not read. While the connection is being repaired the request is kept and sent later.
    ///
    /// # Errors
    /// [`Error::PayloadTooLarge`], [`Error::Config`] for a reserved kind, [`Error::Timeout`] when
    /// there was no room in time, or why the client has given up.
    pub fn send(&self, kind: u16, flags: u32, parts: &[&[u8]]) -> Result<Pending> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut copy = self.buffer(len);
        for part in parts {
            copy.extend_from_slice(part);
        }
        self.send_owned(kind, flags, vec![copy])
    }

    /// Like [`send`](Client::send), without a copy: the buffers are kept until the reply.
    ///
    /// # Errors
    /// As [`send`](Client::send).
    pub fn send_owned(&self, kind: u16, flags: u32, parts: Vec<Buf>) -> Result<Pending> {
        self.shared.send(kind, flags, parts)
    }

    /// An empty buffer from the pool, to encode a request into. A large one is in memory that the
    /// server sees, if it is on this machine: such a request is not copied when it is sent.
    pub fn buffer(&self, capacity: usize) -> Buf {
        let arena = lock(&self.shared.arena).clone();
        self.shared.options.pool.take_shared(capacity, arena.as_ref())
    }

    /// Whether a request would leave room for `others` more before [`send`](Client::send) waits.
    pub fn has_room(&self, others: usize) -> bool {
        let window = lock(&self.shared.window);
        window.taken + others < self.shared.options.max_in_flight
    }

    /// Who is at the other end.
    pub fn server(&self) -> Identity {
        self.shared.options.server
    }

    /// Where the server listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    /// Figures so far.
    pub fn stats(&self) -> ClientStats {
        let shared = &self.shared;
        let in_flight = lock(&shared.window).taken;
        let link = lock(&shared.link);
        ClientStats {
            traffic: shared.traffic.read(),
            reconnects: shared.reconnects.load(Ordering::Relaxed),
            resent: shared.resent.load(Ordering::Relaxed),
            in_flight,
            last_problem: link.last_problem.clone(),
            transport: link.transport,
        }
    }

    /// Why the client has given up, if it has.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.shared.window).failed.clone()
    }

    /// Says goodbye and closes the connection. Requests without a reply fail with
    /// [`Error::Closed`]. Dropping the client does the same.
    pub fn close(&self) {
        lock(&self.shared.link).closing = true;
        self.shared.link_changed.notify_all();
        if let Some(keeper) = lock(&self.keeper).take() {
            // The keeper does not panic; if it did, there is nobody left to notify.
            let _ = keeper.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} at {})", self.server(), self.endpoint())
    }
}

impl Shared {
    fn observe(&self, event: Event) {
        (self.options.observer)(&event);
    }

    fn endpoint_text(&self) -> String {
        self.endpoint.to_string()
    }

    fn timeout(&self, what: &'static str, waited: Duration) -> Error {
        Error::Timeout { what, peer: self.options.server, endpoint: self.endpoint_text(), waited }
    }

    fn send(self: &Arc<Self>, kind: u16, flags: u32, parts: Vec<Buf>) -> Result<Pending> {
        if kind >= FIRST_RESERVED_KIND {
            return Err(Error::Config(format!("request kind {kind:#x} is reserved")));
        }
        let payload_len = parts.iter().map(|part| part.len() as u64).sum();
        let limit = self.max_request.load(Ordering::Relaxed);
        if payload_len > limit {
            let peer = self.options.server;
            return Err(Error::PayloadTooLarge { peer, len: payload_len, limit });
        }
        let deadline = after(self.options.send_timeout);
        self.take_place(deadline)?;

        let mut writer = lock(&self.writer);
        let request = writer.next_request;
        writer.next_request += 1;
        let sender = self.options.me.index;
        let header = Header { kind, flags, request, sender, payload_len, ..Header::default() };
        let outgoing = Arc::new(Outgoing { header, parts, tried: AtomicBool::new(false) });
        let slot = Arc::new(Slot::default());
        {
            let mut window = lock(&self.window);
            if let Some(error) = &window.failed {
                let error = error.clone();
                window.release();
                return Err(error);
            }
            let in_flight =
                InFlight { slot: slot.clone(), outgoing: outgoing.clone(), forgotten: false };
            window.requests.insert(request, in_flight);
        }
        if let Some(stream) = &writer.stream
            && let Err(problem) = self.write(&**stream, &outgoing, deadline)
        {
            // The reader notices the shutdown, the keeper reconnects and sends this again.
            self.give_up_stream(&**stream, &problem);
            writer.stream = None;
        }
        Ok(Pending::new(self.clone(), slot, request, kind))
    }

    /// Waits for a slot of the window.
    fn take_place(&self, deadline: Instant) -> Result<()> {
        let mut window = lock(&self.window);
        loop {
            if let Some(error) = &window.failed {
                return Err(error.clone());
            }
            if window.taken < self.options.max_in_flight {
                window.taken += 1;
                return Ok(());
            }
            window.waiting += 1;
            let (mut next, in_time) = wait_until(&self.room, window, deadline);
            next.waiting -= 1;
            if !in_time {
                return Err(self.timeout("room for a request", self.options.send_timeout));
            }
            window = next;
        }
    }

    fn write(&self, stream: &dyn Stream, outgoing: &Outgoing, deadline: Instant) -> io::Result<()> {
        let slot = match &outgoing.parts[..] {
            [part] => lock(&self.arena).as_ref().and_then(|arena| part.lend(arena)),
            _ => None,
        };
        let header = Header { slot, ..outgoing.header }.encode();
        let mut bufs = Vec::with_capacity(outgoing.parts.len() + 1);
        bufs.push(IoSlice::new(&header));
        if slot.is_none() {
            bufs.extend(outgoing.parts.iter().map(|part| IoSlice::new(part)));
        }
        self.traffic.sent(outgoing.len());
        if outgoing.tried.swap(true, Ordering::Relaxed) {
            self.resent.fetch_add(1, Ordering::Relaxed);
        }
        // Whether the server is alive is the reader's business; this only bounds the wait.
        write_all(stream, &mut bufs, || self.may_go_on(deadline))
    }

    /// Whether a writer that makes no progress should keep trying.
    fn may_go_on(&self, deadline: Instant) -> io::Result<()> {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not read"));
        }
        if lock(&self.link).closing { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    /// Makes the reader end, and with it the connection.
    fn give_up_stream(&self, stream: &dyn Stream, problem: &io::Error) {
        let mut link = lock(&self.link);
        // A connection that the reader has ended breaks under the writer: that is no reason of its
        // own.
        if link.ended.is_none() {
            link.write_problem.get_or_insert_with(|| problem.to_string());
        }
        drop(link);
        stream.shutdown(Shutdown::Both);
    }

    /// Delivers a reply; one that nobody waits for is dropped.
    fn deliver(&self, request: u64, outcome: Result<Reply>) {
        let mut window = lock(&self.window);
        let Some(in_flight) = window.requests.remove(&request) else { return };
        window.release();
        if window.waiting > 0 {
            self.room.notify_one();
        }
        drop(window);
        in_flight.slot.fill(outcome);
    }

    /// Fails all requests, now and later.
    fn fail(&self, error: Error) {
        let mut window = lock(&self.window);
        window.failed = Some(error.clone());
        let requests = std::mem::take(&mut window.requests);
        window.taken -= requests.len();
        drop(window);
        self.room.notify_all();
        for in_flight in requests.into_values() {
            in_flight.slot.fill(Err(error.clone()));
        }
    }

    /// The caller does not wait for `request` any more.
    fn forget(&self, request: u64) {
        if let Some(in_flight) = lock(&self.window).requests.get_mut(&request) {
            in_flight.forgotten = true;
        }
    }
}

impl Window {
    fn release(&mut self) {
        self.taken -= 1;
    }
}

impl Outgoing {
    fn len(&self) -> usize {
        HEADER_LEN + self.parts.iter().map(|part| part.len()).sum::<usize>()
    }
}
