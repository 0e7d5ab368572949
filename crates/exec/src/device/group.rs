//! Several devices of one process share every batch: each computes a part, rows belong to one
//! device each, and gradients are added up in the order of the devices. `d` devices with batches of
//! `b` examples train as one does with `d * b`.
//!
//! What devices give each other goes through host memory: weights of rows from their owners to
//! those who look them up, gradients back, and dense gradients to everybody.

use regatta_device::{Arena, Buffer, Device, Queue, Step};
use regatta_ir::Role;
use regatta_ops::OPS;
use regatta_passes::{Parts, Split, fuse, split_batch};
use regatta_tensor::{DType, Data, Ragged, RowIndex, Tensor, Value};

use super::batch::{DeviceBatch, Preparer};
use super::program::{DeviceInputs, DeviceProgram};
use super::refused;
use crate::{Error, Lookup, Scope};

/// A trainer program on several devices.
pub struct DeviceGroup {
    split: Split,
    programs: Vec<DeviceProgram>,
    preparers: Vec<Preparer>,
    /// What each fetched variable is of the whole batch.
    fetch: Vec<(String, Parts)>,
    index: RowIndex,
    /// Devices that had a part of the last batch.
    active: usize,
}

/// A batch that is divided over the devices of a group.
#[derive(Default)]
pub struct GroupBatch {
    examples: usize,
    parts: Vec<Part>,
    /// By table, the distinct keys of the whole batch.
    keys: Vec<Vec<u64>>,
}

/// The part of one device.
#[derive(Default)]
struct Part {
    values: Vec<(String, Value)>,
    lookups: Vec<Lookup>,
    /// By table, the row of the whole batch that each distinct row of this part is.
    rows: Vec<Vec<u32>>,
    inputs: DeviceInputs,
    batch: DeviceBatch,
}

/// Where the rows of a table are in a step.
pub struct GroupTable<'a> {
    /// The rows of each device.
    pub arenas: Vec<&'a Arena>,
    /// For each key of the batch, the device that owns its row and the slot there.
    pub slots: &'a [(u32, u32)],
    /// How rows are updated in this step.
    pub step: &'a Step,
}

impl GroupBatch {
    /// The distinct keys of a table.
    pub fn keys(&self, table: usize) -> &[u64] {
        &self.keys[table]
    }

    /// Bytes of the uploads of its parts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.batch.bytes()).sum()
    }
}

impl DeviceGroup {
    /// Prepares the trainer program of a split for several devices.
    ///
    /// # Errors
    /// As [`DeviceProgram::compile`]; and if an op needs all examples at once, such as a limit on
    /// the norm of a gradient, which is named.
    pub fn compile(split: &Split, devices: &[Device], fetch: &[&str]) -> Result<Self, Error> {
        if devices.is_empty() {
            return Err(Error::Options("a group of devices has at least one".into()));
        }
        let parts = if devices.len() > 1 { shared(split, fetch)? } else { vec![] };
        let compile = |device: &Device| DeviceProgram::compile(split, device, fetch);
        let programs = devices.iter().map(compile).collect::<Result<Vec<_>, Error>>()?;
        let preparers = programs.iter().map(DeviceProgram::preparer).collect();
        let of = |name: &&str| {
            let found = parts.iter().find(|(other, _)| other == *name);
            (name.to_string(), found.map_or(Parts::Same, |(_, part)| *part))
        };
        let fetch = fetch.iter().map(of).collect();
        let index = RowIndex::default();
        Ok(DeviceGroup { split: split.clone(), programs, preparers, fetch, index, active: 0 })
    }

    /// The programs, one for each device.
    pub fn programs(&self) -> &[DeviceProgram] {
        &self.programs
    }

    /// Divides a batch and finds its distinct keys.
    ///
    /// # Errors
    /// If it lacks an input or has no examples.
    pub fn prepare(
        &mut self,
        feeds: &[(&str, &Value)],
        batch: &mut GroupBatch,
    ) -> Result<(), Error> {
        let n = self.programs.len();
        let vars = &self.split.trainer.block().vars;
        let ids = |name: &str| {
            let mut inputs = self.split.exchange.tables.iter().flat_map(|table| &table.inputs);
            inputs.any(|(ids, _)| ids == name)
        };
        let is_batched =
            |name: &str| ids(name) || vars.get(name).is_some_and(|var| var.ty.is_batched());
        let batched = feeds.iter().filter(|(name, _)| is_batched(name));
        batch.examples = batched.map(|(_, value)| value.rows()).max().unwrap_or(0);
        if batch.examples == 0 {
            return Err(Error::Options("a batch without examples cannot be divided".into()));
        }
        // The last batch of a data pass may be too small for all.
        let n = n.min(batch.examples);
        batch.parts.resize_with(n, Part::default);
        for (at, part) in batch.parts.iter_mut().enumerate() {
            let range = batch.examples * at / n..batch.examples * (at + 1) / n;
            part.values.clear();
            for (name, value) in feeds {
                let own = if is_batched(name) { rows_of(value, &range) } else { (*value).clone() };
                part.values.push((name.to_string(), own));
            }
        }
        self.look_up(batch)
    }

    fn look_up(&mut self, batch: &mut GroupBatch) -> Result<(), Error> {
        let tables = &self.split.exchange.tables;
        batch.keys.resize_with(tables.len(), Vec::new);
        for part in &mut batch.parts {
            part.lookups.resize_with(tables.len(), Lookup::default);
            part.rows.resize_with(tables.len(), Vec::new);
            let values = &part.values;
            let value = |name: &str| values.iter().find(|(n, _)| n == name).map(|(_, v)| v);
            for (lookup, table) in part.lookups.iter_mut().zip(tables) {
                lookup.prepare(table, false, &mut self.index, value)?;
            }
        }
        for at in 0..tables.len() {
            let all: usize = batch.parts.iter().map(|part| part.lookups[at].keys().len()).sum();
            self.index.clear(all);
            for part in &mut batch.parts {
                let keys = part.lookups[at].keys().iter();
                let rows = keys.map(|&key| self.index.insert(key).0 as u32);
                part.rows[at] = rows.collect();
            }
            batch.keys[at].clear();
            batch.keys[at].extend_from_slice(self.index.ids());
        }
        Ok(())
    }

    /// One step: rows to those who look them up, forward and backward on every device, sums of
    /// gradients, updates of rows by their owners and of dense parameters everywhere.
    ///
    /// # Errors
    /// If a device refuses.
    ///
    /// # Panics
    /// If there are not as many tables, arenas or slots as the batch has.
    pub fn step(
        &mut self,
        batch: &mut GroupBatch,
        tables: &[GroupTable<'_>],
        learning_rate: f32,
    ) -> Result<(), Error> {
        assert_eq!(tables.len(), self.split.exchange.tables.len(), "all tables");
        self.active = batch.parts.len();
        let mut exchanged = vec![Vec::new(); batch.parts.len()];
        for (at, table) in tables.iter().enumerate() {
            assert_eq!(table.slots.len(), batch.keys[at].len(), "a slot for each key");
            let dim = self.split.exchange.tables[at].dim;
            let weights = self.weights(table, dim)?;
            for (device, part) in batch.parts.iter().enumerate() {
                let rows = part.rows[at]
                    .iter()
                    .flat_map(|&row| &weights[row as usize * dim..(row as usize + 1) * dim]);
                let rows: Vec<f32> = rows.copied().collect();
                let buffer = self.programs[device].device().buffer_of(&rows)?;
                exchanged[device].push(Arena { buffer, stride: dim as u32, dim: dim as u32 });
            }
        }
        self.compute(batch, &exchanged)?;
        for (at, table) in tables.iter().enumerate() {
            self.update_rows(batch, at, table)?;
        }
        self.sum_dense()?;
        self.programs.iter_mut().try_for_each(|program| program.apply(learning_rate))
    }

    /// The weights of all distinct rows of a batch, from their owners.
    fn weights(&self, table: &GroupTable<'_>, dim: usize) -> Result<Vec<f32>, Error> {
        let mut weights = vec![0.0; table.slots.len() * dim];
        for (owner, program) in self.programs.iter().enumerate() {
            let (rows, slots) = owned(table, owner);
            if rows.is_empty() {
                continue;
            }
            let (device, n) = (program.device(), rows.len());
            let slots = device.buffer_of(&slots)?;
            let packed = device.alloc((n * dim * 4) as u64)?;
            let (arena, to) = (table.arenas[owner], (&packed, dim as u32));
            device.rows_out(Queue::Compute, arena, &slots, n as u32, to)?;
            let floats = device.read_floats(Queue::Compute, &packed, 0, n * dim)?;
            for (row, values) in rows.iter().zip(floats.chunks_exact(dim)) {
                weights[row * dim..(row + 1) * dim].copy_from_slice(values);
            }
        }
        Ok(weights)
    }

    fn compute(&mut self, batch: &mut GroupBatch, rows: &[Vec<Arena>]) -> Result<(), Error> {
        let tables = &self.split.exchange.tables;
        let total = (batch.parts.len() > 1).then_some(batch.examples);
        for (at, part) in batch.parts.iter_mut().enumerate() {
            let own = part.values.iter().map(|(name, value)| (name.as_str(), value));
            let looked_up = part.lookups.iter().zip(tables);
            let looked_up = looked_up.flat_map(|(lookup, table)| lookup.feeds(table));
            let feeds: Vec<(&str, &Value)> = own.chain(looked_up).collect();
            let slots: Vec<Vec<u32>> =
                part.rows.iter().map(|rows| (0..rows.len() as u32).collect()).collect();
            let slots: Vec<&[u32]> = slots.iter().map(Vec::as_slice).collect();
            self.preparers[at].prepare_part(&feeds, &slots, total, &mut part.batch)?;
            let program = &mut self.programs[at];
            program.upload(&part.batch, Queue::Compute, &mut part.inputs)?;
            let arenas: Vec<&Arena> = rows[at].iter().collect();
            program.compute(&mut part.inputs, &arenas)?;
        }
        Ok(())
    }

    /// Adds up the gradients of rows in the order of devices; owners take them.
    fn update_rows(
        &self,
        batch: &GroupBatch,
        at: usize,
        table: &GroupTable<'_>,
    ) -> Result<(), Error> {
        let dim = self.split.exchange.tables[at].dim;
        let mut sums = vec![0.0_f32; table.slots.len() * dim];
        for (program, part) in self.programs.iter().zip(&batch.parts) {
            let Some(grads) = program.row_grads(at) else { return Ok(()) };
            let device = program.device();
            let floats = device.read_floats(Queue::Compute, grads.grads, 0, grads.rows * dim)?;
            for (&row, values) in part.rows[at].iter().zip(floats.chunks_exact(dim)) {
                let to = &mut sums[row as usize * dim..(row as usize + 1) * dim];
                to.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        for (owner, program) in self.programs.iter().enumerate() {
            let (rows, slots) = owned(table, owner);
            if rows.is_empty() {
                continue;
            }
            let device = program.device();
            let own = rows.iter().flat_map(|row| &sums[row * dim..(row + 1) * dim]).copied();
            let grads = device.buffer_of(&own.collect::<Vec<f32>>())?;
            let (slots, packed) = (device.buffer_of(&slots)?, (&grads, rows.len() as u32));
            let arena = table.arenas[owner];
            device.update_rows(Queue::Compute, table.step, arena, &slots, packed)?;
        }
        Ok(())
    }

    /// Adds up dense gradients in the order of devices; all of them get the sum.
    fn sum_dense(&self) -> Result<(), Error> {
        if self.programs.len() == 1 {
            return Ok(());
        }
        let of = |program: &DeviceProgram| program.dense_grads().cloned().collect::<Vec<Buffer>>();
        let buffers: Vec<Vec<Buffer>> = self.programs.iter().map(of).collect();
        for group in 0..buffers[0].len() {
            let n = buffers[0][group].bytes() as usize / DType::F32.size();
            let mut sums = vec![0.0_f32; n];
            for (program, buffers) in self.programs.iter().zip(&buffers).take(self.active) {
                let floats = program.device().read_floats(Queue::Compute, &buffers[group], 0, n)?;
                sums.iter_mut().zip(&floats).for_each(|(sum, value)| *sum += value);
            }
            for (program, buffers) in self.programs.iter().zip(&buffers) {
                program.device().write_values(Queue::Compute, &buffers[group], 0, &sums)?;
            }
        }
        Ok(())
    }

    /// Waits for the last step and brings what is fetched, of the whole batch.
    ///
    /// # Errors
    /// As [`DeviceProgram::fetch`].
    pub fn fetch(&self) -> Result<Vec<Tensor>, Error> {
        if self.active == 0 {
            return Err(Error::Options("nothing was run on the devices yet".into()));
        }
        let all = self.programs[..self.active].iter().map(DeviceProgram::fetch);
        let all = all.collect::<Result<Vec<_>, Error>>()?;
        let whole = |(at, (_, part)): (usize, &(String, Parts))| {
            let parts: Vec<&Tensor> = all.iter().map(|fetched| &fetched[at]).collect();
            join(&parts, *part)
        };
        Ok(self.fetch.iter().enumerate().map(whole).collect())
    }

    /// Gives all devices the parameters of a scope.
    ///
    /// # Errors
    /// As [`DeviceProgram::write_values`].
    pub fn write_values(&mut self, scope: &Scope) -> Result<(), Error> {
        self.programs.iter_mut().try_for_each(|program| program.write_values(scope))
    }

    /// Brings the parameters into a scope; they are the same on all devices.
    ///
    /// # Errors
    /// As [`DeviceProgram::read_values`].
    pub fn read_values(&self, scope: &mut Scope) -> Result<(), Error> {
        self.programs[0].read_values(scope)
    }

    /// Gives all devices the optimizer states of a parameter.
    ///
    /// # Errors
    /// As [`DeviceProgram::set_states`].
    pub fn set_states(&mut self, param: &str, states: &[Vec<f32>]) -> Result<(), Error> {
        self.programs.iter_mut().try_for_each(|program| program.set_states(param, states))
    }
}

/// The rows of a batch that a device owns, and their slots.
fn owned(table: &GroupTable<'_>, owner: usize) -> (Vec<usize>, Vec<u32>) {
    let rows = table.slots.iter().enumerate().filter(|(_, at)| at.0 as usize == owner);
    rows.map(|(row, at)| (row, at.1)).unzip()
}

/// Checks that every op can run on a part of a batch; what variables then are of the whole.
fn shared(split: &Split, fetch: &[&str]) -> Result<Vec<(String, Parts)>, Error> {
    let wanted: Vec<&str> = fetch.iter().copied().chain(split.exchange.fetches()).collect();
    let fused = fuse(&split.trainer, &wanted)?;
    let (in_part, parts) = split_batch(&fused)?;
    for (op, in_part) in fused.block().ops.iter().zip(in_part) {
        let is_known = OPS.def(&op.kind).is_ok();
        if !in_part && is_known {
            let reason = match op.role {
                Role::Optimize => "it works on complete gradients",
                _ => "it needs all examples at once",
            };
            return Err(refused(op, format!("{reason}, and several devices share a batch")));
        }
    }
    Ok(parts.into_iter().collect())
}

/// A fetched variable of the whole batch.
fn join(parts: &[&Tensor], how: Parts) -> Tensor {
    if parts.len() == 1 || how == Parts::Same {
        return parts[0].clone();
    }
    if how == Parts::Sum {
        let mut sum = parts[0].clone();
        for part in &parts[1..] {
            sum.f32_mut().iter_mut().zip(part.f32()).for_each(|(sum, value)| *sum += value);
        }
        return sum;
    }
    let mut shape = parts[0].shape().to_vec();
    shape[0] = parts.iter().map(|part| part.shape()[0]).sum();
    let data = match parts[0].data() {
        Data::I64(_) => Data::I64(parts.iter().flat_map(|part| part.i64()).copied().collect()),
        Data::U64(_) => Data::U64(parts.iter().flat_map(|part| part.u64()).copied().collect()),
        _ => Data::F32(parts.iter().flat_map(|part| part.f32()).copied().collect()),
    };
    Tensor::new(&shape, data).expect("rows of one width")
}

/// Some examples of a value.
fn rows_of(value: &Value, range: &std::ops::Range<usize>) -> Value {
    fn cut(data: &Data, from: usize, to: usize) -> Data {
        match data {
            Data::F32(v) => Data::F32(v[from..to].to_vec()),
            Data::F16(v) => Data::F16(v[from..to].to_vec()),
            Data::BF16(v) => Data::BF16(v[from..to].to_vec()),
            Data::I64(v) => Data::I64(v[from..to].to_vec()),
            Data::U64(v) => Data::U64(v[from..to].to_vec()),
        }
    }
    match value {
        Value::Dense(t) => {
            let mut shape = t.shape().to_vec();
            let width = t.numel() / shape[0].max(1);
            shape[0] = range.len();
            let data = cut(t.data(), range.start * width, range.end * width);
            Tensor::new(&shape, data).expect("as many values as the shape has").into()
        }
        Value::Ragged(r) => {
            let offsets = &r.offsets()[range.start..=range.end];
            let (from, to) = (offsets[0], offsets[offsets.len() - 1]);
            let values = cut(r.values(), from as usize, to as usize);
            let offsets = offsets.iter().map(|offset| offset - from).collect();
            Ragged::new(values, offsets).expect("offsets rise").into()
        }
    }
}
