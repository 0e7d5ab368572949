//! A shuffle buffer: records leave it in random order while new ones come in.

use super::stream::{PartStream, Parts};
use crate::batches::Output;
use crate::stages::Stage;
use crate::{Error, Records, Rng};

/// Some records in memory, drawn from at random. The order depends on the seed and on the records
/// that come in, and on nothing else.
struct ShuffleBuffer {
    /// One set of records, of which `live` are still to be drawn; cleaned up when half of it is
    /// dead.
    pool: Vec<Records>,
    spare: Records,
    /// Set (always 0) and row.
    live: Vec<(u32, u32)>,
    capacity: usize,
    rng: Rng,
}

impl ShuffleBuffer {
    /// Fills up from the stream. Returns whether the stream may have more.
    fn fill(&mut self, stream: &mut PartStream<'_>) -> Result<bool, Error> {
        if self.live.len() >= self.capacity {
            return Ok(true);
        }
        let rows = self.pool[0].len();
        let target = rows + self.capacity - self.live.len();
        let more = stream.read(target, &mut self.pool[0])?;
        self.live.extend((rows..self.pool[0].len()).map(|row| (0, row as u32)));
        Ok(more)
    }

    /// Draws up to `n` records.
    fn draw(&mut self, n: usize, picks: &mut Vec<(u32, u32)>) {
        picks.clear();
        while picks.len() < n && !self.live.is_empty() {
            let i = self.rng.below(self.live.len() as u64) as usize;
            picks.push(self.live.swap_remove(i));
        }
    }

    /// Frees the memory of drawn records once they are half of all, which costs each record one
    /// copy.
    fn clean_up(&mut self) {
        if self.pool[0].len() < 2 * self.capacity {
            return;
        }
        self.spare.clear();
        self.spare.gather(&self.pool, &self.live);
        std::mem::swap(&mut self.pool[0], &mut self.spare);
        self.live = (0..self.pool[0].len()).map(|row| (0, row as u32)).collect();
    }
}

/// Reads parts through a shuffle buffer into batches, of which the first `skip` examples were
/// handed out by an earlier pass.
pub(super) fn run(
    parts: &Parts,
    capacity: usize,
    rng: Rng,
    batch_size: usize,
    drop_last: bool,
    mut skip: u64,
    output: &Output,
) -> Result<(), Error> {
    let shared = &output.shared;
    let mut stream = PartStream::new(parts, output);
    let mut buffer = ShuffleBuffer {
        pool: vec![Records::new(&shared.schema)],
        spare: Records::new(&shared.schema),
        live: Vec::new(),
        capacity: capacity.max(batch_size),
        rng,
    };
    let (mut picks, mut more) = (Vec::with_capacity(batch_size), true);
    loop {
        if more {
            more = buffer.fill(&mut stream)?;
        }
        buffer.draw(batch_size, &mut picks);
        if output.stopped() || picks.is_empty() || (picks.len() < batch_size && drop_last) {
            return Ok(());
        }
        let reads = stream.ledger.take(usize::MAX);
        if skip > 0 {
            skip = skip.saturating_sub(picks.len() as u64);
        } else {
            let mut batch = shared.take_records();
            shared.context.timers.time(Stage::Batch, || batch.gather(&buffer.pool, &picks));
            if !output.send(batch, reads) {
                return Ok(());
            }
        }
        shared.context.timers.time(Stage::Batch, || buffer.clean_up());
    }
}
