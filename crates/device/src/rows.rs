//! Rows of a table in the memory of a device: in, out, pooled, added up (`kernels/rows.cl`).

use crate::{Arg, Buffer, Device, Error, Grid, Queue};

/// Items of a group where every item is on its own.
pub(crate) const ITEMS: u32 = 128;

/// Rows of a table on a device: row `slot` is `stride` floats at `slot * stride`, weights first,
/// then what the optimizer keeps.
#[derive(Debug, Clone)]
pub struct Arena {
    /// The memory.
    pub buffer: Buffer,
    /// Floats of a row, with its state.
    pub stride: u32,
    /// Weights of a row.
    pub dim: u32,
}

/// How the rows of a segment become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum divided by the root of their number.
    SqrtN,
}

impl Arena {
    /// Room for `slots` rows.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn new(device: &Device, slots: u64, stride: u32, dim: u32) -> Result<Arena, Error> {
        let buffer = device.alloc(slots * u64::from(stride) * 4)?;
        Ok(Arena { buffer, stride, dim })
    }

    /// How many rows it has room for.
    pub fn slots(&self) -> u64 {
        self.buffer.bytes() / 4 / u64::from(self.stride.max(1))
    }

    pub(crate) fn stride_arg(&self) -> Arg<'static> {
        Arg::U64(self.stride.into())
    }
}

impl Device {
    /// A launch with one item for each float of `rows` times `width`.
    pub(crate) fn over_rows(
        &self,
        what: &str,
        rows: u32,
        width: u32,
    ) -> Result<Option<Grid>, Error> {
        let n = u64::from(rows) * u64::from(width);
        if n > u64::from(u32::MAX) {
            let reason = format!("{rows} rows of {width} floats are too many for one launch");
            return Err(self.failed(what, reason));
        }
        Ok((n > 0).then(|| Grid::over(n, ITEMS)))
    }

    /// Puts packed rows of `width` floats into their slots (`u32` each).
    ///
    /// # Errors
    /// If a buffer is too small, or the driver refuses. Slots are not looked at: they must be in
    /// the arena.
    pub fn rows_in(
        &self,
        queue: Queue,
        (packed, width): (&Buffer, u32),
        arena: &Arena,
        slots: &Buffer,
        rows: u32,
    ) -> Result<(), Error> {
        let args = [Arg::Buffer(packed), Arg::Buffer(&arena.buffer)];
        self.move_rows(queue, "rows_in", args, arena, (packed, width), slots, rows)
    }

    /// Takes the first `width` floats of rows out of their slots and packs them.
    ///
    /// # Errors
    /// As [`Device::rows_in`].
    pub fn rows_out(
        &self,
        queue: Queue,
        arena: &Arena,
        slots: &Buffer,
        rows: u32,
        (packed, width): (&Buffer, u32),
    ) -> Result<(), Error> {
        let args = [Arg::Buffer(&arena.buffer), Arg::Buffer(packed)];
        self.move_rows(queue, "rows_out", args, arena, (packed, width), slots, rows)
    }

    fn move_rows(
        &self,
        queue: Queue,
        name: &str,
        [from, to]: [Arg<'_>; 2],
        arena: &Arena,
        (packed, width): (&Buffer, u32),
        slots: &Buffer,
        rows: u32,
    ) -> Result<(), Error> {
        let Some(grid) = self.over_rows(name, rows, width)? else { return Ok(()) };
        if width > arena.stride {
            let reason = format!("a row has {} floats, not {width}", arena.stride);
            return Err(self.failed(name, reason));
        }
        self.check(packed, 0, u64::from(rows) * u64::from(width) * 4, "packed rows")?;
        self.check(slots, 0, u64::from(rows) * 4, "slots of rows")?;
        let args =
            [from, to, arena.stride_arg(), Arg::Buffer(slots), Arg::U32(rows), Arg::U32(width)];
        self.launch(queue, &self.kernel(name)?, grid, &args)
    }

    /// Adds packed vectors of `dim` floats up, always in the same order: vector r of `out` is the
    /// sum of those that `positions` names from `starts[r]` to `starts[r + 1]` (`u32` each).
    ///
    /// # Errors
    /// If a buffer is too small, or the driver refuses.
    pub fn segment_sum(
        &self,
        queue: Queue,
        packed: &Buffer,
        [positions, starts]: [&Buffer; 2],
        out: &Buffer,
        [rows, dim]: [u32; 2],
    ) -> Result<(), Error> {
        let Some(grid) = self.over_rows("segment_sum", rows, dim)? else { return Ok(()) };
        self.check(out, 0, u64::from(rows) * u64::from(dim) * 4, "sums of rows")?;
        self.check(starts, 0, (u64::from(rows) + 1) * 4, "starts of segments")?;
        let buffers = [packed, positions, starts, out].map(Arg::Buffer);
        let args: Vec<Arg<'_>> = buffers.into_iter().chain([rows, dim].map(Arg::U32)).collect();
        self.launch(queue, &self.kernel("segment_sum")?, grid, &args)
    }

    /// Pools weights of rows: vector s of `out` takes the rows `slots[starts[s]..starts[s + 1]]`.
    ///
    /// # Errors
    /// If a buffer is too small, or the driver refuses.
    pub fn gather_pool(
        &self,
        queue: Queue,
        arena: &Arena,
        [slots, starts]: [&Buffer; 2],
        out: &Buffer,
        segments: u32,
        pool: Pool,
    ) -> Result<(), Error> {
        let Some(grid) = self.over_rows("gather_pool", segments, arena.dim)? else { return Ok(()) };
        self.check(out, 0, u64::from(segments) * u64::from(arena.dim) * 4, "pooled vectors")?;
        self.check(starts, 0, (u64::from(segments) + 1) * 4, "starts of segments")?;
        let args = [
            Arg::Buffer(&arena.buffer),
            arena.stride_arg(),
            Arg::Buffer(slots),
            Arg::Buffer(starts),
            Arg::Buffer(out),
            Arg::U32(segments),
            Arg::U32(arena.dim),
            Arg::I32(pool as i32),
        ];
        self.launch(queue, &self.kernel("gather_pool")?, grid, &args)
    }
}
