//! One client of a server: its handshake, its requests in order, its replies.

use std::collections::HashMap;
use std::io::IoSlice;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::outbox::{Caller, Outbox};
use super::{Disconnect, Hub, Request, panic_message};
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::frame::{
    BadFrame, FIRST_RESERVED_KIND, FIRST_RESERVED_STATUS, FrameReader, HEADER_LEN, Header,
    Patience, ReadError, kind, status,
};
use crate::handshake::{REQUESTS, Refusal, Rejection, Talk};
use crate::identity::{Identity, Peer};
use crate::observe::Event;
use crate::pool::Buf;
use crate::stream::Stream;
use crate::sync::{lock, wait_until};
use crate::terms::{ClientTerms, beat_every};

pub(super) struct Connection {
    pub(super) peer: Arc<Peer>,
    stream: Arc<dyn Stream>,
    outbox: Arc<Outbox>,
    /// Memory that is shared with this client.
    arena: Option<Arc<Arena>>,
    own_thread: ThreadId,
    me: u32,
    /// Largest reply that the client accepts.
    max_reply: u64,
    /// A newer connection of the same client took over.
    replaced: AtomicBool,
    /// Replies written, to know when a heartbeat is superfluous.
    replies: AtomicU64,
    pub(super) beat_every: Duration,
    /// Replies at the last look, and when something was last sent.
    beat: Mutex<(u64, Instant)>,
    owed: OpenReplies,
}

/// How many responders are still out.
#[derive(Default)]
struct OpenReplies {
    count: Mutex<usize>,
    none: Condvar,
}

/// The thread of a connection, from the first byte to the last.
pub(super) fn run(hub: &Arc<Hub>, number: u64, stream: Arc<dyn Stream>) {
    let options = &hub.options;
    let (mut talk, identity, terms) = match greet(hub, &stream) {
        Ok(client) => client,
        Err(rejection) => {
            if let Rejection::Refused(problem) = rejection {
                hub.refuse(stream.peer(), problem);
            }
            return stream.shutdown(Shutdown::Both);
        }
    };
    let stream = talk.stream.clone();
    let limit = Some(options.peer_timeout);
    if stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)).is_err() {
        return;
    }
    let Ok(arena) = Arena::share(&*stream, options.me.index) else { return };
    let peer = Arc::new(Peer {
        identity,
        session: terms.session,
        connection: number,
        address: stream.peer(),
    });
    let outbox = Outbox::new(stream.clone(), options.pool.clone(), options.max_queued_bytes);
    let connection = Arc::new(Connection {
        peer,
        stream,
        outbox: Arc::new(outbox),
        arena,
        own_thread: thread::current().id(),
        me: options.me.index,
        max_reply: terms.max_payload,
        replaced: AtomicBool::new(false),
        replies: AtomicU64::new(0),
        beat_every: beat_every(options.peer_timeout, terms.peer_timeout),
        beat: Mutex::new((0, Instant::now())),
        owed: OpenReplies::default(),
    });
    hub.accepted.fetch_add(1, Ordering::Relaxed);
    replace_older(hub, &connection);
    call(hub, &connection, || hub.handler.connected(&connection.peer));
    let how = connection.read_requests(hub, &mut talk.reader);
    if how == Disconnect::ServerStopped {
        connection.settle(hub);
    }
    connection.stream.shutdown(Shutdown::Both);
    call(hub, &connection, || hub.handler.disconnected(&connection.peer, &how));
    lock(&hub.state).connections.remove(&number);
    hub.changed.notify_all();
}

/// Who the client is, and what it states of itself.
fn greet(
    hub: &Hub,
    stream: &Arc<dyn Stream>,
) -> std::result::Result<(Talk, Identity, ClientTerms), Rejection> {
    let options = &hub.options;
    let (limit, reader) = (options.handshake_timeout, FrameReader::new());
    let mut talk = Talk::begin(stream.clone(), reader, &options.token, limit, options.me)?;
    let hello =
        talk.accept((options.me, &hub.terms), &options.token, |hello| match hello.protocol {
            REQUESTS => Ok(()),
            // A process of the job that came too early for what it wants.
            other => {
                Err(Refusal::Busy(format!("only requests are taken here, not protocol {other}")))
            }
        })?;
    let terms = ClientTerms::decode(&hello.note).map_err(|e| Rejection::Refused(e.to_string()))?;
    Ok((talk, hello.from, terms))
}

/// Ends older connections of the same client and waits until their last request is handled, so that
/// the handler never sees two requests of one client at a time.
fn replace_older(hub: &Hub, connection: &Arc<Connection>) {
    let number = connection.peer.connection;
    let mut state = lock(&hub.state);
    state.connections.insert(number, connection.clone());
    // The pulse may have to beat faster.
    hub.changed.notify_all();
    loop {
        let older = older_of(&state.connections, &connection.peer);
        if older.is_empty() || hub.is_stopping() {
            return;
        }
        for old in older {
            old.replaced.store(true, Ordering::SeqCst);
            old.stream.shutdown(Shutdown::Both);
        }
        // As long as a handler takes; it notifies when it is done.
        const LOOK_AGAIN: Duration = Duration::from_secs(1);
        state = wait_until(&hub.changed, state, Instant::now() + LOOK_AGAIN).0;
    }
}

fn older_of(all: &HashMap<u64, Arc<Connection>>, peer: &Peer) -> Vec<Arc<Connection>> {
    let same = |other: &Peer| {
        other.identity == peer.identity
            && other.session == peer.session
            && other.connection < peer.connection
    };
    all.values().filter(|other| same(&other.peer)).cloned().collect()
}

/// Calls into the layer above; a panic there does not end the connection.
fn call(hub: &Hub, connection: &Connection, body: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
        note_panic(hub, connection, 0, &*panic);
    }
}

fn note_panic(hub: &Hub, connection: &Connection, kind: u16, panic: &(dyn std::any::Any + Send)) {
    hub.panics.fetch_add(1, Ordering::Relaxed);
    let (peer, message) = (Peer::clone(&connection.peer), panic_message(panic));
    hub.observe(Event::HandlerPanicked { peer, kind, message });
}

impl Connection {
    fn read_requests(self: &Arc<Self>, hub: &Arc<Hub>, reader: &mut FrameReader) -> Disconnect {
        let outcome = self.requests(hub, reader);
        if self.replaced.load(Ordering::SeqCst) {
            return Disconnect::Replaced;
        }
        match outcome {
            Ok(Disconnect::Lost(_)) if hub.is_stopping() => Disconnect::ServerStopped,
            Ok(how) => how,
            Err(ReadError::Bad(bad)) => {
                let (peer, problem) = (Peer::clone(&self.peer), bad.to_string());
                hub.observe(Event::Misbehaved { peer, problem: problem.clone() });
                Disconnect::Lost(problem)
            }
            Err(error) => Disconnect::Lost(error.to_string()),
        }
    }

    fn requests(
        self: &Arc<Self>,
        hub: &Arc<Hub>,
        reader: &mut FrameReader,
    ) -> std::result::Result<Disconnect, ReadError> {
        let patience = Patience::Silence(hub.options.peer_timeout);
        loop {
            let Some(header) = reader.header(&*self.stream, hub.options.max_payload, patience)?
            else {
                return Ok(Disconnect::Lost("the client closed the connection".to_owned()));
            };
            let len = header.payload_len as usize;
            match header.kind {
                kind::HEARTBEAT if len == 0 => continue,
                kind::GOODBYE if len == 0 => return Ok(Disconnect::Goodbye),
                kind::ARENA if len == 0 => {
                    reader.share(&*self.stream)?;
                    continue;
                }
                kind if kind >= FIRST_RESERVED_KIND => {
                    return Err(BadFrame::Unexpected { kind }.into());
                }
                _ if header.sender != self.peer.identity.index => {
                    return Err(BadFrame::Malformed("sender").into());
                }
                _ => {}
            }
            let payload = reader.body(&*self.stream, &header, &hub.options.pool, patience)?;
            hub.traffic.received(HEADER_LEN + len);
            let (peer, kind, flags, id) =
                (self.peer.clone(), header.kind, header.flags, header.request);
            let responder = Responder::new(hub.clone(), self.clone(), kind, id);
            let request = Request { kind, flags, id, peer, payload };
            let handled =
                catch_unwind(AssertUnwindSafe(|| hub.handler.request(request, responder)));
            if let Err(panic) = handled {
                note_panic(hub, self, kind, &*panic);
            }
        }
    }

    fn caller(&self) -> Caller {
        if thread::current().id() == self.own_thread { Caller::Own } else { Caller::Other }
    }

    fn send(&self, hub: &Hub, header: &Header, parts: &[&[u8]]) -> std::io::Result<()> {
        let head = header.encode();
        let mut bufs = Vec::with_capacity(parts.len() + 1);
        bufs.push(IoSlice::new(&head));
        bufs.extend(parts.iter().map(|part| IoSlice::new(part)));
        self.replies.fetch_add(1, Ordering::Relaxed);
        hub.traffic.sent(HEADER_LEN + header.payload_len as usize);
        self.outbox.send(&mut bufs, self.caller())
    }

    /// A heartbeat, unless a reply went out since the last look.
    pub(super) fn beat_if_silent(self: &Arc<Self>) {
        let replies = self.replies.load(Ordering::Relaxed);
        let mut beat = lock(&self.beat);
        if beat.0 != replies {
            *beat = (replies, Instant::now());
            return;
        }
        if beat.1.elapsed() < self.beat_every / 2 {
            return;
        }
        beat.1 = Instant::now();
        drop(beat);
        let header = Header { kind: kind::HEARTBEAT, sender: self.me, ..Header::default() };
        // A broken stream is noticed by its reader.
        let _ = self.outbox.send_if_idle(&header.encode());
    }

    /// Before a stopping server closes: the replies that are still owed, then a goodbye.
    fn settle(&self, hub: &Hub) {
        let deadline = lock(&hub.state).grace_until.unwrap_or_else(Instant::now);
        let mut owed = lock(&self.owed.count);
        while *owed > 0 {
            let (next, in_time) = wait_until(&self.owed.none, owed, deadline);
            owed = next;
            if !in_time {
                break;
            }
        }
        drop(owed);
        if self.outbox.wait_idle(deadline.saturating_duration_since(Instant::now())) {
            let header = Header { kind: kind::GOODBYE, sender: self.me, ..Header::default() };
            let _ = self.outbox.send_if_idle(&header.encode());
        }
    }
}

/// The right to answer one request, once, from any thread and at any later time.
///
/// Dropping it without an answer sends an error reply, so that the client does not wait in vain.
pub struct Responder {
    hub: Arc<Hub>,
    connection: Arc<Connection>,
    kind: u16,
    request: u64,
    answered: bool,
}

impl Responder {
    fn new(hub: Arc<Hub>, connection: Arc<Connection>, kind: u16, request: u64) -> Responder {
        *lock(&connection.owed.count) += 1;
        Responder { hub, connection, kind, request, answered: false }
    }

    /// Answers with `parts`, one after the other.
    ///
    /// In the handler's thread this waits for a slow client, at most `peer_timeout`. In any other
    /// thread it does not wait: what the socket does not take at once is copied and sent later.
    ///
    /// # Errors
    /// [`Error::PeerLost`] when the connection is gone: the client will send the request again on
    /// another one. [`Error::PayloadTooLarge`] when the client does not accept that much; it gets
    /// an error reply instead. [`Error::Config`] for a reserved status, likewise.
    pub fn reply(mut self, status: u32, parts: &[&[u8]]) -> Result<()> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.check(status, len)?;
        self.send(status, len, None, parts)
    }

    /// Answers with a [`buffer`](Responder::buffer) of this responder, which is not copied if it is
    /// in memory that the client sees.
    ///
    /// # Errors
    /// As [`reply`](Responder::reply).
    pub fn reply_owned(mut self, status: u32, payload: Buf) -> Result<()> {
        let len = payload.len() as u64;
        self.check(status, len)?;
        let slot = self.connection.arena.as_ref().and_then(|arena| payload.lend(arena));
        let follows: &[&[u8]] = if slot.is_some() { &[] } else { &[&payload] };
        self.send(status, len, slot, follows)
    }

    fn check(&mut self, status: u32, len: u64) -> Result<()> {
        if status >= FIRST_RESERVED_STATUS {
            return Err(Error::Config(format!("reply status {status:#x} is reserved")));
        }
        let limit = self.connection.max_reply;
        if len > limit {
            let peer = self.connection.peer.identity;
            self.send(status::REPLY_TOO_LARGE, 0, None, &[])?;
            return Err(Error::PayloadTooLarge { peer, len, limit });
        }
        Ok(())
    }

    /// An empty buffer from the server's pool, to encode the reply into.
    pub fn buffer(&self, capacity: usize) -> Buf {
        self.hub.options.pool.take_shared(capacity, self.connection.arena.as_ref())
    }

    /// Whom this answers.
    pub fn peer(&self) -> &Peer {
        &self.connection.peer
    }

    /// `parts` are what follows the header: all of the payload, or nothing if it is in a slot.
    fn send(
        &mut self,
        status: u32,
        payload_len: u64,
        slot: Option<u32>,
        parts: &[&[u8]],
    ) -> Result<()> {
        self.answered = true;
        let (kind, request, sender) = (self.kind, self.request, self.connection.me);
        let header = Header { kind, flags: 0, status, request, sender, payload_len, slot };
        self.connection.send(&self.hub, &header, parts).map_err(|e| {
            self.connection.stream.shutdown(Shutdown::Both);
            let peer = &self.connection.peer;
            let (endpoint, problem) = (peer.address.clone(), e.to_string());
            Error::PeerLost { peer: peer.identity, endpoint, problem }
        })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let status =
                if thread::panicking() { status::HANDLER_PANICKED } else { status::NO_REPLY };
            // The client is gone: then it does not wait either.
            let _ = self.send(status, 0, None, &[]);
        }
        let mut owed = lock(&self.connection.owed.count);
        *owed -= 1;
        if *owed == 0 {
            self.connection.owed.none.notify_all();
        }
    }
}

impl std::fmt::Debug for Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Responder(request {} of {})", self.request, self.connection.peer)
    }
}
