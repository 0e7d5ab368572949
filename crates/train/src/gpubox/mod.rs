//! Training with rows on devices: the program runs there, rows of the next batches are brought
//! while a batch computes, updates happen in place, and servers hold everything else. Several
//! devices share every batch.
//!
//! One worker owns all rows that are on its device. It writes what changed to the servers before a
//! checkpoint, at the end of a data pass and before a model is saved; rows stay where they are.
//!
//! Reading order: [`GpuBox`] (here), `window` (which rows are in which slots), `rows` (how they
//! move), `engine` (one device or several), `dense` (all other parameters).

mod dense;
mod engine;
mod rows;
mod window;

use std::collections::VecDeque;
use std::time::Instant;

use regatta_checkpoint::Topology;
use regatta_device::Device;
use regatta_exec::device::DeviceBatch;
use regatta_exec::{Lookup, Options, Scope};
use regatta_ir::Origin;
use regatta_passes::Split;
use regatta_ps::message::DenseState;
use regatta_ps::{Client, Idle, SnapshotOrder};
use regatta_tensor::{RowIndex, Tensor, Value};

use self::engine::{Engine, Prepared};
pub use self::rows::Moved;
use self::rows::Table;
use crate::Error;
use crate::backend::{Backend, PassStart, Snapshot, StepTimes, Turn};
use crate::input::{Input, Next};
use crate::servers::{share_dense, take_snapshot, topology};
use crate::tables::pull_tables;

/// Batches whose rows are on the device before they compute.
const DEPTH: usize = 4;

/// A worker that trains a split program on devices.
pub struct GpuBox {
    client: Client,
    split: Split,
    devices: Vec<Device>,
    tables: Vec<Table>,
    on_device: Option<OnDevice>,
    /// Steps of the job, and updates that the learning rate counts.
    step: u64,
    updates: u64,
    fetch: Vec<String>,
    fetched: Vec<Tensor>,
    /// The program was made for other names.
    refetch: bool,
    /// Batches whose rows are there or on their way, in order.
    ready: VecDeque<Work>,
    /// The batch that computes.
    running: Option<Work>,
    /// A batch that has no room yet.
    waiting: Option<Input>,
    state: State,
    wants_snapshot: bool,
    /// Servers do not have the last updates.
    changed: bool,
    index: RowIndex,
    spare: Vec<Prepared>,
    hints: Vec<Lookup>,
    batch: DeviceBatch,
    moved: Moved,
    times: StepTimes,
}

/// The program with its dense parameters, for what is fetched.
struct OnDevice {
    engine: Engine,
    /// Names that the device gives, in order.
    fetch: Vec<String>,
}

/// A batch between reading and its end.
struct Work {
    input: Input,
    prepared: Prepared,
    /// By table, device and slot of each key.
    slots: Vec<Vec<(u32, u32)>>,
}

/// What reading has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The program that trains step by step has no batch now.
    Deferred,
    Ended,
}

impl GpuBox {
    /// Prepares devices for the tables of a program: `arena_bytes` by table, on each device.
    ///
    /// # Errors
    /// If there are several workers, the device has no room, or it cannot run the program.
    pub fn new(
        split: &Split,
        client: Client,
        devices: &[Device],
        arena_bytes: &[u64],
    ) -> Result<GpuBox, Error> {
        if client.workers() > 1 {
            return Err(Error::Config(format!(
                "rows on a device have one owner, and this job has {} workers: take one worker with \
                 several devices, or runner.use_gpu=False",
                client.workers()
            )));
        }
        let tables = split.tables.iter().zip(arena_bytes).enumerate();
        let tables = tables.map(|(at, (spec, bytes))| Table::new(devices, at, spec, *bytes));
        // What the device cannot run is said before anything is read.
        Engine::compile(split, devices, &[])?;
        Ok(GpuBox {
            client,
            split: split.clone(),
            devices: devices.to_vec(),
            tables: tables.collect::<Result<_, _>>()?,
            on_device: None,
            step: 0,
            updates: 0,
            fetch: vec![],
            fetched: vec![],
            refetch: false,
            ready: VecDeque::new(),
            running: None,
            waiting: None,
            state: State::Reading,
            wants_snapshot: false,
            changed: false,
            index: RowIndex::default(),
            spare: vec![],
            hints: vec![],
            batch: DeviceBatch::default(),
            moved: Moved::default(),
            times: StepTimes::default(),
        })
    }

    /// What has travelled since it was made, parameters at beginnings and ends aside.
    pub fn moved(&self) -> Moved {
        self.moved
    }

    /// The program on the device with the parameters that servers have.
    fn load(&mut self, scope: &mut Scope) -> Result<(), Error> {
        if self.on_device.is_some() && self.refetch && self.is_idle() {
            // Servers keep the parameters while the program is made for what is fetched now.
            self.flush(scope)?;
            self.on_device = None;
        }
        if self.on_device.is_some() {
            return Ok(());
        }
        self.refetch = false;
        let vars = &self.split.trainer.block().vars;
        let is_input = |name: &String| vars.get(name).is_some_and(|v| v.origin == Origin::Data);
        let fetch: Vec<String> = self.fetch.iter().filter(|f| !is_input(f)).cloned().collect();
        let names: Vec<&str> = fetch.iter().map(String::as_str).collect();
        let mut engine = Engine::compile(&self.split, &self.devices, &names)?;
        let state = self.client.lease_dense()?;
        dense::load(&self.split, &state, &mut engine, scope)?;
        self.updates = state.steps;
        for (table, steps) in self.tables.iter_mut().zip(&state.tables) {
            table.set_steps(*steps);
        }
        self.on_device = Some(OnDevice { engine, fetch });
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.running.is_none() && self.ready.is_empty() && self.waiting.is_none()
    }

    /// Brings the rows of a batch to the device. Gives it back if batches in flight leave no room.
    fn plan(&mut self, input: Input) -> Result<Option<Input>, Error> {
        let start = Instant::now();
        let on_device = self.on_device.as_mut().ok_or_else(no_program)?;
        let spare = self.spare.pop();
        let prepared = on_device.engine.prepare(&self.split, &input, spare, &mut self.index);
        let mut prepared = prepared.map_err(|e| e.in_batch(&input))?;
        for (at, table) in self.tables.iter().enumerate() {
            if let Some(rows) = table.lacks_room(prepared.keys(at)) {
                if self.ready.is_empty() && self.running.is_none() {
                    return Err(table.too_small(rows));
                }
                self.spare.push(prepared);
                return Ok(Some(input));
            }
        }
        let mut slots = Vec::new();
        for (at, table) in self.tables.iter_mut().enumerate() {
            slots.push(table.bring(&self.client, prepared.keys(at), &mut self.moved)?);
        }
        let (engine, batch) = (&on_device.engine, &mut self.batch);
        let sent = engine.upload(&self.split, &input, &mut prepared, &slots, batch);
        self.moved.batch_bytes += sent.map_err(|e| e.in_batch(&input))?;
        self.ready.push_back(Work { input, prepared, slots });
        self.times.pull += start.elapsed();
        Ok(None)
    }

    /// Puts the next batch on the device's queue: forward, backward and all updates.
    fn launch(&mut self) -> Result<(), Error> {
        let Some(mut work) = self.ready.pop_front() else { return Ok(()) };
        let lr = self.split.schedule.lr(self.split.learning_rate, self.updates);
        let on_device = self.on_device.as_mut().ok_or_else(no_program)?;
        let (engine, tables) = (&mut on_device.engine, &mut self.tables);
        let sent = engine.launch(&mut work.prepared, tables, &work.slots, lr);
        self.moved.batch_bytes += sent.map_err(|e| e.in_batch(&work.input))?;
        for (table, slots) in self.tables.iter_mut().zip(&work.slots) {
            table.change(slots);
        }
        self.updates += 1;
        (self.changed, self.running) = (true, Some(work));
        Ok(())
    }

    /// Waits for the batch that computes.
    fn finish(&mut self, work: Work) -> Result<Turn, Error> {
        let start = Instant::now();
        let OnDevice { engine, fetch } = self.on_device.as_ref().ok_or_else(no_program)?;
        let given = engine.fetch()?;
        let mut named = fetch.iter().cloned().zip(given).collect::<Vec<_>>();
        self.fetched = self.fetch.iter().map(|name| fetched(name, &mut named, &work)).collect();
        for (table, slots) in self.tables.iter_mut().zip(&work.slots) {
            table.release(slots);
        }
        self.spare.push(work.prepared);
        self.step += 1;
        self.times.forward += start.elapsed();
        Ok(Turn::Step(work.input))
    }

    /// Gives servers all that changed on the device. No batch computes.
    fn flush(&mut self, scope: &mut Scope) -> Result<(), Error> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let start = Instant::now();
        for table in &mut self.tables {
            table.flush(&self.client)?;
        }
        let Some(on_device) = &self.on_device else { return Ok(()) };
        let pieces = dense::take(&self.split, &on_device.engine, scope)?;
        let tables = self.tables.iter().map(|table| table.steps).collect();
        self.client.return_dense(&DenseState { steps: self.updates, tables, pieces })?;
        self.times.push += start.elapsed();
        Ok(())
    }
}

impl Backend for GpuBox {
    fn client(&self) -> Option<&Client> {
        Some(&self.client)
    }

    fn topology(&self) -> Topology {
        topology(&self.client, "gpubox")
    }

    fn device(&self) -> Option<String> {
        let names: Vec<String> = self.devices.iter().map(|d| d.info().to_string()).collect();
        Some(names.join(", "))
    }

    fn step(&self) -> u64 {
        self.step
    }

    fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    fn set_fetch(&mut self, fetch: &[&str]) {
        if self.fetch.iter().map(String::as_str).ne(fetch.iter().copied()) {
            self.fetch = fetch.iter().map(|name| name.to_string()).collect();
            self.refetch = true;
        }
    }

    fn fetched(&self) -> &[Tensor] {
        &self.fetched
    }

    fn start(&mut self, scope: &mut Scope, servers_have_values: bool) -> Result<(), Error> {
        share_dense(&self.client, &self.split.exchange, scope, servers_have_values)?;
        self.load(scope)
    }

    fn begin_pass(&mut self, _: Option<PassStart>) -> Result<(), Error> {
        self.state = State::Reading;
        Ok(())
    }

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        loop {
            if self.running.is_none() && self.wants_snapshot {
                self.flush(scope)?;
                return Ok(Turn::Snapshot);
            }
            self.load(scope)?;
            if self.running.is_none() {
                self.launch()?;
            }
            if let Some(input) = self.waiting.take() {
                self.waiting = self.plan(input)?;
                if self.waiting.is_none() {
                    continue;
                }
            } else if self.state == State::Reading && self.ready.len() < DEPTH {
                return Ok(Turn::Read);
            }
            if let Some(work) = self.running.take() {
                return self.finish(work);
            }
            if self.ready.is_empty() && self.waiting.is_none() {
                return Ok(match std::mem::replace(&mut self.state, State::Reading) {
                    State::Ended => {
                        self.flush(scope)?;
                        Turn::End
                    }
                    _ => Turn::Wait,
                });
            }
        }
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        match next {
            Next::Input(input) => self.waiting = self.plan(input)?,
            Next::Later => self.state = State::Deferred,
            Next::End => self.state = State::Ended,
        }
        Ok(())
    }

    /// There is one worker.
    fn wait_for_others(&mut self) -> Result<Idle, Error> {
        Ok(Idle::PassOver { untrained: vec![] })
    }

    fn request_snapshot(&mut self, order: Option<&SnapshotOrder>) -> Result<(), Error> {
        if let Some(order) = order {
            self.client.open_snapshot(order)?;
            self.wants_snapshot = true;
        }
        Ok(())
    }

    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error> {
        self.wants_snapshot = false;
        self.flush(scope)?;
        take_snapshot(&self.client, vec![], state)
    }

    fn pull_parameters(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.flush(scope)
    }

    fn pull_tables(&mut self) -> Result<Vec<(String, Tensor)>, Error> {
        self.before_meeting()?;
        pull_tables(&self.client, &self.split, self.step)
    }

    /// Whoever looks at servers next sees what was trained.
    fn before_meeting(&mut self) -> Result<(), Error> {
        self.flush(&mut Scope::new())
    }

    fn lookahead(&self) -> usize {
        self.client.lookahead()
    }

    fn prefetch(&mut self, input: &Input) {
        let lookups = &mut self.hints;
        lookups.resize_with(self.split.exchange.tables.len(), Lookup::default);
        let tables = lookups.iter_mut().zip(&self.split.exchange.tables);
        let mut found = tables.map(|(lookup, table)| {
            lookup.prepare(table, false, &mut self.index, |name| input.get(name)).is_ok()
        });
        if found.all(|found| found) {
            let keys: Vec<&[u64]> = lookups.iter().map(Lookup::keys).collect();
            // A server that is gone is noticed by the next lease.
            let _ = self.client.prefetch(&keys);
        }
    }

    fn take_times(&mut self) -> StepTimes {
        std::mem::take(&mut self.times)
    }

    fn set_options(&mut self, _: Options) -> Result<(), Error> {
        Ok(())
    }

    fn leave(&mut self) -> Result<Vec<String>, Error> {
        self.before_meeting()?;
        Ok(self.client.leave()?)
    }
}

/// A value of the device, or of the batch.
fn fetched(name: &str, given: &mut Vec<(String, Tensor)>, work: &Work) -> Tensor {
    if let Some(at) = given.iter().position(|(other, _)| other == name) {
        return given.swap_remove(at).1;
    }
    let value = work.input.get(name).and_then(Value::as_dense);
    value.cloned().unwrap_or_else(|| Tensor::from_f32(&[0], vec![]).expect("an empty tensor"))
}

fn no_program() -> Error {
    Error::Internal("training on a device: the program is not there".into())
}
