//! What computes a batch: the program on one device, with the next batches on their way, or shared
//! by several devices of this worker or of all workers.

use regatta_device::{Arena, Device, Queue, Step};
use regatta_exec::device::{
    DeviceBatch, DeviceGroup, DeviceInputs, DeviceProgram, GroupBatch, GroupTable, Preparer, States,
};
use regatta_exec::{Lookup, Scope};
use regatta_passes::Split;
use regatta_tensor::{RowIndex, Tensor, Value};

use super::peers::{Announced, Peers};
use super::rows::Table;
use crate::Error;
use crate::input::Input;

/// The program on the only device of a job, or on one of several.
pub(super) enum Engine {
    One(Box<DeviceProgram>, Preparer),
    Several(Box<DeviceGroup>),
}

/// How rows and parameters are updated in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Update {
    pub(super) lr: f32,
    /// This worker's part of the examples of all.
    pub(super) share: f32,
}

/// A batch with its distinct keys.
pub(super) enum Prepared {
    One(Vec<Lookup>, DeviceInputs),
    Several(GroupBatch),
}

impl Prepared {
    /// The distinct keys of a table, and how often they appear if that is counted.
    pub(super) fn keys(&self, table: usize) -> (&[u64], &[u32]) {
        match self {
            Prepared::One(lookups, _) => (lookups[table].keys(), lookups[table].counts()),
            Prepared::Several(batch) => (&batch.keys(table).keys, &batch.keys(table).counts),
        }
    }
}

impl Engine {
    /// Prepares a program for devices; `alone` if no other worker shares the batches.
    pub(super) fn compile(
        split: &Split,
        devices: &[Device],
        fetch: &[&str],
        alone: bool,
    ) -> Result<Engine, Error> {
        if let ([device], true) = (devices, alone) {
            let program = DeviceProgram::compile(split, device, fetch)?;
            let preparer = program.preparer();
            return Ok(Engine::One(Box::new(program), preparer));
        }
        Ok(Engine::Several(Box::new(DeviceGroup::compile(split, devices, fetch)?)))
    }

    /// Finds the distinct keys of a batch and counts them if `count` says so, with the memory of an
    /// earlier one; none if only other workers have examples.
    pub(super) fn prepare(
        &mut self,
        (split, count): (&Split, bool),
        input: Option<&Input>,
        spare: Option<Prepared>,
        index: &mut RowIndex,
    ) -> Result<Prepared, Error> {
        match (self, input) {
            (Engine::One(..), Some(input)) => {
                let (mut lookups, inputs) = match spare {
                    Some(Prepared::One(lookups, inputs)) => (lookups, inputs),
                    _ => Default::default(),
                };
                lookups.resize_with(split.exchange.tables.len(), Lookup::default);
                for (lookup, table) in lookups.iter_mut().zip(&split.exchange.tables) {
                    lookup.prepare(table, count, index, |name| input.get(name))?;
                }
                Ok(Prepared::One(lookups, inputs))
            }
            (Engine::Several(group), input) => {
                let mut batch = match spare {
                    Some(Prepared::Several(batch)) => batch,
                    _ => GroupBatch::default(),
                };
                match input {
                    Some(input) => {
                        let feeds: Vec<(&str, &Value)> = input.iter().collect();
                        group.prepare(&feeds, count, &mut batch)?;
                    }
                    None => group.prepare_none(&mut batch),
                }
                Ok(Prepared::Several(batch))
            }
            (Engine::One(..), None) => Err(wrong_kind()),
        }
    }

    /// Makes a batch part of what all workers have announced.
    pub(super) fn join(
        &mut self,
        prepared: &mut Prepared,
        all: Vec<Announced>,
    ) -> Result<(), Error> {
        let (Engine::Several(group), Prepared::Several(batch)) = (self, prepared) else {
            return Err(wrong_kind());
        };
        let keys = all.into_iter().map(|announced| announced.tables).collect::<Vec<_>>();
        group.join(batch, &keys);
        Ok(())
    }

    /// Sends a batch to the device, if there is one; several take it when they compute. Gives the
    /// bytes that travel.
    pub(super) fn upload(
        &self,
        split: &Split,
        input: &Input,
        prepared: &mut Prepared,
        slots: &[Vec<(u32, u32)>],
        batch: &mut DeviceBatch,
    ) -> Result<u64, Error> {
        let (Engine::One(program, preparer), Prepared::One(lookups, inputs)) = (self, prepared)
        else {
            return Ok(0);
        };
        let vars = &split.trainer.block().vars;
        let own = input.iter().filter(|(name, _)| vars.contains_key(*name));
        let tables = lookups.iter().zip(&split.exchange.tables);
        let rows = tables.flat_map(|(lookup, table)| lookup.feeds(table));
        let feeds: Vec<(&str, &Value)> = own.chain(rows).collect();
        let slots: Vec<Vec<u32>> =
            slots.iter().map(|slots| slots.iter().map(|(_, slot)| *slot).collect()).collect();
        let slots: Vec<&[u32]> = slots.iter().map(Vec::as_slice).collect();
        preparer.prepare(&feeds, &slots, batch)?;
        program.upload(batch, Queue::Transfer, inputs)?;
        Ok(batch.bytes() as u64)
    }

    /// Puts a batch on the queues of devices: forward and backward, and all updates if no other
    /// device has a part of it. Gives the bytes of batches that travel with it.
    pub(super) fn launch(
        &mut self,
        prepared: &mut Prepared,
        tables: &mut [Table],
        slots: &[Vec<(u32, u32)>],
        update: Update,
        peers: Option<&mut Peers>,
    ) -> Result<u64, Error> {
        match (self, prepared) {
            (Engine::One(program, _), Prepared::One(_, inputs)) => {
                let arenas: Vec<&Arena> = tables.iter().map(|table| table.arena(0)).collect();
                program.compute(inputs, &arenas)?;
                program.apply(update.lr)?;
                for (at, table) in tables.iter_mut().enumerate() {
                    table.update(program.row_grads(at), update.lr)?;
                }
                Ok(0)
            }
            (Engine::Several(group), Prepared::Several(batch)) => {
                for program in group.programs() {
                    // Rows that were brought are there before they are read.
                    let device = program.device();
                    device.after(Queue::Compute, &device.mark(Queue::Transfer)?)?;
                }
                let steps = steps(tables, update.lr)?;
                let mut weights = group.weights(batch, &given(tables, slots, &steps))?;
                if let Some(peers) = peers {
                    peers.sum("weights of rows", &mut weights)?;
                }
                group.compute(batch, &weights)?;
                Ok(batch.bytes() as u64)
            }
            _ => Err(wrong_kind()),
        }
    }

    /// Adds up the gradients of the batch that computes, over devices and workers, and updates rows
    /// and parameters, where [`Engine::launch`] has not done it.
    pub(super) fn complete(
        &mut self,
        prepared: &mut Prepared,
        tables: &mut [Table],
        slots: &[Vec<(u32, u32)>],
        update: Update,
        peers: Option<&mut Peers>,
    ) -> Result<(), Error> {
        let (Engine::Several(group), Prepared::Several(batch)) = (self, prepared) else {
            return Ok(());
        };
        let mut gradients = group.gradients(batch)?;
        if let Some(peers) = peers {
            if update.share != 1.0 {
                gradients.iter_mut().for_each(|gradient| *gradient *= update.share);
            }
            peers.sum("gradients", &mut gradients)?;
        }
        let steps = steps(tables, update.lr)?;
        group.update(batch, &given(tables, slots, &steps), &gradients, update.lr)?;
        tables.iter_mut().for_each(Table::advance);
        for program in group.programs() {
            // Rows that leave are written as they are after this step.
            let device = program.device();
            device.after(Queue::Transfer, &device.mark(Queue::Compute)?)?;
        }
        Ok(())
    }

    /// Waits for the last batch; what was fetched.
    pub(super) fn fetch(&self) -> Result<Vec<Tensor>, Error> {
        Ok(match self {
            Engine::One(program, _) => program.fetch()?,
            Engine::Several(group) => group.fetch()?,
        })
    }

    /// Gives all devices the parameters of a scope.
    pub(super) fn write_values(&mut self, scope: &Scope) -> Result<(), Error> {
        let written = match self {
            Engine::One(program, _) => program.write_values(scope),
            Engine::Several(group) => group.write_values(scope),
        };
        Ok(written?)
    }

    /// Brings the parameters into a scope.
    pub(super) fn read_values(&self, scope: &mut Scope) -> Result<(), Error> {
        Ok(self.first().read_values(scope)?)
    }

    /// The states of a parameter, which are the same on all devices.
    pub(super) fn states(&self, param: &str) -> Result<Option<States>, Error> {
        Ok(self.first().states(param)?)
    }

    /// Gives all devices the states of a parameter.
    pub(super) fn set_states(&mut self, param: &str, states: &[Vec<f32>]) -> Result<(), Error> {
        let set = match self {
            Engine::One(program, _) => program.set_states(param, states),
            Engine::Several(group) => group.set_states(param, states),
        };
        Ok(set?)
    }

    fn first(&self) -> &DeviceProgram {
        match self {
            Engine::One(program, _) => program,
            Engine::Several(group) => &group.programs()[0],
        }
    }
}

/// The updates of the rows of all tables in the next step.
fn steps(tables: &[Table], lr: f32) -> Result<Vec<Step>, Error> {
    tables.iter().map(|table| table.step(lr)).collect()
}

fn given<'a>(
    tables: &'a [Table],
    slots: &'a [Vec<(u32, u32)>],
    steps: &'a [Step],
) -> Vec<GroupTable<'a>> {
    let all = tables.iter().zip(slots).zip(steps);
    all.map(|((table, slots), step)| GroupTable { arenas: table.arenas(), slots, step }).collect()
}

fn wrong_kind() -> Error {
    Error::Internal("a batch of another kind of devices".into())
}
