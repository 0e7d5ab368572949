//! Push: gradients of a step go to the servers; the reply has no content.
//!
//! Request: sequence, step, examples, dense floats, number of tables, words of the mark; per table
//! its number, keys and floats; the mark; then dense gradients, and keys and gradients of each
//! table. The mark: whether the server has applied this push already, shard, batches, examples,
//! examples counted, sum of their losses; per file its number, records, line, and whether it is
//! done.

use regatta_net::Buf;

use super::bytes::{
    Array, MAX_ITEMS, MAX_TABLES, Reader, padded_len, put_pieces, put_rows, put_u64,
};
use super::wire::Transcoder;
use crate::Error;
use crate::route::{Destination, Route};
use crate::shards::{FileProgress, Mark};

/// Words of a head, and per table.
const HEAD: usize = 6;
const TABLE_HEAD: usize = 3;
const MARK_HEAD: usize = 6;
const MARK_FILE: usize = 4;
/// More files than that cannot be in one push.
const MAX_MARK: u64 = 1 << 20;

/// What is pushed: dense gradients by parameter, and keys with rows of gradients by table.
#[derive(Debug, Clone, Copy)]
pub struct Gradients<'a> {
    /// The worker's step.
    pub step: u64,
    /// Examples behind them.
    pub examples: u64,
    /// By parameter; empty if there are no dense ones.
    pub dense: &'a [&'a [f32]],
    /// By table: distinct keys and a row per key.
    pub tables: &'a [(&'a [u64], &'a [f32])],
    /// How far the data are trained with it, and which servers have applied it already, by their
    /// number: they do not do so again.
    pub mark: Option<(&'a Mark, &'a [bool])>,
}

impl Gradients<'_> {
    fn n_dense(&self, to: &Destination<'_>) -> usize {
        if self.dense.is_empty() { 0 } else { to.dense_len() }
    }

    /// Bytes of the request to one server.
    pub(crate) fn payload_len(&self, routes: &[Route], to: &Destination<'_>) -> usize {
        let tables = routes.iter().zip(to.tables).map(|(route, table)| {
            let n = route.len_of(to.server);
            8 * TABLE_HEAD + padded_len::<u64>(n) + padded_len::<f32>(n * table.dim)
        });
        let words = HEAD + self.mark.map_or(0, |(mark, _)| mark_len(mark));
        8 * words + padded_len::<f32>(self.n_dense(to)) + tables.sum::<usize>()
    }

    /// Writes the request to one server.
    pub(crate) fn encode(
        &self,
        sequence: u64,
        routes: &[Route],
        to: &Destination<'_>,
        buf: &mut Buf,
    ) {
        let n_dense = self.n_dense(to);
        let n_mark = self.mark.map_or(0, |(mark, _)| mark_len(mark));
        let counts = [n_dense, routes.len(), n_mark].map(|n| n as u64);
        let head = [sequence, self.step, self.examples].into_iter().chain(counts);
        head.for_each(|word| put_u64(buf, word));
        for (number, (route, table)) in routes.iter().zip(to.tables).enumerate() {
            let n = route.len_of(to.server);
            put_u64(buf, number as u64);
            put_u64(buf, n as u64);
            put_u64(buf, (n * table.dim) as u64);
        }
        if let Some((mark, applied)) = self.mark {
            put_mark(buf, mark, applied.get(to.server).copied().unwrap_or(false));
        }
        if n_dense > 0 {
            put_pieces(buf, self.dense, to.pieces);
        }
        for ((route, table), (keys, grads)) in routes.iter().zip(to.tables).zip(self.tables) {
            let positions = route.positions(to.server);
            put_rows(buf, keys, 1, positions);
            put_rows(buf, grads, table.dim, positions);
        }
    }
}

/// Gradients of rows of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushTable {
    /// Number of the table.
    pub table: u64,
    /// Distinct keys.
    pub keys: Array<u64>,
    /// A row of floats per key.
    pub grads: Array<f32>,
}

/// Gradients of a step, as the server reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Push {
    /// Counts this worker's pushes to this server from 1; each is applied once, however often it
    /// arrives.
    pub sequence: u64,
    /// The worker's step.
    pub step: u64,
    /// Examples behind the gradients, the weight of this worker in a synchronous step.
    pub examples: u64,
    /// This server's part of the dense gradients; empty if there is none.
    pub dense: Array<f32>,
    /// Gradients by table.
    pub tables: Vec<PushTable>,
    /// How far the data are trained with it.
    pub mark: Option<Mark>,
    /// This server has applied it before, from another worker.
    pub is_applied: bool,
}

impl Push {
    /// The gradients of one table, if there are any.
    pub fn table(&self, number: usize) -> Option<PushTable> {
        self.tables.iter().find(|t| t.table as usize == number).copied()
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Push, Error> {
        let sequence = r.u64("sequence")?;
        if sequence == 0 {
            return Err(Error::malformed("push 0, but they count from 1"));
        }
        let step = r.u64("step")?;
        let examples = r.u64("examples")?;
        let n_dense = r.count("dense floats", MAX_ITEMS)?;
        let n = r.count("number of tables", MAX_TABLES)?;
        let n_mark = r.count("words of the mark", MAX_MARK)?;
        let mut heads = Vec::with_capacity(n);
        for _ in 0..n {
            let table = r.u64("table")?;
            let keys = r.count("number of keys", MAX_ITEMS)?;
            heads.push((table, keys, r.count("number of floats", MAX_ITEMS)?));
        }
        let (mark, is_applied) = read_mark(r, n_mark)?;
        let dense = r.array(n_dense, "dense gradients")?;
        let table = |(table, keys, grads)| {
            let keys = r.array(keys, "keys")?;
            Ok(PushTable { table, keys, grads: r.array(grads, "gradients")? })
        };
        let tables = heads.into_iter().map(table).collect::<Result<_, Error>>()?;
        Ok(Push { sequence, step, examples, dense, tables, mark, is_applied })
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<Push, Error> {
        let mut r = Reader::new(payload);
        let push = Push::read(&mut r)?;
        r.end()?;
        Ok(push)
    }

    /// Takes the arrays of a request from one form of the wire to the other.
    pub(super) fn transcode(t: &mut Transcoder<'_, '_>) -> Result<(), Error> {
        let head = t.words(HEAD)?;
        let tables = t.words(t.n_tables(head[4])? * TABLE_HEAD)?;
        t.words(head[5].min(MAX_MARK) as usize)?;
        t.floats(head[3])?;
        for table in tables.chunks_exact(TABLE_HEAD) {
            t.keys(table[1])?;
            t.floats(table[2])?;
        }
        Ok(())
    }
}

fn mark_len(mark: &Mark) -> usize {
    MARK_HEAD + MARK_FILE * mark.files.len()
}

fn put_mark(buf: &mut Buf, mark: &Mark, is_applied: bool) {
    let Mark { shard, batches, examples, counted, loss_sum, files } = mark;
    let head = [u64::from(is_applied), *shard, *batches, *examples, *counted, *loss_sum];
    head.into_iter().for_each(|word| put_u64(buf, word));
    for (file, at) in files {
        let words = [*file, at.records, at.line, u64::from(at.done)];
        words.into_iter().for_each(|word| put_u64(buf, word));
    }
}

fn read_mark(r: &mut Reader<'_>, words: usize) -> Result<(Option<Mark>, bool), Error> {
    if words == 0 {
        return Ok((None, false));
    }
    if words < MARK_HEAD || !(words - MARK_HEAD).is_multiple_of(MARK_FILE) {
        return Err(Error::malformed(format!("a mark of {words} words")));
    }
    let is_applied = r.u64("mark")? != 0;
    let (shard, batches, examples) = (r.u64("shard")?, r.u64("batches")?, r.u64("examples")?);
    let (counted, loss_sum) = (r.u64("counted")?, r.u64("losses")?);
    let mut mark = Mark { shard, batches, examples, counted, loss_sum, ..Mark::default() };
    for _ in 0..(words - MARK_HEAD) / MARK_FILE {
        let (file, records, line) = (r.u64("file")?, r.u64("records")?, r.u64("line")?);
        let done = r.u64("end of a file")? != 0;
        mark.files.insert(file, FileProgress { records, line, done });
    }
    Ok((Some(mark), is_applied))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::testing::{dense_params, job, keys, room};

    proptest! {
        #[test]
        fn every_gradient_arrives_at_the_server_of_its_key(
            keys in keys(), servers in 1usize..4, has_dense: bool, has_mark: bool,
            sequence in 1u64..9,
        ) {
            let (tables, pieces) = job(servers, false);
            let dim = tables[1].dim;
            let grads: Vec<f32> = keys.iter().flat_map(|k| vec![*k as f32; dim]).collect();
            let params = dense_params();
            let dense: Vec<&[f32]> = params.iter().map(Vec::as_slice).collect();
            let dense = if has_dense { &dense[..] } else { &[] };
            let rows: [(&[u64], &[f32]); 2] = [(&[], &[]), (&keys, &grads)];
            let file = FileProgress { records: 8, line: 9, done: has_dense };
            let files = [(3, file), (servers as u64, file)].into_iter().collect();
            let mark = Mark { shard: 1, batches: 4, examples: 5, counted: 7, loss_sum: 6, files };
            let applied = [true];
            let marked = has_mark.then_some((&mark, &applied[..]));
            let gradients = Gradients { step: 5, examples: 3, dense, tables: &rows, mark: marked };
            let routes: Vec<_> = rows.iter().map(|(k, _)| Route::new(k, servers)).collect();
            let mut arrived = 0;
            for (server, pieces) in pieces.iter().enumerate() {
                let to = Destination { server, tables: &tables, pieces };
                let mut buf = room(0);
                gradients.encode(sequence, &routes, &to, &mut buf);
                prop_assert_eq!(buf.len(), gradients.payload_len(&routes, &to));
                let push = Push::decode(&buf).unwrap();
                prop_assert_eq!((push.sequence, push.step, push.examples), (sequence, 5, 3));
                prop_assert_eq!(push.mark.as_ref(), has_mark.then_some(&mark));
                prop_assert_eq!(push.is_applied, has_mark && server == 0);
                let sent = pieces.iter().flat_map(|p| &params[p.param][p.range.clone()]);
                let sent: Vec<f32> = sent.copied().filter(|_| has_dense).collect();
                prop_assert_eq!(push.dense.of(&buf), sent);
                let table = push.table(1).unwrap();
                let (keys, grads) = (table.keys.of(&buf), table.grads.of(&buf));
                for (key, row) in keys.iter().zip(grads.chunks(dim)) {
                    prop_assert!(row.iter().all(|g| *g == *key as f32));
                }
                prop_assert_eq!(grads.len(), keys.len() * dim);
                arrived += keys.len();
            }
            prop_assert_eq!(arrived, keys.len());
        }
    }
}
