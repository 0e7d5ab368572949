//! Where a server listens, and the two things one does with that: dial it or listen on it.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

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
            Endpoint::Tcp(address) => Box::new(dial_tcp(address, limit)?),
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

fn dial_tcp(address: &str, limit: Duration) -> io::Result<Tcp> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, limit) {
            Ok(stream) => {
                // With nobody listening on a port of the ephemeral range, the kernel may hand out
                // that very port and connect the socket to itself.
                if stream.local_addr().ok() == Some(candidate) {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                return Tcp::new(stream, candidate);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A bound socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
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
        }
    }
}
