//! A worker's training loop in geo mode: it trains its own copy of everything and exchanges
//! differences with the servers now and then, without ever waiting for them while it trains.

use std::collections::HashSet;
use std::time::Instant;

use regatta_data::Batch;
use regatta_exec::{Executor, Options, Scope};
use regatta_ir::Programs;
use regatta_passes::Split;
use regatta_ps::communicator::{GeoCommand, GeoPlan};
use regatta_ps::{Client, GeoTicket};
use regatta_tensor::{Tensor, Value};

use super::input::Input;
use super::{Exchange, PassTimes, TableExchange};
use crate::Error;

/// A worker that trains its own copy.
pub struct GeoTrainer {
    client: Client,
    executor: Executor,
    exchange: Exchange,
    plan: GeoPlan,
    fetch: Vec<String>,
    ticket: Option<GeoTicket>,
    /// Values as of the last exchange: dense parameters, then tables.
    old_dense: Vec<Vec<f32>>,
    old_tables: Vec<Vec<f32>>,
    /// Rows trained since the last exchange, by table.
    touched: Vec<HashSet<u64>>,
    step: u64,
    times: PassTimes,
}

impl GeoTrainer {
    /// Prepares the whole local program; `every` is the number of steps between exchanges.
    ///
    /// # Errors
    /// If the program or the options do not fit.
    pub fn new(
        programs: &Programs,
        split: &Split,
        every: u64,
        client: Client,
        options: Options,
        fetch: &[&str],
    ) -> Result<GeoTrainer, Error> {
        let names: Vec<String> = split.tables.iter().map(|t| t.name.clone()).collect();
        let exchange = Exchange::of(&split.trainer, &names)?;
        let executor = Executor::new(programs.main.clone(), options)?;
        let touched = vec![HashSet::new(); exchange.tables.len()];
        Ok(GeoTrainer {
            client,
            executor,
            exchange,
            plan: GeoPlan::new(every),
            fetch: fetch.iter().map(|f| f.to_string()).collect(),
            ticket: None,
            old_dense: Vec::new(),
            old_tables: Vec::new(),
            touched,
            step: 0,
            times: PassTimes::default(),
        })
    }

    /// Computes with other options from now on.
    ///
    /// # Errors
    /// If they do not fit the program.
    pub fn set_options(&mut self, options: Options) -> Result<(), Error> {
        let step = self.executor.step();
        self.executor = Executor::new(self.executor.program().clone(), options)?;
        self.executor.set_step(step);
        Ok(())
    }

    /// The connections.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where the time has gone since the last call.
    pub fn take_times(&mut self) -> PassTimes {
        std::mem::take(&mut self.times)
    }

    /// Gives all workers the same dense parameters: worker 0's, unless the servers have loaded some.
    /// Tables begin equal everywhere, because their first values follow from the seed.
    ///
    /// # Errors
    /// If a server or worker is gone.
    pub fn start(&mut self, scope: &mut Scope, servers_have_values: bool) -> Result<(), Error> {
        if self.client.worker() == 0 && !servers_have_values {
            let values = floats(scope, &self.exchange.params)?;
            self.client.set_dense(&values)?;
        }
        self.client.barrier("start")?;
        self.old_dense = to_vecs(&floats(scope, &self.exchange.params)?);
        self.old_tables = to_vecs(&floats(scope, &self.table_names())?);
        // An exchange without differences brings everyone to the servers' values.
        let ticket = self.send(scope)?;
        self.apply(scope, ticket)
    }

    fn table_names(&self) -> Vec<String> {
        self.exchange.tables.iter().map(|t| t.name.clone()).collect()
    }

    /// Trains on all batches, then exchanges what is left.
    ///
    /// # Errors
    /// If data, a step or an exchange fails.
    pub fn train(
        &mut self,
        scope: &mut Scope,
        mut next: impl FnMut() -> Result<Option<Batch>, Error>,
        mut on_step: impl FnMut(usize, &[Tensor], Batch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            let start = Instant::now();
            let Some(batch) = next()? else { break };
            self.times.read += start.elapsed();
            let input = Input::Batch(batch);
            self.compute(scope, &input)?;
            let Input::Batch(batch) = input else { continue };
            on_step(batch.examples(), self.executor.fetched(), batch)?;
            self.exchange_if_due(scope)?;
        }
        self.finish(scope)
    }

    /// Trains on one batch, given as values by name, and returns what was asked for.
    ///
    /// # Errors
    /// If a step or an exchange fails.
    pub fn run(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>, Error> {
        self.set_fetch(fetch);
        let owned = feeds.iter().map(|(name, value)| (name.to_string(), (*value).clone()));
        self.compute(scope, &Input::Feeds(owned.collect()))?;
        let fetched = self.executor.fetched().to_vec();
        self.exchange_if_due(scope)?;
        Ok(fetched)
    }

    /// Chooses what `on_step` of [`GeoTrainer::train`] gets to see.
    pub fn set_fetch(&mut self, fetch: &[&str]) {
        self.fetch = fetch.iter().map(|f| f.to_string()).collect();
    }

    fn compute(&mut self, scope: &mut Scope, input: &Input) -> Result<(), Error> {
        let start = Instant::now();
        let block = self.executor.program().block();
        let feeds: Vec<(&str, &Value)> =
            input.iter().filter(|(name, _)| block.vars.contains_key(*name)).collect();
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        self.executor.run(scope, &feeds, &fetch)?;
        for (table, touched) in self.exchange.tables.iter().zip(&mut self.touched) {
            touch(table, input, touched);
        }
        self.step += 1;
        self.times.compute += start.elapsed();
        Ok(())
    }

    /// Exchanges what is left.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn finish(&mut self, scope: &mut Scope) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            if self.plan.is_waiting() {
                // Bringing it into the copy waits for it.
                self.plan.replied();
            }
            let commands = self.plan.finish();
            if commands.is_empty() {
                self.times.push += start.elapsed();
                return Ok(());
            }
            self.perform(scope, commands)?;
        }
    }

    fn exchange_if_due(&mut self, scope: &mut Scope) -> Result<(), Error> {
        let start = Instant::now();
        if self.plan.is_waiting()
            && let Some(ticket) = &mut self.ticket
            && self.client.try_geo(ticket)?
        {
            self.plan.replied();
        }
        let commands = self.plan.stepped();
        self.perform(scope, commands)?;
        self.times.push += start.elapsed();
        Ok(())
    }

    fn perform(&mut self, scope: &mut Scope, commands: Vec<GeoCommand>) -> Result<(), Error> {
        for command in commands {
            match command {
                GeoCommand::Send => self.ticket = Some(self.send(scope)?),
                GeoCommand::Apply => {
                    if let Some(ticket) = self.ticket.take() {
                        self.apply(scope, ticket)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends `(latest - old) / workers` of everything that was trained, and counts it as sent.
    fn send(&mut self, scope: &Scope) -> Result<GeoTicket, Error> {
        let share = 1.0 / self.client.workers() as f32;
        let latest = floats(scope, &self.exchange.params)?;
        let mut dense: Vec<Vec<f32>> = Vec::new();
        for (latest, old) in latest.iter().zip(&mut self.old_dense) {
            let delta: Vec<f32> =
                latest.iter().zip(&*old).map(|(new, old)| (new - old) * share).collect();
            old.iter_mut().zip(&delta).for_each(|(old, d)| *old += d);
            dense.push(delta);
        }
        let latest = floats(scope, &self.table_names())?;
        let mut tables: Vec<(Vec<u64>, Vec<f32>)> = Vec::new();
        for (i, table) in self.exchange.tables.iter().enumerate() {
            let mut keys: Vec<u64> = self.touched[i].drain().collect();
            keys.sort_unstable();
            let mut deltas = Vec::with_capacity(keys.len() * table.dim);
            for &key in &keys {
                let at = key as usize * table.dim;
                let old = &mut self.old_tables[i][at..at + table.dim];
                for (old, new) in old.iter_mut().zip(&latest[i][at..]) {
                    let delta = (new - *old) * share;
                    *old += delta;
                    deltas.push(delta);
                }
            }
            tables.push((keys, deltas));
        }
        let dense: Vec<&[f32]> = dense.iter().map(Vec::as_slice).collect();
        let tables: Vec<(&[u64], &[f32])> =
            tables.iter().map(|(k, d)| (k.as_slice(), d.as_slice())).collect();
        Ok(self.client.geo(&dense, &tables)?)
    }

    /// Moves the local copy by what the servers' values differ from those of the last exchange.
    fn apply(&mut self, scope: &mut Scope, ticket: GeoTicket) -> Result<(), Error> {
        let mut names = self.exchange.params.clone();
        names.extend(self.table_names());
        let n_dense = self.exchange.params.len();
        let missing = || Error::Config("a parameter is not initialised".into());
        let mut all: Vec<&mut [f32]> = scope
            .get_many_mut(&names)
            .ok_or_else(missing)?
            .into_iter()
            .map(Tensor::f32_mut)
            .collect();
        let (dense, tables) = all.split_at_mut(n_dense);
        let (old_dense, old_tables) = (&mut self.old_dense, &mut self.old_tables);
        let dims: Vec<usize> = self.exchange.tables.iter().map(|t| t.dim).collect();
        let move_by = |latest: &mut [f32], old: &mut [f32], server: &[f32]| {
            for ((latest, old), server) in latest.iter_mut().zip(old).zip(server) {
                *latest += server - *old;
                *old = *server;
            }
        };
        self.client.finish_geo(
            ticket,
            |table, keys, values| {
                for (&key, row) in keys.iter().zip(values.chunks_exact(dims[table])) {
                    let at = key as usize * dims[table];
                    // Ids beyond this copy cannot come: all workers have tables of the same size.
                    let (Some(latest), Some(old)) = (
                        tables[table].get_mut(at..at + dims[table]),
                        old_tables[table].get_mut(at..at + dims[table]),
                    ) else {
                        continue;
                    };
                    move_by(latest, old, row);
                }
            },
            |param, start, values| {
                let range = start..start + values.len();
                move_by(&mut dense[param][range.clone()], &mut old_dense[param][range], values);
            },
        )?;
        Ok(())
    }
}

fn floats<'a>(scope: &'a Scope, names: &[String]) -> Result<Vec<&'a [f32]>, Error> {
    let get = |name: &String| {
        let tensor = scope.get(name).ok_or_else(|| {
            let (what, name) = ("parameter", name.clone());
            Error::from(regatta_exec::Error::NotInitialised { what, name })
        })?;
        Ok(tensor.f32())
    };
    names.iter().map(get).collect()
}

fn to_vecs(slices: &[&[f32]]) -> Vec<Vec<f32>> {
    slices.iter().map(|s| s.to_vec()).collect()
}

/// Remembers the rows of a table that a batch trains.
fn touch(table: &TableExchange, batch: &Input, touched: &mut HashSet<u64>) {
    for (name, _) in &table.inputs {
        let ids = match batch.get(name) {
            Some(Value::Dense(t)) => t.u64(),
            Some(Value::Ragged(r)) => r.u64(),
            None => continue,
        };
        let keys = ids.iter().filter(|id| table.padding != Some(**id));
        touched.extend(keys.map(|&id| table.modulo.map_or(id, |m| id % m)));
    }
}
