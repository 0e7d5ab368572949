//! Hints about later batches, for servers that keep rows on disk. Training never waits for them and
//! never fails by them.

use super::Client;
use crate::Error;
use crate::message::{Kind, Prefetch, Wire};

/// Requests that must fit beside a hint: pulls and pushes never wait for room because of hints.
const ROOM: usize = 32;

impl Client {
    /// Batches ahead of training whose keys the servers hear by [`Client::prefetch`].
    pub fn lookahead(&self) -> usize {
        self.config.tables.iter().map(|table| table.lookahead).max().unwrap_or(0)
    }

    /// Tells the servers distinct keys by table that will be pulled soon. A server with many
    /// requests in flight hears nothing. Says how many servers heard.
    ///
    /// # Errors
    /// If a server is gone, or there are more tables than the job has.
    pub fn prefetch(&self, keys: &[&[u64]]) -> Result<usize, Error> {
        let routes = self.routes(keys.iter().copied())?;
        let mut heard = 0;
        for server in 0..self.servers() {
            if !self.connections[server].has_room(ROOM) {
                continue;
            }
            let to = self.destination(server);
            let buf = Prefetch::encode(keys, &routes, &to, |n| self.room(server, n));
            // Its reply is counted by the connection, and read by nobody.
            drop(self.send(Wire::F32, server, Kind::Prefetch, buf)?);
            heard += 1;
        }
        Ok(heard)
    }
}
