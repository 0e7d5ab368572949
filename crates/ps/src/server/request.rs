//! A request is parsed once, into a value, and handed to whoever answers it.

use regatta_net::{Buf, Responder};

use super::core::Core;
use crate::Error;
use crate::message::reply::{refuse, refuse_for};
use crate::message::{Control, Gather, Geo, Kind, Prefetch, Pull, Push, PushPull, SetDense, Wire};
use crate::message::{DenseState, LeaseRows, ReturnRows};

/// What a client wants. Arrays are positions in the payload.
pub(super) enum Request {
    Pull(Pull),
    Push(Push),
    PushPull(PushPull),
    Geo(Geo),
    SetDense(SetDense),
    Gather(Gather),
    Prefetch(Prefetch),
    LeaseRows(LeaseRows),
    ReturnRows(ReturnRows),
    LeaseDense,
    ReturnDense(DenseState),
    Control(Control),
}

/// A pull, a push, or both, which has not been answered.
pub(super) struct Exchange {
    pub(super) push: Option<Push>,
    pub(super) pull: Option<Pull>,
    pub(super) payload: Buf,
    /// How its reply travels.
    pub(super) wire: Wire,
    /// Its number within the session of the client; the same when it comes again.
    pub(super) id: u64,
    pub(super) responder: Responder,
}

impl Request {
    fn parse(kind: Kind, payload: &[u8]) -> Result<Request, Error> {
        Ok(match kind {
            Kind::Pull => Request::Pull(Pull::decode(payload)?),
            Kind::Push => Request::Push(Push::decode(payload)?),
            Kind::PushPull => Request::PushPull(PushPull::decode(payload)?),
            Kind::Geo => Request::Geo(Geo::decode(payload)?),
            Kind::SetDense => Request::SetDense(SetDense::decode(payload)?),
            Kind::Gather => Request::Gather(Gather::decode(payload)?),
            Kind::Prefetch => Request::Prefetch(Prefetch::decode(payload)?),
            Kind::LeaseRows => Request::LeaseRows(LeaseRows::decode(payload)?),
            Kind::ReturnRows => Request::ReturnRows(ReturnRows::decode(payload)?),
            Kind::LeaseDense => Request::LeaseDense,
            Kind::ReturnDense => Request::ReturnDense(DenseState::decode(payload)?),
            Kind::Control => Request::Control(Control::decode(payload)?),
        })
    }
}

impl Core {
    /// Handles one request. Requests of one client come one at a time and in order.
    pub(super) fn handle(&self, kind: u16, id: u64, payload: Buf, responder: Responder) {
        let parsed = Wire::of(kind).and_then(|(wire, kind)| {
            let payload = wire.unpack(kind, payload, |n| responder.buffer(n))?;
            Ok((Request::parse(kind, &payload)?, wire, payload))
        });
        let (request, wire, payload) = match parsed {
            Ok(parsed) => parsed,
            // Who takes no part is told so, whatever it sent.
            Err(e) => return self.for_worker(responder, |_, r| refuse(r, &e.to_string())),
        };
        let worker = match &request {
            // It may say so again if it did not hear the answer.
            Request::Control(Control::Leave) if self.has_left(responder.peer()) => None,
            request => match self.permit(responder.peer(), request.rule()) {
                Ok(worker) => worker,
                Err(e) => return refuse_for(responder, &e),
            },
        };
        let exchange = |push, pull, payload, responder| {
            let exchange = Exchange { push, pull, payload, wire, id, responder };
            self.exchange(worker, exchange);
        };
        match request {
            Request::Pull(pull) => exchange(None, Some(pull), payload, responder),
            Request::Push(push) => exchange(Some(push), None, payload, responder),
            Request::PushPull(PushPull { push, pull }) => {
                exchange(Some(push), Some(pull), payload, responder);
            }
            Request::Geo(geo) => self.for_worker(responder, |worker, responder| {
                self.geo(worker, &geo, &payload, responder);
            }),
            Request::SetDense(set) => self.for_worker(responder, |_, responder| {
                self.set_dense(set.values.of(&payload), responder);
            }),
            Request::Gather(gather) => self.for_worker(responder, |worker, responder| {
                self.gather(worker, gather, &payload, responder);
            }),
            Request::Prefetch(hint) => self.prefetch(hint, payload, responder),
            Request::LeaseRows(lease) => self.lease_rows(lease, &payload, responder),
            Request::ReturnRows(rows) => self.return_rows(rows, &payload, responder),
            Request::LeaseDense => self.lease_dense(responder),
            Request::ReturnDense(state) => self.return_dense(&state, responder),
            Request::Control(control) => self.control(worker, control, id, responder),
        }
    }

    /// Passes on the number of the worker that asks; nobody else may.
    fn for_worker(&self, responder: Responder, then: impl FnOnce(usize, Responder)) {
        match self.worker(responder.peer()) {
            Ok(worker) => then(worker, responder),
            Err(e) => refuse_for(responder, &e),
        }
    }

    /// A push or pull of a worker; a tool only looks at values.
    fn exchange(&self, worker: Option<usize>, exchange: Exchange) {
        match worker {
            Some(worker) if exchange.push.is_some() => self.push(worker, exchange),
            Some(_) => self.pull(exchange),
            None => self.answer(exchange),
        }
    }
}

impl Exchange {
    /// The step whose values it asks for, if it asks for values to train with.
    pub(super) fn training_step(&self) -> Option<u64> {
        self.pull.as_ref().filter(|pull| !pull.test).map(|pull| pull.step)
    }

    /// Whether this is a push that asks for dense parameters and no rows. As these are only looked
    /// at, a snapshot does not hold them back.
    pub(super) fn wants_dense_alone(&self) -> bool {
        let alone = |p: &Pull| p.dense && p.test && p.tables.iter().all(|t| t.keys.is_empty());
        self.push.is_some() && self.pull.as_ref().is_some_and(alone)
    }
}
