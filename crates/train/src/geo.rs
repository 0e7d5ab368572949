//! Training in geo mode: a worker trains its own copy of everything and exchanges differences with
//! the servers now and then, without ever waiting for them while it trains.

use std::time::Instant;

use regatta_checkpoint::Topology;
use regatta_exec::{Options, Scope};
use regatta_ir::{Program, Programs};
use regatta_ops::update_rule;
use regatta_optim::RowRule;
use regatta_passes::{Exchange, Split, TableExchange};
use regatta_ps::communicator::{GeoCommand, GeoPlan};
use regatta_ps::{Client, GeoTicket, Rejoined, TakenShard};
use regatta_tensor::{Tensor, Value};

use crate::Error;
use crate::backend::{Backend, BatchProgress, PassStart, RestoredState, Snapshot, StepTimes, Turn};
use crate::input::{Input, Next};
use crate::marks::Marks;
use crate::runner::{Inbox, Runner, fetches_by_runner};
use crate::servers::{share_dense, take_snapshot, topology};
use crate::tables::floats;

/// A worker that trains its own copy.
pub struct Geo {
    client: Client,
    runner: Runner,
    inbox: Inbox,
    exchange: Exchange,
    plan: GeoPlan,
    ticket: Option<GeoTicket>,
    /// Values as of the last exchange: dense parameters, then tables.
    old_dense: Vec<Vec<f32>>,
    old_tables: Vec<Vec<f32>>,
    /// Rows trained since the last exchange, by table.
    touched: Vec<TouchedRows>,
    /// How far the data are trained with the next exchange.
    marks: Marks,
    step_counts: Vec<StepCount>,
    step: u64,
    times: StepTimes,
    /// A step is done, after which an exchange may be due.
    has_stepped: bool,
    /// Servers wait for this worker in their snapshots.
    trains: bool,
    /// A server requests this worker's part of a snapshot.
    snapshot_wanted: bool,
}

/// A state of a table's optimizer that counts the steps of the whole table.
struct StepCount {
    name: String,
    /// What a step of every other worker multiplies it by.
    others: f32,
}

/// Before the names of values of the last exchange in a worker's part of a checkpoint.
const OLD: &str = "old/";

impl Geo {
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
    ) -> Result<Geo, Error> {
        let names: Vec<String> = split.tables.iter().map(|t| t.name.clone()).collect();
        let exchange = split.exchange.clone();
        let runner = Runner::new(programs.main.clone(), options)?;
        let touched = exchange.tables.iter().map(|_| TouchedRows::default()).collect();
        let others = client.workers().saturating_sub(1) as u64;
        Ok(Geo {
            step_counts: step_counts(&programs.main, &names, others)?,
            client,
            runner,
            inbox: Inbox::default(),
            exchange,
            plan: GeoPlan::new(every),
            ticket: None,
            old_dense: Vec::new(),
            old_tables: Vec::new(),
            touched,
            marks: Marks::default(),
            step: 0,
            times: StepTimes::default(),
            has_stepped: false,
            trains: false,
            snapshot_wanted: false,
        })
    }

    fn table_names(&self) -> Vec<String> {
        self.exchange.tables.iter().map(|t| t.name.clone()).collect()
    }

    /// This worker's copy of everything, and the values of the last exchange.
    fn own_tensors(&self, scope: &Scope) -> Result<Vec<(String, Tensor)>, Error> {
        let kept = self.runner.kept();
        let kept = kept.filter_map(|name| Some((name.clone(), scope.get(name)?.clone())));
        let mut own: Vec<(String, Tensor)> = kept.collect();
        let old = self.exchange.params.iter().zip(&self.old_dense);
        let tables = self.exchange.tables.iter().map(|t| &t.name);
        for (name, values) in old.chain(tables.zip(&self.old_tables)) {
            let tensor = Tensor::from_f32(&[values.len()], values.clone());
            let tensor = tensor.map_err(|e| Error::Internal(e.to_string()))?;
            own.push((format!("{OLD}{name}"), tensor));
        }
        Ok(own)
    }

    /// Continues with the copy that this worker had.
    fn take_copy(&mut self, scope: &mut Scope, own: Vec<(String, Tensor)>) -> Result<(), Error> {
        let (old, kept): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|(name, _)| name.starts_with(OLD));
        kept.into_iter().for_each(|(name, tensor)| scope.set(&name, tensor));
        let old_of = |name: &String, len: usize| {
            let found = old.iter().find(|(n, _)| n.strip_prefix(OLD) == Some(name.as_str()));
            let values = found.map(|(_, tensor)| tensor.f32().to_vec());
            values.filter(|v| v.len() == len).ok_or_else(|| {
                Error::Resume(format!("the checkpoint has no copy of '{name}' of this worker"))
            })
        };
        let copies = |names: &[String]| -> Result<Vec<Vec<f32>>, Error> {
            let latest = floats(scope, names)?;
            names.iter().zip(latest).map(|(name, now)| old_of(name, now.len())).collect()
        };
        (self.old_dense, self.old_tables) =
            (copies(&self.exchange.params)?, copies(&self.table_names())?);
        self.client.barrier("start")?;
        let ticket = self.send_nothing()?;
        self.apply(scope, ticket)
    }

    fn compute(&mut self, scope: &mut Scope, input: &Input) -> Result<(), Error> {
        self.runner.run(scope, input)?;
        for (table, touched) in self.exchange.tables.iter().zip(&mut self.touched) {
            touch(table, input, touched);
        }
        self.count_steps_of_others(scope);
        self.step += 1;
        Ok(())
    }

    /// Adam's bias correction of a row counts the steps of the whole table, so that rows met late
    /// take larger steps. Counting the steps of all workers, a pass with 2 workers ends at AUC
    /// 0.7045 instead of 0.6967 (batch 2048, three seeds) and 0.741 instead of 0.733 (batch 512;
    /// 2026-11-17; `bench/compare/run --only geo-2-1`). Record:
    /// docs/decisions/0015-geo-sends-whole-rows.md.
    fn count_steps_of_others(&self, scope: &mut Scope) {
        for count in &self.step_counts {
            for power in scope.get_mut(&count.name).into_iter().flat_map(Tensor::f32_mut) {
                let next = *power * count.others;
                // Arithmetic on subnormal numbers is slow.
                *power = if next < f32::MIN_POSITIVE { 0.0 } else { next };
            }
        }
    }

    /// Exchanges what is left.
    fn exchange_rest(&mut self, scope: &mut Scope) -> Result<(), Error> {
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
            self.snapshot_wanted |= ticket.wants_snapshot();
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

    /// Goes back to the values of the last exchange: whoever has taken over the data trains again
    /// what was learned since.
    fn forget_own_steps(&mut self, scope: &mut Scope) -> Result<(), Error> {
        let names: Vec<String> =
            self.exchange.params.iter().cloned().chain(self.table_names()).collect();
        let latest = scope.get_many_mut(&names).ok_or_else(not_initialised)?;
        let old = self.old_dense.iter().chain(&self.old_tables);
        for (latest, old) in latest.into_iter().zip(old) {
            latest.f32_mut().copy_from_slice(old);
        }
        self.touched.iter_mut().for_each(|touched| drop(touched.take()));
        Ok(())
    }

    /// An exchange without differences, to receive what others have changed.
    fn send_nothing(&self) -> Result<GeoTicket, Error> {
        let zeros: Vec<Vec<f32>> = self.old_dense.iter().map(|old| vec![0.0; old.len()]).collect();
        let dense: Vec<&[f32]> = zeros.iter().map(Vec::as_slice).collect();
        let tables: Vec<(&[u64], &[f32])> =
            self.exchange.tables.iter().map(|_| (&[][..], &[][..])).collect();
        Ok(self.client.geo(&dense, &tables, None)?)
    }

    /// Sends what was learned since the last exchange, and counts it as sent: of rows
    /// `latest - old`, of dense parameters `(latest - old) / workers`. All workers move the dense
    /// parameters the same way at the same time, so the rest of each difference is deferred and
    /// follows later; most rows are trained by one worker at a time, and nobody else would make up
    /// for what it keeps back.
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
            let keys = self.touched[i].take();
            let mut deltas = Vec::with_capacity(keys.len() * table.dim);
            for &key in &keys {
                let at = key as usize * table.dim;
                let old = &mut self.old_tables[i][at..at + table.dim];
                for (old, new) in old.iter_mut().zip(&latest[i][at..]) {
                    let delta = new - *old;
                    *old += delta;
                    deltas.push(delta);
                }
            }
            tables.push((keys, deltas));
        }
        let dense: Vec<&[f32]> = dense.iter().map(Vec::as_slice).collect();
        let tables: Vec<(&[u64], &[f32])> =
            tables.iter().map(|(k, d)| (k.as_slice(), d.as_slice())).collect();
        let ticket = self.client.geo(&dense, &tables, self.marks.view())?;
        self.marks.sent();
        Ok(ticket)
    }

    /// Moves the local copy by what the servers' values differ from those of the last exchange.
    fn apply(&mut self, scope: &mut Scope, ticket: GeoTicket) -> Result<(), Error> {
        let mut names = self.exchange.params.clone();
        names.extend(self.table_names());
        let n_dense = self.exchange.params.len();
        let mut all: Vec<&mut [f32]> = scope
            .get_many_mut(&names)
            .ok_or_else(not_initialised)?
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
        self.snapshot_wanted |= self.client.finish_geo(
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

impl Backend for Geo {
    fn client(&self) -> Option<&Client> {
        Some(&self.client)
    }

    fn topology(&self) -> Topology {
        topology(&self.client, "geo")
    }

    fn step(&self) -> u64 {
        self.step
    }

    fn set_step(&mut self, step: u64) {
        self.step = step;
        self.runner.executor.set_step(step);
    }

    fetches_by_runner!();

    /// Tables begin equal everywhere, because their initial values follow from the seed.
    fn start(&mut self, scope: &mut Scope, servers_have_values: bool) -> Result<(), Error> {
        share_dense(&self.client, &self.exchange, scope, servers_have_values)?;
        self.old_dense = to_vecs(&floats(scope, &self.exchange.params)?);
        self.old_tables = to_vecs(&floats(scope, &self.table_names())?);
        // An exchange without differences brings everyone to the servers' values.
        let ticket = self.send(scope)?;
        self.apply(scope, ticket)
    }

    fn restore(
        &mut self,
        scope: &mut Scope,
        restored: RestoredState,
    ) -> Result<Option<&'static str>, Error> {
        self.set_step(restored.step);
        match restored.tensors.filter(|_| restored.same_workers) {
            Some(own) => self.take_copy(scope, own).map(|()| None),
            None => {
                self.start(scope, true)?;
                Ok(Some("this worker begins with the values of the servers, without a copy"))
            }
        }
    }

    fn begin_pass(&mut self, start: Option<PassStart>) -> Result<(), Error> {
        match &start {
            Some(start) => self.marks.begin(self.client.worker(), &start.applied),
            None => self.marks.begin_unknown(),
        }
        self.client.resume(self.step, start.map(|start| start.data))?;
        self.trains = true;
        Ok(())
    }

    fn progressed(&mut self, batch: &BatchProgress<'_>) {
        self.marks.note(batch.shard, batch.reads);
    }

    fn take_over(&mut self, shard: usize, _: u64) -> Result<TakenShard, Error> {
        let taken = self.client.take_over(shard, self.step)?;
        self.marks.begin(shard, &taken.progress);
        self.trains = true;
        Ok(taken)
    }

    fn rejoin(
        &mut self,
        scope: &mut Scope,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<Rejoined>, Error> {
        (self.inbox, self.ticket) = (Inbox::default(), None);
        self.plan = self.plan.restarted();
        (self.has_stepped, self.trains, self.snapshot_wanted) = (false, false, false);
        self.marks.begin_unknown();
        let (client, rejoined) = self.client.rejoin(note)?;
        self.client = client;
        self.forget_own_steps(scope)?;
        let ticket = self.send_nothing()?;
        self.apply(scope, ticket)?;
        Ok(Some(rejoined))
    }

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        if std::mem::take(&mut self.has_stepped) {
            match self.marks.is_repeating() {
                // What some servers have is sent alone, so that they can leave out just that.
                true => {
                    self.plan.stepped_without_exchange();
                    self.exchange_rest(scope)?;
                }
                false => self.exchange_if_due(scope)?,
            }
        }
        if self.snapshot_wanted && self.trains {
            return Ok(Turn::Snapshot);
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        let turn = inbox.turn(|input| self.compute(scope, input))?;
        match turn {
            Turn::Step(_) => self.has_stepped = true,
            Turn::End => {
                self.exchange_rest(scope)?;
                self.client.rest()?;
                self.trains = false;
            }
            _ => {}
        }
        Ok(turn)
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        self.inbox.give(next);
        Ok(())
    }

    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error> {
        self.exchange_rest(scope)?;
        self.snapshot_wanted = false;
        take_snapshot(&self.client, self.own_tensors(scope)?, state)
    }

    fn pull_parameters(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.exchange_rest(scope)
    }

    fn take_times(&mut self) -> StepTimes {
        self.runner.take_times(&mut self.times)
    }

    fn set_options(&mut self, options: Options) -> Result<(), Error> {
        self.runner.set_options(options)
    }
}

/// The states of these tables' optimizers that count steps.
fn step_counts(main: &Program, tables: &[String], others: u64) -> Result<Vec<StepCount>, Error> {
    let mut counts = Vec::new();
    for op in &main.block().ops {
        let Some(rule) = update_rule(op)?.filter(|_| tables.contains(&op.ins("Param")[0])) else {
            continue;
        };
        for (state, name) in rule.states().iter().zip(op.ins("States")) {
            let others = state.factor_of_steps(others).filter(|&factor| factor != 1.0);
            counts.extend(others.map(|others| StepCount { name: name.clone(), others }));
        }
    }
    Ok(counts)
}

fn not_initialised() -> Error {
    Error::Config("a parameter is not initialised: run the startup program".into())
}

fn to_vecs(slices: &[&[f32]]) -> Vec<Vec<f32>> {
    slices.iter().map(|s| s.to_vec()).collect()
}

/// A set of rows of a table that this worker holds as a whole: a mark per row, and the rows marked.
#[derive(Default)]
struct TouchedRows {
    marks: Vec<u64>,
    rows: Vec<u64>,
}

impl TouchedRows {
    #[inline]
    fn insert(&mut self, row: u64) {
        let (word, bit) = ((row / 64) as usize, 1 << (row % 64));
        if word >= self.marks.len() {
            self.marks.resize(word + 1, 0);
        }
        if self.marks[word] & bit == 0 {
            self.marks[word] |= bit;
            self.rows.push(row);
        }
    }

    /// The rows in rising order; none are left.
    fn take(&mut self) -> Vec<u64> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.iter().for_each(|row| self.marks[(row / 64) as usize] = 0);
        rows.sort_unstable();
        rows
    }
}

/// Remembers the rows of a table that a batch trains.
fn touch(table: &TableExchange, batch: &Input, touched: &mut TouchedRows) {
    for (name, _) in &table.inputs {
        // The step has looked them up: none is negative.
        let Some(ids) = batch.get(name).and_then(Value::ids) else { continue };
        let keys = ids.iter().filter(|id| table.padding != Some(**id));
        keys.for_each(|&id| touched.insert(table.modulo.map_or(id, |m| id % m)));
    }
}
