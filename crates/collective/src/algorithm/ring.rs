//! All-reduce of much data around a ring.
//!
//! The data is divided into one part per rank. In `size - 1` steps each part travels once around
//! the ring and collects the contributions; in `size - 1` more steps the finished parts travel
//! around again. What a rank sends in one step is exactly what it received (and combined) in the
//! step before, so its outgoing bytes are one stream: its own part, followed by what comes in.
//! There are no messages or barriers between steps: every byte leaves as soon as it can.
//!
//! Each part is combined in the order of the ring, at one place, and copied from there: all ranks
//! hold the same bits.

use std::io::IoSlice;
use std::ops::Range;

use crate::call::Call;
use crate::error::Result;
use crate::header::HEADER_LEN;
use crate::reduce::{Element, ReduceOp, part};

/// Bytes combined at a time: small enough to stay in the cache between the socket and the sum.
const SCRATCH: usize = 256 << 10;

const PAGE: usize = 4096;

/// Where a stream stands.
#[derive(Clone, Copy, Default)]
struct Position {
    step: usize,
    /// Bytes within the part of this step.
    offset: usize,
}

pub(crate) fn all_reduce<T: Element>(
    call: &mut Call<'_>,
    data: &mut [T],
    op: ReduceOp,
    scratch: &mut Vec<u64>,
) -> Result<()> {
    let width = size_of::<T>();
    scratch.resize((SCRATCH + PAGE) / 8, 0);
    let scratch: &mut [u8] = bytemuck::cast_slice_mut(scratch);
    // The kernel copies slowly to some offsets relative to a page, never to its beginning.
    let aligned = scratch.as_ptr().align_offset(PAGE);
    let scratch = &mut scratch[aligned..aligned + SCRATCH];
    let mut ring = Ring {
        prev: (call.rank + call.size - 1) % call.size,
        next: (call.rank + 1) % call.size,
        steps: 2 * (call.size - 1),
        parts: (0..=2 * (call.size - 1))
            .map(|step| {
                let owner = (call.rank + 2 * call.size - step) % call.size;
                let range = part(data.len(), call.size, owner);
                range.start * width..range.end * width
            })
            .collect(),
        head: call.header.encode(),
        head_sent: 0,
        their_head: [0; HEADER_LEN],
        head_got: 0,
        sent: Position::default(),
        got: Position::default(),
        in_scratch: 0,
    };
    loop {
        let mut progress = ring.send(call, bytemuck::cast_slice(data))?;
        progress |= ring.receive(call, data, op, scratch)?;
        let (more_in, more_out) = (ring.got.step < ring.steps, ring.sent.step < ring.steps);
        if !more_in && !more_out {
            return Ok(());
        }
        if !progress {
            let can_send = ring.head_sent < HEADER_LEN || !ring.sendable().is_empty();
            let reads: &[usize] = if more_in { &[ring.prev] } else { &[] };
            let writes: &[usize] = if can_send { &[ring.next] } else { &[] };
            call.wait(reads, writes)?;
        }
    }
}

struct Ring {
    prev: usize,
    next: usize,
    steps: usize,
    /// The bytes sent in each step; those received in a step are those sent in the next.
    parts: Vec<Range<usize>>,
    head: [u8; HEADER_LEN],
    head_sent: usize,
    their_head: [u8; HEADER_LEN],
    head_got: usize,
    sent: Position,
    got: Position,
    /// Bytes received but not combined yet: less than one element between calls.
    in_scratch: usize,
}

impl Ring {
    /// Bytes of the present step that may leave now: what has been received in the step before.
    fn sendable(&self) -> Range<usize> {
        let Position { step, offset } = self.sent;
        if step == self.steps {
            return 0..0;
        }
        let part = &self.parts[step];
        let ready = match step.checked_sub(1) {
            None => part.len(),
            Some(before) if self.got.step > before => part.len(),
            Some(before) if self.got.step == before => self.got.offset,
            Some(_) => 0,
        };
        part.start + offset..part.start + ready.max(offset)
    }

    fn send(&mut self, call: &mut Call<'_>, data: &[u8]) -> Result<bool> {
        let mut progress = false;
        loop {
            let range = self.sendable();
            if range.is_empty() && self.head_sent == HEADER_LEN {
                return Ok(progress);
            }
            let head = &self.head[self.head_sent..];
            let head_len = head.len();
            let asked = head_len + range.len();
            let n = call
                .try_write(self.next, &[IoSlice::new(head), IoSlice::new(&data[range.clone()])])?;
            self.head_sent += n.min(head_len);
            self.sent.offset += n.saturating_sub(head_len);
            self.skip_sent();
            progress |= n > 0;
            if n < asked {
                return Ok(progress);
            }
        }
    }

    /// Continues with the next step that has bytes to send, once this one is complete.
    fn skip_sent(&mut self) {
        while self.sent.step < self.steps && self.sent.offset == self.parts[self.sent.step].len() {
            self.sent = Position { step: self.sent.step + 1, offset: 0 };
        }
    }

    fn skip_got(&mut self) {
        while self.got.step < self.steps && self.got.offset == self.parts[self.got.step + 1].len() {
            self.got = Position { step: self.got.step + 1, offset: 0 };
        }
    }

    /// Reads once: the header, bytes to combine, or finished bytes.
    fn receive<T: Element>(
        &mut self,
        call: &mut Call<'_>,
        data: &mut [T],
        op: ReduceOp,
        scratch: &mut [u8],
    ) -> Result<bool> {
        if self.head_got < HEADER_LEN {
            let n = call.try_read(self.prev, &mut self.their_head[self.head_got..])?;
            self.head_got += n;
            if self.head_got < HEADER_LEN {
                return Ok(n > 0);
            }
            call.check(self.prev, &self.their_head)?;
            // Parts may be empty when there are more ranks than elements.
            self.skip_got();
            self.skip_sent();
        }
        if self.got.step == self.steps {
            return Ok(false);
        }
        let part = self.parts[self.got.step + 1].clone();
        let n = if self.got.step + 1 < call.size {
            let width = size_of::<T>();
            let part = &mut data[part.start / width..part.end / width];
            self.combine(call, part, op, scratch)?
        } else {
            let rest = &mut bytemuck::cast_slice_mut::<T, u8>(data)[part][self.got.offset..];
            let n = call.try_read(self.prev, rest)?;
            self.got.offset += n;
            n
        };
        self.skip_got();
        self.skip_sent();
        Ok(n > 0)
    }

    /// Combines what has come with `part`. The last combination of a part also finishes it.
    fn combine<T: Element>(
        &mut self,
        call: &mut Call<'_>,
        part: &mut [T],
        op: ReduceOp,
        scratch: &mut [u8],
    ) -> Result<usize> {
        let width = size_of::<T>();
        let wanted = (size_of_val(part) - self.got.offset).min(scratch.len());
        let n = call.try_read(self.prev, &mut scratch[self.in_scratch..wanted])?;
        self.in_scratch += n;
        let whole = self.in_scratch / width;
        let at = self.got.offset / width;
        let target = &mut part[at..at + whole];
        T::combine(op, target, bytemuck::cast_slice(&scratch[..whole * width]));
        if self.got.step + 2 == call.size {
            T::finish(op, target, call.size);
        }
        scratch.copy_within(whole * width..self.in_scratch, 0);
        self.in_scratch -= whole * width;
        self.got.offset += whole * width;
        Ok(n)
    }
}
