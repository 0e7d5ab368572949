//! The rows of one table on a device: what a batch needs is brought, what changed and must leave is
//! written to the table.

use regatta_device::{Arena, Buffer, Device, Queue, Step};
use regatta_exec::device::RowGrads;
use regatta_optim::{RowRule, SharedState};
use regatta_passes::TableSpec;
use regatta_ps::Client;

use super::window::{Moves, Window};
use crate::Error;

/// Rows of a table on a device.
pub(super) struct TableRows {
    /// Its number in the job.
    number: usize,
    spec: TableSpec,
    pub(super) window: Window,
    pub(super) arena: Arena,
    /// What all rows share, such as the powers of Adam's betas.
    shared: SharedState,
    /// Steps that this counts.
    pub(super) steps: u64,
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

impl TableRows {
    /// An empty arena of at most so many bytes.
    pub(super) fn new(
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
            spec: spec.clone(),
            window: Window::new(slots as usize),
            arena,
            shared: spec.rule.shared_state(),
            steps: 0,
            moving: Default::default(),
        })
    }

    /// Continues after so many steps.
    pub(super) fn set_steps(&mut self, steps: u64) {
        (self.steps, self.shared) = (steps, self.spec.rule.shared_after(steps));
    }

    fn width(&self) -> usize {
        self.arena.stride as usize
    }

    /// Why a batch with so many rows can never be on the device.
    pub(super) fn too_small(&self, rows: usize) -> Error {
        let (name, has, row) = (&self.spec.name, self.window.capacity(), 4 * self.width());
        let mb = |bytes: u64| format!("{:.2} MB", bytes as f64 / f64::from(1 << 20));
        let needed = (rows * row).div_ceil(1 << 20);
        Error::Config(format!(
            "table '{name}': a batch has {rows} distinct rows, and the arena has room for {has} \
             ({} / {row} bytes of a row); set table_parameters.{name}.device_mb to at least \
             {needed}, or take smaller batches",
            mb(self.arena.buffer.bytes())
        ))
    }

    /// Moves rows as planned: changed ones to the table, wanted ones to the device.
    pub(super) fn apply(
        &mut self,
        device: &Device,
        client: &Client,
        moves: &Moves,
        moved: &mut Moved,
    ) -> Result<(), Error> {
        self.write_back(device, client, &moves.rows_out, Queue::Transfer)?;
        self.bring(device, client, &moves.rows_in)?;
        moved.rows_in += moves.rows_in.len() as u64;
        moved.rows_out += moves.rows_out.len() as u64;
        Ok(())
    }

    fn bring(
        &mut self,
        device: &Device,
        client: &Client,
        rows: &[(u64, u32)],
    ) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let (keys, slots): (Vec<u64>, Vec<u32>) = rows.iter().copied().unzip();
        let mut values = vec![0.0; keys.len() * self.width()];
        client.lease_rows(self.number, &keys, &mut values)?;
        let (n, width) = (keys.len() as u32, self.arena.stride);
        let [incoming, _] = &mut self.moving;
        let (packed, slots_on) = incoming.room(device, keys.len(), self.arena.stride as usize)?;
        device.write_values(Queue::Transfer, packed, 0, &values)?;
        device.write_values(Queue::Transfer, slots_on, 0, &slots)?;
        Ok(device.rows_in(Queue::Transfer, (packed, width), &self.arena, slots_on, n)?)
    }

    /// Writes rows in these slots to the table.
    fn write_back(
        &mut self,
        device: &Device,
        client: &Client,
        rows: &[(u64, u32)],
        queue: Queue,
    ) -> Result<(), Error> {
        // So many rows at a time that host memory stays small.
        const ROWS: usize = 1 << 15;
        for rows in rows.chunks(ROWS) {
            let (keys, slots): (Vec<u64>, Vec<u32>) = rows.iter().copied().unzip();
            let (n, width) = (keys.len() as u32, self.arena.stride);
            let [_, outgoing] = &mut self.moving;
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
    pub(super) fn flush(&mut self, device: &Device, client: &Client) -> Result<(), Error> {
        let changed = self.window.take_changed();
        self.write_back(device, client, &changed, Queue::Compute)
    }

    /// One step of the rows of a batch, in place.
    pub(super) fn update(
        &mut self,
        device: &Device,
        grads: Option<RowGrads<'_>>,
        lr: f32,
    ) -> Result<(), Error> {
        let rate = lr * self.spec.lr_scale as f32;
        let step = Step::new(&self.spec.rule, rate, &self.shared);
        let step = step.map_err(|e| Error::Config(e.to_string()))?;
        if let Some(grads) = grads {
            let rows = (grads.grads, grads.rows as u32);
            device.update_rows(Queue::Compute, &step, &self.arena, grads.slots, rows)?;
        }
        self.spec.rule.advance(&mut self.shared);
        self.steps += 1;
        Ok(())
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
