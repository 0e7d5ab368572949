//! What computes a batch: the program on one device, with the next batches on their way, or shared
//! by several devices.

use regatta_device::{Arena, Device, Queue};
use regatta_exec::device::{
    DeviceBatch, DeviceGroup, DeviceInputs, DeviceProgram, GroupBatch, GroupTable, Preparer, States,
};
use regatta_exec::{Lookup, Scope};
use regatta_passes::Split;
use regatta_tensor::{RowIndex, Tensor, Value};

use super::rows::Table;
use crate::Error;
use crate::input::Input;

/// The program on one device or on several.
pub(super) enum Engine {
    One(Box<DeviceProgram>, Preparer),
    Several(Box<DeviceGroup>),
}

/// A batch with its distinct keys.
pub(super) enum Prepared {
    One(Vec<Lookup>, DeviceInputs),
    Several(GroupBatch),
}

impl Prepared {
    /// The distinct keys of a table.
    pub(super) fn keys(&self, table: usize) -> &[u64] {
        match self {
            Prepared::One(lookups, _) => lookups[table].keys(),
            Prepared::Several(batch) => batch.keys(table),
        }
    }
}

impl Engine {
    /// Prepares a program for devices.
    pub(super) fn compile(
        split: &Split,
        devices: &[Device],
        fetch: &[&str],
    ) -> Result<Engine, Error> {
        if let [device] = devices {
            let program = DeviceProgram::compile(split, device, fetch)?;
            let preparer = program.preparer();
            return Ok(Engine::One(Box::new(program), preparer));
        }
        Ok(Engine::Several(Box::new(DeviceGroup::compile(split, devices, fetch)?)))
    }

    /// Finds the distinct keys of a batch, with the memory of an earlier one.
    pub(super) fn prepare(
        &mut self,
        split: &Split,
        input: &Input,
        spare: Option<Prepared>,
        index: &mut RowIndex,
    ) -> Result<Prepared, Error> {
        match (self, spare) {
            (Engine::One(..), spare) => {
                let (mut lookups, inputs) = match spare {
                    Some(Prepared::One(lookups, inputs)) => (lookups, inputs),
                    _ => Default::default(),
                };
                lookups.resize_with(split.exchange.tables.len(), Lookup::default);
                for (lookup, table) in lookups.iter_mut().zip(&split.exchange.tables) {
                    lookup.prepare(table, false, index, |name| input.get(name))?;
                }
                Ok(Prepared::One(lookups, inputs))
            }
            (Engine::Several(group), spare) => {
                let mut batch = match spare {
                    Some(Prepared::Several(batch)) => batch,
                    _ => GroupBatch::default(),
                };
                let feeds: Vec<(&str, &Value)> = input.iter().collect();
                group.prepare(&feeds, &mut batch)?;
                Ok(Prepared::Several(batch))
            }
        }
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

    /// Puts forward, backward and all updates of a batch on the queues of devices. Gives the bytes
    /// of batches that travel with it.
    pub(super) fn launch(
        &mut self,
        prepared: &mut Prepared,
        tables: &mut [Table],
        slots: &[Vec<(u32, u32)>],
        lr: f32,
    ) -> Result<u64, Error> {
        match (self, prepared) {
            (Engine::One(program, _), Prepared::One(_, inputs)) => {
                let arenas: Vec<&Arena> = tables.iter().map(|table| table.arena(0)).collect();
                program.compute(inputs, &arenas)?;
                program.apply(lr)?;
                for (at, table) in tables.iter_mut().enumerate() {
                    table.update(program.row_grads(at), lr)?;
                }
                Ok(0)
            }
            (Engine::Several(group), Prepared::Several(batch)) => {
                let steps = tables.iter().map(|table| table.step(lr));
                let steps = steps.collect::<Result<Vec<_>, Error>>()?;
                for program in group.programs() {
                    // Rows that were brought are there before they are read.
                    let device = program.device();
                    device.after(Queue::Compute, &device.mark(Queue::Transfer)?)?;
                }
                let both = tables.iter().zip(slots).zip(&steps);
                let given: Vec<GroupTable<'_>> = both
                    .map(|((table, slots), step)| GroupTable {
                        arenas: table.arenas(),
                        slots,
                        step,
                    })
                    .collect();
                group.step(batch, &given, lr)?;
                tables.iter_mut().for_each(Table::advance);
                Ok(batch.bytes() as u64)
            }
            _ => Err(Error::Internal("a batch of another kind of devices".into())),
        }
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
