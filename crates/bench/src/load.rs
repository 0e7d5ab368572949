//! Load on an HTTP server: a number of connections, each with one request on its way at a time,
//! from one thread. Every answer is read whole and must be a 200.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

/// How much load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Connections, all open from the beginning to the end.
    pub connections: usize,
    /// It ends after this time, or after this many requests if that is sooner.
    pub limit: Duration,
    /// Requests at most.
    pub requests: u64,
}

/// The result.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// Requests that were answered.
    pub requests: u64,
    /// Seconds from the first request to the last answer.
    pub seconds: f64,
    /// Time from the beginning of sending to the last byte of the answer, in rising order.
    latencies: Vec<Duration>,
}

impl LoadResult {
    /// Requests per second.
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// The latency in milliseconds that a share of requests stays within.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.latencies.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    }
}

/// The bytes of a request for a path, with a body if there is one.
pub fn request(path: &str, body: Option<&str>) -> Vec<u8> {
    match body {
        None => format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        Some(body) => format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ),
    }
    .into_bytes()
}

/// Nobody waits longer for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Sends the requests in turn, again and again.
///
/// # Errors
/// If the server cannot be reached, closes a connection, does not answer for 10 seconds or answers
/// with anything but 200.
pub fn run(server: SocketAddr, requests: &[Vec<u8>], load: &Load) -> Result<LoadResult> {
    ensure!(!requests.is_empty() && load.connections > 0, "no load");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut open = Vec::new();
    for i in 0..load.connections {
        let connection = Connection::open(server)?;
        let (key, flags) = (epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN);
        epoll::add(&epoll, &connection.socket, key, flags)?;
        open.push(connection);
    }
    let start = Instant::now();
    let mut next = requests.iter().cycle();
    let mut sent = 0;
    for connection in open.iter_mut().take(load.requests.min(usize::MAX as u64) as usize) {
        connection.send(next.next().context("no request")?)?;
        sent += 1;
    }
    let (mut latencies, mut events) = (Vec::new(), Vec::with_capacity(load.connections));
    let wait = rustix::event::Timespec::try_from(ANSWER_LIMIT)?;
    while latencies.len() < sent {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), Some(&wait))?;
        ensure!(!events.is_empty(), "{server} has not answered for {ANSWER_LIMIT:?}");
        for event in events.drain(..) {
            let connection = &mut open[event.data.u64() as usize];
            let Some(latency) = connection.receive()? else { continue };
            latencies.push(latency);
            if start.elapsed() < load.limit && (sent as u64) < load.requests {
                connection.send(next.next().context("no request")?)?;
                sent += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    Ok(LoadResult { requests: sent as u64, seconds, latencies })
}

struct Connection {
    socket: TcpStream,
    received: Vec<u8>,
    since: Instant,
}

impl Connection {
    fn open(server: SocketAddr) -> Result<Connection> {
        let socket =
            TcpStream::connect(server).with_context(|| format!("cannot connect to {server}"))?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(Connection { socket, received: Vec::with_capacity(1 << 16), since: Instant::now() })
    }

    fn send(&mut self, request: &[u8]) -> Result<()> {
        self.since = Instant::now();
        self.socket.set_nonblocking(false)?;
        self.socket.write_all(request)?;
        self.socket.set_nonblocking(true)?;
        Ok(())
    }

    /// The latency of the answer, if all of it is there.
    fn receive(&mut self) -> Result<Option<Duration>> {
        let mut bytes = [0; 1 << 14];
        match self.socket.read(&mut bytes) {
            Ok(0) => bail!("the server has closed a connection"),
            Ok(n) => self.received.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let Some(length) = answer_length(&self.received)? else { return Ok(None) };
        if self.received.len() < length {
            return Ok(None);
        }
        ensure!(self.received.len() == length, "the server has answered more than was asked");
        self.received.clear();
        Ok(Some(self.since.elapsed()))
    }
}

/// Bytes of the answer that begins here, once its head is complete.
fn answer_length(received: &[u8]) -> Result<Option<usize>> {
    let Some(head) = received.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
    let text = String::from_utf8_lossy(&received[..head]);
    if !text.starts_with("HTTP/1.1 200 ") {
        bail!("the server answers {}", String::from_utf8_lossy(received));
    }
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = length.context("an answer without its length")?;
    Ok(Some(head + 4 + length.trim().parse::<usize>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_measured() {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        assert_eq!(answer_length(ok).unwrap(), Some(ok.len()));
        assert_eq!(answer_length(&ok[..20]).unwrap(), None);
        assert!(answer_length(b"HTTP/1.1 503 No\r\n\r\n").is_err());
    }
}
