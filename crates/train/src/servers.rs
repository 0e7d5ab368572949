//! Training against parameter servers: a step pulls what its batch needs, computes, and pushes
//! gradients, in the order of the mode's pipeline.

mod exchange;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use regatta_checkpoint::Topology;
use regatta_exec::{Lookup, Options, Scope};
use regatta_passes::{Exchange, Split};
use regatta_ps::communicator::{Command, Event, Pipeline};
use regatta_ps::{Client, DataStart, Mode, PullTicket, Pulled, PushTicket, Rejoined, TakenShard};
use regatta_tensor::{RowIndex, Tensor};

use crate::Error;
use crate::backend::{
    Backend, BatchProgress, PassStart, Snapshot, SnapshotValues, StepTimes, Turn,
};
use crate::gradients::{GradientSlots, MergedGradients};
use crate::input::{Input, Next};
use crate::marks::Marks;
use crate::runner::{Runner, feeds};
use crate::tables::{floats, pull_tables};

/// A worker that trains a split program.
pub struct Servers {
    client: Client,
    runner: Runner,
    exchange: Exchange,
    split: Split,
    mode: Mode,
    /// Steps over all data passes.
    step: u64,
    /// Names to fetch: the caller's, then dense gradients, then table gradients.
    n_user_fetches: usize,
    fetch: Vec<String>,
    gradients: MergedGradients,
    /// How far the data are trained with the next push.
    marks: Marks,
    /// How long gradients may be deferred to be added up.
    longest_wait: Option<Duration>,
    spare: Vec<Vec<Lookup>>,
    /// The lookups of batches that will be given, in order; none where there is something wrong.
    announced: VecDeque<Option<Vec<Lookup>>>,
    /// For finding the distinct ids of a batch.
    index: RowIndex,
    times: StepTimes,
    in_flight: Option<InFlight>,
    /// Other workers do not wait for this one in their steps.
    rests: bool,
}

/// A batch between reading and pushing.
struct Work {
    input: Input,
    lookups: Vec<Lookup>,
    /// The lookups are those of the batch.
    prepared: bool,
    ticket: Option<PullTicket>,
}

/// The exchanges of a data pass that are in flight.
struct InFlight {
    pipeline: Pipeline,
    queue: VecDeque<Command>,
    works: HashMap<u64, Work>,
    /// Number of its first step, over all data passes.
    first: u64,
    read: u64,
    /// The pipeline needs a batch that was deferred.
    wants_batch: bool,
    /// Requests in flight, in the order in which they were sent.
    replies: VecDeque<Reply>,
    /// The batch that was computed last, until the pipeline hears of it.
    computed: Option<u64>,
}

/// A request in flight that servers will answer.
enum Reply {
    Pull {
        batch: u64,
        with_push: bool,
    },
    Push(PushTicket),
    /// A push, and the dense parameters after it.
    PushAndDense(PullTicket),
}

impl InFlight {
    fn new(mode: &Mode, first: u64) -> InFlight {
        let mut pipeline = Pipeline::new(mode);
        InFlight {
            queue: pipeline.start().into(),
            pipeline,
            works: HashMap::new(),
            first,
            read: 0,
            wants_batch: false,
            replies: VecDeque::new(),
            computed: None,
        }
    }

    fn event(&mut self, event: Event) {
        self.queue.extend(self.pipeline.on_event(event));
    }
}

impl Servers {
    /// Prepares the part of the program that runs between pulls and pushes.
    ///
    /// # Errors
    /// If the program or the options do not fit.
    pub fn new(
        split: &Split,
        mode: Mode,
        client: Client,
        options: Options,
    ) -> Result<Servers, Error> {
        mode.check()?;
        let exchange = split.exchange.clone();
        let runner = Runner::new(split.trainer.clone(), options)?;
        let fetch = exchange.fetches().map(str::to_string).collect();
        let slots = GradientSlots { first: 0, n_dense: exchange.grads.len() };
        let (batches_per_push, longest_wait) = match mode {
            Mode::Async(config) => (config.max_merge_var_num, config.merge_wait),
            _ => (1, None),
        };
        Ok(Servers {
            client,
            runner,
            exchange,
            split: split.clone(),
            mode,
            step: 0,
            n_user_fetches: 0,
            fetch,
            gradients: MergedGradients::new(slots, batches_per_push),
            marks: Marks::default(),
            longest_wait,
            spare: Vec::new(),
            announced: VecDeque::new(),
            index: RowIndex::default(),
            times: StepTimes::default(),
            in_flight: None,
            rests: true,
        })
    }

    /// Pushes what was computed and waits until it is applied. Other workers still wait for this
    /// one in their next step.
    fn flush(&mut self) -> Result<(), Error> {
        let Some(mut pass) = self.in_flight.take() else { return Ok(()) };
        // All batches are computed: there is nothing to pull, and nowhere to put it.
        let scope = &mut Scope::new();
        self.after_compute(&mut pass);
        if std::mem::take(&mut pass.wants_batch) {
            pass.event(Event::End);
        }
        loop {
            match self.perform(&mut pass, scope)? {
                Some(Turn::Read) => pass.event(Event::End),
                Some(Turn::End) => return Ok(()),
                Some(_) => return Err(lost("a batch was computed in a flush")),
                None => {}
            }
        }
    }

    fn begin(&mut self, mode: Mode, data: Option<DataStart>) -> Result<InFlight, Error> {
        if self.rests {
            self.step = self.client.resume(self.step, data)?;
            self.rests = false;
        }
        Ok(InFlight::new(&mode, self.step))
    }

    /// As [`Servers::flush`]; other workers continue without this one, until it trains again.
    fn rest(&mut self) -> Result<(), Error> {
        self.flush()?;
        if !self.rests {
            self.client.rest()?;
            self.rests = true;
        }
        Ok(())
    }

    /// Executes one command of the pipeline, or waits for a reply of the servers.
    fn perform(&mut self, pass: &mut InFlight, scope: &mut Scope) -> Result<Option<Turn>, Error> {
        let Some(command) = pass.queue.pop_front() else {
            if pass.wants_batch && pass.works.is_empty() {
                // The next call has it.
                pass.wants_batch = false;
                pass.queue.push_back(Command::Read);
                return Ok(Some(Turn::Wait));
            }
            // There is time for it now, before somebody waits for the next pull.
            pass.works.values_mut().try_for_each(|work| self.prepare(work))?;
            self.wait(pass, scope)?;
            return Ok(None);
        };
        match command {
            // The pipeline reads while the push is in flight, before computing: taking a batch
            // wakes the reader thread. Done after the computation, the reader preempted the server
            // that had to reply to the push: the worker waited 0.7 s of 10 s for pushes, now 0.25 s
            // (1 worker, 1 server, batch 2048, 2 cores, 2026-11-16;
            // `bench/compare/run --only async-1-1 --batch 2048`).
            Command::Read => return Ok(Some(Turn::Read)),
            Command::Pull(batch) => {
                let dense = batch == 0 || !pass.pipeline.pulls_dense_by_push();
                self.send_pull(pass.first + batch, pass.works.get_mut(&batch), dense)?;
                pass.replies.push_back(Reply::Pull { batch, with_push: false });
            }
            Command::Compute(batch) => {
                let work = pass.works.remove(&batch).ok_or_else(lost_batch)?;
                self.compute(scope, pass.first + batch, &work)?;
                self.step += 1;
                pass.computed = Some(batch);
                self.spare.push(work.lookups);
                return Ok(Some(Turn::Step(work.input)));
            }
            Command::Push { last, .. } => {
                let dense = pass.pipeline.pulls_dense_by_push();
                let reply = self.send_push(pass.first + last + 1, dense)?;
                pass.replies.push_back(reply);
            }
            Command::PushPull { pull, .. } => {
                self.send_push_pull(pass.first + pull, pass.works.get_mut(&pull))?;
                pass.replies.push_back(Reply::Pull { batch: pull, with_push: true });
            }
            Command::Snapshot => return Ok(Some(Turn::Snapshot)),
            Command::Finish => return Ok(Some(Turn::End)),
        }
        Ok(None)
    }

    /// Waits for the oldest answer. Servers answer in the order of requests, so those of pushes
    /// that were sent before a pull are here when its values are.
    fn wait(&mut self, pass: &mut InFlight, scope: &mut Scope) -> Result<(), Error> {
        match pass.replies.pop_front() {
            Some(Reply::Pull { batch, with_push }) => {
                let pulled = self.finish_pull(scope, pass.works.get_mut(&batch))?;
                if with_push {
                    pass.event(Event::Acked);
                }
                pass.event(match pulled {
                    Pulled::Values => Event::Pulled(batch),
                    Pulled::Deferred => Event::Deferred(batch),
                });
            }
            Some(Reply::Push(ticket)) => {
                let start = Instant::now();
                self.client.finish_push(ticket)?;
                self.times.push += start.elapsed();
                pass.event(Event::Acked);
            }
            Some(Reply::PushAndDense(ticket)) => {
                let start = Instant::now();
                self.receive(ticket, &mut [], scope)?;
                self.times.push += start.elapsed();
                pass.event(Event::Acked);
            }
            None => return Err(lost("there is nothing to wait for")),
        }
        Ok(())
    }

    /// Runs forward and backward and adds the gradients to those that are to be pushed.
    fn compute(&mut self, scope: &mut Scope, step: u64, work: &Work) -> Result<(), Error> {
        if self.gradients.is_in_executor() {
            return Err(lost("gradients were not sent before the next batch"));
        }
        let mut feeds = feeds(self.runner.program(), &work.input);
        for (lookup, table) in work.lookups.iter().zip(&self.exchange.tables) {
            feeds.extend(lookup.feeds(table));
        }
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        self.runner.executor.set_step(step);
        // Gradients are sent from where they are computed.
        let run = self.runner.executor.run_copying(scope, &feeds, &fetch, self.n_user_fetches);
        run.map_err(|e| Error::from(e).in_batch(&work.input))?;
        self.gradients.set_first_slot(self.n_user_fetches);
        self.gradients.add(step, &self.runner.executor, work.input.examples(), &work.lookups);
        Ok(())
    }

    /// What only this worker has: statistics such as running means, which no gradient moves.
    fn own_tensors(&self, scope: &Scope) -> Vec<(String, Tensor)> {
        let on_servers = |name: &String| {
            self.exchange.params.contains(name)
                || self.exchange.tables.iter().any(|table| table.name == *name)
        };
        let own = self.runner.kept().filter(|name| !on_servers(name));
        own.filter_map(|name| Some((name.clone(), scope.get(name)?.clone()))).collect()
    }

    /// Notifies the pipeline that the batch computed last is counted.
    fn after_compute(&mut self, pass: &mut InFlight) {
        let Some(batch) = pass.computed.take() else { return };
        // What some servers have is pushed alone, so that they can leave out just that.
        if self.gradients.has_waited(self.longest_wait) || self.marks.is_repeating() {
            pass.event(Event::Overdue);
        }
        pass.event(Event::Computed(batch));
    }
}

impl Backend for Servers {
    fn client(&self) -> Option<&Client> {
        Some(&self.client)
    }

    fn topology(&self) -> Topology {
        topology(&self.client, self.mode.name())
    }

    fn step(&self) -> u64 {
        self.step
    }

    fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    fn set_fetch(&mut self, fetch: &[&str]) {
        let own = self.fetch.iter().take(self.n_user_fetches);
        if self.n_user_fetches != fetch.len() || own.zip(fetch).any(|(a, b)| a != b) {
            self.fetch.splice(..self.n_user_fetches, fetch.iter().map(|f| f.to_string()));
            self.n_user_fetches = fetch.len();
        }
    }

    fn fetched(&self) -> &[Tensor] {
        &self.runner.fetched()[..self.n_user_fetches]
    }

    fn start(&mut self, scope: &mut Scope, servers_have_values: bool) -> Result<(), Error> {
        share_dense(&self.client, &self.exchange, scope, servers_have_values)?;
        self.pull_dense(scope)
    }

    fn begin_pass(&mut self, start: Option<PassStart>) -> Result<(), Error> {
        self.flush()?;
        self.announced.clear();
        match &start {
            Some(start) => self.marks.begin(self.client.worker(), &start.applied),
            None => self.marks.begin_unknown(),
        }
        self.in_flight = Some(self.begin(self.mode, start.map(|start| start.data))?);
        Ok(())
    }

    fn progressed(&mut self, batch: &BatchProgress<'_>) {
        self.marks.note(batch.shard, batch.reads);
    }

    fn take_over(&mut self, shard: usize, step: u64) -> Result<TakenShard, Error> {
        self.announced.clear();
        let taken = self.client.take_over(shard, step.max(self.step))?;
        self.marks.begin(shard, &taken.progress);
        (self.step, self.rests) = (taken.step, false);
        self.in_flight = Some(InFlight::new(&self.mode, self.step));
        Ok(taken)
    }

    fn rejoin(
        &mut self,
        scope: &mut Scope,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<Rejoined>, Error> {
        // Gradients that were not applied belong to whoever has taken over the data.
        (self.in_flight, self.rests) = (None, true);
        self.announced.clear();
        self.gradients.clear();
        self.marks.begin_unknown();
        let (client, rejoined) = self.client.rejoin(note)?;
        (self.client, self.step) = (client, rejoined.step.max(self.step));
        self.pull_dense(scope)?;
        Ok(Some(rejoined))
    }

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        let mut pass = match self.in_flight.take() {
            Some(pass) => pass,
            // A program that trains step by step does not know its next batch.
            None => {
                self.marks.begin_unknown();
                self.begin(self.mode.without_prefetch(), None)?
            }
        };
        self.after_compute(&mut pass);
        let turn = loop {
            if let Some(turn) = self.perform(&mut pass, scope)? {
                break turn;
            }
        };
        match turn {
            Turn::End => self.rest()?,
            _ => self.in_flight = Some(pass),
        }
        Ok(turn)
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        let Some(pass) = &mut self.in_flight else { return Err(lost_batch()) };
        match next {
            Next::Later => pass.wants_batch = true,
            Next::Input(input) => {
                let announced = self.announced.pop_front().flatten();
                let prepared = announced.is_some();
                let lookups = announced.or_else(|| self.spare.pop()).unwrap_or_default();
                let work = Work { input, lookups, prepared, ticket: None };
                pass.works.insert(pass.read, work);
                pass.read += 1;
                pass.event(Event::Read);
            }
            Next::End => pass.event(Event::End),
        }
        Ok(())
    }

    fn lookahead(&self) -> usize {
        self.client.lookahead()
    }

    fn prefetch(&mut self, input: &Input) {
        let mut lookups = self.spare.pop().unwrap_or_default();
        let announced = self.look_up(input, &mut lookups).is_ok().then_some(lookups);
        if let Some(lookups) = &announced {
            let keys: Vec<&[u64]> = lookups.iter().map(Lookup::keys).collect();
            // A server that is gone is noticed by the next pull.
            let _ = self.client.prefetch(&keys);
        }
        self.announced.push_back(announced);
    }

    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error> {
        let snapshot = take_snapshot(&self.client, self.own_tensors(scope), state)?;
        if let Some(pass) = &mut self.in_flight {
            pass.event(Event::SnapshotDone);
        }
        Ok(snapshot)
    }

    fn pull_parameters(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.flush()?;
        self.pull_dense(scope)
    }

    fn pull_tables(&mut self) -> Result<Vec<(String, Tensor)>, Error> {
        self.flush()?;
        pull_tables(&self.client, &self.split, self.step)
    }

    /// Others may train meanwhile, and must not wait for this worker.
    fn before_meeting(&mut self) -> Result<(), Error> {
        self.rest()
    }

    fn take_times(&mut self) -> StepTimes {
        self.runner.take_times(&mut self.times)
    }

    fn set_options(&mut self, options: Options) -> Result<(), Error> {
        // Gradients that are still to be sent are in the executor.
        self.flush()?;
        self.runner.set_options(options)
    }

    fn leave(&mut self) -> Result<Vec<String>, Error> {
        self.flush()?;
        Ok(self.client.leave()?)
    }
}

/// Worker 0 gives the servers its dense parameters, unless they have loaded some; all wait for it.
pub(crate) fn share_dense(
    client: &Client,
    exchange: &Exchange,
    scope: &Scope,
    servers_have_values: bool,
) -> Result<(), Error> {
    if client.worker() == 0 && !servers_have_values {
        client.set_dense(&floats(scope, &exchange.params)?)?;
    }
    Ok(client.barrier("start")?)
}

/// Takes part in a snapshot of the servers; `own` is what only this worker has.
pub(crate) fn take_snapshot(
    client: &Client,
    own: Vec<(String, Tensor)>,
    state: &str,
) -> Result<Snapshot, Error> {
    let taken = client.ready(state, !own.is_empty())?;
    let values = match client.worker() {
        0 => SnapshotValues::Servers(client.written()?),
        _ => SnapshotValues::Elsewhere,
    };
    // There is no directory if the snapshot was given up: worker 0 is lost.
    let is_wanted = !own.is_empty() && !taken.dir.is_empty();
    let own = is_wanted.then(|| (PathBuf::from(&taken.dir), own));
    Ok(Snapshot { states: taken.states, orphans: taken.orphans, values, own })
}

/// The kind and size of a job with servers.
pub(crate) fn topology(client: &Client, mode: &str) -> Topology {
    let (servers, workers) = (client.servers(), client.workers());
    Topology { mode: mode.into(), servers, workers, ranks: 0 }
}

fn lost(what: &str) -> Error {
    Error::Internal(format!("training with servers: {what}"))
}

fn lost_batch() -> Error {
    lost("a batch was lost")
}
