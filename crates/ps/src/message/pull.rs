//! Pull: keys by table go to a server; rows in the order of the keys come back, then the server's
//! part of the dense parameters.
//!
//! Request: step, flags, number of tables; per table its number, keys and counts; then keys and
//! counts of each table. Reply: the rows of each table, then dense parameters.

use regatta_net::Buf;

use super::bytes::{
    Array, MAX_ITEMS, MAX_TABLES, Reader, grow_floats, pad, padded_len, put_rows, put_u64,
};
use super::wire::Transcoder;
use crate::Error;
use crate::partition::Piece;
use crate::route::{Destination, Route};

/// Flags of a request.
const TEST: u64 = 1;
const DENSE: u64 = 2;
/// Words of a head, and per table.
const HEAD: usize = 3;
const TABLE_HEAD: usize = 3;
/// Largest reply; clients accept no more either.
const MAX_REPLY_BYTES: usize = 1 << 30;

/// What is pulled: distinct keys by table.
#[derive(Debug, Clone, Copy)]
pub struct PullSpec<'a> {
    /// The worker's step that they are for.
    pub step: u64,
    /// Only look: create and count nothing.
    pub test: bool,
    /// Also the dense parameters.
    pub dense: bool,
    /// By table.
    pub keys: &'a [&'a [u64]],
    /// How often each key appears in the batch, by table; may be left out, and is sent for tables
    /// only that count.
    pub counts: &'a [&'a [u32]],
}

impl<'a> PullSpec<'a> {
    /// The counts of a table, where they are given and used.
    fn counts_of(&self, table: usize, to: &Destination<'_>) -> Option<&'a [u32]> {
        let counts = self.counts.get(table)?;
        to.tables[table].counted.then_some(*counts)
    }

    /// Bytes of the request to one server.
    pub(crate) fn payload_len(&self, routes: &[Route], to: &Destination<'_>) -> usize {
        let tables = routes.iter().enumerate().map(|(table, route)| {
            let n = route.len_of(to.server);
            let counts = self.counts_of(table, to).map_or(0, |_| padded_len::<u32>(n));
            8 * TABLE_HEAD + padded_len::<u64>(n) + counts
        });
        8 * HEAD + tables.sum::<usize>()
    }

    /// Writes the request to one server.
    pub(crate) fn encode(&self, routes: &[Route], to: &Destination<'_>, buf: &mut Buf) {
        put_u64(buf, self.step);
        put_u64(buf, if self.test { TEST } else { 0 } | if self.dense { DENSE } else { 0 });
        put_u64(buf, routes.len() as u64);
        for (table, route) in routes.iter().enumerate() {
            let n = route.len_of(to.server) as u64;
            put_u64(buf, table as u64);
            put_u64(buf, n);
            put_u64(buf, self.counts_of(table, to).map_or(0, |_| n));
        }
        for (table, (route, keys)) in routes.iter().zip(self.keys).enumerate() {
            let positions = route.positions(to.server);
            put_rows(buf, keys, 1, positions);
            if let Some(counts) = self.counts_of(table, to) {
                put_rows(buf, counts, 1, positions);
            }
        }
    }
}

/// Keys of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullTable {
    /// Number of the table.
    pub table: u64,
    /// Distinct keys.
    pub keys: Array<u64>,
    /// How often each key appeared in the batch; empty where nobody counts.
    pub counts: Array<u32>,
}

/// A request for values, as the server reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// The worker's step that they are for.
    pub step: u64,
    /// Create nothing and count nothing: the keys are only looked at.
    pub test: bool,
    /// Also this server's part of the dense parameters.
    pub dense: bool,
    /// Keys by table.
    pub tables: Vec<PullTable>,
}

impl Pull {
    pub(super) fn read(r: &mut Reader<'_>) -> Result<Pull, Error> {
        let step = r.u64("step")?;
        let flags = r.u64("flags")?;
        let n = r.count("number of tables", MAX_TABLES)?;
        let mut heads = Vec::with_capacity(n);
        for _ in 0..n {
            let table = r.u64("table")?;
            let keys = r.count("number of keys", MAX_ITEMS)?;
            heads.push((table, keys, r.count("number of counts", MAX_ITEMS)?));
        }
        let table = |(table, keys, counts)| {
            let keys = r.array(keys, "keys")?;
            Ok(PullTable { table, keys, counts: r.array(counts, "counts")? })
        };
        let tables = heads.into_iter().map(table).collect::<Result<_, Error>>()?;
        Ok(Pull { step, test: flags & TEST != 0, dense: flags & DENSE != 0, tables })
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<Pull, Error> {
        let mut r = Reader::new(payload);
        let pull = Pull::read(&mut r)?;
        r.end()?;
        Ok(pull)
    }

    /// Takes the arrays of a request from one form of the wire to the other.
    pub(super) fn transcode(t: &mut Transcoder<'_, '_>) -> Result<(), Error> {
        let head = t.words(HEAD)?;
        for table in t.words(t.n_tables(head[2])? * TABLE_HEAD)?.chunks_exact(TABLE_HEAD) {
            t.keys(table[1])?;
            t.counts(table[2])?;
        }
        Ok(())
    }
}

/// Writes a reply in place: whoever holds the values copies them into its buffer.
pub(crate) struct PullReplyWriter {
    buf: Buf,
}

impl PullReplyWriter {
    /// Bytes of a reply with rows of so many floats, table by table.
    ///
    /// # Errors
    /// If that is more than clients accept.
    pub(crate) fn payload_len(floats: impl Iterator<Item = usize>) -> Result<usize, Error> {
        let array = |n: usize| n.saturating_mul(4).saturating_add(8);
        let total = floats.map(array).fold(0usize, usize::saturating_add);
        if total > MAX_REPLY_BYTES {
            return Err(Error::malformed(format!(
                "the answer would have {total} bytes, more than {MAX_REPLY_BYTES}"
            )));
        }
        Ok(total)
    }

    /// A reply in an empty buffer.
    pub(crate) fn new(buf: Buf) -> PullReplyWriter {
        PullReplyWriter { buf }
    }

    /// Room for the rows of the next table, or for dense parameters.
    pub(crate) fn floats(&mut self, n: usize) -> Result<&mut [f32], Error> {
        pad(&mut self.buf);
        grow_floats(&mut self.buf, n)
    }

    pub(crate) fn finish(mut self) -> Buf {
        pad(&mut self.buf);
        self.buf
    }
}

/// Reads a reply, table by table.
pub(crate) struct PullReply<'a> {
    r: Reader<'a>,
}

impl<'a> PullReply<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> PullReply<'a> {
        PullReply { r: Reader::new(payload) }
    }

    /// Copies the rows of the next table to where their keys were.
    pub(crate) fn rows(
        &mut self,
        route: &Route,
        server: usize,
        dim: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let values: &[f32] = self.r.padded(route.len_of(server) * dim, "pulled values")?;
        let Some(positions) = route.positions(server) else {
            out.copy_from_slice(values);
            return Ok(());
        };
        for (&position, row) in positions.iter().zip(values.chunks_exact(dim)) {
            out[position as usize * dim..][..dim].copy_from_slice(row);
        }
        Ok(())
    }

    /// Copies the server's pieces of the dense parameters.
    pub(crate) fn dense(&mut self, pieces: &[Piece], out: &mut [&mut [f32]]) -> Result<(), Error> {
        for piece in pieces {
            let values = self.r.items(piece.range.len(), "pulled values")?;
            out[piece.param][piece.range.clone()].copy_from_slice(values);
        }
        self.r.skip_padding()
    }

    /// Checks that everything was read.
    pub(crate) fn end(self) -> Result<(), Error> {
        self.r.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::testing::{dense_params, job, keys, room};

    proptest! {
        /// Keys and counts go to the servers that hold them; what these answer comes back in order.
        #[test]
        fn a_pull_and_its_reply_come_back(
            keys in keys(), servers in 1usize..4, test: bool, dense: bool, counted: bool,
        ) {
            let counts: Vec<u32> = keys.iter().map(|k| *k as u32).collect();
            let (tables, pieces) = job(servers, counted);
            let (all_keys, all_counts) = ([&[][..], &keys[..]], [&[][..], &counts[..]]);
            let spec = PullSpec { step: 7, test, dense, keys: &all_keys, counts: &all_counts };
            let routes: Vec<_> = all_keys.iter().map(|k| Route::new(k, servers)).collect();
            let dim = tables[1].dim;
            let mut rows = vec![f32::NAN; keys.len() * dim];
            let mut params = dense_params();
            params.iter_mut().for_each(|p| p.fill(f32::NAN));
            for (server, pieces) in pieces.iter().enumerate() {
                let to = Destination { server, tables: &tables, pieces };
                let mut buf = room(0);
                spec.encode(&routes, &to, &mut buf);
                prop_assert_eq!(buf.len(), spec.payload_len(&routes, &to));
                let pull = Pull::decode(&buf).unwrap();
                prop_assert_eq!((pull.step, pull.test, pull.dense), (7, test, dense));
                let table = pull.tables[1];
                prop_assert_eq!(table.counts.len(), if counted { table.keys.len() } else { 0 });
                let own = table.keys.of(&buf);
                prop_assert!(own.iter().zip(table.counts.of(&buf)).all(|(k, c)| *k as u32 == *c));
                // Every row holds its key, and every dense value its server.
                let n_dense = if dense { to.dense_len() } else { 0 };
                let floats = [0, own.len() * dim, n_dense];
                let len = PullReplyWriter::payload_len(floats.into_iter()).unwrap();
                let mut reply = PullReplyWriter::new(room(len));
                reply.floats(0).unwrap();
                let out = reply.floats(own.len() * dim).unwrap();
                for (row, key) in out.chunks_mut(dim).zip(own) {
                    row.fill(*key as f32);
                }
                if dense {
                    reply.floats(n_dense).unwrap().fill(server as f32);
                }
                let reply = reply.finish();
                prop_assert!(reply.len() <= len);
                let mut reader = PullReply::new(&reply);
                reader.rows(&routes[0], server, tables[0].dim, &mut []).unwrap();
                reader.rows(&routes[1], server, dim, &mut rows).unwrap();
                if dense {
                    let mut out: Vec<&mut [f32]> = params.iter_mut().map(|p| &mut p[..]).collect();
                    reader.dense(pieces, &mut out).unwrap();
                }
                reader.end().unwrap();
            }
            let expected: Vec<f32> = keys.iter().flat_map(|k| vec![*k as f32; dim]).collect();
            prop_assert_eq!(rows, expected);
            prop_assert!(params.iter().flatten().all(|x| x.is_nan() != dense));
        }
    }

    #[test]
    fn a_reply_that_is_too_large_is_refused() {
        let error = PullReplyWriter::payload_len([usize::MAX, 1].into_iter()).unwrap_err();
        assert!(error.to_string().contains("the answer would have"), "{error}");
    }
}
