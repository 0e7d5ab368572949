//! Addresses of this machine and ports on them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

use regatta_cluster::endpoints;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::{Error, random_hex};

/// Where automatic ports begin; those of well-known services are below.
const FIRST: u16 = 20_000;

/// Free ports on a host, in order. They are below the range from which the system takes ports for
/// outgoing connections, so that none of those can have one before its process listens.
///
/// # Errors
/// If the host is not this machine or has no free ports.
pub fn free(host: &str, n: usize) -> Result<Vec<u16>, Error> {
    let end = first_outgoing();
    let range = u64::from(end - FIRST);
    let seed = u64::from_str_radix(&random_hex()?[..12], 16).unwrap_or(0);
    let mut ports = BTreeSet::new();
    for i in 0..range {
        if ports.len() == n {
            break;
        }
        let port = FIRST + ((seed + i) % range) as u16;
        match try_to_bind(host, port) {
            Ok(()) => drop(ports.insert(port)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => {
                return Err(Error::Usage(format!("cannot listen on {host}:{port}: {e}")));
            }
        }
    }
    if ports.len() < n {
        return Err(Error::Usage(format!("{host} has only {} free ports, not {n}", ports.len())));
    }
    Ok(ports.into_iter().collect())
}

/// The same, without those that are `taken` by processes that do not listen yet.
///
/// # Errors
/// As [`free`].
pub(crate) fn free_beside(host: &str, n: usize, taken: &[String]) -> Result<Vec<u16>, Error> {
    let is_taken = |port: &u16| {
        let port = port.to_string();
        taken.iter().any(|e| endpoints::split(e).is_some_and(|(_, other)| other == port))
    };
    let ports = free(host, n + taken.len())?;
    Ok(ports.into_iter().filter(|port| !is_taken(port)).take(n).collect())
}

/// Takes a port for a moment. It never listens: a process that another thread is about to start may
/// inherit the socket, and would keep the port from who is to have it if it did.
fn try_to_bind(host: &str, port: u16) -> io::Result<()> {
    let mut outcome = Err(io::Error::from(io::ErrorKind::AddrNotAvailable));
    for address in (endpoints::bare(host), port).to_socket_addrs()? {
        outcome = bind_only(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn bind_only(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(net::bind(&socket, &address)?)
}

/// The first port that the system gives to outgoing connections.
fn first_outgoing() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|text| text.parse().ok());
    first.filter(|first| *first > FIRST + 1000).unwrap_or(32_768)
}

/// Whether a host is this machine: a process here could listen on one of its addresses.
///
/// # Errors
/// If the name has no address.
pub fn is_local(host: &str) -> Result<bool, Error> {
    let found = (endpoints::bare(host), 0).to_socket_addrs();
    let addresses: Vec<IpAddr> = found
        .map_err(|e| Error::Usage(format!("the name {host} has no address: {e}")))?
        .map(|address| address.ip())
        .collect();
    Ok(addresses.iter().any(|ip| TcpListener::bind((*ip, 0)).is_ok()))
}

/// Takes the ports of processes that are about to start, so that one that is taken is noticed
/// before anything runs. They are free again when the result is dropped.
///
/// # Errors
/// If one is taken; it and its holder are named.
pub fn hold(wanted: &[(String, String)]) -> Result<Vec<TcpListener>, Error> {
    let hold = |(name, endpoint): &(String, String)| {
        TcpListener::bind(endpoint.as_str()).map_err(|source| Error::Port {
            name: name.clone(),
            endpoint: endpoint.clone(),
            hint: holder(endpoint).map(|by| format!(" ({by} has it)")).unwrap_or_default(),
            source,
        })
    };
    wanted.iter().map(hold).collect()
}

/// Which process listens on a port of this machine, as far as this user may know.
fn holder(endpoint: &str) -> Option<String> {
    let port: u16 = endpoints::split(endpoint)?.1.parse().ok()?;
    let inodes = listening_inodes(port);
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let has = |fd: fs::DirEntry| {
            let link = fs::read_link(fd.path()).unwrap_or_default();
            let link = link.to_string_lossy().into_owned();
            inodes.iter().any(|inode| link == format!("socket:[{inode}]"))
        };
        if fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten().any(has) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(format!("process {pid}, {}", name.trim()));
        }
    }
    None
}

/// Sockets that listen on a port, from the kernel's tables.
fn listening_inodes(port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|f| fs::read_to_string(f).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let inode = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, hex) = words.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(hex, 16) == Ok(port) && words.get(3) == Some(&LISTEN);
        is_it.then(|| words.get(9).map(|inode| inode.to_string()))?
    };
    lines.filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::{free, hold, is_local};

    #[test]
    fn free_ports_can_be_listened_on() {
        let ports = free("127.0.0.1", 5).unwrap();
        assert_eq!(ports.len(), 5);
        let wanted: Vec<(String, String)> =
            ports.iter().map(|p| ("x".to_string(), format!("127.0.0.1:{p}"))).collect();
        assert_eq!(hold(&wanted).unwrap().len(), 5);
    }

    #[test]
    fn a_taken_port_is_named_with_its_holder() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = taken.local_addr().unwrap().to_string();
        let error = hold(&[("server 1".into(), endpoint.clone())]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("server 1 cannot listen on {endpoint}: ")), "{error}");
        assert!(error.contains(&format!("(process {}, ", std::process::id())), "{error}");
    }

    #[test]
    fn addresses_of_this_machine() {
        assert!(is_local("127.0.0.3").unwrap() && is_local("localhost").unwrap());
        // A block for documentation: nobody has it.
        assert!(!is_local("192.0.2.1").unwrap());
    }
}
