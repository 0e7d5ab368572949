//! What a client and a server state in the notes of their handshake: limits, timeouts, and where
//! else the server can be reached.

use std::time::Duration;

use crate::frame::BadFrame;
use crate::handshake::Decoder;

/// The client's note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientTerms {
    /// Random per client object; it survives reconnects.
    pub(crate) session: u64,
    pub(crate) max_payload: u64,
    pub(crate) peer_timeout: Duration,
}

/// The server's note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerTerms {
    /// Random per server object: another one means another memory.
    pub(crate) incarnation: u64,
    pub(crate) max_payload: u64,
    /// Silence after which it gives a client up.
    pub(crate) peer_timeout: Duration,
    /// The machine; zero when unknown.
    pub(crate) host: [u8; 16],
    /// Name of an abstract Unix socket of the same server, for clients on the same machine.
    pub(crate) shortcut: Option<String>,
}

impl ClientTerms {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [self.session, self.max_payload, millis(self.peer_timeout)]
            .iter()
            .flat_map(|field| field.to_le_bytes())
            .collect()
    }

    pub(crate) fn decode(note: &[u8]) -> Result<ClientTerms, BadFrame> {
        let mut from = Decoder::new(note, "hello");
        let (session, max_payload) = (from.u64()?, from.u64()?);
        let peer_timeout = Duration::from_millis(from.u64()?);
        from.end()?;
        Ok(ClientTerms { session, max_payload, peer_timeout })
    }
}

impl ServerTerms {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for field in [self.incarnation, self.max_payload, millis(self.peer_timeout)] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.host);
        out.extend_from_slice(self.shortcut.as_deref().unwrap_or_default().as_bytes());
        out
    }

    pub(crate) fn decode(note: &[u8]) -> Result<ServerTerms, BadFrame> {
        let mut from = Decoder::new(note, "challenge");
        Ok(ServerTerms {
            incarnation: from.u64()?,
            max_payload: from.u64()?,
            peer_timeout: Duration::from_millis(from.u64()?),
            host: from.take()?,
            shortcut: Some(from.text()?).filter(|name| !name.is_empty()),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How often to be heard by a peer, so that neither end counts the other as gone, and a client
/// soon notices a connection that only it believes in.
pub(crate) fn beat_every(ours: Duration, theirs: Duration) -> Duration {
    (ours.min(theirs) / 4).clamp(Duration::from_millis(5), Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_round_trip_and_short_ones_are_refused() {
        let peer_timeout = Duration::from_millis(77);
        let client = ClientTerms { session: 9, max_payload: 5, peer_timeout };
        let bytes = client.encode();
        assert_eq!(ClientTerms::decode(&bytes), Ok(client));
        for len in 0..bytes.len() {
            assert!(ClientTerms::decode(&bytes[..len]).is_err(), "{len}");
        }
        let mut server = ServerTerms {
            incarnation: 7,
            max_payload: 8,
            peer_timeout,
            host: [3; 16],
            shortcut: Some("name".to_owned()),
        };
        assert_eq!(ServerTerms::decode(&server.encode()), Ok(server.clone()));
        server.shortcut = None;
        assert_eq!(ServerTerms::decode(&server.encode()), Ok(server));
    }
}
