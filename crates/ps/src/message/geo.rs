//! Geo: differences of a worker's copy go to the servers, changed values come back.
//!
//! The request is that of a [`Push`](super::Push) whose step and examples mean nothing. Reply:
//! dense floats, number of tables; per table keys and floats; then dense parameters, and keys and
//! rows of each table.

use regatta_net::Buf;

use super::bytes::{MAX_ITEMS, MAX_TABLES, Reader};
use super::{Array, Gradients, Push, PushTable};
use crate::Error;
use crate::route::{Destination, Route};
use crate::shards::Mark;

/// What a worker's copy has changed by since its last exchange, to be added on the servers.
#[derive(Debug, Clone, PartialEq)]
pub struct Geo {
    /// As [`Push::sequence`].
    pub sequence: u64,
    /// Differences of this server's part of the dense parameters.
    pub dense: Array<f32>,
    /// Differences of rows by table.
    pub tables: Vec<PushTable>,
    /// As in [`Push`](super::Push).
    pub mark: Option<Mark>,
    /// As in [`Push`](super::Push).
    pub is_applied: bool,
}

impl Geo {
    /// Writes the request to one server.
    pub(crate) fn encode(
        sequence: u64,
        (differences, routes): (&Gradients<'_>, &[Route]),
        to: &Destination<'_>,
        room: impl FnOnce(usize) -> Buf,
    ) -> Buf {
        let mut buf = room(differences.payload_len(routes, to));
        differences.encode(sequence, routes, to, &mut buf);
        buf
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<Geo, Error> {
        let Push { sequence, dense, tables, mark, is_applied, .. } = Push::decode(payload)?;
        Ok(Geo { sequence, dense, tables, mark, is_applied })
    }
}

/// The rows that others (or this worker) have changed since this worker's last exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct GeoReply<'a> {
    /// Values of this server's part of the dense parameters.
    pub dense: &'a [f32],
    /// Changed rows by table: keys and values.
    pub tables: Vec<(&'a [u64], &'a [f32])>,
}

impl<'a> GeoReply<'a> {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.dense.len() as u64, self.tables.len() as u64];
        for (keys, values) in &self.tables {
            words.extend([keys.len() as u64, values.len() as u64]);
        }
        let mut payload: Vec<u8> = bytemuck::cast_slice(&words).to_vec();
        let mut put = |bytes: &[u8]| {
            payload.extend_from_slice(bytes);
            payload.resize(payload.len().next_multiple_of(8), 0);
        };
        put(bytemuck::cast_slice(self.dense));
        for (keys, values) in &self.tables {
            put(bytemuck::cast_slice(keys));
            put(bytemuck::cast_slice(values));
        }
        payload
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &'a [u8]) -> Result<GeoReply<'a>, Error> {
        let mut r = Reader::new(payload);
        let n_dense = r.count("dense floats", MAX_ITEMS)?;
        let n = r.count("number of tables", MAX_TABLES)?;
        let mut heads = Vec::with_capacity(n);
        for _ in 0..n {
            let keys = r.count("number of keys", MAX_ITEMS)?;
            heads.push((keys, r.count("number of floats", MAX_ITEMS)?));
        }
        let dense = r.padded(n_dense, "dense values")?;
        let table = |(keys, values)| Ok((r.padded(keys, "keys")?, r.padded(values, "values")?));
        let tables = heads.into_iter().map(table).collect::<Result<_, Error>>()?;
        r.end()?;
        Ok(GeoReply { dense, tables })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::testing::{job, keys, room};

    proptest! {
        #[test]
        fn a_reply_comes_back(keys in keys(), n in 0usize..9) {
            let values = vec![2.5; keys.len()];
            let tables = vec![(&keys[..], &values[..]), (&[][..], &[][..])];
            let reply = GeoReply { dense: &values[..n.min(values.len())], tables };
            let payload = reply.encode();
            // As buffers of the network, which start at a page.
            let mut buf = room(payload.len());
            buf.extend_from_slice(&payload);
            prop_assert_eq!(GeoReply::decode(&buf).unwrap(), reply);
        }
    }

    #[test]
    fn differences_come_back() {
        let (tables, pieces) = job(1, false);
        let to = Destination { server: 0, tables: &tables, pieces: &pieces[0] };
        let rows: [(&[u64], &[f32]); 1] = [(&[4, 5], &[1.0, 2.0])];
        let differences = Gradients { step: 0, examples: 0, dense: &[], tables: &rows, mark: None };
        let buf = Geo::encode(2, (&differences, &[Route::new(&[4, 5], 1)]), &to, room);
        let geo = Geo::decode(&buf).unwrap();
        assert_eq!((geo.sequence, geo.dense.len(), geo.tables.len()), (2, 0, 1));
        assert_eq!(geo.tables[0].grads.of(&buf), [1.0, 2.0]);
    }
}
