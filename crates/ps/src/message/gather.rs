//! Bytes of every worker, for every worker.

use super::bytes::{Array, Reader};
use crate::Error;

/// Most bytes that one worker may bring.
pub const MAX_GATHER_BYTES: usize = 64 << 20;
/// Most bytes of a reply, which is what clients accept.
pub const MAX_GATHER_REPLY_BYTES: usize = 1 << 30;
/// Most workers that a reply may be of.
const MAX_WORKERS: u64 = 1 << 16;
/// Longest name of a gather.
const MAX_NAME_BYTES: u64 = 4096;

/// A worker's part of a gather; answered when every worker has sent its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gather {
    /// Number of this meeting of the workers; reductions and gathers are counted together.
    pub round: u64,
    /// What is gathered, for messages.
    pub name: String,
    /// This worker's bytes.
    pub bytes: Array<u8>,
}

impl Gather {
    /// The payload.
    pub fn encode(round: u64, name: &str, bytes: &[u8]) -> Vec<u8> {
        let head = [round, name.len() as u64, bytes.len() as u64];
        let head: &[u8] = bytemuck::cast_slice(&head);
        let mut payload = Vec::with_capacity(head.len() + name.len() + bytes.len() + 7);
        payload.extend_from_slice(head);
        payload.extend_from_slice(bytes);
        payload.resize(payload.len().next_multiple_of(8), 0);
        payload.extend_from_slice(name.as_bytes());
        payload
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one, or has more bytes than a worker may bring.
    pub fn decode(payload: &[u8]) -> Result<Gather, Error> {
        let mut r = Reader::new(payload);
        let round = r.u64("round")?;
        let n_name = r.count("length of the name", MAX_NAME_BYTES)?;
        let n_bytes = r.count("number of bytes", MAX_GATHER_BYTES as u64)?;
        let bytes = r.array(n_bytes, "bytes")?;
        let name = std::str::from_utf8(r.take(n_name, "name")?);
        let name = name.map_err(|_| Error::malformed("the name of a gather is no text"))?;
        r.end()?;
        Ok(Gather { round, name: name.to_string(), bytes })
    }
}

/// The answer to a [`Gather`]: bytes by worker, none for workers that have left or were lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatherReply<'a> {
    /// By worker.
    pub parts: Vec<&'a [u8]>,
}

impl<'a> GatherReply<'a> {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let lens = self.parts.iter().map(|part| part.len() as u64);
        let head: Vec<u64> = std::iter::once(self.parts.len() as u64).chain(lens).collect();
        let mut payload: Vec<u8> = bytemuck::cast_slice(&head).to_vec();
        payload.reserve_exact(self.parts.iter().map(|part| part.len()).sum());
        self.parts.iter().for_each(|part| payload.extend_from_slice(part));
        payload
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &'a [u8]) -> Result<GatherReply<'a>, Error> {
        let mut r = Reader::new(payload);
        let n = r.count("number of workers", MAX_WORKERS)?;
        let lens = (0..n).map(|_| r.count("number of bytes", MAX_GATHER_BYTES as u64));
        let lens = lens.collect::<Result<Vec<_>, _>>()?;
        let parts = lens.into_iter().map(|n| r.take(n, "bytes")).collect::<Result<_, _>>()?;
        r.end()?;
        Ok(GatherReply { parts })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_gather_comes_back(
            round: u64, name in ".{0,20}", bytes in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let payload = Gather::encode(round, &name, &bytes);
            let back = Gather::decode(&payload).unwrap();
            prop_assert_eq!((back.round, &back.name), (round, &name));
            prop_assert_eq!(back.bytes.of(&payload), &bytes[..]);
        }

        #[test]
        fn a_reply_comes_back(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
        ) {
            let reply = GatherReply { parts: parts.iter().map(Vec::as_slice).collect() };
            let payload = reply.encode();
            prop_assert_eq!(GatherReply::decode(&payload).unwrap(), reply);
        }

        #[test]
        fn garbage_is_refused_or_read(bytes in prop::collection::vec(0u8..3, 0..90)) {
            let _ = Gather::decode(&bytes);
            let _ = GatherReply::decode(&bytes);
        }
    }

    #[test]
    fn more_than_a_worker_may_bring_is_refused() {
        let head = [1, 0, MAX_GATHER_BYTES as u64 + 1];
        let error = Gather::decode(bytemuck::cast_slice(&head)).unwrap_err().to_string();
        assert!(error.contains("number of bytes is 67108865, more than 67108864"), "{error}");
    }
}
