//! Where a server listens, and the two things one does with that: dial it or listen on it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::memory::{MemoryListener, Network};
use crate::stream::{Stream, Tcp, Unix};

/// The address of a server.
///
/// From text: `host:port`, or `unix:PATH`.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// `host:port`; port 0 in a server asks for a free one.
    Tcp(String),
    /// A Unix socket in the file system. A server removes the file of one that nobody listens on.
    Unix(PathBuf),
    /// A Unix socket with a name but no file (Linux).
    Abstract(String),
    /// A name inside this process, see [`Network::endpoint`].
    Memory(Network, String),
}

impl From<&str> for Endpoint {
    fn from(text: &str) -> Endpoint {
        match text.strip_prefix("unix:") {
            Some(path) => Endpoint::Unix(path.into()),
            None => Endpoint::Tcp(text.to_owned()),
        }
    }
}

impl From<String> for Endpoint {
    fn from(text: String) -> Endpoint {
        Endpoint::from(text.as_str())
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint::Tcp(address.to_string())
    }
}

impl From<&Endpoint> for Endpoint {
    fn from(endpoint: &Endpoint) -> Endpoint {
        endpoint.clone()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Abstract(name) => write!(f, "unix:@{name}"),
            Endpoint::Memory(_, name) => write!(f, "memory:{name}"),
        }
    }
}

impl Endpoint {
    /// One attempt to connect, bounded by `limit` (name lookup is not).
    pub(crate) fn dial(&self, limit: Duration) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Endpoint::Tcp(address) => {
                let (stream, peer) = connect_tcp(address, limit)?;
                Box::new(Tcp::new(stream, peer)?)
            }
            Endpoint::Unix(path) => Box::new(Unix::new(UnixStream::connect(path)?)),
            Endpoint::Abstract(name) => {
                Box::new(Unix::new(UnixStream::connect_addr(&abstract_address(name)?)?))
            }
            Endpoint::Memory(network, name) => Box::new(network.dial(name)?),
        })
    }

    pub(crate) fn listen(&self) -> io::Result<Listener> {
        Ok(match self {
            Endpoint::Tcp(address) => Listener::Tcp(TcpListener::bind(address.as_str())?),
            Endpoint::Unix(path) => {
                // The file outlives a process that was killed; bind refuses it although it is dead.
                if path.exists() && UnixStream::connect(path).is_err() {
                    std::fs::remove_file(path)?;
                }
                Listener::Unix(UnixListener::bind(path)?, Some(path.clone()))
            }
            Endpoint::Abstract(name) => {
                Listener::Unix(UnixListener::bind_addr(&abstract_address(name)?)?, None)
            }
            Endpoint::Memory(network, name) => Listener::Memory(network.listen(name)?),
        })
    }
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> io::Result<UnixAddress> {
    use std::os::linux::net::SocketAddrExt;
    UnixAddress::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &str) -> io::Result<UnixAddress> {
    Err(io::ErrorKind::Unsupported.into())
}

/// One attempt to connect to any of the addresses of `host:port`, each bounded by `limit` (name
/// lookup is not).
///
/// # Errors
/// What the system said of the last address.
pub fn connect_tcp(address: &str, limit: Duration) -> io::Result<(TcpStream, SocketAddr)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, limit) {
            // With nobody listening on a port of the ephemeral range, the kernel may hand out that
            // very port and connect the socket to itself.
            Ok(stream) if stream.local_addr().ok() == Some(candidate) => {
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok((stream, candidate)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The address from which this machine reaches `host:port`, and by which that one reaches it.
///
/// # Errors
/// What the system says when there is no way.
pub fn own_address(to: &str) -> io::Result<IpAddr> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let to = to.to_socket_addrs()?.next().ok_or_else(unknown)?;
    // Connecting a datagram socket sends nothing; it only picks the way.
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// What to do about a socket that cannot be bound; empty when nothing is known.
pub fn bind_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process has it: stop it (an earlier run?) or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        _ => "",
    }
}

/// A bound socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// One that does not block and that others use afterwards: it must not be shut down.
    Lent(TcpListener),
    /// With the file to remove at the end.
    Unix(UnixListener, Option<PathBuf>),
    Memory(MemoryListener),
}

impl Listener {
    /// Where it really listens.
    pub(crate) fn endpoint(&self, asked: &Endpoint) -> Endpoint {
        match (self, asked) {
            (Listener::Tcp(listener), Endpoint::Tcp(text)) => {
                let Ok(address) = listener.local_addr() else { return asked.clone() };
                // Keep the host as the user wrote it.
                match text.strip_suffix(":0") {
                    Some(host) => Endpoint::Tcp(format!("{host}:{}", address.port())),
                    None => asked.clone(),
                }
            }
            _ => asked.clone(),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Box::new(Tcp::new(stream, peer)?)
            }
            Listener::Lent(listener) => {
                wait_for_connection(listener)?;
                let (stream, peer) = listener.accept()?;
                Box::new(Tcp::new(stream, peer)?)
            }
            Listener::Unix(listener, _) => Box::new(Unix::new(listener.accept()?.0)),
            Listener::Memory(listener) => Box::new(listener.accept()?),
        })
    }

    /// Makes a blocked `accept` return with an error, and later ones too.
    pub(crate) fn close(&self) {
        use rustix::net::{Shutdown, shutdown};
        match self {
            Listener::Tcp(listener) => {
                let _ = shutdown(listener, Shutdown::Both);
            }
            Listener::Unix(listener, path) => {
                let _ = shutdown(listener, Shutdown::Both);
                if let Some(path) = path {
                    let _ = std::fs::remove_file(path);
                }
            }
            Listener::Memory(listener) => listener.close(),
            // Its `accept` returns soon.
            Listener::Lent(_) => {}
        }
    }
}

/// Returns soon in any case, so that an accepting thread notices when it should end.
fn wait_for_connection(listener: &TcpListener) -> io::Result<()> {
    let soon = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&soon)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
