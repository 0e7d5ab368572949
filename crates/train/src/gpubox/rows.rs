//! The rows of one table on its devices: what a batch needs is brought, what changed and must leave
//! is written to the table. With several devices every row has one owner, by its key; with several
//! workers, one worker has it on a device.

use regatta_device::{Arena, Buffer, Device, Queue, Step};
use regatta_exec::device::{ELSEWHERE, RowGrads};
use regatta_optim::{RowRule, SharedState};
use regatta_passes::TableSpec;
use regatta_ps::Client;

use super::peers;
use super::window::{Moves, Window};
use crate::Error;

/// A table whose rows are on devices.
pub(super) struct Table {
    spec: TableSpec,
    devices: Vec<TableRows>,
    /// This worker, and how many have rows of the table on their devices.
    worker: (usize, usize),
    /// What all rows share, such as the powers of Adam's betas.
    shared: SharedState,
    /// Steps that this counts.
    pub(super) steps: u64,
}

/// Rows of a table on one device.
struct TableRows {
    /// Its number in the job.
    number: usize,
    device: Device,
    window: Window,
    arena: Arena,
    /// Rows on their way, and their slots; one pair for each direction.
    moving: [Staging; 2],
}

/// Memory on the device for rows on their way.
#[derive(Default)]
struct Staging {
    rows: Option<Buffer>,
    slots: Option<Buffer>,
}

/// What went to the device and came back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Rows that were brought.
    pub rows_in: u64,
    /// Changed rows that were written back for others to come.
    pub rows_out: u64,
    /// Bytes of batches: ids, slots and dense inputs.
    pub batch_bytes: u64,
}

impl Table {
    /// Empty arenas of at most so many bytes each.
    pub(super) fn new(
        devices: &[Device],
        number: usize,
        spec: &TableSpec,
        bytes: u64,
        worker: (usize, usize),
    ) -> Result<Table, Error> {
        let rows = devices.iter().map(|device| TableRows::new(device, number, spec, bytes));
        let devices = rows.collect::<Result<_, Error>>()?;
        let (spec, shared) = (spec.clone(), spec.rule.shared_state());
        Ok(Table { spec, devices, worker, shared, steps: 0 })
    }

    /// Continues after so many steps.
    pub(super) fn set_steps(&mut self, steps: u64) {
        (self.steps, self.shared) = (steps, self.spec.rule.shared_after(steps));
    }

    /// The rows on a device.
    pub(super) fn arena(&self, device: usize) -> &Arena {
        &self.devices[device].arena
    }

    /// Those on all of them.
    pub(super) fn arenas(&self) -> Vec<&Arena> {
        self.devices.iter().map(|rows| &rows.arena).collect()
    }

    /// Positions of keys by the device that owns their rows; those of other workers are in none.
    fn by_owner(&self, keys: &[u64]) -> Vec<Vec<u32>> {
        let mut owned = vec![Vec::new(); self.devices.len()];
        let (own, workers) = self.worker;
        for (at, key) in keys.iter().enumerate() {
            if workers == 1 || peers::owner(*key, workers) == own {
                owned[owner(*key, self.devices.len())].push(at as u32);
            }
        }
        owned
    }

    /// How many rows of a device a batch needs, if batches in flight leave too little room there.
    pub(super) fn lacks_room(&self, keys: &[u64]) -> Option<usize> {
        let owned = self.by_owner(keys);
        self.devices.iter().zip(&owned).find_map(|(rows, owned)| {
            let own: Vec<u64> = owned.iter().map(|at| keys[*at as usize]).collect();
            (!rows.window.has_room(&own)).then_some(own.len())
        })
    }

    /// Brings the rows of a batch that are this worker's, for which there is room; device and slot
    /// of each. `counts` says how often keys appear, if servers admit them by that.
    pub(super) fn bring(
        &mut self,
        client: &Client,
        (keys, counts): (&[u64], &[u32]),
        moved: &mut Moved,
    ) -> Result<Vec<(u32, u32)>, Error> {
        let mut slots = vec![(ELSEWHERE, 0); keys.len()];
        let owned = self.by_owner(keys);
        for (device, (rows, owned)) in self.devices.iter_mut().zip(&owned).enumerate() {
            let own: Vec<u64> = owned.iter().map(|at| keys[*at as usize]).collect();
            let own_counts = owned.iter().filter_map(|at| counts.get(*at as usize)).copied();
            let own_counts: Vec<u32> = own_counts.collect();
            let moves = rows.window.plan(&own);
            rows.apply(client, &moves, &own_counts, moved)?;
            for (at, slot) in owned.iter().zip(&moves.slots) {
                slots[*at as usize] = (device as u32, *slot);
            }
        }
        Ok(slots)
    }

    fn each(&mut self, slots: &[(u32, u32)], what: impl Fn(&mut Window, &[u32])) {
        for (device, rows) in self.devices.iter_mut().enumerate() {
            let own = slots.iter().filter(|(owner, _)| *owner as usize == device);
            let own: Vec<u32> = own.map(|(_, slot)| *slot).collect();
            what(&mut rows.window, &own);
        }
    }

    /// A batch changes these rows.
    pub(super) fn change(&mut self, slots: &[(u32, u32)]) {
        self.each(slots, Window::change);
    }

    /// A batch does not need these rows any more.
    pub(super) fn release(&mut self, slots: &[(u32, u32)]) {
        self.each(slots, Window::release);
    }

    /// Writes all rows that changed to the table; they stay on their devices.
    pub(super) fn flush(&mut self, client: &Client) -> Result<(), Error> {
        self.devices.iter_mut().try_for_each(|rows| rows.flush(client))
    }

    /// The update of the next step.
    pub(super) fn step(&self, lr: f32) -> Result<Step, Error> {
        let rate = lr * self.spec.lr_scale as f32;
        let step = Step::new(&self.spec.rule, rate, &self.shared);
        step.map_err(|e| Error::Config(e.to_string()))
    }

    /// A step is made.
    pub(super) fn advance(&mut self) {
        self.spec.rule.advance(&mut self.shared);
        self.steps += 1;
    }

    /// One step of the rows of a batch, in place, on the only device.
    pub(super) fn update(&mut self, grads: Option<RowGrads<'_>>, lr: f32) -> Result<(), Error> {
        let step = self.step(lr)?;
        if let Some(grads) = grads {
            let TableRows { device, arena, .. } = &self.devices[0];
            let rows = (grads.grads, grads.rows as u32);
            device.update_rows(Queue::Compute, &step, arena, grads.slots, rows)?;
        }
        self.advance();
        Ok(())
    }

    /// Why a batch with so many rows of a device can never be there.
    pub(super) fn too_small(&self, rows: usize) -> String {
        let TableRows { window, arena, .. } = &self.devices[0];
        let (name, has, row) = (&self.spec.name, window.capacity(), 4 * arena.stride as usize);
        let mb = |bytes: u64| format!("{:.2} MB", bytes as f64 / f64::from(1 << 20));
        let needed = (rows * row).div_ceil(1 << 20);
        format!(
            "table '{name}': a batch has {rows} distinct rows, and the arena has room for {has} \
             ({} / {row} bytes of a row); set table_parameters.{name}.device_mb to at least \
             {needed}, or take smaller batches",
            mb(arena.buffer.bytes())
        )
    }
}

/// The device that owns the row of a key.
fn owner(key: u64, devices: usize) -> usize {
    let hash = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 32) as usize % devices
}

impl TableRows {
    /// An empty arena of at most so many bytes.
    fn new(
        device: &Device,
        number: usize,
        spec: &TableSpec,
        bytes: u64,
    ) -> Result<TableRows, Error> {
        let stride = spec.dim + spec.rule.row_state_len(spec.dim);
        let slots = bytes / (4 * stride as u64);
        if slots == 0 {
            return Err(Error::Config(format!(
                "table '{}': an arena of {bytes} bytes has no room for a row of {stride} floats",
                spec.name
            )));
        }
        let arena = Arena::new(device, slots, stride as u32, spec.dim as u32)?;
        Ok(TableRows {
            number,
            device: device.clone(),
            window: Window::new(slots as usize),
            arena,
            moving: Default::default(),
        })
    }

    fn width(&self) -> usize {
        self.arena.stride as usize
    }

    /// Moves rows as planned: changed ones to the table, wanted ones to the device.
    fn apply(
        &mut self,
        client: &Client,
        moves: &Moves,
        counts: &[u32],
        moved: &mut Moved,
    ) -> Result<(), Error> {
        self.write_back(client, &moves.rows_out, Queue::Transfer)?;
        let counts = moves.positions.iter().filter_map(|at| counts.get(*at as usize)).copied();
        self.bring(client, &moves.rows_in, &counts.collect::<Vec<u32>>())?;
        moved.rows_in += moves.rows_in.len() as u64;
        moved.rows_out += moves.rows_out.len() as u64;
        Ok(())
    }

    /// Brings rows into these slots. A key that is not admitted computes with zeros, and what a
    /// batch makes of them is dropped.
    fn bring(&mut self, client: &Client, rows: &[(u64, u32)], counts: &[u32]) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let (keys, slots): (Vec<u64>, Vec<u32>) = rows.iter().copied().unzip();
        let mut values = vec![0.0; keys.len() * self.width()];
        let absent = client.lease_rows(self.number, (&keys, counts), &mut values)?;
        absent.iter().for_each(|at| self.window.disown(slots[*at as usize]));
        let (n, width) = (keys.len() as u32, self.arena.stride);
        let ([incoming, _], device) = (&mut self.moving, &self.device);
        let (packed, slots_on) = incoming.room(device, keys.len(), self.arena.stride as usize)?;
        device.write_values(Queue::Transfer, packed, 0, &values)?;
        device.write_values(Queue::Transfer, slots_on, 0, &slots)?;
        Ok(device.rows_in(Queue::Transfer, (packed, width), &self.arena, slots_on, n)?)
    }

    /// Writes rows in these slots to the table.
    fn write_back(
        &mut self,
        client: &Client,
        rows: &[(u64, u32)],
        queue: Queue,
    ) -> Result<(), Error> {
        // So many rows at a time that host memory stays small.
        const ROWS: usize = 1 << 15;
        for rows in rows.chunks(ROWS) {
            let (keys, slots): (Vec<u64>, Vec<u32>) = rows.iter().copied().unzip();
            let (n, width) = (keys.len() as u32, self.arena.stride);
            let ([_, outgoing], device) = (&mut self.moving, &self.device);
            let (packed, slots_on) =
                outgoing.room(device, keys.len(), self.arena.stride as usize)?;
            device.write_values(queue, slots_on, 0, &slots)?;
            device.rows_out(queue, &self.arena, slots_on, n, (packed, width))?;
            let floats = keys.len() * self.arena.stride as usize;
            let values = device.read_floats(queue, packed, 0, floats)?;
            client.return_rows(self.number, &keys, &values)?;
        }
        Ok(())
    }

    /// Writes all rows that changed to the table; they stay on the device.
    fn flush(&mut self, client: &Client) -> Result<(), Error> {
        let changed = self.window.take_changed();
        self.write_back(client, &changed, Queue::Compute)
    }
}

impl Staging {
    /// Room for so many rows and their slots.
    fn room(
        &mut self,
        device: &Device,
        rows: usize,
        width: usize,
    ) -> Result<(&Buffer, &Buffer), Error> {
        grow(&mut self.rows, device, 4 * rows as u64 * width as u64)?;
        grow(&mut self.slots, device, 4 * rows as u64)?;
        let none = || Error::Internal("a buffer was not made".into());
        let rows = self.rows.as_ref().ok_or_else(none)?;
        Ok((rows, self.slots.as_ref().ok_or_else(none)?))
    }
}

fn grow(buffer: &mut Option<Buffer>, device: &Device, bytes: u64) -> Result<(), Error> {
    if buffer.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
        *buffer = Some(device.alloc(bytes.max(1024).next_power_of_two())?);
    }
    Ok(())
}
