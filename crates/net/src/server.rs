//! The answering side. In: connections. Out: requests to a [`Handler`], replies back.
//!
//! Threads: one that accepts (two with the shortcut), one for heartbeats, one per connection, which
//! reads requests and calls the handler. A thread costs a few tens of microseconds to start and
//! about 20 KiB of resident memory; the number of connections is limited.

mod connection;
mod outbox;

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::endpoint::{Endpoint, Listener, bind_hint};
use crate::error::{Error, Result};
use crate::fault::Wrap;
use crate::handshake::turn_away;
use crate::identity::{Identity, Peer};
use crate::observe::{Event, Observer, Traffic, TrafficCounters};
use crate::pool::{Buf, Pool};
use crate::refusals::RefusalLog;
use crate::stream::{Stream, is_timeout};
use crate::sync::{after, lock, wait_for, wait_until};
use crate::terms::ServerTerms;
use crate::token::{JobToken, host, random};

use connection::Connection;
pub use connection::Responder;

/// How a server behaves. Start from [`ServerOptions::new`] and change fields.
#[derive(Clone)]
pub struct ServerOptions {
    /// Who this process is; a client that wants somebody else is refused.
    pub me: Identity,
    /// The secret of the job.
    pub token: JobToken,
    /// Silence after which a client counts as gone (10 s), and the longest that a reply waits for a
    /// client that does not read. Heartbeats go out four times as often.
    pub peer_timeout: Duration,
    /// How long a handshake may take (5 s).
    pub handshake_timeout: Duration,
    /// Connections at a time, those in the handshake included (1024).
    pub max_connections: usize,
    /// Largest payload accepted in a request (1 GiB).
    pub max_payload: u64,
    /// Bytes of replies that may wait for one slow client before it is cut off (64 MiB; the last
    /// one may go over).
    pub max_queued_bytes: usize,
    /// Whether a TCP server also offers a Unix socket and shared memory to clients on this machine
    /// (true).
    pub shortcut: bool,
    /// Where buffers come from.
    pub pool: Pool,
    /// Notified of trouble; nobody by default.
    pub observer: Observer,
    /// For tests, see [`fault`](crate::fault).
    pub wrap: Option<Wrap>,
}

impl ServerOptions {
    /// Defaults for `me`.
    pub fn new(me: Identity, token: JobToken) -> ServerOptions {
        ServerOptions {
            me,
            token,
            peer_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(5),
            max_connections: 1024,
            max_payload: 1 << 30,
            max_queued_bytes: 64 << 20,
            shortcut: true,
            pool: Pool::default(),
            observer: Arc::new(|_| {}),
            wrap: None,
        }
    }
}

/// What a server does with requests. Closures `Fn(Request, Responder)` are handlers too.
pub trait Handler: Send + Sync + 'static {
    /// Handles one request, in the thread of its connection.
    ///
    /// The requests of one client come one at a time and in order, across reconnects too. While
    /// this runs, no further request of that client is read, so work of many seconds should move to
    /// another thread together with the responder. A panic becomes an error reply.
    fn request(&self, request: Request, responder: Responder);

    /// A client completed its handshake. Called before its first request.
    fn connected(&self, peer: &Peer) {
        let _ = peer;
    }

    /// A connection ended. Called after its last request was handled, and before
    /// [`connected`](Handler::connected) of the connection that replaces it. A client that lost its
    /// connection usually returns within a second under the same session.
    fn disconnected(&self, peer: &Peer, how: &Disconnect) {
        let _ = (peer, how);
    }
}

impl<F: Fn(Request, Responder) + Send + Sync + 'static> Handler for F {
    fn request(&self, request: Request, responder: Responder) {
        self(request, responder);
    }
}

/// A request, as a handler gets it.
#[derive(Debug)]
pub struct Request {
    /// What it is; owned by the layer above.
    pub kind: u16,
    /// Owned by the layer above.
    pub flags: u32,
    /// Number of the request within the client's session; the same when it is sent again.
    pub id: u64,
    /// Whose it is.
    pub peer: Arc<Peer>,
    /// From the server's pool, or where the client wrote it.
    pub payload: Buf,
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disconnect {
    /// The client closed it on purpose.
    Goodbye,
    /// It broke, or the client died.
    Lost(String),
    /// The client has opened another one.
    Replaced,
    /// This server is shutting down.
    ServerStopped,
}

/// Figures of a server since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Bytes and frames.
    pub traffic: Traffic,
    /// Connections now.
    pub connections: usize,
    /// Handshakes completed.
    pub accepted: u64,
    /// Connections turned away.
    pub refused: u64,
    /// Panics of the handler.
    pub panics: u64,
}

/// A bound server that does not answer yet.
pub struct Server {
    listeners: Vec<Listener>,
    endpoint: Endpoint,
    /// What it states of itself in handshakes.
    terms: Vec<u8>,
    options: ServerOptions,
}

impl Server {
    /// Takes the endpoint. Clients that connect from now on wait for [`serve`](Server::serve).
    ///
    /// # Errors
    /// [`Error::Bind`], with a hint when somebody else has the port.
    pub fn bind(endpoint: impl Into<Endpoint>, options: ServerOptions) -> Result<Server> {
        let asked = endpoint.into();
        let listener = asked.listen().map_err(|e| bind_error(&asked, &e))?;
        let endpoint = listener.endpoint(&asked);
        Server::with_listener(listener, endpoint, options)
    }

    /// A server on a socket that is bound already, and that stays open when the server has ended.
    ///
    /// # Errors
    /// [`Error::Bind`] when the socket is none that can be accepted from.
    pub fn on(listener: TcpListener, options: ServerOptions) -> Result<Server> {
        let fail = |e: io::Error| bind_error(&Endpoint::from("a socket of the caller"), &e);
        listener.set_nonblocking(true).map_err(fail)?;
        let endpoint = Endpoint::from(listener.local_addr().map_err(fail)?);
        Server::with_listener(Listener::Lent(listener), endpoint, options)
    }

    fn with_listener(
        listener: Listener,
        endpoint: Endpoint,
        options: ServerOptions,
    ) -> Result<Server> {
        let incarnation = u64::from_le_bytes(random()?);
        let mut listeners = vec![listener];
        let mut shortcut = None;
        if options.shortcut && matches!(endpoint, Endpoint::Tcp(_)) {
            let name = format!("regatta-{}-{incarnation:016x}", options.me.index);
            // Where the system has no such sockets, everybody takes TCP.
            if let Ok(near) = Endpoint::Abstract(name.clone()).listen() {
                listeners.push(near);
                shortcut = Some(name);
            }
        }
        let terms = ServerTerms {
            incarnation,
            max_payload: options.max_payload,
            peer_timeout: options.peer_timeout,
            host: host(),
            shortcut,
        };
        Ok(Server { listeners, endpoint, terms: terms.encode(), options })
    }

    /// Where it listens, with the real port.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Starts to answer, in threads of its own.
    ///
    /// # Errors
    /// [`Error::System`] when a thread cannot be started.
    pub fn serve(self, handler: impl Handler) -> Result<Serving> {
        let hub = Arc::new(Hub {
            options: self.options,
            terms: self.terms,
            handler: Box::new(handler),
            state: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            traffic: TrafficCounters::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refusals: RefusalLog::default(),
            panics: AtomicU64::new(0),
        });
        let mut serving =
            Serving { hub, endpoint: self.endpoint, listeners: Vec::new(), threads: Vec::new() };
        let hub = serving.hub.clone();
        serving.spawn("net-pulse", move || hub.pulse())?;
        for listener in self.listeners {
            let listener = Arc::new(listener);
            serving.listeners.push(listener.clone());
            let hub = serving.hub.clone();
            serving.spawn("net-accept", move || hub.accept(&listener))?;
        }
        Ok(serving)
    }
}

fn bind_error(endpoint: &Endpoint, error: &io::Error) -> Error {
    Error::Bind {
        endpoint: endpoint.to_string(),
        problem: error.to_string(),
        hint: bind_hint(error).to_owned(),
    }
}

/// A server at work. Dropping it shuts it down without waiting for replies.
pub struct Serving {
    hub: Arc<Hub>,
    endpoint: Endpoint,
    listeners: Vec<Arc<Listener>>,
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Figures so far.
    pub fn stats(&self) -> ServerStats {
        let hub = &self.hub;
        ServerStats {
            traffic: hub.traffic.read(),
            connections: lock(&hub.state).connections.len(),
            accepted: hub.accepted.load(Ordering::Relaxed),
            refused: hub.refused.load(Ordering::Relaxed),
            panics: hub.panics.load(Ordering::Relaxed),
        }
    }

    /// Who is connected.
    pub fn peers(&self) -> Vec<Peer> {
        lock(&self.hub.state).connections.values().map(|c| Peer::clone(&c.peer)).collect()
    }

    /// Stops reading requests, waits up to `grace` for the replies that are still owed, says
    /// goodbye to all clients and closes. True when nothing was cut short.
    pub fn shutdown(mut self, grace: Duration) -> bool {
        self.stop(grace)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|e| Error::System(format!("cannot start a thread: {e}")))?;
        self.threads.push(thread);
        Ok(())
    }

    fn stop(&mut self, grace: Duration) -> bool {
        /// For threads to notice that their connection is closed.
        const AFTERMATH: Duration = Duration::from_secs(1);
        let hub = &self.hub;
        let deadline = after(grace);
        {
            // Under the lock: who waits for a change has seen it or is notified of it.
            let mut state = lock(&hub.state);
            state.grace_until = Some(deadline);
            hub.stopping.store(true, Ordering::SeqCst);
        }
        for listener in &self.listeners {
            listener.close();
        }
        hub.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // No new connections from here on.
        for stream in lock(&hub.state).streams.values() {
            stream.shutdown(Shutdown::Read);
        }
        if hub.wait_for_end(deadline) {
            return true;
        }
        for stream in lock(&hub.state).streams.values() {
            stream.shutdown(Shutdown::Both);
        }
        hub.wait_for_end(Instant::now() + AFTERMATH);
        false
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.hub.stopping.load(Ordering::SeqCst) {
            self.stop(Duration::ZERO);
        }
    }
}

/// What the threads of a server share.
struct Hub {
    options: ServerOptions,
    terms: Vec<u8>,
    handler: Box<dyn Handler>,
    state: Mutex<HubState>,
    /// A connection ended, or the server stops.
    changed: Condvar,
    stopping: AtomicBool,
    traffic: TrafficCounters,
    accepted: AtomicU64,
    refused: AtomicU64,
    refusals: RefusalLog,
    panics: AtomicU64,
}

#[derive(Default)]
struct HubState {
    next_connection: u64,
    /// All open ones, those in the handshake included.
    streams: HashMap<u64, Arc<dyn Stream>>,
    /// Those past the handshake.
    connections: HashMap<u64, Arc<Connection>>,
    grace_until: Option<Instant>,
}

impl Hub {
    fn observe(&self, event: Event) {
        (self.options.observer)(&event);
    }

    /// Reports a connection that was turned away, unless there are many.
    fn refuse(&self, address: String, problem: String) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.report_refusals();
        if self.refusals.note(Instant::now()) {
            self.observe(Event::Refused { address, problem });
        }
    }

    /// Reports how many refusals were left out, when that is due.
    fn report_refusals(&self) {
        if let Some(count) = self.refusals.overdue(Instant::now()) {
            self.observe(Event::RefusedMore { count });
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Heartbeats for all connections, so that clients hear from this process while handlers work.
    fn pulse(&self) {
        let mut state = lock(&self.state);
        while !self.is_stopping() {
            let often = state.connections.values().map(|c| c.beat_every).min();
            state = wait_for(&self.changed, state, often.unwrap_or(self.options.peer_timeout));
            let connections: Vec<Arc<Connection>> = state.connections.values().cloned().collect();
            drop(state);
            connections.iter().for_each(Connection::beat_if_silent);
            self.report_refusals();
            state = lock(&self.state);
        }
    }

    fn accept(self: &Arc<Self>, listener: &Listener) {
        while !self.is_stopping() {
            match listener.accept() {
                Ok(stream) => self.begin(stream),
                Err(_) if self.is_stopping() => {}
                Err(error) if is_timeout(&error) => {}
                Err(error) => {
                    // Out of file descriptors, most likely: let connections end, then continue.
                    const PAUSE: Duration = Duration::from_millis(50);
                    self.observe(Event::AcceptFailed { problem: error.to_string() });
                    drop(wait_for(&self.changed, lock(&self.state), PAUSE));
                }
            }
        }
    }

    /// Gives a new connection its thread, or turns it away.
    fn begin(self: &Arc<Self>, stream: Box<dyn Stream>) {
        let stream: Arc<dyn Stream> = match &self.options.wrap {
            Some(wrap) => wrap(stream).into(),
            None => stream.into(),
        };
        let mut state = lock(&self.state);
        let full = state.streams.len() >= self.options.max_connections;
        let number = state.next_connection;
        state.next_connection += 1;
        if !full {
            state.streams.insert(number, stream.clone());
        }
        drop(state);
        let hub = self.clone();
        let body = move || {
            if full {
                let problem = format!("all {} connections are in use", hub.options.max_connections);
                hub.refuse(stream.peer(), problem.clone());
                turn_away(stream, hub.options.me, &problem);
            } else {
                connection::run(&hub, number, stream);
                lock(&hub.state).streams.remove(&number);
                hub.changed.notify_all();
            }
        };
        if let Err(error) = thread::Builder::new().name(format!("net-peer-{number}")).spawn(body) {
            lock(&self.state).streams.remove(&number);
            self.observe(Event::AcceptFailed { problem: error.to_string() });
        }
    }

    /// Waits until all connections have ended; false when `deadline` came first.
    fn wait_for_end(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.state);
        while !state.streams.is_empty() {
            let (next, in_time) = wait_until(&self.changed, state, deadline);
            state = next;
            if !in_time {
                return state.streams.is_empty();
            }
        }
        true
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}
