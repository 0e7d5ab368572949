//! Prefetch: keys by table that a worker will pull soon. A server with rows on disk begins to read
//! them; the reply has no content, and nobody waits for it.
//!
//! Request: number of tables; per table its number and keys; then the keys of each table. Tables
//! whose rows are all in memory are left out.

use regatta_net::Buf;

use super::bytes::{Array, MAX_ITEMS, MAX_TABLES, Reader, padded_len, put_rows, put_u64};
use crate::Error;
use crate::route::{Destination, Route};

/// Words per table.
const TABLE_HEAD: usize = 2;

/// Keys that will be pulled soon, as the server reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefetch {
    /// Number of a table, and distinct keys of it.
    pub tables: Vec<(u64, Array<u64>)>,
}

impl Prefetch {
    /// Writes the request to one server; `keys` and `routes` are by table.
    pub(crate) fn encode(
        keys: &[&[u64]],
        routes: &[Route],
        to: &Destination<'_>,
        room: impl FnOnce(usize) -> Buf,
    ) -> Buf {
        let on_disk = |table: &usize| to.tables[*table].lookahead > 0;
        let tables: Vec<usize> = (0..routes.len()).filter(on_disk).collect();
        let len = |table: &usize| routes[*table].len_of(to.server);
        let keys_len: usize = tables.iter().map(|t| padded_len::<u64>(len(t))).sum();
        let mut buf = room(8 * (1 + TABLE_HEAD * tables.len()) + keys_len);
        put_u64(&mut buf, tables.len() as u64);
        for table in &tables {
            put_u64(&mut buf, *table as u64);
            put_u64(&mut buf, len(table) as u64);
        }
        for &table in &tables {
            put_rows(&mut buf, keys[table], 1, routes[table].positions(to.server));
        }
        buf
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<Prefetch, Error> {
        let mut r = Reader::new(payload);
        let n = r.count("number of tables", MAX_TABLES)?;
        let head =
            |r: &mut Reader<'_>| Ok((r.u64("table")?, r.count("number of keys", MAX_ITEMS)?));
        let heads = (0..n).map(|_| head(&mut r)).collect::<Result<Vec<_>, Error>>()?;
        let table = |(table, n)| Ok((table, r.array(n, "keys")?));
        let tables = heads.into_iter().map(table).collect::<Result<_, Error>>()?;
        r.end()?;
        Ok(Prefetch { tables })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::testing::{job, keys, room};

    proptest! {
        #[test]
        fn keys_of_tables_on_disk_come_to_their_servers(
            servers in 1usize..4, a in keys(), b in keys(),
        ) {
            let (mut tables, pieces) = job(servers, false);
            tables[1].lookahead = 8;
            let all = [&a[..], &b[..]];
            let routes: Vec<Route> = all.iter().map(|keys| Route::new(keys, servers)).collect();
            let mut came = Vec::new();
            for (server, pieces) in pieces.iter().enumerate() {
                let to = Destination { server, tables: &tables, pieces };
                let buf = Prefetch::encode(&all, &routes, &to, room);
                let request = Prefetch::decode(&buf).unwrap();
                prop_assert_eq!(request.tables.len(), 1);
                prop_assert_eq!(request.tables[0].0, 1);
                came.extend_from_slice(request.tables[0].1.of(&buf));
            }
            came.sort_unstable();
            prop_assert_eq!(came, b);
        }

        #[test]
        fn garbage_is_refused_or_read(bytes in prop::collection::vec(0u8..3, 0..90)) {
            let _ = Prefetch::decode(&bytes);
        }
    }
}
