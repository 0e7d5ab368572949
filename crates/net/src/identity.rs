//! Who a peer is: a role and an index, stated in the handshake and named in every error.

use std::fmt;

/// What a process does in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Role {
    /// Trains.
    Worker = 1,
    /// Holds parameters.
    Server = 2,
    /// Anything else that talks to the job: a launcher, an inspector.
    Tool = 3,
    /// Trains as one of equals.
    Rank = 4,
}

impl Role {
    pub(crate) fn from_wire(code: u8) -> Option<Role> {
        match code {
            1 => Some(Role::Worker),
            2 => Some(Role::Server),
            3 => Some(Role::Tool),
            4 => Some(Role::Rank),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Worker => "worker",
            Role::Server => "server",
            Role::Tool => "tool",
            Role::Rank => "rank",
        })
    }
}

/// One process of the job, for example `server 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// What it does.
    pub role: Role,
    /// Which of them it is, from 0.
    pub index: u32,
}

impl Identity {
    /// Worker `index`.
    pub fn worker(index: u32) -> Identity {
        Identity { role: Role::Worker, index }
    }

    /// Server `index`.
    pub fn server(index: u32) -> Identity {
        Identity { role: Role::Server, index }
    }

    /// Tool `index`.
    pub fn tool(index: u32) -> Identity {
        Identity { role: Role::Tool, index }
    }

    /// Rank `index`.
    pub fn rank(index: u32) -> Identity {
        Identity { role: Role::Rank, index }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.index)
    }
}

/// The far end of one connection, as a server sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Who it says it is; it has proved that it knows the job token, not its index.
    pub identity: Identity,
    /// Random number of the client object. A client that reconnects keeps it; a process that was
    /// started again has another one.
    pub session: u64,
    /// Number of this connection, unique within the server.
    pub connection: u64,
    /// Where it connected from.
    pub address: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.identity, self.address)
    }
}
