//! Exchanges of workers that train their own copies: differences are added, changed rows go back.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use regatta_net::Responder;
use regatta_optim::Rule;
use regatta_table::{Accessor, Admission, AnyRule, PullMode, Scratch};

use super::core::{Arrival, Core, Table};
use super::dense::Dense;
use super::slot_reuse::SlotUse;
use crate::message::reply::{refuse, reply_with_snapshot};
use crate::message::{Geo, GeoReply};
use crate::{Error, Mode};

/// For every worker and table, the ids that have changed since the worker's last exchange.
pub(super) struct ChangedRows {
    by_worker: Vec<Vec<Keys>>,
    /// The answer to each worker's last exchange, in case it is lost on the way.
    last: Vec<Option<Last>>,
}

struct Last {
    sequence: u64,
    answer: Vec<u8>,
}

/// A set of ids, written as they come and cleaned of repetitions when it has doubled.
#[derive(Clone, Default)]
struct Keys {
    ids: Vec<u64>,
    /// How many there were after the last cleaning.
    distinct: usize,
}

impl Keys {
    fn extend(&mut self, ids: &[u64]) {
        const SMALL: usize = 1 << 16;
        self.ids.extend_from_slice(ids);
        if self.ids.len() > (2 * self.distinct).max(SMALL) {
            self.clean();
        }
    }

    fn clean(&mut self) {
        self.ids.sort_unstable();
        self.ids.dedup();
        self.distinct = self.ids.len();
    }

    /// The ids in rising order; none are left.
    fn take(&mut self) -> Vec<u64> {
        self.clean();
        self.distinct = 0;
        std::mem::take(&mut self.ids)
    }
}

impl ChangedRows {
    pub(super) fn new(workers: usize, tables: usize) -> ChangedRows {
        ChangedRows {
            by_worker: vec![vec![Keys::default(); tables]; workers],
            last: (0..workers).map(|_| None).collect(),
        }
    }
}

impl Core {
    fn changed_rows(&self) -> MutexGuard<'_, ChangedRows> {
        self.changed_rows.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn geo(&self, worker: usize, geo: &Geo, payload: &[u8], responder: Responder) {
        if !matches!(self.config.mode, Mode::Geo { .. }) {
            return refuse(responder, "this job is not in geo mode");
        }
        if let Err(e) = self.check_gradients(geo.dense, &geo.tables) {
            return refuse(responder, &e.to_string());
        }
        let sequence = geo.sequence;
        let arrived = self.lock().arrived(worker, sequence);
        match arrived {
            Arrival::New => match self.exchange_differences(worker, geo, payload) {
                Ok(answer) => self.answer_geo(responder, &answer),
                Err(e) => self.break_down(responder, &e),
            },
            Arrival::Again => match self.last_answer(worker, sequence) {
                Some(answer) => self.answer_geo(responder, &answer),
                None => refuse(responder, "an exchange came again out of order"),
            },
            Arrival::TooEarly(reason) => refuse(responder, &reason),
        }
    }

    /// The answer as usual; its status says whether the worker must come to a snapshot.
    fn answer_geo(&self, responder: Responder, answer: &[u8]) {
        let open = self.lock().snapshot.current().is_some();
        reply_with_snapshot(responder, answer, open);
    }

    fn last_answer(&self, worker: usize, sequence: u64) -> Option<Vec<u8>> {
        let changed = self.changed_rows();
        let last = changed.last[worker].as_ref().filter(|last| last.sequence == sequence);
        last.map(|last| last.answer.clone())
    }

    fn exchange_differences(
        &self,
        worker: usize,
        geo: &Geo,
        payload: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let members: Vec<usize> = self.lock().members.iter().collect();
        // One exchange at a time: what a worker is told and what it is later told has changed fit
        // together.
        let mut changed = self.changed_rows();
        // What another worker has sent before it was lost is not added again.
        if !geo.dense.is_empty() && !geo.is_applied {
            self.dense.push(&[(1.0, geo.dense.of(payload))], 1.0)?;
        }
        for t in geo.tables.iter().filter(|_| !geo.is_applied) {
            let number = t.table as usize;
            let keys = t.keys.of(payload);
            self.add_rows(&self.tables[number], keys, t.grads.of(payload))?;
            for &member in &members {
                changed.by_worker[member][number].extend(keys);
            }
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        let mut weights = vec![0.0; self.dense.len()];
        self.dense.pull(&mut weights)?;
        let mut rows: Vec<(Vec<u64>, Vec<f32>)> = Vec::new();
        for (table, set) in self.tables.iter().zip(&mut changed.by_worker[worker]) {
            let keys = set.take();
            let values = self.read_rows(table, &keys)?;
            rows.push((keys, values));
        }
        let tables = rows.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
        let answer = GeoReply { dense: &weights, tables }.encode();
        let sequence = geo.sequence;
        changed.last[worker] = Some(Last { sequence, answer: answer.clone() });
        drop(changed);
        self.lock().applied(worker, sequence, geo.mark.as_ref());
        Ok(answer)
    }

    /// Adds differences to rows, which begin with the values that every copy began with.
    fn add_rows(&self, table: &Table, keys: &[u64], deltas: &[f32]) -> Result<(), Error> {
        let mut values = vec![0.0; keys.len() * table.rows.pull_width()];
        let add = |scratch: &mut Scratch| {
            table.rows.pull(keys, &mut values, PullMode::Train, scratch)?;
            table.rows.push(keys, deltas, 1.0, scratch)
        };
        self.slots.with(SlotUse::Neither, add).map(|_| ()).map_err(|e| table.error(e))
    }

    /// Values of rows. One that was dropped in the meantime begins again, here as in every copy.
    fn read_rows(&self, table: &Table, keys: &[u64]) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; keys.len() * table.rows.pull_width()];
        let pull =
            |scratch: &mut Scratch| table.rows.pull(keys, &mut values, PullMode::Train, scratch);
        self.slots.with(SlotUse::Neither, pull).map_err(|e| table.error(e))?;
        Ok(values)
    }

    /// A worker that comes back is to get all rows with its next exchange.
    pub(super) fn note_all_changed(&self, worker: usize) -> Result<(), Error> {
        let mut changed = self.changed_rows();
        changed.last[worker] = None;
        for (table, set) in self.tables.iter().zip(&mut changed.by_worker[worker]) {
            set.extend(&table.rows.keys().map_err(|e| table.error(e))?);
        }
        Ok(())
    }

    /// Every copy is to get these rows with its next exchange.
    pub(super) fn note_changed(&self, table: usize, keys: &[u64]) {
        let mut changed = self.changed_rows();
        changed.by_worker.iter_mut().for_each(|sets| sets[table].extend(keys));
    }
}

/// Servers of geo mode add differences to plain rows; anything else would make the copies of the
/// workers drift apart.
pub(super) fn check_geo(tables: &[Table], dense: &Dense) -> Result<(), Error> {
    let sum = |rule: &Rule| matches!(rule, Rule::Sum(_));
    for table in tables {
        let rule = match &table.setup.config.accessor {
            Accessor::Plain(plain) => plain.rule,
            _ => return Err(not_geo(&table.setup.name, "rows are not plain")),
        };
        if !matches!(&rule, AnyRule::Optimizer(rule) if sum(rule)) {
            return Err(not_geo(
                &table.setup.name,
                "differences are added, but the rule is another",
            ));
        }
        if table.setup.config.admission != Admission::None {
            return Err(not_geo(
                &table.setup.name,
                "workers train all rows of their own copies, so ids cannot be admitted one by one",
            ));
        }
    }
    match dense.params().find(|(_, rule)| !sum(rule)) {
        Some((param, _)) => Err(not_geo(param, "differences are added, but the rule is another")),
        None => Ok(()),
    }
}

fn not_geo(name: &str, why: &str) -> Error {
    Error::usage(format!("'{name}' cannot be trained in geo mode: {why}"))
}
