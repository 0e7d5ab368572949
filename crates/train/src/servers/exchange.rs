//! The exchanges of a worker with its servers: ids of a batch become keys, rows and dense
//! parameters come, gradients go.

use std::time::Instant;

use regatta_exec::{Lookup, Scope};
use regatta_ps::{Mode, PullSpec, PullTicket, Pulled};
use regatta_tensor::Tensor;

use super::{Reply, Servers, Work, lost_batch};
use crate::Error;
use crate::input::Input;

impl Servers {
    /// Brings the dense parameters up to date.
    pub(super) fn pull_dense(&mut self, scope: &mut Scope) -> Result<(), Error> {
        let no_keys: Vec<&[u64]> = self.exchange.tables.iter().map(|_| &[][..]).collect();
        let wanted =
            PullSpec { step: self.step, test: true, dense: true, keys: &no_keys, counts: &[] };
        let ticket = self.client.pull_exactly(&wanted)?;
        self.receive(ticket, &mut [], scope).map(|_| ())
    }

    /// Finds the distinct ids of a batch, unless that is done.
    pub(super) fn prepare(&mut self, work: &mut Work) -> Result<(), Error> {
        if std::mem::replace(&mut work.prepared, true) {
            return Ok(());
        }
        self.look_up(&work.input, &mut work.lookups)
    }

    /// Finds the distinct ids of an input.
    pub(super) fn look_up(
        &mut self,
        input: &Input,
        lookups: &mut Vec<Lookup>,
    ) -> Result<(), Error> {
        let start = Instant::now();
        lookups.resize_with(self.exchange.tables.len(), Lookup::default);
        let counted = self.client.tables().iter().map(|t| t.counted);
        for ((lookup, table), count) in lookups.iter_mut().zip(&self.exchange.tables).zip(counted) {
            lookup.prepare(table, count, &mut self.index, |name| input.get(name))?;
        }
        self.times.pull += start.elapsed();
        Ok(())
    }

    /// Whether dense parameters are pulled for a step.
    fn wants_dense(&self, step: u64) -> bool {
        let due = match &self.mode {
            // A push carries so many batches.
            Mode::Async(c) => {
                let pushes = c.min_send_grad_num_before_recv.max(1);
                step.is_multiple_of(pushes.saturating_mul(c.max_merge_var_num.max(1)))
            }
            _ => true,
        };
        due && !self.exchange.params.is_empty()
    }

    /// Sends gradients, and asks for the `dense` parameters of step `next` if they come with it.
    pub(super) fn send_push(&mut self, next: u64, dense: bool) -> Result<Reply, Error> {
        let start = Instant::now();
        let gradients = self.gradients.view(&self.runner.executor, self.marks.view());
        let reply = if dense && self.wants_dense(next) {
            let no_keys: Vec<&[u64]> = self.exchange.tables.iter().map(|_| &[][..]).collect();
            let wanted =
                PullSpec { step: next, test: true, dense: true, keys: &no_keys, counts: &[] };
            Reply::PushAndDense(self.client.push_pull(&gradients.borrow(), &wanted)?)
        } else {
            Reply::Push(self.client.push(&gradients.borrow())?)
        };
        self.gradients.clear();
        self.marks.sent();
        self.times.push += start.elapsed();
        Ok(reply)
    }

    pub(super) fn send_pull(
        &mut self,
        step: u64,
        work: Option<&mut Work>,
        dense: bool,
    ) -> Result<(), Error> {
        let work = work.ok_or_else(lost_batch)?;
        self.prepare(work)?;
        let start = Instant::now();
        let (keys, counts) = keys_and_counts(&work.lookups);
        let dense = dense && self.wants_dense(step);
        let wanted = PullSpec { step, test: false, dense, keys: &keys, counts: &counts };
        work.ticket = Some(self.client.pull(&wanted)?);
        self.times.pull += start.elapsed();
        Ok(())
    }

    pub(super) fn send_push_pull(
        &mut self,
        step: u64,
        work: Option<&mut Work>,
    ) -> Result<(), Error> {
        let work = work.ok_or_else(lost_batch)?;
        self.prepare(work)?;
        let start = Instant::now();
        let (keys, counts) = keys_and_counts(&work.lookups);
        let dense = self.wants_dense(step);
        let wanted = PullSpec { step, test: false, dense, keys: &keys, counts: &counts };
        let gradients = self.gradients.view(&self.runner.executor, self.marks.view());
        work.ticket = Some(self.client.push_pull(&gradients.borrow(), &wanted)?);
        self.gradients.clear();
        self.marks.sent();
        self.times.push += start.elapsed();
        Ok(())
    }

    pub(super) fn finish_pull(
        &mut self,
        scope: &mut Scope,
        work: Option<&mut Work>,
    ) -> Result<Pulled, Error> {
        let start = Instant::now();
        let work = work.ok_or_else(lost_batch)?;
        let ticket = work.ticket.take().ok_or_else(lost_batch)?;
        let pulled = self.receive(ticket, &mut work.lookups, scope)?;
        self.times.pull += start.elapsed();
        Ok(pulled)
    }

    /// Waits for rows and dense parameters; without lookups no rows were asked for.
    pub(super) fn receive(
        &self,
        ticket: PullTicket,
        lookups: &mut [Lookup],
        scope: &mut Scope,
    ) -> Result<Pulled, Error> {
        let missing = || {
            Error::Config("a dense parameter is not initialised: run the startup program".into())
        };
        let params = scope.get_many_mut(&self.exchange.params).ok_or_else(missing)?;
        let mut dense: Vec<&mut [f32]> = params.into_iter().map(Tensor::f32_mut).collect();
        let mut rows: Vec<&mut [f32]> = lookups.iter_mut().map(Lookup::rows_mut).collect();
        rows.resize_with(self.exchange.tables.len(), || &mut []);
        Ok(self.client.finish_pull(ticket, &mut rows, &mut dense)?)
    }
}

fn keys_and_counts(lookups: &[Lookup]) -> (Vec<&[u64]>, Vec<&[u32]>) {
    (lookups.iter().map(Lookup::keys).collect(), lookups.iter().map(Lookup::counts).collect())
}
