//! Several devices of one process share every batch: each computes a part, rows belong to one
//! device each, and gradients are added up in the order of the devices. `d` devices with batches of
//! `b` examples train as one does with `d * b`.
//!
//! What devices give each other goes through host memory: weights of rows from their owners to
//! those who look them up, gradients back, and dense gradients to everybody. Other processes may
//! share the batch, too: what is given is in one list of floats, to be added up over all of them.
//!
//! ```text
//! prepare    a batch -> parts with their distinct keys (join: those of all processes)
//! weights    rows of owners -> their weights, zeros for rows of other processes
//! compute    weights -> forward and backward on every device
//! gradients  sums over devices: of the rows of all tables, then of dense parameters
//! update     gradients -> rows of owners, dense parameters everywhere
//! ```

use regatta_device::{Arena, Buffer, Device, Queue, Step};
use regatta_ir::Role;
use regatta_ops::OPS;
use regatta_passes::{Parts, Split, fuse, split_batch};
use regatta_tensor::{DType, Data, RowIndex, Tensor, Value};

use super::batch::Preparer;
use super::parts::GroupBatch;
use super::program::DeviceProgram;
use super::refused;
use crate::{Error, Scope};

/// A trainer program on several devices.
pub struct DeviceGroup {
    pub(super) split: Split,
    pub(super) programs: Vec<DeviceProgram>,
    preparers: Vec<Preparer>,
    /// What each fetched variable is of the whole batch.
    fetch: Vec<(String, Parts)>,
    pub(super) index: RowIndex,
    /// Devices that had a part of the last batch.
    active: usize,
}

/// The device of a row that another process owns.
pub const ELSEWHERE: u32 = u32::MAX;

/// Where the rows of a table are in a step.
pub struct GroupTable<'a> {
    /// The rows of each device.
    pub arenas: Vec<&'a Arena>,
    /// For each key of the batch, the device that owns its row and the slot there; no device of
    /// the group ([`ELSEWHERE`]) if another process owns it.
    pub slots: &'a [(u32, u32)],
    /// How rows are updated in this step.
    pub step: &'a Step,
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

    /// The weights of all distinct rows of a batch, table by table, from the devices that own them;
    /// zeros for rows that are elsewhere.
    ///
    /// # Errors
    /// If a device refuses.
    ///
    /// # Panics
    /// If there are not as many tables, arenas or slots as the batch has.
    pub fn weights(
        &self,
        batch: &GroupBatch,
        tables: &[GroupTable<'_>],
    ) -> Result<Vec<f32>, Error> {
        assert_eq!(tables.len(), self.split.exchange.tables.len(), "all tables");
        let mut weights = vec![0.0; self.row_floats(batch)];
        let mut first = 0;
        for (at, table) in tables.iter().enumerate() {
            assert_eq!(table.slots.len(), batch.tables[at].keys.len(), "a slot for each key");
            let dim = self.split.exchange.tables[at].dim;
            let to = &mut weights[first..first + table.slots.len() * dim];
            self.table_weights(table, dim, to)?;
            first += to.len();
        }
        Ok(weights)
    }

    fn table_weights(
        &self,
        table: &GroupTable<'_>,
        dim: usize,
        to: &mut [f32],
    ) -> Result<(), Error> {
        for (owner, program) in self.programs.iter().enumerate() {
            let (rows, slots) = owned(table, owner);
            if rows.is_empty() {
                continue;
            }
            let (device, n) = (program.device(), rows.len());
            let slots = device.buffer_of(&slots)?;
            let packed = device.alloc((n * dim * 4) as u64)?;
            let (arena, packed_as) = (table.arenas[owner], (&packed, dim as u32));
            device.rows_out(Queue::Compute, arena, &slots, n as u32, packed_as)?;
            let floats = device.read_floats(Queue::Compute, &packed, 0, n * dim)?;
            for (row, values) in rows.iter().zip(floats.chunks_exact(dim)) {
                to[row * dim..(row + 1) * dim].copy_from_slice(values);
            }
        }
        Ok(())
    }

    /// Floats of one value for each weight of the distinct rows of a batch.
    fn row_floats(&self, batch: &GroupBatch) -> usize {
        let tables = batch.tables.iter().zip(&self.split.exchange.tables);
        tables.map(|(own, table)| own.keys.len() * table.dim).sum()
    }

    /// Puts forward and backward on the queues of all devices that have a part of the batch, with
    /// the weights of its distinct rows as [`DeviceGroup::weights`] gives them.
    ///
    /// # Errors
    /// If an input is not right, or a device refuses.
    pub fn compute(&mut self, batch: &mut GroupBatch, weights: &[f32]) -> Result<(), Error> {
        self.active = batch.parts.len();
        let mut exchanged = vec![Vec::new(); batch.parts.len()];
        let mut rest = weights;
        for (at, table) in self.split.exchange.tables.iter().enumerate() {
            let dim = table.dim;
            let (weights, others) = rest.split_at(batch.tables[at].keys.len() * dim);
            for (device, part) in batch.parts.iter().enumerate() {
                let rows = part.rows[at].iter();
                let rows = rows.flat_map(|&row| &weights[row as usize * dim..][..dim]);
                let rows: Vec<f32> = rows.copied().collect();
                let buffer = self.programs[device].device().buffer_of(&rows)?;
                exchanged[device].push(Arena { buffer, stride: dim as u32, dim: dim as u32 });
            }
            rest = others;
        }
        self.compute_parts(batch, &exchanged)
    }

    fn compute_parts(&mut self, batch: &mut GroupBatch, rows: &[Vec<Arena>]) -> Result<(), Error> {
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

    /// Waits for the gradients of a batch and adds them up in the order of devices: those of its
    /// distinct rows, table by table, then those of dense parameters. Zeros if it has no examples.
    ///
    /// # Errors
    /// If a device does not finish.
    pub fn gradients(&self, batch: &GroupBatch) -> Result<Vec<f32>, Error> {
        let dense: usize = self.programs[0].dense_grads().map(floats_of).sum();
        let mut sums = vec![0.0; self.row_floats(batch) + dense];
        let mut rest = sums.as_mut_slice();
        for (at, own) in batch.tables.iter().enumerate() {
            let dim = self.split.exchange.tables[at].dim;
            let (table, others) = rest.split_at_mut(own.keys.len() * dim);
            self.add_row_grads(batch, at, table)?;
            rest = others;
        }
        for (program, _) in self.programs.iter().zip(&batch.parts) {
            let mut to = &mut *rest;
            for buffer in program.dense_grads() {
                let n = floats_of(buffer);
                let floats = program.device().read_floats(Queue::Compute, buffer, 0, n)?;
                add(&mut to[..n], &floats);
                to = &mut to[n..];
            }
        }
        Ok(sums)
    }

    fn add_row_grads(&self, batch: &GroupBatch, at: usize, sums: &mut [f32]) -> Result<(), Error> {
        for (program, part) in self.programs.iter().zip(&batch.parts) {
            let Some(grads) = program.row_grads(at) else { return Ok(()) };
            let (device, dim, n) = (program.device(), grads.dim, grads.rows * grads.dim);
            let floats = device.read_floats(Queue::Compute, grads.grads, 0, n)?;
            for (&row, values) in part.rows[at].iter().zip(floats.chunks_exact(dim)) {
                add(&mut sums[row as usize * dim..][..dim], values);
            }
        }
        Ok(())
    }

    /// Updates the rows that devices of this group own, and dense parameters everywhere, with
    /// gradients as [`DeviceGroup::gradients`] gives them.
    ///
    /// # Errors
    /// If a device refuses.
    pub fn update(
        &mut self,
        batch: &GroupBatch,
        tables: &[GroupTable<'_>],
        gradients: &[f32],
        learning_rate: f32,
    ) -> Result<(), Error> {
        let mut rest = gradients;
        for (at, table) in tables.iter().enumerate() {
            let exchange = &self.split.exchange.tables[at];
            let (grads, others) = rest.split_at(batch.tables[at].keys.len() * exchange.dim);
            if exchange.grad.is_some() {
                self.update_rows(table, exchange.dim, grads)?;
            }
            rest = others;
        }
        for program in &mut self.programs {
            let mut from = rest;
            for buffer in program.dense_grads() {
                let (own, others) = from.split_at(floats_of(buffer));
                program.device().write_values(Queue::Compute, buffer, 0, own)?;
                from = others;
            }
            program.apply(learning_rate)?;
        }
        Ok(())
    }

    fn update_rows(&self, table: &GroupTable<'_>, dim: usize, grads: &[f32]) -> Result<(), Error> {
        for (owner, program) in self.programs.iter().enumerate() {
            let (rows, slots) = owned(table, owner);
            if rows.is_empty() {
                continue;
            }
            let device = program.device();
            let own = rows.iter().flat_map(|row| &grads[row * dim..(row + 1) * dim]).copied();
            let own = device.buffer_of(&own.collect::<Vec<f32>>())?;
            let (slots, packed) = (device.buffer_of(&slots)?, (&own, rows.len() as u32));
            let arena = table.arenas[owner];
            device.update_rows(Queue::Compute, table.step, arena, &slots, packed)?;
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

fn floats_of(buffer: &Buffer) -> usize {
    buffer.bytes() as usize / DType::F32.size()
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
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
            add(sum.f32_mut(), part.f32());
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
