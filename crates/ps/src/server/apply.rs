//! What pushes and pulls do to tables and dense parameters.

use std::sync::atomic::Ordering;
use std::time::Instant;

use regatta_net::{Buf, Responder};
use regatta_table::{PullMode, Scratch, Step};

use super::core::{Core, Table};
use super::request::Exchange;
use super::slot_reuse::{SlotKey, SlotUse};
use crate::Error;
use crate::message::reply::{refuse, reply};
use crate::message::{Array, Pull, PullReplyWriter, PullTable, Push, PushTable};

/// The push of one worker, and what it counts in the sum of a step.
#[derive(Clone, Copy)]
pub(super) struct Contribution<'a> {
    pub(super) worker: usize,
    pub(super) weight: f32,
    pub(super) push: &'a Push,
    pub(super) payload: &'a [u8],
}

impl<'a> Contribution<'a> {
    pub(super) fn of(worker: usize, e: &'a Exchange, weight: f32) -> Result<Self, Error> {
        let push = e.push.as_ref().ok_or_else(|| Error::internal("a push without gradients"))?;
        Ok(Contribution { worker, weight, push, payload: &e.payload })
    }
}

/// A part of an update.
enum Task {
    /// A piece of the dense parameters, by number.
    Piece(usize),
    /// A partition of the rows of all tables.
    Partition(usize),
}

impl Core {
    pub(super) fn table_of(&self, number: u64) -> Result<&Table, Error> {
        let table = usize::try_from(number).ok().and_then(|n| self.tables.get(n));
        table.ok_or_else(|| Error::malformed(format!("there is no table {number}")))
    }

    pub(super) fn check_gradients(
        &self,
        dense: Array<f32>,
        tables: &[PushTable],
    ) -> Result<(), Error> {
        if !dense.is_empty() {
            self.dense.check(dense.len())?;
        }
        check_order(tables.iter().map(|t| t.table))?;
        for t in tables {
            let width = self.table_of(t.table)?.rows.push_width();
            if Some(t.grads.len()) != t.keys.len().checked_mul(width) {
                return Err(Error::malformed(format!(
                    "table {}: {} floats for {} keys of {width}",
                    t.table,
                    t.grads.len(),
                    t.keys.len()
                )));
            }
        }
        Ok(())
    }

    /// Checks a pull and says how many bytes its reply has.
    pub(super) fn check_pull(&self, pull: &Pull) -> Result<usize, Error> {
        check_order(pull.tables.iter().map(|t| t.table))?;
        let mut floats = if pull.dense { vec![self.dense.len()] } else { vec![] };
        for t in &pull.tables {
            if !t.counts.is_empty() && t.counts.len() != t.keys.len() {
                return Err(Error::malformed(format!(
                    "table {}: {} counts for {} keys",
                    t.table,
                    t.counts.len(),
                    t.keys.len()
                )));
            }
            let width = self.table_of(t.table)?.rows.pull_width();
            floats.push(t.keys.len().saturating_mul(width));
        }
        PullReplyWriter::payload_len(floats.into_iter())
    }

    /// One update with the weighted sum of these gradients, which have been checked, by so many
    /// threads.
    pub(super) fn apply(&self, parts: &[Contribution<'_>], threads: usize) -> Result<(), Error> {
        // More partitions than threads, so that none waits long for the others.
        let partitions = if threads > 1 { 2 * threads } else { 1 };
        let lr = self.next_rate();
        let steps = self.begin_steps();
        let dense = dense_parts(parts);
        let tasks = (0..self.dense.n_pieces()).map(Task::Piece);
        let tasks = tasks.chain((0..partitions).map(Task::Partition)).collect();
        let done = self.threads.run(threads, tasks, |task| match task {
            Task::Piece(number) => self.step_piece(number, &dense, lr),
            Task::Partition(number) => self.push_rows(parts, lr, &steps, (number, partitions)),
        });
        done.into_iter().collect()
    }

    /// The first half of an update: counts it and gives its learning rate.
    pub(super) fn apply_dense(&self, parts: &[Contribution<'_>]) -> Result<f32, Error> {
        let start = Instant::now();
        let lr = self.next_rate();
        self.dense.push(&dense_parts(parts), lr)?;
        self.busy_since(start);
        Ok(lr)
    }

    /// The second half.
    pub(super) fn apply_rows(&self, parts: &[Contribution<'_>], lr: f32) -> Result<(), Error> {
        self.push_rows(parts, lr, &self.begin_steps(), (0, 1))
    }

    /// Counts an update and gives its learning rate.
    fn next_rate(&self) -> f32 {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        self.config.schedule.lr(self.config.learning_rate, step)
    }

    fn step_piece(&self, number: usize, parts: &[(f32, &[f32])], lr: f32) -> Result<(), Error> {
        let start = Instant::now();
        self.dense.push_piece(number, parts, lr)?;
        self.busy_since(start);
        Ok(())
    }

    fn busy_since(&self, start: Instant) {
        self.busy_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a step of every table, also of those of which no rows come.
    fn begin_steps(&self) -> Vec<Step> {
        self.tables.iter().map(|table| table.rows.begin_step()).collect()
    }

    /// Updates a partition of the rows of all tables.
    fn push_rows(
        &self,
        parts: &[Contribution<'_>],
        lr: f32,
        steps: &[Step],
        partition: (usize, usize),
    ) -> Result<(), Error> {
        let start = Instant::now();
        for ((number, table), step) in self.tables.iter().enumerate().zip(steps) {
            let rows = parts.iter().filter_map(|part| {
                let PushTable { keys, grads, .. } = part.push.table(number)?;
                let (keys, values) = (keys.of(part.payload), grads.of(part.payload));
                Some(regatta_table::Contribution { weight: part.weight, keys, values })
            });
            let rows: Vec<_> = rows.collect();
            let lr = lr * table.setup.lr_scale;
            let slots = match parts {
                [Contribution { worker, push, .. }] => {
                    SlotUse::Push(SlotKey { worker: *worker, step: push.step, table: number })
                }
                _ => SlotUse::Neither,
            };
            let push = |scratch: &mut Scratch| {
                table.rows.push_partition(step, &rows, lr, partition, scratch)
            };
            self.slots.with(slots, push).map_err(|e| table.error(e))?;
        }
        self.busy_since(start);
        Ok(())
    }

    /// Copies what a pull asks for into one buffer.
    pub(super) fn read_values(&self, pull: &Pull, exchange: &Exchange) -> Result<Buf, Error> {
        let start = Instant::now();
        let responder = &exchange.responder;
        let mut reply = PullReplyWriter::new(responder.buffer(self.check_pull(pull)?));
        let counting = !pull.test && self.tables.iter().any(|t| t.counts);
        // A pull that comes again because its reply was lost has been counted.
        let counted = counting && !self.lock().count_once(responder.peer(), exchange.id);
        for t in &pull.tables {
            self.pull_rows(t, pull, counted, exchange, &mut reply)?;
        }
        if pull.dense {
            let out = reply.floats(self.dense.len())?;
            self.pull_dense(pull, exchange.push.is_some(), out)?;
        }
        let buf = exchange.wire.pack_answer(reply.finish(), |n| responder.buffer(n));
        self.busy_since(start);
        buf
    }

    /// Copies the rows of one table; their keys may have been `counted` before.
    fn pull_rows(
        &self,
        t: &PullTable,
        pull: &Pull,
        counted: bool,
        exchange: &Exchange,
        reply: &mut PullReplyWriter,
    ) -> Result<(), Error> {
        let table = self.table_of(t.table)?;
        let (keys, counts) = (t.keys.of(&exchange.payload), t.counts.of(&exchange.payload));
        let mode = match (pull.test, table.counts) {
            (true, _) => PullMode::Test,
            (_, true) if counted => PullMode::Test,
            (_, true) if !counts.is_empty() => PullMode::TrainCounted(counts),
            _ => PullMode::Train,
        };
        let worker = exchange.responder.peer().identity.index as usize;
        let key = SlotKey { worker, step: pull.step, table: t.table as usize };
        let slots = if pull.test { SlotUse::Neither } else { SlotUse::Pull(key) };
        let out = reply.floats(keys.len() * table.rows.pull_width())?;
        let rows = |scratch: &mut Scratch| table.rows.pull(keys, out, mode, scratch);
        self.slots.with(slots, rows).map_err(|e| table.error(e))?;
        Ok(())
    }

    /// Worker 0 gives the dense parameters their initial values; a second time (after a reconnect)
    /// is harmless because nobody trains before all have them.
    pub(super) fn set_dense(&self, values: &[f32], responder: Responder) {
        match self.dense.set(values) {
            Ok(()) => reply(responder, &[]),
            Err(e) => refuse(responder, &e.to_string()),
        }
    }
}

impl Table {
    pub(super) fn error(&self, e: regatta_table::Error) -> Error {
        Error::table(&self.setup.name, e)
    }
}

/// The dense gradients, where there are any.
fn dense_parts<'a>(parts: &[Contribution<'a>]) -> Vec<(f32, &'a [f32])> {
    let dense = parts.iter().map(|part| (part.weight, part.push.dense.of(part.payload)));
    dense.filter(|(_, gradient)| !gradient.is_empty()).collect()
}

/// Every table at most once.
fn check_order(mut tables: impl Iterator<Item = u64>) -> Result<(), Error> {
    let Some(mut last) = tables.next() else { return Ok(()) };
    for table in tables {
        if table <= last {
            return Err(Error::malformed(format!("table {table} comes after table {last}")));
        }
        last = table;
    }
    Ok(())
}
