//! Exchanges of a worker that trains its own copy: differences go out, changed values come back.

use regatta_net::{Buf, Pending};

use super::{Client, ClientTable};
use crate::Error;
use crate::message::{Geo, GeoReply, Gradients, Kind, Wire};
use crate::shards::Mark;

/// Differences in flight, changed values to come back.
#[must_use = "differences that nobody waits for may be lost"]
pub struct GeoTicket {
    pending: Vec<Option<Pending>>,
    replies: Vec<Option<Buf>>,
    /// A server wants this worker to come to a snapshot.
    snapshot: bool,
}

impl GeoTicket {
    /// Whether a server that has answered wants this worker to come to a snapshot.
    pub fn wants_snapshot(&self) -> bool {
        self.snapshot
    }
}

impl Client {
    /// Sends differences, with how far the data are trained (see [`Gradients::mark`]);
    /// [`Client::try_geo`] and [`Client::finish_geo`] take the answer.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn geo(
        &self,
        dense: &[&[f32]],
        tables: &[(&[u64], &[f32])],
        mark: Option<(&Mark, &[bool])>,
    ) -> Result<GeoTicket, Error> {
        let differences = Gradients { step: 0, examples: 0, dense, tables, mark };
        let routes = self.gradient_routes(&differences)?;
        let pending = self.send_in_order(|sequence, server| {
            let to = self.destination(server);
            let room = |n| self.room(server, n);
            let buf = Geo::encode(sequence, (&differences, &routes), &to, room);
            self.send(Wire::F32, server, Kind::Geo, buf)
        })?;
        let pending: Vec<_> = pending.into_iter().map(Some).collect();
        let replies = (0..pending.len()).map(|_| None).collect();
        Ok(GeoTicket { pending, replies, snapshot: false })
    }

    /// Whether all servers have answered; never waits.
    ///
    /// # Errors
    /// If a server is gone or refuses.
    pub fn try_geo(&self, ticket: &mut GeoTicket) -> Result<bool, Error> {
        for server in 0..ticket.pending.len() {
            let Some(pending) = &mut ticket.pending[server] else { continue };
            if let Some(reply) = pending.try_take() {
                let (payload, snapshot) = self.checked(server, reply?)?;
                ticket.replies[server] = Some(payload);
                ticket.pending[server] = None;
                ticket.snapshot |= snapshot;
            }
        }
        Ok(ticket.pending.iter().all(Option::is_none))
    }

    /// Waits for all servers and hands their answers to `apply(table, keys, rows)` and the dense
    /// values to `dense(parameter, first element, values)`. Returns whether a server wants this
    /// worker to come to a snapshot.
    ///
    /// # Errors
    /// If a server is gone, refuses, or answers something else.
    pub fn finish_geo(
        &self,
        ticket: GeoTicket,
        mut apply: impl FnMut(usize, &[u64], &[f32]),
        mut dense: impl FnMut(usize, usize, &[f32]),
    ) -> Result<bool, Error> {
        let mut snapshot = ticket.snapshot;
        for (server, (pending, reply)) in ticket.pending.into_iter().zip(ticket.replies).enumerate()
        {
            let payload = match (reply, pending) {
                (Some(payload), _) => payload,
                (None, Some(pending)) => {
                    let (payload, wanted) = self.payload_and_snapshot(server, pending)?;
                    snapshot |= wanted;
                    payload
                }
                (None, None) => continue,
            };
            let reply = GeoReply::decode(&payload)?;
            let fits = |((keys, values), table): (&(&[u64], &[f32]), &ClientTable)| {
                values.len() == keys.len() * table.dim
            };
            let tables = &self.config.tables;
            if reply.tables.len() != tables.len() || !reply.tables.iter().zip(tables).all(fits) {
                return Err(Error::malformed(format!("server {server} sent other tables")));
            }
            for (table, (keys, values)) in reply.tables.iter().enumerate() {
                apply(table, keys, values);
            }
            let mut at = 0;
            for piece in &self.config.pieces[server] {
                let n = piece.range.len();
                let values = reply.dense.get(at..at + n).ok_or_else(|| {
                    Error::malformed(format!("server {server} sent too few dense values"))
                })?;
                dense(piece.param, piece.range.start, values);
                at += n;
            }
        }
        Ok(snapshot)
    }
}
