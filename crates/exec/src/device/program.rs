//! A trainer program on a device, run batch after batch.

use regatta_device::{Arena, Buffer, Device, Event, Queue};
use regatta_ir::{Origin, Program, VarType, verify};
use regatta_ops::OPS;
use regatta_passes::{DenseSpec, Split, TableExchange, fuse};
use regatta_tensor::{Data, Tensor};

use super::batch::{DeviceBatch, LabelCheck, Part, Preparer, travels};
use super::builder::Builder;
use super::launch::Place;
use super::lookups::{Lookups, is_lookup};
use super::lower::check_kind;
use super::plan::{DevicePlan, Given};
use super::values::{States, Values};
use crate::{Error, Scope};

/// A batch on the device. Its memory is used again by the next [`DeviceProgram::upload`] into it.
#[derive(Debug, Default)]
pub struct DeviceInputs {
    buffer: Option<Buffer>,
    parts: Vec<Buffer>,
    layout: Vec<(usize, usize)>,
    types: Vec<(String, VarType)>,
    /// Examples of the whole batch, if this is a part of one.
    total: Option<usize>,
    table_rows: Vec<u32>,
    /// When the upload is done, if it went by the other queue.
    ready: Option<Event>,
    /// When nobody reads it any more.
    read: Option<Event>,
}

/// The gradients of the distinct rows of a table in the last batch.
#[derive(Debug, Clone, Copy)]
pub struct RowGrads<'a> {
    /// `dim` floats for each row, in the order of [`Lookup::keys`](crate::Lookup::keys).
    pub grads: &'a Buffer,
    /// The slot of each row in the arena, as `uint`.
    pub slots: &'a Buffer,
    /// Distinct rows.
    pub rows: usize,
    /// Floats of a row.
    pub dim: usize,
}

/// What is run.
pub(super) struct Source {
    pub(super) program: Program,
    pub(super) tables: Vec<TableExchange>,
    pub(super) dense: Vec<DenseSpec>,
    pub(super) fetch: Vec<String>,
}

impl Source {
    /// Variables that must be made: fetched ones and gradients.
    pub(super) fn wanted(&self) -> Vec<String> {
        let grads = self.dense.iter().map(|spec| &spec.grad);
        let rows = self.tables.iter().filter_map(|table| table.grad.as_ref());
        let mut wanted: Vec<String> = Vec::new();
        for name in self.fetch.iter().chain(grads).chain(rows) {
            if !wanted.contains(name) {
                wanted.push(name.clone());
            }
        }
        wanted
    }

    /// Where a variable is after the last op.
    pub(super) fn place_of(&self, builder: &Builder<'_>, name: &str) -> Result<Place, Error> {
        let reason = "no op of this program makes it".to_string();
        builder.place(name).ok_or_else(|| Error::Fetch { name: name.to_string(), reason })
    }
}

/// A trainer program on a device, with its dense parameters and their optimizer states.
///
/// See the [module](crate::device) for the order of calls. Nothing but [`DeviceProgram::fetch`],
/// [`DeviceProgram::read_values`] and [`DeviceProgram::states`] waits for the device.
pub struct DeviceProgram {
    device: Device,
    source: Source,
    preparer: Preparer,
    values: Values,
    plans: Vec<DevicePlan>,
    /// Plan and inputs of the last run.
    last: Option<Last>,
}

struct Last {
    plan: usize,
    parts: Vec<Buffer>,
    table_rows: Vec<u32>,
}

impl DeviceProgram {
    /// Prepares the trainer program of a split for a device: what a worker runs between pull and
    /// push, and the updates of dense parameters. Values are zero until
    /// [`DeviceProgram::write_values`].
    ///
    /// # Errors
    /// [`Error::NoDeviceKernel`] if the device has no kernel for an op; the update rule of a
    /// parameter may have none, either.
    pub fn compile(split: &Split, device: &Device, fetch: &[&str]) -> Result<Self, Error> {
        let tables = split.exchange.tables.clone();
        Self::new(split.trainer.clone(), tables, split.dense.clone(), device, fetch)
    }

    /// Prepares any program without updates of its own: `tables` lists the inputs that are pulled
    /// rows, `dense` how parameters are updated.
    ///
    /// # Errors
    /// As [`DeviceProgram::compile`].
    pub fn new(
        program: Program,
        tables: Vec<TableExchange>,
        dense: Vec<DenseSpec>,
        device: &Device,
        fetch: &[&str],
    ) -> Result<Self, Error> {
        verify(&program, &OPS)?;
        let fetch = fetch.iter().map(|name| name.to_string()).collect();
        let source = Source { program, tables, dense, fetch };
        let preparer = preparer(&source, device.info().align.max(8) as usize)?;
        let values = Values::new(device, &source.program, &source.dense)?;
        let (device, plans, last) = (device.clone(), Vec::new(), None);
        Ok(DeviceProgram { device, source, preparer, values, plans, last })
    }

    /// What makes batches for this program.
    pub fn preparer(&self) -> Preparer {
        self.preparer.clone()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Puts a batch on its way to the device. On [`Queue::Transfer`] it travels while the step
    /// before computes; the step that uses it waits for it on the device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn upload(
        &self,
        batch: &DeviceBatch,
        queue: Queue,
        inputs: &mut DeviceInputs,
    ) -> Result<(), Error> {
        let bytes = batch.bytes.len() as u64;
        if inputs.buffer.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
            inputs.buffer = Some(self.device.alloc(bytes.max(64).next_power_of_two())?);
            inputs.layout.clear();
        }
        let buffer = inputs.buffer.as_ref().expect("made above");
        if inputs.layout != batch.parts {
            let part = |&(first, len): &(usize, usize)| {
                self.device.slice(buffer, first as u64, len as u64)
            };
            inputs.parts = batch.parts.iter().map(part).collect::<Result<_, _>>()?;
            inputs.layout.clone_from(&batch.parts);
        }
        if let Some(read) = inputs.read.take().filter(|_| queue != Queue::Compute) {
            self.device.after(queue, &read)?;
        }
        self.device.write(queue, buffer, 0, &batch.bytes)?;
        inputs.types.clone_from(&batch.types);
        inputs.total = batch.total;
        inputs.table_rows.clone_from(&batch.table_rows);
        inputs.ready = None;
        if queue != Queue::Compute {
            inputs.ready = Some(self.device.mark(queue)?);
        }
        Ok(())
    }

    /// Runs forward and backward on a batch, with the rows of each table in its arena.
    ///
    /// # Errors
    /// If there is no plan for inputs of these types, or the device refuses.
    ///
    /// # Panics
    /// If there are not as many arenas as tables.
    pub fn compute(&mut self, inputs: &mut DeviceInputs, arenas: &[&Arena]) -> Result<(), Error> {
        assert_eq!(arenas.len(), self.source.tables.len(), "an arena for each table");
        let at = self.plan_for(&inputs.types, inputs.total)?;
        if let Some(ready) = inputs.ready.take() {
            self.device.after(Queue::Compute, &ready)?;
        }
        let (parts, table_rows) = (inputs.parts.as_slice(), inputs.table_rows.as_slice());
        let given = Given { parts, table_rows, arenas };
        self.plans[at].run(&self.device, &self.values, &given)?;
        inputs.read = Some(self.device.mark(Queue::Compute)?);
        let (parts, table_rows) = (inputs.parts.clone(), inputs.table_rows.clone());
        self.last = Some(Last { plan: at, parts, table_rows });
        Ok(())
    }

    fn plan_for(
        &mut self,
        types: &[(String, VarType)],
        total: Option<usize>,
    ) -> Result<usize, Error> {
        let fits = |plan: &DevicePlan| plan.types == types && plan.total == total;
        if let Some(at) = self.plans.iter().position(fits) {
            return Ok(at);
        }
        // Batches of ever new sizes must not fill the memory with plans.
        const MAX_PLANS: usize = 8;
        if self.plans.len() == MAX_PLANS {
            self.plans.remove(0);
        }
        let (device, source) = (&self.device, &self.source);
        let (preparer, values) = (&self.preparer, &self.values);
        let plan = DevicePlan::new(device, source, preparer, values, types, total)?;
        self.plans.push(plan);
        Ok(self.plans.len() - 1)
    }

    /// Updates dense parameters from the gradients of the last [`DeviceProgram::compute`].
    ///
    /// # Errors
    /// If the device refuses.
    pub fn apply(&mut self, learning_rate: f32) -> Result<(), Error> {
        self.values.apply(learning_rate)
    }

    /// All dense gradients, in buffers that belong together: to be summed over devices between
    /// [`DeviceProgram::compute`] and [`DeviceProgram::apply`]. Floats between parameters are 0.
    pub fn dense_grads(&self) -> impl Iterator<Item = &Buffer> {
        self.values.groups().iter().map(|group| &group.grads)
    }

    /// The gradients of a table's rows after [`DeviceProgram::compute`]; nothing if the program has
    /// none.
    pub fn row_grads(&self, table: usize) -> Option<RowGrads<'_>> {
        let last = self.last.as_ref()?;
        let plan = &self.plans[last.plan];
        let given = Given { parts: &[], table_rows: &last.table_rows, arenas: &[] };
        let grads = plan.buffer(plan.row_grads[table]?, &self.values, &given);
        let at = self.preparer.parts.iter().position(|part| *part == Part::Slots(table))?;
        let (slots, rows) = (&last.parts[at], last.table_rows[table] as usize);
        Some(RowGrads { grads, slots, rows, dim: self.source.tables[table].dim })
    }

    /// Waits for the last run and brings what is fetched, in the order of the names.
    ///
    /// # Errors
    /// If nothing was run, or the device does not finish.
    pub fn fetch(&self) -> Result<Vec<Tensor>, Error> {
        let nothing = || Error::Options("nothing was run on the device yet".into());
        let last = self.last.as_ref().ok_or_else(nothing)?;
        let plan = &self.plans[last.plan];
        let given = Given { parts: &last.parts, table_rows: &last.table_rows, arenas: &[] };
        let mut fetched = Vec::new();
        for (place, ty, table) in &plan.fetch {
            let mut shape: Vec<usize> = ty.shape.iter().map(|&d| d as usize).collect();
            if let Some(table) = table {
                shape[0] = last.table_rows[*table] as usize;
            }
            let buffer = plan.buffer(*place, &self.values, &given);
            let mut tensor = Tensor::zeros(ty.dtype, &shape);
            let bytes: &mut [u8] = match tensor.data_mut() {
                Data::F32(v) => bytemuck::cast_slice_mut(v),
                Data::I64(v) => bytemuck::cast_slice_mut(v),
                Data::U64(v) => bytemuck::cast_slice_mut(v),
                Data::F16(v) | Data::BF16(v) => bytemuck::cast_slice_mut(v),
            };
            self.device.read(Queue::Compute, buffer, 0, bytes)?;
            fetched.push(tensor);
        }
        Ok(fetched)
    }

    /// Takes the parameters from a scope.
    ///
    /// # Errors
    /// If one is missing or has another shape.
    pub fn write_values(&mut self, scope: &Scope) -> Result<(), Error> {
        self.values.write(scope)
    }

    /// Brings the parameters into a scope.
    ///
    /// # Errors
    /// If the device does not finish.
    pub fn read_values(&self, scope: &mut Scope) -> Result<(), Error> {
        self.values.read(scope)
    }

    /// The optimizer states of a dense parameter by their names, in the order of its rule; nothing
    /// if there is no such parameter.
    ///
    /// # Errors
    /// If the device does not finish.
    pub fn states(&self, param: &str) -> Result<Option<States>, Error> {
        self.values.states(param)
    }

    /// Sets the optimizer states of a dense parameter, as [`DeviceProgram::states`] gives them.
    ///
    /// # Errors
    /// If one has another length.
    pub fn set_states(&mut self, param: &str, states: &[Vec<f32>]) -> Result<(), Error> {
        self.values.set_states(param, states)
    }

    /// Launches of one step on batches like the last one, those of [`DeviceProgram::apply`]
    /// included.
    pub fn launches(&self) -> usize {
        let plan = self.last.as_ref().map_or(0, |last| self.plans[last.plan].launches());
        plan + self.values.groups().len()
    }
}

/// Checks every op, and finds what a batch has to bring.
fn preparer(source: &Source, align: usize) -> Result<Preparer, Error> {
    let wanted = source.wanted();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let fused = fuse(&source.program, &wanted)?;
    let block = fused.block();
    let (mut lookups, mut checks): (Vec<Lookups>, Vec<LabelCheck>) = (Vec::new(), Vec::new());
    let mut feeds: Vec<String> = Vec::new();
    for op in &block.ops {
        check_kind(op)?;
        if is_lookup(&op.kind) {
            let found = Lookups::of(op, block, &source.tables)?;
            if !lookups.contains(&found) {
                lookups.push(found);
            }
        }
        if op.kind == "softmax_with_cross_entropy" && !op.bool("soft_label")? {
            let classes = *block.var(&op.ins("Logits")[0], &op.kind)?.ty.shape.last().unwrap_or(&0);
            let (feed, ignored) = (op.ins("Label")[0].clone(), op.int("ignore_index")?);
            checks.push(LabelCheck { feed, classes, ignored });
        }
        for (slot, vars) in &op.inputs {
            let is_id = |var: &String| slot == "Ids" && is_lookup(&op.kind) && !var.is_empty();
            for var in vars.iter().filter(|var| !is_id(var)) {
                let def = block.var(var, &op.kind)?;
                let pulled = source.tables.iter().any(|table| table.pulled == *var);
                if def.origin == Origin::Data && !pulled && !feeds.contains(var) {
                    if !travels(&def.ty) {
                        return Err(super::unsupported(op, var, &def.ty));
                    }
                    feeds.push(var.clone());
                }
            }
        }
    }
    let mut parts: Vec<Part> = feeds.into_iter().map(Part::Feed).collect();
    for (at, found) in lookups.iter().enumerate() {
        parts.push(Part::Ids(at));
        parts.extend(found.ragged.then_some(Part::Starts(at)));
        parts.extend([Part::RowStarts(at), Part::Positions(at)]);
    }
    parts.extend((0..source.tables.len()).map(Part::Slots));
    let table = |t: &TableExchange| (t.pulled.clone(), t.dim, usize::from(t.padding.is_some()));
    let tables = source.tables.iter().map(table).collect();
    Ok(Preparer { parts, lookups, checks, tables, align })
}
