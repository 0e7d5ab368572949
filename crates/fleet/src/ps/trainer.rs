//! A worker's training loop against parameter servers: read, pull, compute, push.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use regatta_data::Batch;
use regatta_exec::{Executor, Options, Scope};
use regatta_passes::{Split, compute_stage};
use regatta_ps::communicator::{Command, Event, Pipeline};
use regatta_ps::{Client, Gradients, Mode, PullTicket, Pulled, PushTicket, Wanted};
use regatta_tensor::{RowIndex, RowSparse, Tensor, Value};

use super::input::Input;
use super::run::{Caller, Closures, Next, OneStep, OwnPart, Reading, Run};
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
    /// For finding the distinct ids of a batch.
    index: RowIndex,
    times: PassTimes,
    /// The pass that [`PsTrainer::run`] is in.
    pass: Option<Pass>,
    /// Other workers do not wait for this one in their steps.
    rests: bool,
    own_part: OwnPart,
}

/// A batch between reading and pushing.
struct Work {
    batch: Input,
    lookups: Vec<Lookup>,
    /// The lookups are those of the batch.
    prepared: bool,
    ticket: Option<PullTicket>,
}

/// The exchanges of a pass that are under way.
struct Pass {
    pipeline: Pipeline,
    queue: VecDeque<Command>,
    works: HashMap<u64, Work>,
    /// Number of its first step, over all passes.
    first: u64,
    read: u64,
    /// The pipeline wants a batch that was not there yet.
    wants_batch: bool,
    /// What was sent and is not answered, in the order in which it was sent.
    awaited: VecDeque<Awaited>,
}

/// Something that servers are going to answer.
enum Awaited {
    Pull {
        batch: u64,
        with_push: bool,
    },
    Push(PushTicket),
    /// A push, and the dense values after it.
    PushAndDense(PullTicket),
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
            index: RowIndex::default(),
            times: PassTimes::default(),
            pass: None,
            rests: true,
            own_part: OwnPart::default(),
        })
    }

    /// Computes with other options from now on.
    ///
    /// # Errors
    /// If they do not fit the program, or an exchange that is still to be made fails.
    pub fn set_options(&mut self, options: Options) -> Result<(), Error> {
        // Gradients that are still to be sent are in the executor.
        self.flush()?;
        self.executor = Executor::new(self.executor.program().clone(), options)?;
        Ok(())
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
        let ticket = self.client.pull_exactly(&wanted)?;
        let mut rows: Vec<&mut [f32]> = no_keys.iter().map(|_| &mut [][..]).collect();
        finish(&self.client, &self.exchange, ticket, &mut rows, scope).map(|_| ())
    }

    /// Whole tables as tensors, with as many rows as the program declares. Servers create no rows for
    /// it; ids without one give what a prediction would get.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull_tables(&self, split: &Split) -> Result<Vec<(String, Tensor)>, Error> {
        // Large enough for few requests, small enough for one message.
        const IDS: usize = 1 << 15;
        let mut tables = Vec::new();
        for (number, table) in split.tables.iter().enumerate() {
            let mut values = vec![0.0; table.rows * table.dim];
            for (first, part) in (0u64..).step_by(IDS).zip(values.chunks_mut(IDS * table.dim)) {
                let ids: Vec<u64> = (first..).take(part.len() / table.dim).collect();
                let mut keys: Vec<&[u64]> = vec![&[]; split.tables.len()];
                keys[number] = &ids;
                let wanted =
                    Wanted { step: self.step, test: true, dense: false, keys: &keys, counts: &[] };
                let ticket = self.client.pull_exactly(&wanted)?;
                let mut rows: Vec<&mut [f32]> = keys.iter().map(|_| &mut [][..]).collect();
                rows[number] = part;
                self.client.finish_pull(ticket, &mut rows, &mut [])?;
            }
            let shape = [table.rows, table.dim];
            let tensor = Tensor::from_f32(&shape, values).expect("as many as the shape holds");
            tables.push((table.name.clone(), tensor));
        }
        Ok(tables)
    }

    /// Trains on all batches; `on_step(examples, fetched)` sees every step.
    ///
    /// # Errors
    /// If data, a step or an exchange fails.
    pub fn train(
        &mut self,
        scope: &mut Scope,
        next: impl FnMut() -> Result<Option<Batch>, Error>,
        on_step: impl FnMut(usize, &[Tensor], Batch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.train_with(scope, &mut Closures { next, on_step })
    }

    /// As [`PsTrainer::train`], with checkpoints as `run` wants them. Returns when the pass is over
    /// for all workers.
    ///
    /// # Errors
    /// If data, a step or an exchange fails.
    pub fn train_with(&mut self, scope: &mut Scope, run: &mut dyn Run) -> Result<(), Error> {
        self.flush()?;
        let mut pass = self.begin()?;
        self.drive(&mut pass, scope, &mut Reading(run))?;
        self.rest()?;
        self.own_part.finish(&self.client)?;
        while self.client.idle()? {
            self.cut(scope, run)?;
            self.own_part.finish(&self.client)?;
        }
        Ok(())
    }

    /// Takes part in a cut. Also to be called by all workers between passes, by worker 0 after it has
    /// opened one.
    ///
    /// # Errors
    /// If a server or worker is gone.
    pub fn cut(&mut self, scope: &Scope, run: &mut dyn Run) -> Result<(), Error> {
        self.own_part.finish(&self.client)?;
        let start = Instant::now();
        let own = self.own_tensors(scope);
        let taken = self.client.ready(&run.at_cut(self.step)?, !own.is_empty())?;
        let stall = start.elapsed();
        if !own.is_empty() {
            self.own_part.begin(&self.client, &taken.dir, own)?;
        }
        run.cut_taken(&self.client, taken, stall)
    }

    /// Waits until this worker's own part of the last cut is written.
    ///
    /// # Errors
    /// If the server that collects the parts is gone.
    pub fn finish_part(&mut self) -> Result<(), Error> {
        self.own_part.finish(&self.client)
    }

    /// What only this worker has: statistics such as running means, which no gradient moves.
    fn own_tensors(&self, scope: &Scope) -> Vec<(String, Tensor)> {
        let on_servers = |name: &String| {
            self.exchange.params.contains(name)
                || self.exchange.tables.iter().any(|table| table.name == *name)
        };
        let own = self.executor.program().persistables().map(|var| &var.name);
        let own = own.filter(|name| !on_servers(name));
        own.filter_map(|name| Some((name.clone(), scope.get(name)?.clone()))).collect()
    }

    /// Goes on after this many steps, with what this worker had kept for itself.
    pub fn restore(&mut self, scope: &mut Scope, step: u64, own: Vec<(String, Tensor)>) {
        self.step = step;
        own.into_iter().for_each(|(name, tensor)| scope.set(&name, tensor));
    }

    /// Trains on one batch, given as values by name, and returns what was asked for. The last push of
    /// a mode that waits goes out together with the next pull: with the next call, or with
    /// [`PsTrainer::flush`].
    ///
    /// # Errors
    /// If a step or an exchange fails, or the mode asks for values ahead, which only
    /// [`PsTrainer::train`] can do.
    pub fn run(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>, Error> {
        if let Mode::Async(config) = self.mode
            && config.pull_ahead > 0
        {
            return Err(Error::Config(
                "pull_ahead and independent_recv_thread ask for the values of later batches, which \
                 a single step does not know: train on a reader"
                    .into(),
            ));
        }
        self.set_fetch(fetch);
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => self.begin()?,
        };
        let owned = feeds.iter().map(|(name, value)| (name.to_string(), (*value).clone()));
        let mut step =
            OneStep { input: Some(Input::Feeds(owned.collect())), result: Vec::new(), ends: false };
        self.drive(&mut pass, scope, &mut step)?;
        self.pass = Some(pass);
        Ok(step.result)
    }

    /// Pushes what [`PsTrainer::run`] has computed and waits until it is applied. Other workers still
    /// wait for this one in their next step.
    ///
    /// # Errors
    /// If an exchange fails.
    pub fn flush(&mut self) -> Result<(), Error> {
        let Some(mut pass) = self.pass.take() else { return Ok(()) };
        // All batches are computed: there is nothing to pull, and nowhere to put it.
        let mut end = OneStep { input: None, result: Vec::new(), ends: true };
        self.drive(&mut pass, &mut Scope::new(), &mut end)
    }

    /// As [`PsTrainer::flush`]; other workers go on without this one, until it trains again.
    ///
    /// # Errors
    /// If an exchange fails.
    pub fn rest(&mut self) -> Result<(), Error> {
        self.flush()?;
        if !self.rests {
            self.client.rest()?;
            self.rests = true;
        }
        Ok(())
    }

    /// Chooses what `on_step` of [`PsTrainer::train`] gets to see.
    pub fn set_fetch(&mut self, fetch: &[&str]) {
        let own = self.fetch.iter().take(self.n_user_fetches);
        if self.n_user_fetches != fetch.len() || own.zip(fetch).any(|(a, b)| a != b) {
            self.fetch.splice(..self.n_user_fetches, fetch.iter().map(|f| f.to_string()));
            self.n_user_fetches = fetch.len();
        }
    }

    fn begin(&mut self) -> Result<Pass, Error> {
        if self.rests {
            self.step = self.client.resume(self.step)?;
            self.rests = false;
        }
        let mut pipeline = Pipeline::new(&self.mode);
        Ok(Pass {
            queue: pipeline.start().into(),
            pipeline,
            works: HashMap::new(),
            first: self.step,
            read: 0,
            wants_batch: false,
            awaited: VecDeque::new(),
        })
    }

    /// Does what the pipeline says until the pass is over, or until nothing can be done before there
    /// is another batch.
    fn drive(
        &mut self,
        pass: &mut Pass,
        scope: &mut Scope,
        caller: &mut dyn Caller,
    ) -> Result<(), Error> {
        if std::mem::take(&mut pass.wants_batch) {
            pass.queue.push_front(Command::Read);
        }
        loop {
            let Some(command) = pass.queue.pop_front() else {
                if pass.wants_batch && pass.works.is_empty() {
                    return Ok(());
                }
                // There is time for it now, before somebody waits for the next pull.
                pass.works.values_mut().try_for_each(|work| self.prepare(work))?;
                self.wait(pass, scope)?;
                continue;
            };
            match command {
                Command::Read => {
                    let start = Instant::now();
                    let found = caller.next()?;
                    self.times.read += start.elapsed();
                    self.read(pass, found);
                }
                Command::Pull(batch) => {
                    let dense = batch == 0 || !pass.pipeline.pulls_dense_by_push();
                    self.send_pull(pass.first + batch, pass.works.get_mut(&batch), dense)?;
                    pass.awaited.push_back(Awaited::Pull { batch, with_push: false });
                }
                Command::Compute(batch) => {
                    let work = pass.works.remove(&batch).ok_or_else(lost_batch)?;
                    self.compute(scope, pass.first + batch, &work)?;
                    self.step += 1;
                    let fetched = &self.executor.fetched()[..self.n_user_fetches];
                    if let Some(order) = caller.on_step(&self.client, fetched, work.batch)? {
                        self.client.open_cut(&order)?;
                    }
                    self.own_part.poll(&self.client)?;
                    self.spare.push(work.lookups);
                    if self.merged.has_waited(self.longest_wait) {
                        pass.queue.extend(pass.pipeline.on_event(Event::Overdue));
                    }
                    pass.queue.extend(pass.pipeline.on_event(Event::Computed(batch)));
                }
                Command::Push { last, .. } => {
                    let dense = pass.pipeline.pulls_dense_by_push();
                    let awaited = self.send_push(pass.first + last + 1, dense)?;
                    pass.awaited.push_back(awaited);
                }
                Command::PushPull { pull, .. } => {
                    self.send_push_pull(pass.first + pull, pass.works.get_mut(&pull))?;
                    pass.awaited.push_back(Awaited::Pull { batch: pull, with_push: true });
                }
                Command::Cut => {
                    self.cut(scope, caller.run())?;
                    pass.queue.extend(pass.pipeline.on_event(Event::CutDone));
                }
                Command::Finish => return Ok(()),
            }
        }
    }

    fn read(&mut self, pass: &mut Pass, next: Next) {
        let event = match next {
            Next::Later => {
                pass.wants_batch = true;
                return;
            }
            Next::Batch(batch) => {
                let lookups = self.spare.pop().unwrap_or_default();
                let work = Work { batch, lookups, prepared: false, ticket: None };
                pass.works.insert(pass.read, work);
                pass.read += 1;
                Event::Read
            }
            Next::End => Event::End,
        };
        pass.queue.extend(pass.pipeline.on_event(event));
    }

    /// Waits for the oldest answer. Servers answer in the order of requests, so those of pushes that
    /// were sent before a pull are here when its values are.
    fn wait(&mut self, pass: &mut Pass, scope: &mut Scope) -> Result<(), Error> {
        match pass.awaited.pop_front() {
            Some(Awaited::Pull { batch, with_push }) => {
                let pulled = self.finish_pull(scope, pass.works.get_mut(&batch))?;
                if with_push {
                    pass.queue.extend(pass.pipeline.on_event(Event::Acked));
                }
                pass.queue.extend(pass.pipeline.on_event(match pulled {
                    Pulled::Values => Event::Pulled(batch),
                    Pulled::HeldBack => Event::HeldBack(batch),
                }));
            }
            Some(Awaited::Push(ticket)) => {
                let start = Instant::now();
                self.client.finish_push(ticket)?;
                self.times.push += start.elapsed();
                pass.queue.extend(pass.pipeline.on_event(Event::Acked));
            }
            Some(Awaited::PushAndDense(ticket)) => {
                let start = Instant::now();
                let mut no_rows: Vec<&mut [f32]> =
                    self.exchange.tables.iter().map(|_| &mut [][..]).collect();
                finish(&self.client, &self.exchange, ticket, &mut no_rows, scope)?;
                self.times.push += start.elapsed();
                pass.queue.extend(pass.pipeline.on_event(Event::Acked));
            }
            None => {
                return Err(Error::Config("the training loop has nothing to wait for".into()));
            }
        }
        Ok(())
    }

    /// Finds the distinct ids of a batch, unless that is done.
    fn prepare(&mut self, work: &mut Work) -> Result<(), Error> {
        if std::mem::replace(&mut work.prepared, true) {
            return Ok(());
        }
        let start = Instant::now();
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
            let value = |name: &str| work.batch.get(name).expect("checked above");
            lookup.prepare(table, count, &mut self.index, value);
        }
        self.times.pull += start.elapsed();
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

    /// Sends gradients, and asks for the `dense` parameters of step `next` if they come with it.
    fn send_push(&mut self, next: u64, dense: bool) -> Result<Awaited, Error> {
        let start = Instant::now();
        let gradients = self.merged.gradients(&self.executor);
        let awaited = if dense && self.wants_dense(next) && !self.exchange.params.is_empty() {
            let no_keys: Vec<&[u64]> = self.exchange.tables.iter().map(|_| &[][..]).collect();
            let wanted =
                Wanted { step: next, test: true, dense: true, keys: &no_keys, counts: &[] };
            Awaited::PushAndDense(self.client.push_pull(&gradients.borrow(), &wanted)?)
        } else {
            Awaited::Push(self.client.push(&gradients.borrow())?)
        };
        self.merged.clear();
        self.times.push += start.elapsed();
        Ok(awaited)
    }

    fn send_pull(&mut self, step: u64, work: Option<&mut Work>, dense: bool) -> Result<(), Error> {
        let work = work.ok_or_else(lost_batch)?;
        self.prepare(work)?;
        let start = Instant::now();
        let dense = dense && self.wants_dense(step) && !self.exchange.params.is_empty();
        let keys: Vec<&[u64]> = work.lookups.iter().map(Lookup::keys).collect();
        let counts: Vec<&[u32]> = work.lookups.iter().map(Lookup::counts).collect();
        let wanted = Wanted { step, test: false, dense, keys: &keys, counts: &counts };
        work.ticket = Some(self.client.pull(&wanted)?);
        self.times.pull += start.elapsed();
        Ok(())
    }

    fn send_push_pull(&mut self, step: u64, work: Option<&mut Work>) -> Result<(), Error> {
        let work = work.ok_or_else(lost_batch)?;
        self.prepare(work)?;
        let start = Instant::now();
        let counts: Vec<&[u32]> = work.lookups.iter().map(Lookup::counts).collect();
        let dense = self.wants_dense(step) && !self.exchange.params.is_empty();
        let keys: Vec<&[u64]> = work.lookups.iter().map(Lookup::keys).collect();
        let wanted = Wanted { step, test: false, dense, keys: &keys, counts: &counts };
        let gradients = self.merged.gradients(&self.executor);
        work.ticket = Some(self.client.push_pull(&gradients.borrow(), &wanted)?);
        self.merged.clear();
        self.times.push += start.elapsed();
        Ok(())
    }

    fn finish_pull(&mut self, scope: &mut Scope, work: Option<&mut Work>) -> Result<Pulled, Error> {
        let start = Instant::now();
        let work = work.ok_or_else(lost_batch)?;
        let ticket = work.ticket.take().ok_or_else(lost_batch)?;
        let mut rows: Vec<&mut [f32]> = work.lookups.iter_mut().map(Lookup::rows_mut).collect();
        let pulled = finish(&self.client, &self.exchange, ticket, &mut rows, scope)?;
        self.times.pull += start.elapsed();
        Ok(pulled)
    }

    /// Runs forward and backward and adds the gradients to those that are to be pushed.
    fn compute(&mut self, scope: &mut Scope, step: u64, work: &Work) -> Result<(), Error> {
        let start = Instant::now();
        if self.merged.waits_in_executor() {
            return Err(Error::Config("gradients were not sent before the next batch".into()));
        }
        let block = self.executor.program().block();
        let is_input = |name: &str| block.vars.contains_key(name);
        let mut feeds: Vec<(&str, &Value)> =
            work.batch.iter().filter(|(name, _)| is_input(name)).collect();
        for (lookup, table) in work.lookups.iter().zip(&self.exchange.tables) {
            feeds.extend(lookup.feeds(table));
        }
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        self.executor.set_step(step);
        // Gradients are sent from where they are computed.
        self.executor.run_copying(scope, &feeds, &fetch, self.n_user_fetches)?;
        let made = Made { first: self.n_user_fetches, n_dense: self.exchange.grads.len() };
        let several = matches!(&self.mode, Mode::Async(config) if config.max_merge_var_num > 1);
        let copy = if several { Copies::Made } else { Copies::None };
        self.merged.add(step, &self.executor, made, work, copy);
        self.times.compute += start.elapsed();
        Ok(())
    }
}

fn finish(
    client: &Client,
    exchange: &Exchange,
    ticket: PullTicket,
    rows: &mut [&mut [f32]],
    scope: &mut Scope,
) -> Result<Pulled, Error> {
    let params = scope.get_many_mut(&exchange.params).ok_or_else(|| {
        Error::Config("a dense parameter is not initialised: run the startup program first".into())
    })?;
    let mut dense: Vec<&mut [f32]> = params.into_iter().map(Tensor::f32_mut).collect();
    Ok(client.finish_pull(ticket, rows, &mut dense)?)
}

fn lost_batch() -> Error {
    Error::Config("the training loop has lost a batch".into())
}

/// Where an executor has the gradients of a batch: among its fetches, dense ones from `first` on,
/// those of tables behind them.
#[derive(Clone, Copy, Default)]
struct Made {
    first: usize,
    n_dense: usize,
}

impl Made {
    fn dense(self, executor: &Executor) -> impl Iterator<Item = &[f32]> {
        (self.first..self.first + self.n_dense).map(|i| executor.fetched_floats(i))
    }

    fn rows(self, executor: &Executor, table: usize) -> &RowSparse {
        let at = self.first + self.n_dense + table;
        executor.fetched_rows(at).expect("table gradients are rows")
    }
}

/// Whether gradients are copied out of the executor: only where several batches are added up.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Copies {
    Made,
    #[default]
    None,
}

/// Gradients of one or several batches, added up. A single one stays in the executor until it is
/// sent; only its keys are kept here.
#[derive(Default)]
struct Merged {
    made: Made,
    copies: Copies,
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
    fn add(&mut self, step: u64, executor: &Executor, made: Made, work: &Work, copies: Copies) {
        self.step = step;
        self.examples += work.batch.examples() as u64;
        let first = self.batches == 0;
        self.batches += 1;
        (self.made, self.copies) = (made, copies);
        self.since.get_or_insert_with(Instant::now);
        if copies == Copies::Made {
            self.add_dense(made.dense(executor), first);
        }
        self.tables.resize_with(work.lookups.len(), TableGradients::default);
        for (i, (table, lookup)) in self.tables.iter_mut().zip(&work.lookups).enumerate() {
            table.add(lookup, made.rows(executor, i), first, copies);
        }
    }

    fn add_dense<'a>(&mut self, dense: impl Iterator<Item = &'a [f32]>, first: bool) {
        self.dense.resize_with(self.made.n_dense, Vec::new);
        for (sum, gradient) in self.dense.iter_mut().zip(dense) {
            if first {
                sum.clear();
                sum.extend_from_slice(gradient);
            } else {
                sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g);
            }
        }
    }

    /// Whether the next step of the executor would overwrite what is to be sent.
    fn waits_in_executor(&self) -> bool {
        self.batches > 0 && self.copies == Copies::None
    }

    fn gradients<'a>(&'a self, executor: &'a Executor) -> MergedView<'a> {
        let here = self.copies == Copies::Made;
        let values = |(i, t): (usize, &'a TableGradients)| {
            let rows = if here { &t.rows } else { self.made.rows(executor, i) };
            (t.rows.rows.as_slice(), rows.values.as_slice())
        };
        MergedView {
            step: self.step,
            examples: self.examples,
            dense: match self.copies {
                Copies::Made => self.dense.iter().map(Vec::as_slice).collect(),
                Copies::None => self.made.dense(executor).collect(),
            },
            tables: self.tables.iter().enumerate().map(values).collect(),
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
    fn add(&mut self, lookup: &Lookup, rows: &RowSparse, first: bool, copies: Copies) {
        if first {
            self.rows.clear();
            self.rows.width = rows.width;
            self.rows.rows.extend(rows.rows.iter().map(|&row| lookup.key_of_row(row)));
            if copies == Copies::Made {
                self.rows.values.extend_from_slice(&rows.values);
            }
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
