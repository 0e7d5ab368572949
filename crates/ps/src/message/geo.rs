//! Differences out, changed values back.

use super::{Head, MAX_ITEMS, MAX_TABLES, PushTable, Reader};
use crate::Error;

/// What a worker's copy has changed by since its last exchange, to be added on the servers.
#[derive(Debug, Clone, PartialEq)]
pub struct Geo<'a> {
    /// As [`super::Push::sequence`].
    pub sequence: u64,
    /// Differences of this server's part of the dense parameters.
    pub dense: &'a [f32],
    /// Differences of rows by table.
    pub tables: Vec<PushTable<'a>>,
}

impl<'a> Geo<'a> {
    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &'a [u8]) -> Result<Geo<'a>, Error> {
        let push = super::Push::decode(bytes)?;
        Ok(Geo { sequence: push.sequence, dense: push.dense, tables: push.tables })
    }
}

/// The rows that others (or this worker) have changed since this worker's last exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct GeoReply<'a> {
    /// Values of this server's part of the dense parameters.
    pub dense: &'a [f32],
    /// Changed rows by table: ids and values.
    pub tables: Vec<(&'a [u64], &'a [f32])>,
}

impl<'a> GeoReply<'a> {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut head = Head::default().u64(self.dense.len() as u64).u64(self.tables.len() as u64);
        for (keys, values) in &self.tables {
            head = head.u64(keys.len() as u64).u64(values.len() as u64);
        }
        let mut payload = head.into_bytes();
        let mut push = |bytes: &[u8]| {
            payload.extend_from_slice(bytes);
            payload.resize(payload.len().next_multiple_of(8), 0);
        };
        push(bytemuck::cast_slice(self.dense));
        for (keys, values) in &self.tables {
            push(bytemuck::cast_slice(keys));
            push(bytemuck::cast_slice(values));
        }
        payload
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &'a [u8]) -> Result<GeoReply<'a>, Error> {
        let mut r = Reader::new(bytes);
        let n_dense = r.count("dense floats", MAX_ITEMS)?;
        let n = r.count("number of tables", MAX_TABLES)?;
        let mut heads = Vec::with_capacity(n);
        for _ in 0..n {
            let keys = r.count("number of keys", MAX_ITEMS)?;
            heads.push((keys, r.count("number of floats", MAX_ITEMS)?));
        }
        let dense = r.f32s(n_dense, "dense values")?;
        let tables = heads
            .into_iter()
            .map(|(k, v)| Ok((r.u64s(k, "keys")?, r.f32s(v, "values")?)))
            .collect::<Result<_, Error>>()?;
        r.end()?;
        Ok(GeoReply { dense, tables })
    }
}
