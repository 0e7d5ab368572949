//! Whole rows with their optimizer state, for a worker that updates them itself.
//!
//! Lease: table, number of keys, number of counts (none or as many); the keys, the counts. Reply:
//! number of keys that are no rows; the floats of a row for each key, the positions of those keys.
//! Return: table, number of keys, floats of a row; the keys, the floats. The reply has no content.

use regatta_net::Buf;

use super::bytes::{Array, MAX_ITEMS, Reader, padded_len, put_array, put_rows, put_u64};
use crate::Error;
use crate::route::Route;

/// Rows that a worker wants to update itself, as the server reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRows {
    /// Number of the table.
    pub table: u64,
    /// Distinct keys.
    pub keys: Array<u64>,
    /// How often each appeared, if servers admit keys by that.
    pub counts: Array<u32>,
}

/// Rows that a worker has updated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReturnRows {
    /// Number of the table.
    pub table: u64,
    /// Distinct keys.
    pub keys: Array<u64>,
    /// The floats of a row for each key.
    pub rows: Array<f32>,
}

impl LeaseRows {
    /// Writes the request to one server.
    pub(crate) fn encode(
        table: usize,
        (keys, counts): (&[u64], &[u32]),
        (route, server): (&Route, usize),
        room: impl FnOnce(usize) -> Buf,
    ) -> Buf {
        let n = route.len_of(server);
        let n_counts = if counts.is_empty() { 0 } else { n };
        let mut buf = room(24 + padded_len::<u64>(n) + padded_len::<u32>(n_counts));
        put_u64(&mut buf, table as u64);
        put_u64(&mut buf, n as u64);
        put_u64(&mut buf, n_counts as u64);
        put_rows(&mut buf, keys, 1, route.positions(server));
        if n_counts > 0 {
            put_rows(&mut buf, counts, 1, route.positions(server));
        }
        buf
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<LeaseRows, Error> {
        let mut r = Reader::new(payload);
        let table = r.u64("table")?;
        let n = r.count("number of keys", MAX_ITEMS)?;
        let n_counts = r.count("number of counts", MAX_ITEMS)?;
        if n_counts != 0 && n_counts != n {
            return Err(Error::malformed(format!("{n_counts} counts of {n} keys")));
        }
        let keys = r.array(n, "keys")?;
        let counts = r.array(n_counts, "counts")?;
        r.end()?;
        Ok(LeaseRows { table, keys, counts })
    }

    /// Writes the reply.
    pub(crate) fn reply(rows: &[f32], absent: &[u32], room: impl FnOnce(usize) -> Buf) -> Buf {
        let (rows_len, absent_len) =
            (padded_len::<f32>(rows.len()), padded_len::<u32>(absent.len()));
        let mut buf = room(8 + rows_len + absent_len);
        put_u64(&mut buf, absent.len() as u64);
        put_array(&mut buf, rows);
        put_array(&mut buf, absent);
        buf
    }

    /// Reads a reply: `floats` of it, and the positions of keys that are no rows.
    pub(crate) fn read_reply(payload: &[u8], floats: usize) -> Result<(&[f32], &[u32]), Error> {
        let mut r = Reader::new(payload);
        let n = r.count("number of absent keys", MAX_ITEMS)?;
        let rows = r.padded(floats, "rows")?;
        let absent = r.padded(n, "absent keys")?;
        r.end()?;
        Ok((rows, absent))
    }
}

impl ReturnRows {
    /// Writes the request to one server.
    pub(crate) fn encode(
        table: usize,
        keys: &[u64],
        (rows, width): (&[f32], usize),
        (route, server): (&Route, usize),
        room: impl FnOnce(usize) -> Buf,
    ) -> Buf {
        let n = route.len_of(server);
        let mut buf = room(24 + padded_len::<u64>(n) + padded_len::<f32>(n * width));
        put_u64(&mut buf, table as u64);
        put_u64(&mut buf, n as u64);
        put_u64(&mut buf, width as u64);
        put_rows(&mut buf, keys, 1, route.positions(server));
        put_rows(&mut buf, rows, width, route.positions(server));
        buf
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<ReturnRows, Error> {
        let mut r = Reader::new(payload);
        let table = r.u64("table")?;
        let n = r.count("number of keys", MAX_ITEMS)?;
        let width = r.count("floats of a row", MAX_ITEMS)?;
        let keys = r.array(n, "keys")?;
        let rows = r.array(n.saturating_mul(width), "rows")?;
        r.end()?;
        Ok(ReturnRows { table, keys, rows })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::testing::{keys, room};

    proptest! {
        #[test]
        fn rows_come_to_their_servers(servers in 1usize..4, keys in keys()) {
            let route = Route::new(&keys, servers);
            let rows: Vec<f32> = keys.iter().flat_map(|&k| [k as f32, 1.0, -2.0]).collect();
            let counts: Vec<u32> = keys.iter().map(|&k| k as u32).collect();
            let mut came = Vec::new();
            for server in 0..servers {
                let buf = LeaseRows::encode(7, (&keys, &counts), (&route, server), room);
                let lease = LeaseRows::decode(&buf).unwrap();
                let wanted = lease.keys.of(&buf).to_vec();
                let counted: Vec<u32> = wanted.iter().map(|key| *key as u32).collect();
                prop_assert_eq!(lease.counts.of(&buf), &counted[..]);
                let buf = LeaseRows::encode(7, (&keys, &[]), (&route, server), room);
                let lease = LeaseRows::decode(&buf).unwrap();
                prop_assert_eq!((lease.keys.of(&buf), lease.counts.len()), (&wanted[..], 0));
                let buf = LeaseRows::reply(&rows, &counted, room);
                let reply = LeaseRows::read_reply(&buf, rows.len()).unwrap();
                prop_assert_eq!(reply, (&*rows, &*counted));
                let buf = ReturnRows::encode(7, &keys, (&rows, 3), (&route, server), room);
                let given = ReturnRows::decode(&buf).unwrap();
                prop_assert_eq!((lease.table, given.table), (7, 7));
                prop_assert_eq!(given.keys.of(&buf), &wanted[..]);
                for (key, row) in wanted.iter().zip(given.rows.of(&buf).chunks(3)) {
                    prop_assert_eq!(row, &[*key as f32, 1.0, -2.0]);
                }
                came.extend(wanted);
            }
            came.sort_unstable();
            prop_assert_eq!(came, keys);
        }

        #[test]
        fn garbage_is_refused_or_read(bytes in prop::collection::vec(0u8..3, 0..90)) {
            let _ = (LeaseRows::decode(&bytes), ReturnRows::decode(&bytes));
        }
    }
}
