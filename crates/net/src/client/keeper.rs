//! Keeps one client connected: dials, heartbeats, and after a break dials and sends again.

use std::io::IoSlice;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{ConnectionEnd, Outgoing, Reply, Shared};
use crate::arena::Arena;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::frame::{
    BadFrame, FIRST_RESERVED_KIND, FIRST_RESERVED_STATUS, FrameReader, HEADER_LEN, Header,
    Patience, ReadError, kind, status,
};
use crate::handshake::{DialError, Greeting, Hello, REQUESTS};
use crate::observe::Event;
use crate::stream::{Stream, write_all};
use crate::sync::{after, lock, wait_until};
use crate::terms::{ClientTerms, ServerTerms, beat_every};
use crate::token::{JobToken, host};

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LAST_BACKOFF: Duration = Duration::from_millis(500);
/// How long one attempt waits for an answer to the connection request.
const DIAL_LIMIT: Duration = Duration::from_secs(1);
/// Heartbeats of the server that may be missing before the client looks whether only this
/// connection is silent.
const MISSING_BEATS: u32 = 3;
/// How long such a look may take.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// How long a closing client waits for the server to close its end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Makes the first connection in the calling thread, then keeps it in another one.
pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let first = dial_until(shared, Instant::now(), shared.options.connect_timeout, None)?;
    let server = shared.options.server;
    let (endpoint, transport) = (shared.endpoint_text(), first.stream.transport());
    shared.observe(Event::Connected { server, endpoint, transport });
    adopt(shared, &first);
    let shared = shared.clone();
    thread::Builder::new()
        .name(format!("net-keep-{}", server.index))
        .spawn(move || keep(&shared, first))
        .map_err(|e| Error::System(format!("cannot start a thread: {e}")))
}

/// One round per connection.
fn keep(shared: &Arc<Shared>, first: NewConnection) {
    let incarnation = first.terms.incarnation;
    let mut next = first;
    // Since when no connection has been of use, and how long to wait before the next useless one.
    let mut outage: Option<Instant> = None;
    let mut backoff = Duration::ZERO;
    loop {
        let up_since = Instant::now();
        let replies_before = shared.traffic.frames_received();
        let ended = match serve_connection(shared, next, outage) {
            Ok(ended) => ended,
            Err(error) => return give_up(shared, error),
        };
        let problem = match &ended {
            Served::Closed => return shared.fail(Error::Closed { peer: shared.options.server }),
            Served::Ended(ConnectionEnd::ServerStopped) => {
                return give_up(shared, lost(shared, "it shut down"));
            }
            Served::Ended(ConnectionEnd::Broken(problem)) => problem.clone(),
            Served::Replaced(_) => "it went silent, and the server answers on another".to_owned(),
        };
        let (server, endpoint) = (shared.options.server, shared.endpoint_text());
        shared.observe(Event::Broken { server, endpoint, problem: problem.clone() });
        drop_forgotten(shared);

        let limit = shared.options.reconnect_timeout;
        if shared.traffic.frames_received() > replies_before || up_since.elapsed() > limit {
            outage = None;
            backoff = Duration::ZERO;
        }
        let since = *outage.get_or_insert_with(Instant::now);
        if since.elapsed() > limit {
            return give_up(shared, lost(shared, problem));
        }
        next = if let Served::Replaced(replacement) = ended {
            *replacement
        } else {
            if pause(shared, Instant::now() + backoff) {
                return shared.fail(Error::Closed { peer: shared.options.server });
            }
            backoff = (backoff * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
            match dial_until(shared, since, limit, Some(&problem)) {
                Ok(next) => next,
                Err(error) => return give_up(shared, error),
            }
        };
        if next.terms.incarnation != incarnation {
            let (server, endpoint) = (shared.options.server, shared.endpoint_text());
            return give_up(shared, Error::ServerRestarted { server, endpoint });
        }
        shared.reconnects.fetch_add(1, Ordering::Relaxed);
    }
}

fn give_up(shared: &Shared, error: Error) {
    if !matches!(error, Error::Closed { .. }) {
        shared.observe(Event::GaveUp { error: error.clone() });
    }
    shared.fail(error);
}

fn lost(shared: &Shared, problem: impl Into<String>) -> Error {
    let (peer, endpoint) = (shared.options.server, shared.endpoint_text());
    Error::PeerLost { peer, endpoint, problem: problem.into() }
}

/// Tries to connect until it works, cannot work, or `limit` has passed since `since`. `broke` is
/// how the connection broke that this one replaces.
fn dial_until(
    shared: &Shared,
    since: Instant,
    limit: Duration,
    broke: Option<&str>,
) -> Result<NewConnection> {
    let deadline = after(limit.saturating_sub(since.elapsed()));
    let mut backoff = FIRST_BACKOFF;
    let mut next_report = after(shared.options.report_every);
    let mut heard: Option<Error> = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (problem, said) = match dial(shared, left.max(FIRST_BACKOFF)) {
            Ok(established) => return Ok(established),
            Err(DialError::Never(error)) => return Err(error),
            Err(DialError::Later(problem)) => (problem, None),
            Err(DialError::Unproven(error)) => (error.to_string(), Some(error)),
            // It wants TLS on a connection that is encrypted.
            Err(DialError::Encrypt) => ("it contradicts itself about encryption".to_owned(), None),
        };
        let now = Instant::now();
        // What somebody said there is reported at once: it is rarely a matter of waiting.
        if now >= next_report || (said.is_some() && heard.is_none()) {
            let (server, endpoint) = (shared.options.server, shared.endpoint_text());
            shared.observe(Event::Waiting {
                server,
                endpoint,
                waited: now - since,
                problem: problem.clone(),
            });
            next_report = after(shared.options.report_every);
        }
        // The last attempt may be too short for an answer; what the one before heard still holds.
        if said.is_some() || left >= DIAL_LIMIT {
            heard = said;
        }
        if now + backoff >= deadline {
            return Err(match (broke, heard) {
                (Some(broke), _) => {
                    lost(shared, format!("{broke}; reconnecting failed: {problem}"))
                }
                (None, Some(error)) => error,
                (None, None) => unreachable(shared, limit, problem),
            });
        }
        if pause(shared, now + backoff) {
            return Err(Error::Closed { peer: shared.options.server });
        }
        backoff = (backoff * 2).min(LAST_BACKOFF);
    }
}

fn unreachable(shared: &Shared, waited: Duration, problem: String) -> Error {
    let (server, endpoint) = (shared.options.server, shared.endpoint_text());
    Error::Unreachable { server, endpoint, waited, problem }
}

/// Waits until `deadline`; true when the client is being closed.
fn pause(shared: &Shared, deadline: Instant) -> bool {
    let mut link = lock(&shared.link);
    loop {
        if link.closing {
            return true;
        }
        let (next, in_time) = wait_until(&shared.link_changed, link, deadline);
        if !in_time {
            return false;
        }
        link = next;
    }
}

/// A connection whose two ends know each other.
struct NewConnection {
    stream: Arc<dyn Stream>,
    reader: FrameReader,
    terms: ServerTerms,
}

/// What became of a connection.
enum Served {
    /// The client is closed.
    Closed,
    Ended(ConnectionEnd),
    /// It was silent, and this one is not.
    Replaced(Box<NewConnection>),
}

/// One attempt, by the shortcut if the server offers one to this machine.
fn dial(shared: &Shared, left: Duration) -> std::result::Result<NewConnection, DialError> {
    let (greeting, terms) = greet_server(shared, left)?;
    if shared.options.shortcut
        && let Some(name) = &terms.shortcut
        && terms.host == host()
        && terms.host != [0; 16]
    {
        let near = Endpoint::Abstract(name.clone());
        let by_shortcut = greet(shared, &near, left, &shared.options.token)
            .and_then(|(greeting, terms)| establish(shared, greeting, terms));
        // It fails between containers that share a kernel but no network; TCP remains.
        if let Ok(established) = by_shortcut {
            greeting.leave();
            return Ok(established);
        }
    }
    establish(shared, greeting, terms)
}

fn establish(
    shared: &Shared,
    greeting: Greeting,
    terms: ServerTerms,
) -> std::result::Result<NewConnection, DialError> {
    let talk = greeting.finish(&shared.options.token)?;
    Ok(NewConnection { stream: talk.stream, reader: talk.reader, terms })
}

/// The server where everybody finds it.
fn greet_server(
    shared: &Shared,
    left: Duration,
) -> std::result::Result<(Greeting, ServerTerms), DialError> {
    let token = &shared.options.token;
    match greet(shared, &shared.endpoint, left, token) {
        // Something in between made it look as if the server were on this machine.
        Err(DialError::Encrypt) => greet(shared, &shared.endpoint, left, &token.always_encrypted()),
        other => other,
    }
}

fn greet(
    shared: &Shared,
    endpoint: &Endpoint,
    left: Duration,
    token: &JobToken,
) -> std::result::Result<(Greeting, ServerTerms), DialError> {
    let options = &shared.options;
    let stream =
        endpoint.dial(left.min(DIAL_LIMIT)).map_err(|e| DialError::Later(e.to_string()))?;
    let stream = match &options.wrap {
        Some(wrap) => wrap(stream),
        None => stream,
    };
    let terms = ClientTerms {
        session: shared.session,
        max_payload: options.max_payload,
        peer_timeout: options.peer_timeout,
    };
    let (from, to, note) = (options.me, options.server, terms.encode());
    let hello = Hello { from, to, protocol: REQUESTS, note };
    let limit = left.min(options.handshake_timeout);
    let (reader, endpoint) = (FrameReader::new(), endpoint.to_string());
    let greeting = Greeting::new(stream.into(), reader, &hello, &endpoint, token, limit)?;
    let terms = ServerTerms::decode(&greeting.note).map_err(|bad| greeting.not_ours(&bad))?;
    Ok((greeting, terms))
}

/// Takes over what the server said of itself in the handshake.
fn adopt(shared: &Shared, established: &NewConnection) {
    shared.max_request.store(established.terms.max_payload, Ordering::Relaxed);
    let mut link = lock(&shared.link);
    link.ended = None;
    link.write_problem = None;
    link.transport = established.stream.transport();
}

/// Uses one connection until it ends.
fn serve_connection(
    shared: &Arc<Shared>,
    established: NewConnection,
    outage: Option<Instant>,
) -> Result<Served> {
    adopt(shared, &established);
    let beat_every = beat_every(shared.options.peer_timeout, established.terms.peer_timeout);
    let NewConnection { stream, reader, .. } = established;
    // A blocked writer looks at its deadline this often.
    if let Err(e) = stream
        .set_read_timeout(Some(shared.options.peer_timeout))
        .and_then(|()| stream.set_write_timeout(Some(beat_every)))
    {
        return Ok(Served::Ended(ConnectionEnd::Broken(e.to_string())));
    }
    match Arena::share(&*stream, shared.options.me.index) {
        Ok(arena) => *lock(&shared.arena) = arena,
        Err(e) => return Ok(Served::Ended(ConnectionEnd::Broken(e.to_string()))),
    }
    let heard = reader.heard();
    let reading = {
        let (shared, stream) = (shared.clone(), stream.clone());
        thread::Builder::new()
            .name(format!("net-read-{}", shared.options.server.index))
            .spawn(move || read_replies(&shared, &*stream, reader))
            .map_err(|e| Error::System(format!("cannot start a thread: {e}")))?
    };
    let resent = open_writer(shared, &stream);
    if let Some(since) = outage {
        let (server, endpoint) = (shared.options.server, shared.endpoint_text());
        let outage = since.elapsed();
        shared.observe(Event::Reconnected { server, endpoint, outage, resent });
    }
    let watched = watch(shared, beat_every, &heard);
    if matches!(watched, Watched::Closing) {
        say_goodbye(shared, &*stream);
    }
    lock(&shared.writer).stream = None;
    stream.shutdown(Shutdown::Both);
    // The reader ends with the stream, and does not panic.
    let _ = reading.join();

    let mut link = lock(&shared.link);
    let (ended, better) = (link.ended.take(), link.write_problem.take());
    match watched {
        Watched::Closing => return Ok(Served::Closed),
        Watched::Silent(replacement) => return Ok(Served::Replaced(replacement)),
        Watched::Ended => {}
    }
    // The reader says how it ended before it ends.
    let ended = match ended {
        Some(ConnectionEnd::ServerStopped) => ConnectionEnd::ServerStopped,
        Some(ConnectionEnd::Broken(problem)) => ConnectionEnd::Broken(better.unwrap_or(problem)),
        None => ConnectionEnd::Broken(better.unwrap_or_default()),
    };
    if let ConnectionEnd::Broken(problem) = &ended {
        link.last_problem = Some(problem.clone());
    }
    Ok(Served::Ended(ended))
}

/// Sends what has no reply yet, in order, and lets callers write to the new connection.
fn open_writer(shared: &Shared, stream: &Arc<dyn Stream>) -> usize {
    let mut writer = lock(&shared.writer);
    let mut again: Vec<(u64, Arc<Outgoing>)> = lock(&shared.window)
        .requests
        .iter()
        .map(|(&request, in_flight)| (request, in_flight.outgoing.clone()))
        .collect();
    again.sort_unstable_by_key(|(request, _)| *request);
    for (_, outgoing) in &again {
        let deadline = after(shared.options.send_timeout);
        if let Err(problem) = shared.write(&**stream, outgoing, deadline) {
            shared.give_up_stream(&**stream, &problem);
            return again.len();
        }
    }
    writer.stream = Some(stream.clone());
    again.len()
}

/// Why a connection is not watched any more.
enum Watched {
    /// The client is being closed.
    Closing,
    Ended,
    /// Nothing comes on it, and the server answers on another one.
    Silent(Box<NewConnection>),
}

/// Heartbeats until the connection ends or the client is closed.
///
/// A connection whose other end was reset without notice, as proxies and lost packets can make it,
/// is only silent. Long before silence counts as the end of the server, the client tries another
/// one, and changes over if the server answers there.
fn watch(shared: &Shared, beat_every: Duration, heard: &AtomicU64) -> Watched {
    let mut sent_before = shared.traffic.frames_sent();
    let mut next_beat = Instant::now() + beat_every;
    let (mut last_heard, mut silent_beats) = (0, 0);
    let mut link = lock(&shared.link);
    loop {
        if link.closing {
            return Watched::Closing;
        }
        if link.ended.is_some() {
            return Watched::Ended;
        }
        let (next, in_time) = wait_until(&shared.link_changed, link, next_beat);
        link = next;
        if !in_time {
            drop(link);
            let sent = shared.traffic.frames_sent();
            if sent == sent_before {
                send_own(shared, kind::HEARTBEAT);
            }
            sent_before = sent;
            let now_heard = heard.load(Ordering::Relaxed);
            silent_beats = if now_heard == last_heard { silent_beats + 1 } else { 0 };
            last_heard = now_heard;
            if silent_beats > MISSING_BEATS {
                silent_beats = 0;
                if let Some(replacement) = replace_silent(shared, heard) {
                    return Watched::Silent(Box::new(replacement));
                }
            }
            next_beat = Instant::now() + beat_every;
            link = lock(&shared.link);
        }
    }
}

/// Another connection, if the server answers there while the present one stays silent.
fn replace_silent(shared: &Shared, heard: &AtomicU64) -> Option<NewConnection> {
    let before = heard.load(Ordering::Relaxed);
    let limit = LOOK_LIMIT.min(shared.options.peer_timeout);
    let (greeting, _) = greet_server(shared, limit).ok()?;
    greeting.leave();
    // The server is alive. If its heartbeats come after all, this machine was only busy.
    if heard.load(Ordering::Relaxed) != before {
        return None;
    }
    dial(shared, limit).ok()
}

/// Writes a frame without payload, unless a caller is writing: then the server hears from us
/// anyway.
fn send_own(shared: &Shared, kind: u16) {
    let Ok(mut writer) = shared.writer.try_lock() else { return };
    let Some(stream) = &writer.stream else { return };
    let header = Header { kind, sender: shared.options.me.index, ..Header::default() }.encode();
    let deadline = after(shared.options.peer_timeout);
    let written = write_all(&**stream, &mut [IoSlice::new(&header)], || shared.may_go_on(deadline));
    if let Err(problem) = written {
        shared.give_up_stream(&**stream, &problem);
        writer.stream = None;
    }
}

/// Notifies the server that this end is done, and waits for it to close: a socket that is closed
/// with unread replies would reset the connection, which may overtake the goodbye.
fn say_goodbye(shared: &Shared, stream: &dyn Stream) {
    send_own(shared, kind::GOODBYE);
    stream.shutdown(Shutdown::Write);
    let deadline = Instant::now() + FAREWELL;
    let mut link = lock(&shared.link);
    while link.ended.is_none() {
        let (next, in_time) = wait_until(&shared.link_changed, link, deadline);
        link = next;
        if !in_time {
            return;
        }
    }
}

/// Requests whose caller is gone do not survive the connection.
fn drop_forgotten(shared: &Shared) {
    let mut window = lock(&shared.window);
    let before = window.requests.len();
    window.requests.retain(|_, in_flight| !in_flight.forgotten);
    window.taken -= before - window.requests.len();
    drop(window);
    shared.room.notify_all();
}

/// The reader thread: delivers replies until the connection ends.
fn read_replies(shared: &Shared, stream: &dyn Stream, mut reader: FrameReader) {
    let ended = match replies(shared, stream, &mut reader) {
        Ok(ended) => ended,
        Err(error) => ConnectionEnd::Broken(error.to_string()),
    };
    // Before the stream ends, so that the reason is known to whoever notices.
    lock(&shared.link).ended = Some(ended);
    // Wakes a caller that is blocked in a write.
    stream.shutdown(Shutdown::Both);
    shared.link_changed.notify_all();
}

fn replies(
    shared: &Shared,
    stream: &dyn Stream,
    reader: &mut FrameReader,
) -> std::result::Result<ConnectionEnd, ReadError> {
    let patience = Patience::Silence(shared.options.peer_timeout);
    loop {
        let Some(header) = reader.header(stream, shared.options.max_payload, patience)? else {
            return Ok(ConnectionEnd::Broken("the server closed the connection".to_owned()));
        };
        let len = header.payload_len as usize;
        match header.kind {
            kind::HEARTBEAT if len == 0 => continue,
            kind::GOODBYE if len == 0 => return Ok(ConnectionEnd::ServerStopped),
            kind::ARENA if len == 0 => {
                reader.share(stream)?;
                continue;
            }
            kind if kind >= FIRST_RESERVED_KIND => return Err(BadFrame::Unexpected { kind }.into()),
            _ => {}
        }
        let payload = reader.body(stream, &header, &shared.options.pool, patience)?;
        shared.traffic.received(HEADER_LEN + len);
        let outcome = if header.status >= FIRST_RESERVED_STATUS {
            Err(Error::Remote {
                server: shared.options.server,
                endpoint: shared.endpoint_text(),
                kind: header.kind,
                problem: status::describe(header.status),
            })
        } else {
            Ok(Reply { status: header.status, payload })
        };
        shared.deliver(header.request, outcome);
    }
}
