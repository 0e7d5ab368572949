//! Reaching other ranks and being reached: sockets to listen on, and attempts to connect.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::GroupConfig;
use crate::error::{Absent, Error, Result, internal};
use crate::fate::lock;
use crate::socket::Socket;

use super::greet::{self, Failure, Hello, Purpose};
use super::{HANDSHAKE, Shared};

/// Between two attempts to reach a rank.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// Where an endpoint names a Unix socket without a file.
const UNIX: &str = "unix:@";

/// Where a rank listens.
pub(crate) struct Listeners {
    pub(crate) tcp: Option<Arc<TcpListener>>,
    pub(crate) unix: UnixListener,
    /// Name of the Unix socket.
    pub(crate) shortcut: String,
}

impl Listeners {
    pub(crate) fn bind(config: &GroupConfig) -> Result<Listeners> {
        let endpoint = &config.endpoints[config.rank];
        let fail = |error: io::Error| Error::Bind {
            rank: config.rank,
            endpoint: endpoint.clone(),
            problem: format!("{error}{}", bind_hint(&error)),
        };
        let named = endpoint.strip_prefix(UNIX);
        let tcp = match (&config.listener, named) {
            (Some(listener), _) => Some(listener.clone()),
            (None, Some(_)) => None,
            (None, None) => Some(Arc::new(TcpListener::bind(endpoint.as_str()).map_err(fail)?)),
        };
        let shortcut = match named {
            Some(name) => name.to_owned(),
            None => random_name()?,
        };
        let address = UnixAddress::from_abstract_name(&shortcut).map_err(fail)?;
        let unix = UnixListener::bind_addr(&address).map_err(fail)?;
        if let Some(tcp) = &tcp {
            tcp.set_nonblocking(true).map_err(fail)?;
        }
        unix.set_nonblocking(true).map_err(fail)?;
        Ok(Listeners { tcp, unix, shortcut })
    }

    /// A connection that waits to be accepted, if there is one.
    pub(crate) fn accept(&self) -> Option<Socket> {
        if let Some(Ok((stream, _))) = self.tcp.as_ref().map(|tcp| tcp.accept()) {
            return Socket::tcp(stream).ok();
        }
        self.unix.accept().ok().map(|(stream, _)| Socket::Unix(stream))
    }
}

pub(super) fn bind_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process has it: stop it (an earlier run?) or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        _ => "",
    }
}

/// A name for a Unix socket that nobody else has.
pub(crate) fn random_name() -> Result<String> {
    let bytes: [u8; 16] = regatta_net::random().map_err(|e| internal("no random name", e))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("regatta-collective-{hex}"))
}

/// Tries to reach `peer` until it is there, the job fails or `deadline` has come.
pub(crate) fn dial_control(shared: &Shared, peer: usize, deadline: Instant) {
    let endpoint = &shared.config.endpoints[peer];
    while !shared.fate.has_failed() && Instant::now() < deadline {
        let limit = deadline.min(Instant::now() + HANDSHAKE);
        match dial_control_once(shared, peer, endpoint, limit) {
            Ok(()) => return,
            Err(Attempt::Later(problem)) => lock(&shared.lobby).problems[peer] = problem,
            Err(Attempt::Never(error)) => return shared.fail(&error),
        }
        thread::sleep(RETRY);
    }
}

enum Attempt {
    Later(String),
    Never(Error),
}

fn dial_control_once(
    shared: &Shared,
    peer: usize,
    endpoint: &str,
    limit: Instant,
) -> Result<(), Attempt> {
    let socket = open(endpoint, limit).map_err(|e| Attempt::Later(e.to_string()))?;
    let hello = Hello { purpose: Purpose::Control, from: shared.rank(), to: peer };
    let about = greet::dial(&socket, hello, &shared.config.token, limit)
        .and_then(|()| greet::introduce(&socket, &shared.about, limit))
        .map_err(|failure| match failure {
            Failure::Later(problem) => Attempt::Later(problem),
            Failure::Never(problem) => Attempt::Never(refused(shared, peer, endpoint, problem)),
        })?;
    shared.admit_control(peer, socket, about).map_err(Attempt::Never)
}

fn refused(shared: &Shared, peer: usize, endpoint: &str, problem: String) -> Error {
    Error::Refused { rank: shared.rank(), peer, endpoint: endpoint.to_owned(), problem }
}

/// Connects to a rank that is up, for the data of a group.
pub(crate) fn dial_data(
    shared: &Shared,
    group: u64,
    peer: usize,
    deadline: Instant,
) -> Result<Socket> {
    let endpoint = match shared.data_route(peer)? {
        Some(shortcut) => format!("{UNIX}{shortcut}"),
        None => shared.config.endpoints[peer].clone(),
    };
    let hello = Hello { purpose: Purpose::Data(group), from: shared.rank(), to: peer };
    let started = Instant::now();
    loop {
        shared.fate.check()?;
        let limit = deadline.min(Instant::now() + HANDSHAKE);
        let attempt = open(&endpoint, limit).map_err(Failure::from).and_then(|socket| {
            greet::dial(&socket, hello, &shared.config.token, limit)?;
            Ok(socket)
        });
        let problem = match attempt {
            Ok(socket) => return Ok(socket),
            Err(Failure::Never(problem)) => return Err(refused(shared, peer, &endpoint, problem)),
            Err(Failure::Later(problem)) => problem,
        };
        if Instant::now() >= deadline {
            let missing = vec![Absent { rank: peer, state: format!("{endpoint}: {problem}") }];
            return Err(Error::Missing { rank: shared.rank(), waited: started.elapsed(), missing });
        }
        thread::sleep(RETRY);
    }
}

/// One attempt to connect.
pub(super) fn open(endpoint: &str, limit: Instant) -> io::Result<Socket> {
    if let Some(name) = endpoint.strip_prefix(UNIX) {
        let address = UnixAddress::from_abstract_name(name)?;
        return Ok(Socket::Unix(UnixStream::connect_addr(&address)?));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in endpoint.to_socket_addrs()? {
        let left = limit.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&candidate, left) {
            // With nobody listening on a port of the ephemeral range, the kernel may hand out that
            // very port and connect the socket to itself.
            Ok(stream) if stream.local_addr().ok() == Some(candidate) => {
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Socket::tcp(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
