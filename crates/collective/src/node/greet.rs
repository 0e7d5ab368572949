//! The handshake of two ranks: that of every connection of a job (`regatta_net::handshake`), with
//! what ranks state of themselves in its notes.

use std::time::Duration;

use regatta_net::handshake::{self, DialError, Hello};
use regatta_net::{Error as NetError, Identity, JobToken};

use crate::config::Transport;
use crate::socket::Socket;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Deaths, stalls, goodbyes.
    Control,
    /// The operations of one group.
    Data(u64),
}

/// What ranks state about themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) job: String,
    pub(crate) transport: Transport,
    /// The machine; zero when unknown.
    pub(crate) host: [u8; 16],
    /// A Unix socket of the same rank, for those on the same machine.
    pub(crate) shortcut: String,
}

impl Purpose {
    const CONTROL: u8 = 1;
    const DATA: u8 = 2;
}

impl About {
    pub(crate) fn identity(&self) -> Identity {
        Identity::rank(self.rank as u32)
    }

    /// What this rank says when it dials.
    fn hello(&self, peer: usize, purpose: Purpose) -> Hello {
        let (protocol, group) = match purpose {
            Purpose::Control => (Purpose::CONTROL, 0),
            Purpose::Data(group) => (Purpose::DATA, group),
        };
        let note = [&group.to_le_bytes()[..], &self.encode()].concat();
        Hello { from: self.identity(), to: Identity::rank(peer as u32), protocol, note }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = (self.size as u32).to_le_bytes().to_vec();
        out.push(self.transport as u8);
        out.extend_from_slice(&self.host);
        out.extend_from_slice(&(self.shortcut.len() as u32).to_le_bytes());
        out.extend_from_slice(self.shortcut.as_bytes());
        out.extend_from_slice(self.job.as_bytes());
        out
    }

    fn decode(rank: usize, bytes: &[u8]) -> Option<About> {
        let (size, bytes) = bytes.split_first_chunk()?;
        let ([transport], bytes) = bytes.split_first_chunk()?;
        let (host, bytes) = bytes.split_first_chunk()?;
        let (shortcut_len, bytes) = bytes.split_first_chunk()?;
        let (shortcut, job) = bytes.split_at_checked(u32::from_le_bytes(*shortcut_len) as usize)?;
        Some(About {
            rank,
            size: u32::from_le_bytes(*size) as usize,
            transport: Transport::from_wire(*transport)?,
            host: *host,
            shortcut: str::from_utf8(shortcut).ok()?.to_owned(),
            job: str::from_utf8(job).ok()?.to_owned(),
        })
    }
}

/// What the hello of a rank says; `None` for one that is no rank's.
pub(crate) fn read_hello(hello: &Hello) -> Option<(Purpose, About)> {
    let (group, about) = hello.note.split_first_chunk()?;
    let purpose = match hello.protocol {
        Purpose::CONTROL => Purpose::Control,
        Purpose::DATA => Purpose::Data(u64::from_le_bytes(*group)),
        _ => return None,
    };
    Some((purpose, About::decode(hello.from.index as usize, about)?))
}

/// The dialler's half. Says what the other rank states of itself.
pub(crate) fn dial(
    socket: Socket,
    me: &About,
    (peer, endpoint): (usize, &str),
    purpose: Purpose,
    token: &JobToken,
    limit: Duration,
) -> Result<(Socket, About), DialError> {
    let hello = me.hello(peer, purpose);
    let stream = socket.stream().map_err(|e| DialError::Later(e.to_string()))?;
    let (note, session) = handshake::dial(stream, &hello, endpoint, token, limit)?;
    let about = About::decode(peer, &note).ok_or_else(|| {
        let (server, endpoint) = (hello.to, endpoint.to_owned());
        let problem = "a rank that states something else of itself".to_owned();
        DialError::Never(NetError::NotOurProtocol { server, endpoint, problem })
    })?;
    Ok((socket.encrypted(session), about))
}

/// Why a rank was not admitted, in a sentence that names the two ranks and the endpoint already.
pub(crate) fn reason(error: NetError) -> String {
    match error {
        NetError::WrongToken { .. } => {
            "the job token is another one: it belongs to another job".to_owned()
        }
        NetError::ImposterServer { .. } => "it does not know the job token".to_owned(),
        NetError::WrongServer { actual, .. } => {
            format!("{actual} answers there: check the order of the endpoint list")
        }
        NetError::NotOurProtocol { problem, .. } => {
            format!("the answer is not this protocol: {problem}")
        }
        NetError::Intercepted { .. } => {
            "somebody in between ends TLS and reads along; the connection is not used".to_owned()
        }
        NetError::Encryption { problem, .. }
        | NetError::Refused { problem, .. }
        | NetError::Unreachable { problem, .. }
        | NetError::PeerLost { problem, .. } => problem,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_state_round_trips_and_short_notes_are_refused() {
        let about = About {
            rank: 3,
            size: 4,
            job: "a job".to_owned(),
            transport: Transport::Tcp,
            host: [7; 16],
            shortcut: "name".to_owned(),
        };
        for purpose in [Purpose::Control, Purpose::Data(9)] {
            let mut hello = about.hello(1, purpose);
            assert_eq!((hello.from, hello.to), (Identity::rank(3), Identity::rank(1)));
            assert_eq!(read_hello(&hello), Some((purpose, about.clone())));
            hello.note.truncate(8 + about.encode().len() - about.job.len() - 1);
            assert_eq!(read_hello(&hello), None);
        }
        let requests = Hello { protocol: handshake::REQUESTS, ..about.hello(1, Purpose::Control) };
        assert_eq!(read_hello(&requests), None);
        assert_eq!(About::decode(3, &about.encode()), Some(about));
    }
}
