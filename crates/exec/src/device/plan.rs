//! The launches of a program for batches of one size, with their buffers.

use std::collections::HashMap;

use regatta_device::{Arena, Arg as DeviceArg, Buffer, Device, Grid, Kernel, Queue};
use regatta_ir::{Origin, VarType};
use regatta_tensor::DType;

use super::batch::Preparer;
use super::builder::{Builder, Constant};
use super::chain::{Untouched, join_chains};
use super::launch::{Arg, Count, Launch, Place, Work};
use super::lower::lower;
use super::memory::share;
use super::program::Source;
use super::values::Values;
use crate::plan as cpu;
use crate::{Error, Options};

/// Work items of a group where kernels do not care.
const LOCAL: u32 = 64;

/// A program made ready for inputs of certain types.
pub(super) struct DevicePlan {
    /// A batch with other types needs another plan.
    pub(super) types: Vec<(String, VarType)>,
    /// Examples of the whole batch, if this is a part of one.
    pub(super) total: Option<usize>,
    launches: Vec<(Kernel, Launch)>,
    temps: Vec<Option<Buffer>>,
    constants: Vec<Buffer>,
    /// Where each fetched value is, its type, and the table whose distinct rows it has.
    pub(super) fetch: Vec<(Place, VarType, Option<usize>)>,
    /// The gradient of each table's distinct rows.
    pub(super) row_grads: Vec<Option<Place>>,
}

/// The buffers of one run that a plan does not own.
pub(super) struct Given<'a> {
    pub(super) parts: &'a [Buffer],
    pub(super) table_rows: &'a [u32],
    /// The rows of each table.
    pub(super) arenas: &'a [&'a Arena],
}

impl DevicePlan {
    pub(super) fn new(
        device: &Device,
        source: &Source,
        preparer: &Preparer,
        values: &Values,
        types: &[(String, VarType)],
        total: Option<usize>,
    ) -> Result<DevicePlan, Error> {
        let options = Options { memory_reuse: false, ..Options::default() };
        let wanted = source.wanted();
        let lowering = cpu::lower(&source.program, types, &wanted, &options, &mut |_, _, _| {})?;
        let segment = lowering.segments.last().expect("the passes leave at least one segment");
        let mut builder = Builder::new(
            device.info().kind,
            &segment.types,
            segment.program.block(),
            (lowering.rows, total.unwrap_or(lowering.rows)),
            &preparer.lookups,
            &preparer.parts,
            places(source, preparer, values),
        );
        builder.check_sizes()?;
        for op in &segment.program.block().ops {
            lower(op, &mut builder)?;
        }
        let dense = values.gradients().map(|(grad, n)| (source.place_of(&builder, grad), n));
        let dense = dense.collect::<Vec<_>>();
        let mut pinned = Vec::new();
        for ((place, n), buffer) in dense.into_iter().zip(values.gradient_buffers()?) {
            let place = place?;
            pinned.push((pin(&mut builder, place, n, &pinned), buffer));
        }
        Self::place(device, source, builder, (types, total), &segment.types, pinned)
    }

    fn place(
        device: &Device,
        source: &Source,
        builder: Builder<'_>,
        (types, total): (&[(String, VarType)], Option<usize>),
        concrete: &HashMap<String, VarType>,
        pinned: Vec<(usize, Buffer)>,
    ) -> Result<DevicePlan, Error> {
        let mut fetch = Vec::new();
        for name in &source.fetch {
            let table = builder.count(name).table;
            fetch.push((source.place_of(&builder, name)?, concrete[name].clone(), table));
        }
        let mut row_grads = Vec::new();
        for table in &source.tables {
            let grad = table.grad.as_deref();
            row_grads.push(grad.map(|g| source.place_of(&builder, g)).transpose()?);
        }
        let read = fetch.iter().map(|f| f.0).chain(row_grads.iter().flatten().copied());
        let kept: Vec<usize> = read
            .filter_map(|place| match place {
                Place::Temp(temp) => Some(temp),
                _ => None,
            })
            .collect();
        let Builder { temps: bytes, mut constants, launches, rewritten, .. } = builder;
        let elsewhere: Vec<usize> = pinned.iter().map(|(temp, _)| *temp).collect();
        let read = [kept.as_slice(), &elsewhere].concat();
        let untouched = Untouched { kept: &read, rewritten: &rewritten };
        let launches = join_chains(launches, &untouched, &mut constants);
        let sharing = share(&bytes, &launches, &kept, &elsewhere);
        let buffers = sharing.bytes.iter().map(|&n| device.alloc(n));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let mut temps: Vec<Option<Buffer>> =
            sharing.buffer_of.iter().map(|at| at.map(|at| buffers[at].clone())).collect();
        for (temp, buffer) in pinned {
            temps[temp] = Some(buffer);
        }
        let constants = constants.iter().map(|constant| match constant {
            Constant::Floats(values) => device.buffer_of(values),
            Constant::Sizes(sizes) => device.buffer_of(sizes),
        });
        let constants = constants.collect::<Result<Vec<_>, _>>()?;
        let prepared = launches.into_iter().map(|l| Ok((device.kernel(l.kernel)?, l)));
        let launches = prepared.collect::<Result<Vec<_>, Error>>()?;
        let types = types.to_vec();
        Ok(DevicePlan { types, total, launches, temps, constants, fetch, row_grads })
    }

    /// Puts all launches on the queue.
    pub(super) fn run(
        &self,
        device: &Device,
        values: &Values,
        given: &Given<'_>,
    ) -> Result<(), Error> {
        for (kernel, launch) in &self.launches {
            let args: Vec<DeviceArg<'_>> =
                launch.args.iter().map(|&arg| self.arg(arg, values, given)).collect();
            let grid = grid(launch.work, given.table_rows);
            device.launch(Queue::Compute, kernel, grid, &args)?;
        }
        Ok(())
    }

    fn arg<'a>(&'a self, arg: Arg, values: &'a Values, given: &Given<'a>) -> DeviceArg<'a> {
        match arg {
            Arg::At(place) => DeviceArg::Buffer(self.buffer(place, values, given)),
            Arg::I32(x) => DeviceArg::I32(x),
            Arg::U32(x) => DeviceArg::U32(x),
            Arg::U64(x) => DeviceArg::U64(x),
            Arg::F32(x) => DeviceArg::F32(x),
            Arg::Count(count) => DeviceArg::U32(count.of(given.table_rows) as u32),
            Arg::Stride(table) => DeviceArg::U64(u64::from(given.arenas[table].stride)),
        }
    }

    /// The buffer of a place.
    pub(super) fn buffer<'a>(
        &'a self,
        place: Place,
        values: &'a Values,
        given: &Given<'a>,
    ) -> &'a Buffer {
        match place {
            Place::Temp(temp) => {
                self.temps[temp].as_ref().expect("a temporary that is touched has a buffer")
            }
            Place::Param(param) => values.buffer(param),
            Place::Const(at) => &self.constants[at],
            Place::Part(at) => &given.parts[at],
            Place::Arena(table) => &given.arenas[table].buffer,
        }
    }

    /// Launches of one run.
    pub(super) fn launches(&self) -> usize {
        self.launches.len()
    }
}

/// Where variables are before the first op.
fn places(source: &Source, preparer: &Preparer, values: &Values) -> HashMap<String, Place> {
    let mut places = HashMap::new();
    for (at, part) in preparer.parts.iter().enumerate() {
        if let super::batch::Part::Feed(name) = part {
            places.insert(name.clone(), Place::Part(at));
        }
    }
    for (at, table) in source.tables.iter().enumerate() {
        places.insert(table.pulled.clone(), Place::Arena(at));
    }
    for var in source.program.block().vars.values() {
        let is_value = matches!(var.origin, Origin::Param | Origin::Persist);
        if let Some(at) = values.index(&var.name).filter(|_| is_value) {
            places.insert(var.name.clone(), Place::Param(at));
        }
    }
    places
}

/// Lets a gradient lie where updates read it: in a temporary of its own.
fn pin(builder: &mut Builder<'_>, place: Place, n: usize, pinned: &[(usize, Buffer)]) -> usize {
    if let Place::Temp(temp) = place
        && !pinned.iter().any(|(other, _)| *other == temp)
    {
        return temp;
    }
    let copy = builder.scratch(n as u64 * DType::F32.size() as u64);
    builder.copy(place, copy, Count::fixed(n as u32));
    let Place::Temp(temp) = copy else { unreachable!("scratch is a temporary") };
    temp
}

fn grid(work: Work, table_rows: &[u32]) -> Grid {
    match work {
        Work::Items(count) => Grid::over(count.of(table_rows), LOCAL),
        Work::Groups { groups, local } => {
            Grid { groups: [groups.max(1), 1, 1], local: [local, 1, 1] }
        }
        Work::Exactly(grid) => grid,
    }
}
