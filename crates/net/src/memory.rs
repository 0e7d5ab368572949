//! A network inside one process: names instead of ports, queues instead of sockets.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;
use crate::stream::{Stream, Wait};
use crate::sync::{lock, wait_until};

/// How many bytes a direction holds before its writer has to wait.
const PIPE_BYTES: usize = 256 << 10;
/// How many connections wait to be accepted before another is refused.
const BACKLOG: usize = 128;

/// A set of names that servers of this process listen on. Clones share it.
#[derive(Clone, Default)]
pub struct Network {
    listeners: Arc<Mutex<HashMap<String, Arc<Backlog>>>>,
}

impl Network {
    /// A network without servers.
    pub fn new() -> Network {
        Network::default()
    }

    /// The endpoint `name` of this network, for servers and clients.
    pub fn endpoint(&self, name: &str) -> Endpoint {
        Endpoint::Memory(self.clone(), name.to_owned())
    }

    pub(crate) fn listen(&self, name: &str) -> io::Result<MemoryListener> {
        let mut listeners = lock(&self.listeners);
        if listeners.contains_key(name) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let backlog = Arc::new(Backlog::default());
        listeners.insert(name.to_owned(), backlog.clone());
        Ok(MemoryListener { network: self.clone(), name: name.to_owned(), backlog })
    }

    pub(crate) fn dial(&self, name: &str) -> io::Result<MemoryStream> {
        let backlog = lock(&self.listeners).get(name).cloned();
        let backlog = backlog.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (near, far) = pair(name);
        let mut queue = lock(&backlog.queue);
        if queue.closed || queue.waiting.len() >= BACKLOG {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        queue.waiting.push_back(far);
        backlog.arrived.notify_one();
        Ok(near)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.listeners).keys()).finish()
    }
}

#[derive(Default)]
struct Backlog {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<MemoryStream>,
    closed: bool,
}

pub(crate) struct MemoryListener {
    network: Network,
    name: String,
    backlog: Arc<Backlog>,
}

impl MemoryListener {
    pub(crate) fn accept(&self) -> io::Result<MemoryStream> {
        let mut queue = lock(&self.backlog.queue);
        loop {
            if queue.closed {
                return Err(io::ErrorKind::NotConnected.into());
            }
            if let Some(stream) = queue.waiting.pop_front() {
                return Ok(stream);
            }
            queue = wait_until(&self.backlog.arrived, queue, far_future()).0;
        }
    }

    pub(crate) fn close(&self) {
        lock(&self.network.listeners).remove(&self.name);
        let mut queue = lock(&self.backlog.queue);
        queue.closed = true;
        queue.waiting.clear();
        self.backlog.arrived.notify_all();
    }
}

fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Two ends of a connection inside this process.
pub fn pair(name: &str) -> (MemoryStream, MemoryStream) {
    let there = Arc::new(Pipe::default());
    let back = Arc::new(Pipe::default());
    let end = |incoming: &Arc<Pipe>, outgoing: &Arc<Pipe>| MemoryStream {
        name: name.to_owned(),
        incoming: incoming.clone(),
        outgoing: outgoing.clone(),
        timeouts: Mutex::new((None, None)),
    };
    (end(&back, &there), end(&there, &back))
}

/// One end of a connection inside this process.
pub struct MemoryStream {
    name: String,
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
    /// For reads and for writes.
    timeouts: Mutex<(Option<Duration>, Option<Duration>)>,
}

#[derive(Default)]
struct Pipe {
    state: Mutex<PipeState>,
    changed: Condvar,
}

#[derive(Default)]
struct PipeState {
    bytes: VecDeque<u8>,
    closed: bool,
}

impl Pipe {
    fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }
}

impl Stream for MemoryStream {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let deadline =
            lock(&self.timeouts).0.map_or_else(far_future, |limit| Instant::now() + limit);
        let mut state = lock(&self.incoming.state);
        loop {
            if !state.bytes.is_empty() || buf.is_empty() {
                let n = io::Read::read(&mut state.bytes, buf)?;
                self.incoming.changed.notify_all();
                return Ok(n);
            }
            if state.closed {
                return Ok(0);
            }
            let (next, in_time) = wait_until(&self.incoming.changed, state, deadline);
            if !in_time {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            state = next;
        }
    }

    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let deadline =
            lock(&self.timeouts).1.map_or_else(far_future, |limit| Instant::now() + limit);
        let mut state = lock(&self.outgoing.state);
        loop {
            if state.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let mut room = PIPE_BYTES - state.bytes.len();
            if room > 0 {
                let before = room;
                for buf in bufs {
                    let n = buf.len().min(room);
                    state.bytes.extend(&buf[..n]);
                    room -= n;
                }
                self.outgoing.changed.notify_all();
                return Ok(before - room);
            }
            if wait == Wait::No {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let (next, in_time) = wait_until(&self.outgoing.changed, state, deadline);
            if !in_time {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            state = next;
        }
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        lock(&self.timeouts).0 = limit;
        Ok(())
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        lock(&self.timeouts).1 = limit;
        Ok(())
    }

    fn shutdown(&self, how: Shutdown) {
        if how != Shutdown::Write {
            self.incoming.close();
        }
        if how != Shutdown::Read {
            self.outgoing.close();
        }
    }

    fn peer(&self) -> String {
        format!("memory:{}", self.name)
    }

    fn transport(&self) -> &'static str {
        "memory"
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Both);
    }
}

impl fmt::Debug for MemoryStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryStream({})", self.name)
    }
}
