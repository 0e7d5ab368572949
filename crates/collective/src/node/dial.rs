//! Reaching other ranks and being reached: sockets to listen on, and attempts to connect.

use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use regatta_net::handshake::DialError;
use regatta_net::{JobToken, bind_hint, connect_tcp};

use crate::config::{Event, GroupConfig, Transport};
use crate::error::{Absent, Error, Result, system};
use crate::fate::lock;
use crate::socket::Socket;

use super::greet::{self, About, Purpose, reason};
use super::{HANDSHAKE, Shared};

/// Between two attempts to reach a rank.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// Between two attempts when somebody answers who does not belong to the job.
const SLOW_RETRY: Duration = Duration::from_millis(500);
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

/// A name for a Unix socket that nobody else has.
pub(crate) fn random_name() -> Result<String> {
    let bytes: [u8; 16] = regatta_net::random().map_err(|e| system("no random name", e))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("regatta-collective-{hex}"))
}

/// Tries to reach `peer` until it is there, the job fails or `deadline` has come.
pub(crate) fn dial_control(shared: &Shared, peer: usize, deadline: Instant) {
    let endpoint = &shared.config.endpoints[peer];
    while !shared.fate.has_failed() && Instant::now() < deadline {
        let mut pause = RETRY;
        match dial_once(shared, peer, endpoint, Purpose::Control, deadline) {
            Ok((socket, about)) => {
                if let Err(error) = shared.admit_control(socket, about) {
                    shared.fail(&error);
                }
                return;
            }
            Err(DialError::Later(problem)) => lock(&shared.lobby).problems[peer] = problem,
            Err(DialError::Never(error)) => {
                return shared.fail(&refused(shared, peer, endpoint, error));
            }
            // Whoever has taken the port may have said that; at the end it is the best explanation.
            Err(DialError::Unproven(error)) => {
                if Instant::now() + SLOW_RETRY >= deadline {
                    return shared.fail(&refused(shared, peer, endpoint, error));
                }
                lock(&shared.lobby).problems[peer] = reason(error);
                pause = SLOW_RETRY;
            }
            Err(DialError::Encrypt) => {}
        }
        thread::sleep(pause);
    }
}

fn refused(shared: &Shared, peer: usize, endpoint: &str, error: regatta_net::Error) -> Error {
    let (rank, endpoint, problem) = (shared.rank(), endpoint.to_owned(), reason(error));
    Error::Refused { rank, peer, endpoint, problem }
}

/// Connects to a rank that is up, for the data of a group.
pub(crate) fn dial_data(
    shared: &Shared,
    group: u64,
    peer: usize,
    deadline: Instant,
) -> Result<Socket> {
    let tcp = &shared.config.endpoints[peer];
    let mut endpoint = match shared.data_route(peer)? {
        Some(shortcut) => format!("{UNIX}{shortcut}"),
        None => tcp.clone(),
    };
    let started = Instant::now();
    loop {
        shared.fate.check()?;
        let problem = match dial_once(shared, peer, &endpoint, Purpose::Data(group), deadline) {
            Ok((socket, _)) => return Ok(socket),
            Err(DialError::Never(error)) => return Err(refused(shared, peer, &endpoint, error)),
            Err(DialError::Unproven(error)) => reason(error),
            Err(DialError::Later(problem)) => problem,
            Err(DialError::Encrypt) => "it contradicts itself about encryption".to_owned(),
        };
        // Its control connection is up, so the rank is there: what does not answer is the route.
        // Such sockets belong to a network namespace; containers on one machine have several.
        if shared.config.transport == Transport::Auto && endpoint != *tcp {
            shared.observe(&Event::OverTcp { rank: shared.rank(), peer, problem });
            endpoint.clone_from(tcp);
            continue;
        }
        if Instant::now() >= deadline {
            let missing = vec![Absent { rank: peer, state: format!("{endpoint}: {problem}") }];
            return Err(Error::Missing { rank: shared.rank(), waited: started.elapsed(), missing });
        }
        thread::sleep(RETRY);
    }
}

/// One attempt to connect, with the handshake.
fn dial_once(
    shared: &Shared,
    peer: usize,
    endpoint: &str,
    purpose: Purpose,
    deadline: Instant,
) -> Result<(Socket, About), DialError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = left.clamp(Duration::from_millis(1), HANDSHAKE);
    let dial = |token: &JobToken| {
        let socket = open(endpoint, limit).map_err(|e| DialError::Later(e.to_string()))?;
        greet::dial(socket, &shared.about, (peer, endpoint), purpose, token, limit)
    };
    match dial(&shared.config.token) {
        // Something in between made it look as if the rank were on this machine.
        Err(DialError::Encrypt) => dial(&shared.config.token.always_encrypted()),
        other => other,
    }
}

fn open(endpoint: &str, limit: Duration) -> io::Result<Socket> {
    match endpoint.strip_prefix(UNIX) {
        Some(name) => {
            let address = UnixAddress::from_abstract_name(name)?;
            Ok(Socket::Unix(UnixStream::connect_addr(&address)?))
        }
        None => Socket::tcp(connect_tcp(endpoint, limit)?.0),
    }
}
