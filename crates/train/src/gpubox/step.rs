//! The steps of a worker with devices: its program is made, rows of a batch are brought, the batch
//! computes, and what changed goes to the servers.

use std::time::Instant;

use regatta_exec::Scope;
use regatta_exec::device::TableKeys;
use regatta_ir::Origin;
use regatta_ps::message::DenseState;
use regatta_tensor::{Tensor, Value};

use super::engine::{Engine, Prepared, Update};
use super::peers::Announced;
use super::{GpuBox, State, dense};
use crate::Error;
use crate::backend::Turn;
use crate::input::Input;

/// The program with its dense parameters, for what is fetched.
pub(super) struct OnDevice {
    engine: Engine,
    /// Names that the device gives, in order.
    fetch: Vec<String>,
}

/// A batch between reading and its end.
pub(super) struct Work {
    /// None if only other workers have examples.
    input: Option<Input>,
    prepared: Prepared,
    /// By table, device and slot of each key.
    slots: Vec<Vec<(u32, u32)>>,
    /// This worker's part of the examples of all.
    share: f32,
}

impl GpuBox {
    /// The program on the device with the parameters that servers have.
    pub(super) fn load(&mut self, scope: &mut Scope) -> Result<(), Error> {
        if self.on_device.is_some() && self.refetch && self.is_idle() {
            // Servers keep the parameters while the program is made for what is fetched now.
            self.flush(scope)?;
            if let Some(peers) = &mut self.peers {
                peers.barrier("parameters")?;
            }
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
        let alone = self.peers.is_none();
        let mut engine = Engine::compile(&self.split, &self.devices, &names, alone)?;
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

    /// Finds the keys of a batch, those of all workers, and brings its rows to the device, at once
    /// or as soon as there is room. With no input this worker has no more batches, and takes part
    /// until nobody has.
    pub(super) fn plan(&mut self, input: Option<Input>) -> Result<(), Error> {
        let start = Instant::now();
        let on_device = self.on_device.as_mut().ok_or_else(no_program)?;
        let (engine, spare) = (&mut on_device.engine, self.spare.pop());
        let counts = self.counts;
        let prepared =
            engine.prepare((&self.split, counts), input.as_ref(), spare, &mut self.index);
        let mut prepared = prepared.map_err(|e| in_batch(e, input.as_ref()))?;
        let mut share = 1.0;
        if let Some(peers) = &mut self.peers {
            let examples = input.as_ref().map_or(0, Input::examples) as u64;
            let table = |at: usize| {
                let (keys, counts) = prepared.keys(at);
                TableKeys { keys: keys.to_vec(), counts: counts.to_vec() }
            };
            let tables = (0..self.tables.len()).map(table).collect();
            let all = peers.announce(&Announced { examples, tables })?;
            let total: u64 = all.iter().map(|announced| announced.examples).sum();
            if total == 0 {
                self.spare.push(prepared);
                self.state = State::Ended;
                return Ok(());
            }
            share = (examples as f64 / total as f64) as f32;
            engine.join(&mut prepared, all)?;
        }
        self.waiting = self.place(Work { input, prepared, slots: vec![], share })?;
        self.times.pull += start.elapsed();
        Ok(())
    }

    /// Brings the rows of a batch to the device. Gives it back if batches in flight leave no room
    /// there, or on the device of another worker.
    pub(super) fn place(&mut self, mut work: Work) -> Result<Option<Work>, Error> {
        let mut tables = self.tables.iter().enumerate();
        let own = tables.find_map(|(at, table)| {
            let rows = table.lacks_room(work.prepared.keys(at).0)?;
            Some(table.too_small(rows))
        });
        let lacking = match &mut self.peers {
            None => own,
            Some(peers) => peers.lacking(own.as_deref())?,
        };
        if let Some(reason) = lacking {
            return match self.ready.is_empty() && self.running.is_none() {
                true => Err(Error::Config(reason)),
                false => Ok(Some(work)),
            };
        }
        for (at, table) in self.tables.iter_mut().enumerate() {
            let keys = work.prepared.keys(at);
            work.slots.push(table.bring(&self.client, keys, &mut self.moved)?);
        }
        let engine = &self.on_device.as_ref().ok_or_else(no_program)?.engine;
        if let Some(input) = &work.input {
            let (prepared, batch) = (&mut work.prepared, &mut self.batch);
            let sent = engine.upload(&self.split, input, prepared, &work.slots, batch);
            self.moved.batch_bytes += sent.map_err(|e| e.in_batch(input))?;
        }
        self.ready.push_back(work);
        Ok(None)
    }

    fn update_of(&self, work: &Work) -> Update {
        let lr = self.split.schedule.lr(self.split.learning_rate, self.updates);
        Update { lr, share: work.share }
    }

    /// Puts the next batch on the queues of devices.
    pub(super) fn launch(&mut self) -> Result<(), Error> {
        let Some(mut work) = self.ready.pop_front() else { return Ok(()) };
        let update = self.update_of(&work);
        let on_device = self.on_device.as_mut().ok_or_else(no_program)?;
        let (engine, tables, peers) = (&mut on_device.engine, &mut self.tables, &mut self.peers);
        let (prepared, slots) = (&mut work.prepared, &work.slots);
        let sent = engine.launch(prepared, tables, slots, update, peers.as_mut());
        self.moved.batch_bytes += sent.map_err(|e| in_batch(e, work.input.as_ref()))?;
        for (table, slots) in self.tables.iter_mut().zip(&work.slots) {
            table.change(slots);
        }
        (self.changed, self.running) = (true, Some(work));
        Ok(())
    }

    /// Completes the batch that computes, and waits for it.
    pub(super) fn finish(&mut self, mut work: Work) -> Result<Turn, Error> {
        let start = Instant::now();
        let update = self.update_of(&work);
        let OnDevice { engine, fetch } = self.on_device.as_mut().ok_or_else(no_program)?;
        let (tables, peers) = (&mut self.tables, self.peers.as_mut());
        engine.complete(&mut work.prepared, tables, &work.slots, update, peers)?;
        if let Some(input) = &work.input {
            let given = engine.fetch()?;
            let mut named = fetch.iter().cloned().zip(given).collect::<Vec<_>>();
            let names = self.fetch.iter();
            self.fetched = names.map(|name| fetched(name, &mut named, input)).collect();
        }
        for (table, slots) in self.tables.iter_mut().zip(&work.slots) {
            table.release(slots);
        }
        self.spare.push(work.prepared);
        self.updates += 1;
        self.step += 1;
        self.times.forward += start.elapsed();
        Ok(work.input.map_or(Turn::Idle, Turn::Step))
    }

    /// Gives servers all that changed on the devices of this worker; the first one gives the dense
    /// parameters, which are the same everywhere. No batch computes.
    pub(super) fn flush(&mut self, scope: &mut Scope) -> Result<(), Error> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let start = Instant::now();
        for table in &mut self.tables {
            table.flush(&self.client)?;
        }
        let Some(on_device) = &self.on_device else { return Ok(()) };
        let pieces = dense::take(&self.split, &on_device.engine, scope)?;
        if self.client.worker() == 0 {
            let tables = self.tables.iter().map(|table| table.steps).collect();
            self.client.return_dense(&DenseState { steps: self.updates, tables, pieces })?;
        }
        self.times.push += start.elapsed();
        Ok(())
    }
}

/// A value of the device, or of the batch.
fn fetched(name: &str, given: &mut Vec<(String, Tensor)>, input: &Input) -> Tensor {
    if let Some(at) = given.iter().position(|(other, _)| other == name) {
        return given.swap_remove(at).1;
    }
    let value = input.get(name).and_then(Value::as_dense);
    value.cloned().unwrap_or_else(|| Tensor::from_f32(&[0], vec![]).expect("an empty tensor"))
}

fn no_program() -> Error {
    Error::Internal("training on a device: the program is not there".into())
}

fn in_batch(error: Error, input: Option<&Input>) -> Error {
    match input {
        Some(input) => error.in_batch(input),
        None => error,
    }
}
