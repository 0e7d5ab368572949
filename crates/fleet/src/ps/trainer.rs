//! A worker's training loop against parameter servers: read, pull, compute, push.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use regatta_data::Batch;
use regatta_exec::{Executor, Options, Scope};
use regatta_passes::{Split, compute_stage};
use regatta_ps::communicator::{Command, Event, Pipeline};
use regatta_ps::{Client, Gradients, Mode, PullTicket, PushTicket, Wanted};
use regatta_tensor::{RowIndex, RowSparse, Tensor, Value};

use super::{Exchange, Lookup};
use crate::Error;

/// Where the time of a pass went, as seen by the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassTimes {
    /// Waiting for batches.
    pub read: Duration,
    /// Finding distinct ids, sending requests, and waiting for values.
    pub pull: Duration,
    /// Forward and backward.
    pub compute: Duration,
    /// Sending gradients and waiting until they are applied.
    pub push: Duration,
}

/// A worker that trains a split program.
pub struct PsTrainer {
    client: Client,
    executor: Executor,
    exchange: Exchange,
    mode: Mode,
    /// Steps over all passes.
    step: u64,
    /// Names to fetch: the caller's, then dense gradients, then table gradients.
    n_user_fetches: usize,
    fetch: Vec<String>,
    merged: Merged,
    /// How long gradients may be held back to be added up.
    longest_wait: Option<Duration>,
    spare: Vec<Vec<Lookup>>,
    times: PassTimes,
}

/// A batch between reading and pushing.
struct Work {
    batch: Batch,
    lookups: Vec<Lookup>,
    ticket: Option<PullTicket>,
}

impl PsTrainer {
    /// Prepares the compute stage; `fetch` is what `on_step` gets to see.
    ///
    /// # Errors
    /// If the program or the options do not fit.
    pub fn new(
        split: &Split,
        mode: Mode,
        client: Client,
        options: Options,
        fetch: &[&str],
    ) -> Result<PsTrainer, Error> {
        mode.check()?;
        let names: Vec<String> = split.tables.iter().map(|t| t.name.clone()).collect();
        let exchange = Exchange::of(&split.trainer, &names)?;
        let executor = Executor::new(compute_stage(&split.trainer)?, options)?;
        let mut all: Vec<String> = fetch.iter().map(|f| f.to_string()).collect();
        all.extend(exchange.grads.iter().cloned());
        all.extend(exchange.tables.iter().filter_map(|t| t.grad.clone()));
        Ok(PsTrainer {
            client,
            executor,
            exchange,
            mode,
            step: 0,
            n_user_fetches: fetch.len(),
            fetch: all,
            merged: Merged::default(),
            longest_wait: match mode {
                Mode::Async(config) => config.longest_wait(),
                _ => None,
            },
            spare: Vec::new(),
            times: PassTimes::default(),
        })
    }

    /// The connections.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Steps so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Where the time has gone since the last call.
    pub fn take_times(&mut self) -> PassTimes {
        std::mem::take(&mut self.times)
    }

    /// Gives all workers the same dense parameters: worker 0's, unless the servers have loaded some.
    ///
    /// # Errors
    /// If a server or worker is gone.
    pub fn start(&mut self, scope: &mut Scope, servers_have_values: bool) -> Result<(), Error> {
        if self.client.worker() == 0 && !servers_have_values {
            let values = self.dense_values(scope)?;
            self.client.set_dense(&values)?;
        }
        self.client.barrier("start")?;
        self.pull_dense(scope)
    }

    fn dense_values<'a>(&self, scope: &'a Scope) -> Result<Vec<&'a [f32]>, Error> {
        let get = |name: &String| {
            let tensor = scope.get(name).ok_or_else(|| {
                let (what, name) = ("parameter", name.clone());
                Error::from(regatta_exec::Error::NotInitialised { what, name })
            })?;
            Ok(tensor.f32())
        };
        self.exchange.params.iter().map(get).collect()
    }

    /// Brings the dense parameters up to date.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull_dense(&mut self, scope: &mut Scope) -> Result<(), Error> {
        let no_keys: Vec<&[u64]> = self.exchange.tables.iter().map(|_| &[][..]).collect();
        let wanted =
            Wanted { step: self.step, test: true, dense: true, keys: &no_keys, counts: &[] };
        let ticket = self.client.pull(&wanted)?;
        let mut rows: Vec<&mut [f32]> = no_keys.iter().map(|_| &mut [][..]).collect();
        finish(&self.client, &self.exchange, ticket, &mut rows, scope)
    }

    /// Trains on all batches; `on_step(examples, fetched)` sees every step.
    ///
    /// # Errors
    /// If data, a step or an exchange fails.
    pub fn train(
        &mut self,
        scope: &mut Scope,
        mut next: impl FnMut() -> Result<Option<Batch>, Error>,
        mut on_step: impl FnMut(usize, &[Tensor], Batch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut pipeline = Pipeline::new(&self.mode);
        self.step = self.client.resume(self.step)?;
        let first = self.step;
        let mut queue: VecDeque<Command> = pipeline.start().into();
        let mut works: HashMap<u64, Work> = HashMap::new();
        let mut read = 0;
        let mut pulls: VecDeque<(u64, bool)> = VecDeque::new();
        let mut pushes: VecDeque<PushTicket> = VecDeque::new();
        loop {
            let Some(command) = queue.pop_front() else {
                // Nothing to do but to wait: for values first, because computing goes on with them.
                if let Some((batch, with_push)) = pulls.pop_front() {
                    self.finish_pull(scope, works.get_mut(&batch))?;
                    if with_push {
                        queue.extend(pipeline.on_event(Event::Acked));
                    }
                    queue.extend(pipeline.on_event(Event::Pulled(batch)));
                } else if let Some(ticket) = pushes.pop_front() {
                    let start = Instant::now();
                    self.client.finish_push(ticket)?;
                    self.times.push += start.elapsed();
                    queue.extend(pipeline.on_event(Event::Acked));
                } else {
                    return Err(Error::Config("the training loop has nothing to wait for".into()));
                }
                continue;
            };
            match command {
                Command::Read => {
                    let start = Instant::now();
                    let batch = next()?;
                    self.times.read += start.elapsed();
                    let event = match batch {
                        Some(batch) => {
                            let lookups = self.spare.pop().unwrap_or_default();
                            works.insert(read, Work { batch, lookups, ticket: None });
                            read += 1;
                            Event::Read
                        }
                        None => Event::End,
                    };
                    queue.extend(pipeline.on_event(event));
                }
                Command::Pull(batch) => {
                    self.send_pull(first + batch, works.get_mut(&batch))?;
                    pulls.push_back((batch, false));
                }
                Command::Compute(batch) => {
                    let work = works.remove(&batch).ok_or_else(lost_batch)?;
                    let fetched = self.compute(scope, first + batch, &work)?;
                    let examples = work.batch.examples();
                    on_step(examples, fetched, work.batch)?;
                    self.spare.push(work.lookups);
                    self.step += 1;
                    if self.merged.has_waited(self.longest_wait) {
                        queue.extend(pipeline.on_event(Event::Overdue));
                    }
                    queue.extend(pipeline.on_event(Event::Computed(batch)));
                }
                Command::Push { .. } => {
                    let start = Instant::now();
                    let gradients = self.merged.gradients();
                    pushes.push_back(self.client.push(&gradients.borrow())?);
                    self.merged.clear();
                    self.times.push += start.elapsed();
                }
                Command::PushPull { pull, .. } => {
                    self.send_push_pull(first + pull, works.get_mut(&pull))?;
                    pulls.push_back((pull, true));
                }
                Command::Finish => return Ok(self.client.rest()?),
            }
        }
    }

    fn prepare(&self, work: Option<&mut Work>) -> Result<(), Error> {
        let work = work.ok_or_else(lost_batch)?;
        work.lookups.resize_with(self.exchange.tables.len(), Lookup::default);
        let counted = self.client.tables().iter().map(|t| t.counted);
        for ((lookup, table), count) in
            work.lookups.iter_mut().zip(&self.exchange.tables).zip(counted)
        {
            for (name, _) in &table.inputs {
                if work.batch.get(name).is_none() {
                    return Err(Error::Config(format!("the batch has no slot '{name}'")));
                }
            }
            lookup.prepare(table, count, |name| work.batch.get(name).expect("checked above"));
        }
        Ok(())
    }

    fn wants_dense(&self, step: u64) -> bool {
        match &self.mode {
            // A push carries so many batches.
            Mode::Async(c) => {
                let pushes = c.min_send_grad_num_before_recv.max(1);
                step.is_multiple_of(pushes.saturating_mul(c.max_merge_var_num.max(1)))
            }
            _ => true,
        }
    }

    fn send_pull(&mut self, step: u64, mut work: Option<&mut Work>) -> Result<(), Error> {
        let start = Instant::now();
        self.prepare(work.as_deref_mut())?;
        let work = work.ok_or_else(lost_batch)?;
        let keys: Vec<&[u64]> = work.lookups.iter().map(Lookup::keys).collect();
        let dense = self.wants_dense(step) && !self.exchange.params.is_empty();
        let counts: Vec<&[u32]> = work.lookups.iter().map(Lookup::counts).collect();
        let wanted = Wanted { step, test: false, dense, keys: &keys, counts: &counts };
        work.ticket = Some(self.client.pull(&wanted)?);
        self.times.pull += start.elapsed();
        Ok(())
    }

    fn send_push_pull(&mut self, step: u64, mut work: Option<&mut Work>) -> Result<(), Error> {
        let start = Instant::now();
        self.prepare(work.as_deref_mut())?;
        let work = work.ok_or_else(lost_batch)?;
        let keys: Vec<&[u64]> = work.lookups.iter().map(Lookup::keys).collect();
        let counts: Vec<&[u32]> = work.lookups.iter().map(Lookup::counts).collect();
        let dense = self.wants_dense(step) && !self.exchange.params.is_empty();
        let wanted = Wanted { step, test: false, dense, keys: &keys, counts: &counts };
        let gradients = self.merged.gradients();
        work.ticket = Some(self.client.push_pull(&gradients.borrow(), &wanted)?);
        self.merged.clear();
        self.times.push += start.elapsed();
        Ok(())
    }

    fn finish_pull(&mut self, scope: &mut Scope, work: Option<&mut Work>) -> Result<(), Error> {
        let start = Instant::now();
        let work = work.ok_or_else(lost_batch)?;
        let ticket = work.ticket.take().ok_or_else(lost_batch)?;
        let mut rows: Vec<&mut [f32]> = work.lookups.iter_mut().map(Lookup::rows_mut).collect();
        finish(&self.client, &self.exchange, ticket, &mut rows, scope)?;
        self.times.pull += start.elapsed();
        Ok(())
    }

    /// Runs forward and backward and adds the gradients to those that are to be pushed.
    fn compute(&mut self, scope: &mut Scope, step: u64, work: &Work) -> Result<&[Tensor], Error> {
        let start = Instant::now();
        let block = self.executor.program().block();
        let is_input = |name: &str| block.vars.contains_key(name);
        let mut feeds: Vec<(&str, &Value)> =
            work.batch.iter().filter(|(name, _)| is_input(name)).collect();
        for (lookup, table) in work.lookups.iter().zip(&self.exchange.tables) {
            feeds.extend(lookup.feeds(table));
        }
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        self.executor.set_step(step);
        self.executor.run(scope, &feeds, &fetch)?;
        let executor = &self.executor;
        let fetched = executor.fetched();
        let dense = &fetched[self.n_user_fetches..][..self.exchange.grads.len()];
        let first_table = self.n_user_fetches + self.exchange.grads.len();
        let tables = work.lookups.iter().enumerate().map(|(i, lookup)| {
            (lookup, executor.fetched_rows(first_table + i).expect("table gradients are rows"))
        });
        self.merged.add(step, work.batch.examples(), dense, tables);
        self.times.compute += start.elapsed();
        Ok(&executor.fetched()[..self.n_user_fetches])
    }
}

fn finish(
    client: &Client,
    exchange: &Exchange,
    ticket: PullTicket,
    rows: &mut [&mut [f32]],
    scope: &mut Scope,
) -> Result<(), Error> {
    let params = scope.get_many_mut(&exchange.params).ok_or_else(|| {
        Error::Config("a dense parameter is not initialised: run the startup program first".into())
    })?;
    let mut dense: Vec<&mut [f32]> = params.into_iter().map(Tensor::f32_mut).collect();
    Ok(client.finish_pull(ticket, rows, &mut dense)?)
}

fn lost_batch() -> Error {
    Error::Config("the training loop has lost a batch".into())
}

/// Gradients of one or several batches, added up.
#[derive(Default)]
struct Merged {
    step: u64,
    examples: u64,
    batches: u64,
    /// When the first of them was ready.
    since: Option<Instant>,
    dense: Vec<Vec<f32>>,
    tables: Vec<TableGradients>,
}

#[derive(Default)]
struct TableGradients {
    index: RowIndex,
    /// Keys (not local rows) and their gradients.
    rows: RowSparse,
}

/// Borrowed views of merged gradients.
struct MergedView<'a> {
    step: u64,
    examples: u64,
    dense: Vec<&'a [f32]>,
    tables: Vec<(&'a [u64], &'a [f32])>,
}

impl MergedView<'_> {
    fn borrow(&self) -> Gradients<'_> {
        Gradients {
            step: self.step,
            examples: self.examples,
            dense: &self.dense,
            tables: &self.tables,
        }
    }
}

impl Merged {
    fn add<'a>(
        &mut self,
        step: u64,
        examples: usize,
        dense: &[Tensor],
        tables: impl Iterator<Item = (&'a Lookup, &'a RowSparse)>,
    ) {
        self.step = step;
        self.examples += examples as u64;
        let first = self.batches == 0;
        self.batches += 1;
        self.since.get_or_insert_with(Instant::now);
        self.dense.resize_with(dense.len(), Vec::new);
        for (sum, gradient) in self.dense.iter_mut().zip(dense) {
            if first {
                sum.clear();
                sum.extend_from_slice(gradient.f32());
            } else {
                sum.iter_mut().zip(gradient.f32()).for_each(|(s, g)| *s += g);
            }
        }
        for (i, (lookup, rows)) in tables.enumerate() {
            if self.tables.len() <= i {
                self.tables.push(TableGradients::default());
            }
            self.tables[i].add(lookup, rows, first);
        }
    }

    fn gradients(&self) -> MergedView<'_> {
        MergedView {
            step: self.step,
            examples: self.examples,
            dense: self.dense.iter().map(Vec::as_slice).collect(),
            tables: self
                .tables
                .iter()
                .map(|t| (t.rows.rows.as_slice(), t.rows.values.as_slice()))
                .collect(),
        }
    }

    fn clear(&mut self) {
        (self.examples, self.batches, self.since) = (0, 0, None);
    }

    fn has_waited(&self, limit: Option<Duration>) -> bool {
        let waited = self.since.map(|since| since.elapsed());
        limit.zip(waited).is_some_and(|(limit, waited)| waited >= limit)
    }
}

impl TableGradients {
    fn add(&mut self, lookup: &Lookup, rows: &RowSparse, first: bool) {
        if first {
            self.rows.clear();
            self.rows.width = rows.width;
            self.rows.rows.extend(rows.rows.iter().map(|&row| lookup.key_of_row(row)));
            self.rows.values.extend_from_slice(&rows.values);
            return;
        }
        self.index.clear(self.rows.rows.len() + rows.rows.len());
        for &key in &self.rows.rows {
            self.index.insert(key);
        }
        let keys = rows.rows.iter().map(|&row| lookup.key_of_row(row)).collect();
        let keyed = RowSparse { rows: keys, values: rows.values.clone(), ..*rows };
        self.rows.add_rows(&keyed, &mut self.index);
    }
}
