//! Exchanges of workers that train their own copies: differences are added, changed rows go back.

use std::collections::HashSet;

use regatta_table::PullMode;

use super::core::{Core, Waiting, refuse};
use crate::message::{Geo, GeoReply};
use crate::{Error, STATUS_OK};

/// For every worker and table, the ids that have changed since the worker's last exchange.
pub(super) struct Changed {
    by_worker: Vec<Vec<HashSet<u64>>>,
    /// The answer to each worker's last exchange, in case it is lost on the way.
    last: Vec<Option<Vec<u8>>>,
}

impl Changed {
    pub(super) fn new(workers: usize, tables: usize) -> Changed {
        Changed {
            by_worker: vec![vec![HashSet::new(); tables]; workers],
            last: vec![None; workers],
        }
    }
}

impl Core {
    pub(super) fn geo(&self, worker: usize, waiting: Waiting) {
        let outcome = Geo::decode(&waiting.payload).and_then(|geo| {
            if self.is_repeated(worker, geo.sequence) {
                let changed = self.changed_rows.lock().unwrap_or_else(|e| e.into_inner());
                return changed.last[worker]
                    .clone()
                    .ok_or_else(|| Error::malformed("an exchange came again out of order"));
            }
            let answer = self.exchange_differences(worker, &geo)?;
            self.applied(worker, geo.sequence);
            Ok(answer)
        });
        match outcome {
            Ok(answer) => {
                let _ = waiting.responder.reply(STATUS_OK, &[&answer]);
            }
            Err(e) => refuse(waiting.responder, &e.to_string()),
        }
    }

    fn exchange_differences(&self, worker: usize, geo: &Geo<'_>) -> Result<Vec<u8>, Error> {
        // One exchange at a time: what a worker is told and what it is later told has changed fit
        // together.
        let mut changed = self.changed_rows.lock().unwrap_or_else(|e| e.into_inner());
        let mut dense = self.dense();
        if !geo.dense.is_empty() {
            dense.add(geo.dense)?;
        }
        for t in &geo.tables {
            let number = t.table as usize;
            if number >= self.tables.len() {
                return Err(Error::malformed(format!("there is no table {}", t.table)));
            }
            self.add_rows(number, t.keys, t.grads)?;
            for sets in &mut changed.by_worker {
                sets[number].extend(t.keys);
            }
        }
        let mut weights = vec![0.0; dense.len()];
        dense.pull(&mut weights);
        drop(dense);
        let mut rows: Vec<(Vec<u64>, Vec<f32>)> = Vec::new();
        for (number, set) in changed.by_worker[worker].iter_mut().enumerate() {
            let mut keys: Vec<u64> = set.drain().collect();
            keys.sort_unstable();
            let values = self.read_rows(number, &keys)?;
            rows.push((keys, values));
        }
        let tables = rows.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
        let answer = GeoReply { dense: &weights, tables }.encode();
        changed.last[worker] = Some(answer.clone());
        Ok(answer)
    }

    /// Adds differences to rows, which begin with the values that every copy began with.
    fn add_rows(&self, table: usize, keys: &[u64], deltas: &[f32]) -> Result<(), Error> {
        let table = &self.tables[table];
        let job = |e: regatta_table::Error| Error::Job(format!("table '{}': {e}", table.setup.name));
        self.with_scratch(|scratch| {
            let mut values = vec![0.0; deltas.len()];
            table.rows.pull(keys, &mut values, PullMode::Train, scratch).map_err(job)?;
            table.rows.push_unique(keys, deltas, 1.0, scratch).map_err(job)?;
            Ok(())
        })
    }

    fn read_rows(&self, table: usize, keys: &[u64]) -> Result<Vec<f32>, Error> {
        let table = &self.tables[table];
        let mut values = vec![0.0; keys.len() * table.rows.pull_width()];
        self.with_scratch(|scratch| {
            table.rows.pull(keys, &mut values, PullMode::Test, scratch).map_err(|e| {
                Error::Job(format!("table '{}': {e}", table.setup.name))
            })
        })?;
        Ok(values)
    }
}
