//! What pushes and pulls do to tables and dense parameters.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

use regatta_net::{Buf, Responder};
use regatta_table::{PullMode, Scratch};
use regatta_tensor::RowIndex;

use super::core::{Core, Waiting, refuse};
use super::dense::Dense;
use crate::message::{Pull, Push, PushTable, SetDense};
use crate::{Error, STATUS_OK};

impl Core {
    pub(super) fn dense(&self) -> MutexGuard<'_, Dense> {
        self.dense.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn with_scratch<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let pool = || self.scratch.lock().unwrap_or_else(|e| e.into_inner());
        let mut scratch = pool().pop().unwrap_or_default();
        let result = work(&mut scratch);
        pool().push(scratch);
        result
    }

    /// One update with the weighted sum of these gradients.
    pub(super) fn apply(&self, parts: &[(f32, Push<'_>)]) -> Result<(), Error> {
        let start = Instant::now();
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        let lr = self.config.schedule.lr(self.config.learning_rate, step);
        let dense: Vec<(f32, &[f32])> = parts
            .iter()
            .filter(|(_, p)| !p.dense.is_empty())
            .map(|(weight, p)| (*weight, p.dense))
            .collect();
        self.dense().push(&dense, lr)?;
        self.with_scratch(|scratch| self.apply_rows(parts, lr, scratch))?;
        self.busy_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn apply_rows(
        &self,
        parts: &[(f32, Push<'_>)],
        lr: f32,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        for (_, push) in parts {
            if let Some(t) = push.tables.iter().find(|t| t.table as usize >= self.tables.len()) {
                return Err(Error::malformed(format!("there is no table {}", t.table)));
            }
        }
        if let [(1.0, push)] = parts {
            for t in &push.tables {
                self.push_rows(t.table as usize, t.keys, t.grads, lr, scratch)?;
            }
            return Ok(());
        }
        let mut index = RowIndex::default();
        let (mut keys, mut sums) = (Vec::new(), Vec::new());
        for (number, table) in self.tables.iter().enumerate() {
            let width = table.rows.push_width();
            let given: Vec<(f32, PushTable<'_>)> =
                parts.iter().filter_map(|(w, p)| Some((*w, p.table(number)?))).collect();
            index.clear(given.iter().map(|(_, t)| t.keys.len()).sum());
            keys.clear();
            sums.clear();
            for (weight, t) in given {
                if t.grads.len() != t.keys.len() * width {
                    return Err(Error::malformed(format!(
                        "{} floats for {} keys of {width}",
                        t.grads.len(),
                        t.keys.len()
                    )));
                }
                for (&key, grad) in t.keys.iter().zip(t.grads.chunks_exact(width)) {
                    let (at, new) = index.insert(key);
                    if new {
                        keys.push(key);
                        sums.extend(grad.iter().map(|g| weight * g));
                    } else {
                        let sum = &mut sums[at * width..(at + 1) * width];
                        sum.iter_mut().zip(grad).for_each(|(s, g)| *s += weight * g);
                    }
                }
            }
            self.push_rows(number, &keys, &sums, lr, scratch)?;
        }
        Ok(())
    }

    fn push_rows(
        &self,
        table: usize,
        keys: &[u64],
        grads: &[f32],
        lr: f32,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let table = &self.tables[table];
        let outcome = table.rows.push_unique(keys, grads, lr * table.setup.lr_scale, scratch);
        outcome.map(|_| ()).map_err(|e| Error::Job(format!("table '{}': {e}", table.setup.name)))
    }

    /// Collects what a pull asks for into one buffer.
    pub(super) fn gather(&self, pull: &Pull<'_>, responder: &Responder) -> Result<Buf, Error> {
        let start = Instant::now();
        let mode = if pull.test { PullMode::Test } else { PullMode::Train };
        let bytes = |t: &crate::message::PullTable<'_>| {
            let width = self.tables.get(t.table as usize).map_or(0, |t| t.rows.pull_width());
            t.keys.len() * width * 4 + 8
        };
        let dense = self.dense();
        let total = pull.tables.iter().map(bytes).sum::<usize>() + dense.len() * 4 + 8;
        let mut buf = responder.buffer(total);
        drop(dense);
        self.with_scratch(|scratch| {
            for t in &pull.tables {
                let table = self.tables.get(t.table as usize).ok_or_else(|| {
                    Error::malformed(format!("there is no table {}", t.table))
                })?;
                let out = grow_floats(&mut buf, t.keys.len() * table.rows.pull_width())?;
                table
                    .rows
                    .pull(t.keys, out, mode, scratch)
                    .map_err(|e| Error::Job(format!("table '{}': {e}", table.setup.name)))?;
                pad(&mut buf);
            }
            Ok::<(), Error>(())
        })?;
        if pull.dense {
            let dense = self.dense();
            let out = grow_floats(&mut buf, dense.len())?;
            dense.pull(out);
            pad(&mut buf);
        }
        self.busy_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(buf)
    }

    /// Worker 0 gives the dense parameters their first values; a second time (after a reconnect) is
    /// harmless because nobody trains before all have them.
    pub(super) fn set_dense(&self, waiting: Waiting) {
        let outcome =
            SetDense::decode(&waiting.payload).and_then(|set| self.dense().set(set.values));
        match outcome {
            Ok(()) => {
                let _ = waiting.responder.reply(STATUS_OK, &[]);
            }
            Err(e) => refuse(waiting.responder, &e.to_string()),
        }
    }
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
