//! What pushes and pulls do to tables and dense parameters.

use std::sync::atomic::Ordering;
use std::time::Instant;

use regatta_net::Buf;
use regatta_table::{Contribution, PullMode, Scratch, Step};

use super::core::{Core, Table, Waiting, refuse, reply};
use crate::message::{Kind, Pull, Push, PushTable, SetDense};
use crate::{Error, Mode};

/// Largest answer to a pull; clients accept no more either.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// What a pull gets of the dense values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DenseAnswer {
    Nothing,
    /// As they are.
    Now,
    /// As they will be after one more update.
    Ahead,
}

/// A part of a synchronous step.
enum Task {
    /// A piece of the dense parameters, by number.
    Piece(usize),
    /// A share of the rows of all tables.
    Share(usize),
}

impl Core {
    fn table_of(&self, number: u64) -> Result<&Table, Error> {
        let table = usize::try_from(number).ok().and_then(|n| self.tables.get(n));
        table.ok_or_else(|| Error::malformed(format!("there is no table {number}")))
    }

    /// The push of a request, if everything about it (and the pull with it) is as it should be:
    /// what is wrong must be found before anything is changed.
    pub(super) fn checked_push<'a>(&self, waiting: &'a Waiting) -> Result<Push<'a>, Error> {
        let push = match waiting.kind {
            Kind::PushPull => {
                let (push, pull) = Push::decode_with_pull(&waiting.payload)?;
                self.check_pull(&pull)?;
                push
            }
            _ => Push::decode(&waiting.payload)?,
        };
        self.check_gradients(push.dense, &push.tables)?;
        Ok(push)
    }

    pub(super) fn check_gradients(
        &self,
        dense: &[f32],
        tables: &[PushTable<'_>],
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

    /// Checks a pull and says how many bytes its answer has.
    fn check_pull(&self, pull: &Pull<'_>) -> Result<usize, Error> {
        check_order(pull.tables.iter().map(|t| t.table))?;
        let mut total = if pull.dense { self.dense.len() * 4 + 8 } else { 0 };
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
            total = total.saturating_add(t.keys.len().saturating_mul(width * 4) + 8);
        }
        if total > MAX_ANSWER_BYTES {
            return Err(Error::malformed(format!(
                "the answer would have {total} bytes, more than {MAX_ANSWER_BYTES}"
            )));
        }
        Ok(total)
    }

    /// One update with the weighted sum of these gradients, which have been checked.
    pub(super) fn apply(&self, parts: &[(f32, Push<'_>)]) -> Result<(), Error> {
        let lr = self.apply_dense(parts)?;
        self.apply_rows(parts, lr)
    }

    /// As [`apply`](Core::apply), shared out over processors: while a synchronous step is made nobody
    /// computes, so they are idle.
    pub(super) fn apply_at_once(&self, parts: &[(f32, Push<'_>)]) -> Result<(), Error> {
        // More shares than threads, so that none waits long for the others.
        let shares = 2 * self.crew.size();
        let lr = self.next_rate();
        let steps = self.begin_steps();
        let dense = dense_parts(parts);
        let tasks = (0..self.dense.n_pieces()).map(Task::Piece);
        let tasks = tasks.chain((0..shares).map(Task::Share)).collect();
        let done = self.crew.share_out(tasks, |task| match task {
            Task::Piece(number) => self.step_piece(number, &dense, lr),
            Task::Share(share) => self.update_share(parts, lr, &steps, (share, shares)),
        });
        done.into_iter().collect()
    }

    /// The first half of an update: counts it and gives its learning rate.
    pub(super) fn apply_dense(&self, parts: &[(f32, Push<'_>)]) -> Result<f32, Error> {
        let start = Instant::now();
        let lr = self.next_rate();
        self.dense.push(&dense_parts(parts), lr)?;
        self.busy_since(start);
        Ok(lr)
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

    /// The second half. By one thread: several of them gained nothing where workers and servers share
    /// the processors, however large the push.
    pub(super) fn apply_rows(&self, parts: &[(f32, Push<'_>)], lr: f32) -> Result<(), Error> {
        self.update_share(parts, lr, &self.begin_steps(), (0, 1))
    }

    fn busy_since(&self, start: Instant) {
        self.busy_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a step of every table, also of those of which no rows come.
    fn begin_steps(&self) -> Vec<Step> {
        self.tables.iter().map(|table| table.rows.begin_step()).collect()
    }

    /// A share of the rows of all tables.
    fn update_share(
        &self,
        parts: &[(f32, Push<'_>)],
        lr: f32,
        steps: &[Step],
        share: (usize, usize),
    ) -> Result<(), Error> {
        let start = Instant::now();
        for ((number, table), step) in self.tables.iter().enumerate().zip(steps) {
            let given = parts.iter().filter_map(|(weight, push)| {
                let PushTable { keys, grads, .. } = push.table(number)?;
                Some(Contribution { weight: *weight, keys, values: grads })
            });
            let given: Vec<_> = given.collect();
            let lr = lr * table.setup.lr_scale;
            let push =
                |scratch: &mut Scratch| table.rows.push_share(step, &given, lr, share, scratch);
            let pushed = match given.as_slice() {
                [one] => self.scratches.push(&table.rows, one.keys, push),
                _ => self.scratches.any(push),
            };
            pushed.map_err(|e| table.error(&e))?;
        }
        self.busy_since(start);
        Ok(())
    }

    /// Collects what a pull asks for into one buffer.
    pub(super) fn gather(&self, pull: &Pull<'_>, waiting: &Waiting) -> Result<Buf, Error> {
        let start = Instant::now();
        let bytes = self.check_pull(pull)?;
        let dense = self.dense_for(pull, waiting);
        let mut buf = waiting.responder.buffer(bytes);
        let counting = !pull.test && self.tables.iter().any(|t| t.counts);
        // A pull that comes again because its answer was lost has been counted.
        let counted = counting && !self.lock().count_once(waiting.responder.peer(), waiting.id);
        for t in &pull.tables {
            let table = self.table_of(t.table)?;
            let mode = match (pull.test, table.counts, t.counts) {
                (true, _, _) => PullMode::Test,
                (_, true, _) if counted => PullMode::Test,
                (_, true, counts) if !counts.is_empty() => PullMode::TrainCounted(counts),
                _ => PullMode::Train,
            };
            let out = grow_floats(&mut buf, t.keys.len() * table.rows.pull_width())?;
            let rows = |scratch: &mut Scratch| table.rows.pull(t.keys, out, mode, scratch);
            let pulled =
                if pull.test { self.scratches.any(rows) } else { self.scratches.pull(rows) };
            pulled.map_err(|e| table.error(&e))?;
            pad(&mut buf);
        }
        if dense != DenseAnswer::Nothing {
            let out = grow_floats(&mut buf, self.dense.len())?;
            match dense {
                DenseAnswer::Ahead => self.dense.pull_ahead(out)?,
                _ => self.dense.pull(out)?,
            }
            pad(&mut buf);
        }
        let buf = waiting.wire.pack_answer(buf, |n| waiting.responder.buffer(n));
        self.busy_since(start);
        buf
    }

    /// What a pull gets of the dense parameters.
    fn dense_for(&self, pull: &Pull<'_>, waiting: &Waiting) -> DenseAnswer {
        match (pull.dense, self.will_be_old(pull, waiting.kind)) {
            (false, _) => DenseAnswer::Nothing,
            (true, true) => DenseAnswer::Ahead,
            (true, false) => DenseAnswer::Now,
        }
    }

    /// Whether dense parameters are better sent as they will be after one more update: another will
    /// come before the gradients that are computed with them, from another worker or from the same
    /// one, which has not sent that of its last batch.
    fn will_be_old(&self, pull: &Pull<'_>, kind: Kind) -> bool {
        let Mode::Async(config) = self.config.mode else { return false };
        let trains = kind == Kind::PushPull || !pull.test;
        let own_in_flight = kind == Kind::Pull && config.pull_ahead > 0 && self.steps() > 0;
        config.dense_ahead && trains && (self.config.workers > 1 || own_in_flight)
    }

    /// Worker 0 gives the dense parameters their first values; a second time (after a reconnect) is
    /// harmless because nobody trains before all have them.
    pub(super) fn set_dense(&self, waiting: Waiting) {
        let outcome = SetDense::decode(&waiting.payload).and_then(|set| self.dense.set(set.values));
        match outcome {
            Ok(()) => reply(waiting.responder, &[]),
            Err(e) => refuse(waiting.responder, &e.to_string()),
        }
    }
}

impl Table {
    pub(super) fn error(&self, e: &regatta_table::Error) -> Error {
        Error::Job(format!("table '{}': {e}", self.setup.name))
    }
}

/// The dense gradients, where there are any.
fn dense_parts<'a>(parts: &[(f32, Push<'a>)]) -> Vec<(f32, &'a [f32])> {
    let dense = parts.iter().map(|(weight, push)| (*weight, push.dense));
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

fn grow_floats(buf: &mut Buf, n: usize) -> Result<&mut [f32], Error> {
    bytemuck::try_cast_slice_mut(buf.grow(n * 4))
        .map_err(|_| Error::malformed("a reply buffer is not aligned"))
}

fn pad(buf: &mut Buf) {
    let over = buf.len() % 8;
    if over > 0 {
        buf.grow(8 - over).fill(0);
    }
}
