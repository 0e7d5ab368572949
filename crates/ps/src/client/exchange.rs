//! Pulls and pushes: keys and gradients go to the servers that hold them, values come back in the
//! order of the keys.

use regatta_net::Pending;

use super::Client;
use crate::Error;
use crate::message::{Gradients, Kind, PullReply, PullSpec, PushPull, SetDense, Wire};
use crate::route::Route;

/// Values in flight.
#[must_use = "the values are in what `finish_pull` writes"]
pub struct PullTicket {
    pending: Vec<Pending>,
    routes: Vec<Route>,
    dense: bool,
    wire: Wire,
}

/// What came of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulled {
    /// The values are there.
    Values,
    /// There are none before this worker has come to the snapshot; see [`Client::ready`].
    Deferred,
}

/// Gradients in flight.
#[must_use = "a push that nobody waits for may be lost"]
pub struct PushTicket {
    pending: Vec<Pending>,
}

impl Client {
    /// Asks for values.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull(&self, spec: &PullSpec<'_>) -> Result<PullTicket, Error> {
        self.pull_by(self.config.wire, spec)
    }

    /// Asks for values as the servers have them, however others travel.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull_exactly(&self, spec: &PullSpec<'_>) -> Result<PullTicket, Error> {
        self.pull_by(Wire::F32, spec)
    }

    fn pull_by(&self, wire: Wire, spec: &PullSpec<'_>) -> Result<PullTicket, Error> {
        let routes = self.routes(spec.keys.iter().copied())?;
        let send = |server: usize| {
            let to = self.destination(server);
            let mut buf = self.room(server, spec.payload_len(&routes, &to));
            spec.encode(&routes, &to, &mut buf);
            self.send(wire, server, Kind::Pull, buf)
        };
        let pending = (0..self.servers()).map(send).collect::<Result<_, _>>()?;
        Ok(PullTicket { pending, routes, dense: spec.dense, wire })
    }

    /// Sends gradients.
    ///
    /// # Errors
    /// If a server is gone, or the gradients do not fit the tables.
    pub fn push(&self, gradients: &Gradients<'_>) -> Result<PushTicket, Error> {
        let routes = self.gradient_routes(gradients)?;
        let pending = self.send_in_order(|sequence, server| {
            let to = self.destination(server);
            let mut buf = self.room(server, gradients.payload_len(&routes, &to));
            gradients.encode(sequence, &routes, &to, &mut buf);
            self.send(self.config.wire, server, Kind::Push, buf)
        })?;
        Ok(PushTicket { pending })
    }

    /// Sends gradients and asks for the values after them, in one exchange per server.
    ///
    /// # Errors
    /// If a server is gone, or the gradients do not fit the tables.
    pub fn push_pull(
        &self,
        gradients: &Gradients<'_>,
        spec: &PullSpec<'_>,
    ) -> Result<PullTicket, Error> {
        let pushed = self.gradient_routes(gradients)?;
        let routes = self.routes(spec.keys.iter().copied())?;
        let wire = self.config.wire;
        let pending = self.send_in_order(|sequence, server| {
            let (push, pull) = ((gradients, pushed.as_slice()), (spec, routes.as_slice()));
            let to = self.destination(server);
            let buf = PushPull::encode(sequence, push, pull, &to, |n| self.room(server, n));
            self.send(wire, server, Kind::PushPull, buf)
        })?;
        Ok(PullTicket { pending, routes, dense: spec.dense, wire })
    }

    /// Sends something that carries a sequence number to every server.
    pub(super) fn send_in_order(
        &self,
        send: impl Fn(u64, usize) -> Result<Pending, Error>,
    ) -> Result<Vec<Pending>, Error> {
        let mut sequence = self.sequence.lock().unwrap_or_else(|e| e.into_inner());
        let pending = (0..self.servers()).map(|server| send(*sequence, server)).collect();
        // Also after a failure: some servers have got it.
        *sequence += 1;
        pending
    }

    /// Where gradients go, if there is a row of them for every key.
    pub(super) fn gradient_routes(&self, gradients: &Gradients<'_>) -> Result<Vec<Route>, Error> {
        for ((keys, grads), table) in gradients.tables.iter().zip(&self.config.tables) {
            if grads.len() != keys.len() * table.dim {
                let (n, len, name) = (keys.len(), grads.len(), &table.name);
                let dim = table.dim;
                return Err(Error::usage(format!(
                    "table '{name}': {len} floats for {n} keys of {dim}"
                )));
            }
        }
        self.routes(gradients.tables.iter().map(|t| t.0))
    }

    /// Waits for values: rows of each table in the order of its keys, dense parameters in order.
    /// Where a snapshot is open, there are none, and what was written is to be ignored.
    ///
    /// # Errors
    /// If a server is gone, refuses, or answers something else.
    pub fn finish_pull(
        &self,
        ticket: PullTicket,
        rows: &mut [&mut [f32]],
        dense: &mut [&mut [f32]],
    ) -> Result<Pulled, Error> {
        let mut pulled = Pulled::Values;
        for (server, pending) in ticket.pending.into_iter().enumerate() {
            let (payload, deferred) = self.payload_and_snapshot(server, pending)?;
            if deferred {
                pulled = Pulled::Deferred;
                continue;
            }
            let payload = ticket.wire.unpack_answer(payload, |n| self.room(server, n))?;
            let mut reply = PullReply::new(&payload);
            let tables = ticket.routes.iter().zip(&self.config.tables);
            for ((route, table), rows) in tables.zip(rows.iter_mut()) {
                reply.rows(route, server, table.dim, rows)?;
            }
            if ticket.dense {
                reply.dense(&self.config.pieces[server], dense)?;
            }
            reply.end()?;
        }
        Ok(pulled)
    }

    /// Waits until gradients are applied.
    ///
    /// # Errors
    /// If a server is gone or refuses.
    pub fn finish_push(&self, ticket: PushTicket) -> Result<(), Error> {
        for (server, pending) in ticket.pending.into_iter().enumerate() {
            self.payload(server, pending)?;
        }
        Ok(())
    }

    /// Gives the servers the initial values of the dense parameters.
    ///
    /// # Errors
    /// If a server is gone or refuses.
    pub fn set_dense(&self, values: &[&[f32]]) -> Result<(), Error> {
        let send = |server: usize| {
            let to = self.destination(server);
            let buf = SetDense::encode(values, &to, |n| self.room(server, n));
            self.send(Wire::F32, server, Kind::SetDense, buf)
        };
        let pending = (0..self.servers()).map(send).collect::<Result<_, _>>()?;
        self.finish_push(PushTicket { pending })
    }

    /// Where the keys of each table go.
    pub(super) fn routes<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u64]>,
    ) -> Result<Vec<Route>, Error> {
        let routes: Vec<Route> = keys.map(|keys| Route::new(keys, self.servers())).collect();
        if routes.len() > self.config.tables.len() {
            let (n, tables) = (routes.len(), self.config.tables.len());
            return Err(Error::usage(format!("keys of {n} tables, but there are {tables}")));
        }
        Ok(routes)
    }
}
