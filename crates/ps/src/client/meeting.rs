//! Where all workers come together: reductions, gathers, barriers, and the begin and end of a data
//! pass.

use std::sync::atomic::Ordering;

use super::Client;
use crate::Error;
use crate::message::control::RESUME;
use crate::message::{
    Control, ControlReply, Gather, GatherReply, Kind, MAX_GATHER_BYTES, ReduceOp,
};
use crate::shards::DataStart;

impl Client {
    /// Combines values of all workers on server 0; every worker must call it, in the same order.
    ///
    /// # Errors
    /// If the server is gone, a worker was lost, or the values differ in number.
    pub fn reduce(&self, what: &str, op: ReduceOp, values: &[f64]) -> Result<Vec<f64>, Error> {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let what = what.to_string();
        let request = Control::Reduce { round, what, op, values: values.to_vec() };
        match self.control(0, &request)? {
            ControlReply::Values(values) => Ok(values),
            other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
        }
    }

    /// Brings bytes of every worker together on server 0 and gives all of them to everybody, by
    /// worker; a worker that has left or was lost has none. Every worker must call it, in the same
    /// order as [`Client::reduce`] and other gathers.
    ///
    /// # Errors
    /// If there are more than [`MAX_GATHER_BYTES`] of this worker or
    /// [`MAX_GATHER_REPLY_BYTES`](crate::message::MAX_GATHER_REPLY_BYTES) of all of them, the
    /// server is gone, a worker was lost, or workers gather different things.
    pub fn gather(&self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if bytes.len() > MAX_GATHER_BYTES {
            return Err(Error::usage(format!(
                "'{name}': {} bytes of worker {} to gather, more than {MAX_GATHER_BYTES}",
                bytes.len(),
                self.config.worker
            )));
        }
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let payload = Gather::encode(round, name, bytes);
        let pending = self.connections[0].send(Kind::Gather as u16, 0, &[&payload])?;
        let payload = self.payload(0, pending)?;
        let reply = GatherReply::decode(&payload)?;
        if reply.parts.len() != self.config.workers {
            let (n, workers) = (reply.parts.len(), self.config.workers);
            return Err(Error::malformed(format!("bytes of {n} workers, there are {workers}")));
        }
        Ok(reply.parts.into_iter().map(<[u8]>::to_vec).collect())
    }

    /// Waits until all workers have come this far.
    ///
    /// # Errors
    /// As [`Client::reduce`].
    pub fn barrier(&self, what: &str) -> Result<(), Error> {
        self.reduce(what, ReduceOp::Sum, &[]).map(|_| ())
    }

    /// Says that this worker has no more batches in this pass.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn rest(&self) -> Result<(), Error> {
        self.control_all(&Control::Rest).map(|_| ())
    }

    /// Begins a pass; returns the step that all workers begin it with. Every worker must call it.
    /// With `data`, others take over what a lost worker has not trained.
    ///
    /// # Errors
    /// If a server or worker is gone.
    pub fn resume(&self, step: u64, data: Option<DataStart>) -> Result<u64, Error> {
        let steps = self.reduce("step", ReduceOp::Max, &[step as f64])?;
        let step = steps.first().map_or(step, |s| *s as u64);
        self.control_all(&Control::Resume { step, data })?;
        self.barrier(RESUME)?;
        Ok(step)
    }

    /// Says that this worker is done. Servers end when all workers have left. Returns the workers
    /// that were lost and did not come back, and how.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn leave(&self) -> Result<Vec<String>, Error> {
        let mut lost: Vec<String> = Vec::new();
        for reply in self.control_all(&Control::Leave)? {
            let ControlReply::Left(here) = reply else {
                return Err(Error::malformed(format!("unexpected answer {reply:?}")));
            };
            // The servers of one job lose a worker for different reasons; one is enough.
            lost = if lost.len() < here.len() { here } else { lost };
        }
        Ok(lost)
    }
}
