//! Operations in rounds over shared memory.
//!
//! Rounds are counted from the start of the group, in all operations together, and are the same on
//! all ranks. In round `k` a rank
//!
//! 1. writes its input `k` and its header, and publishes `arrived = k + 1`;
//! 2. waits until all have arrived in `k`, and reads their inputs `k`;
//! 3. (all-reduce of much data) writes its output `k`, publishes `reduced = k + 1`, and later, not
//!    after it has arrived in `k + 2`, reads the outputs `k` of the others when they have published
//!    them.
//!
//! There are two inputs, headers and outputs per rank, used in turn. That is enough:
//!
//! - A rank writes input `k` after it has seen all arrive in `k - 1`. A rank that arrived in
//!   `k - 1` has read all inputs `k - 2`, which were in the same memory.
//! - A rank writes output `k` after it has seen all arrive in `k`. A rank that arrived in `k` has
//!   read all outputs `k - 2`.

use std::ops::Range;
use std::time::Duration;

use regatta_kernels::vector;

use crate::call::Limits;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::patience::Patience;
use crate::reduce::{Carrier, Element, ReduceOp, part, reduce_in_order};

use super::region::{Flag, Region};

/// Longest sleep before looking around: whether the job has failed, whether it takes too long.
const NAP: Duration = Duration::from_millis(20);

/// The shared memory of a group, as one member uses it.
pub(crate) struct Memory {
    region: Region,
    rank: usize,
    size: usize,
    round: u32,
    patience: Patience,
}

/// An operation that uses the memory: what is being done, and within what limits.
pub(crate) struct Use<'a, 'l> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) header: Header,
    pub(crate) limits: &'a mut Limits<'l>,
}

impl Memory {
    pub(crate) fn new(region: Region, rank: usize, size: usize) -> Memory {
        Memory { region, rank, size, round: 0, patience: Patience::for_ranks(size) }
    }

    /// Bytes of input of one rank in one round.
    pub(crate) fn round_bytes(&self) -> usize {
        self.region.slot() * self.size
    }
}

impl Use<'_, '_> {
    /// All-reduce of what fits in one round: everybody reads all inputs and computes the same.
    pub(crate) fn all_reduce_small<T: Element, C: Carrier<T>>(
        &mut self,
        data: &mut [T],
        op: ReduceOp,
        carrier: C,
    ) -> Result<()> {
        let (rank, size, round) = (self.memory.rank, self.memory.size, self.memory.round);
        let bytes = data.len() * C::WIDTH;
        // SAFETY: this rank's own input, free in this round (see the module).
        carrier.put(data, unsafe { self.memory.region.input_mut(rank, round, 0, bytes) });
        self.arrive();
        self.await_all()?;
        // SAFETY: all have arrived: their inputs stay as they are until they see this rank in the
        // next round.
        let input = |rank| unsafe { self.memory.region.input(rank, round, 0, bytes) };
        carrier.get(input(0), data);
        for other in 1..size {
            carrier.combine(op, data, input(other));
        }
        T::finish(op, data, size);
        carrier.round(data);
        self.memory.round = round.wrapping_add(1);
        Ok(())
    }

    /// All-reduce of any length: each rank reduces its part, a slot per round, and the others copy
    /// the result. Copying is one round behind, so that ranks seldom wait.
    pub(crate) fn all_reduce<T: Element, C: Carrier<T>>(
        &mut self,
        data: &mut [T],
        op: ReduceOp,
        carrier: C,
    ) -> Result<()> {
        let rounds = self.rounds(data.len(), C::WIDTH);
        for k in 0..rounds {
            self.deliver(data, k, carrier)?;
            self.reduce_mine(data, op, k, true, carrier);
            self.memory.region.reduced(self.memory.rank).publish(self.memory.round.wrapping_add(1));
            if k > 0 {
                self.collect(data, k - 1, self.memory.round.wrapping_sub(1), carrier)?;
            }
            self.memory.round = self.memory.round.wrapping_add(1);
        }
        self.collect(data, rounds - 1, self.memory.round.wrapping_sub(1), carrier)
    }

    /// Reduces this rank's part of `data`.
    pub(crate) fn reduce_scatter<T: Element, C: Carrier<T>>(
        &mut self,
        data: &mut [T],
        op: ReduceOp,
        carrier: C,
    ) -> Result<()> {
        for k in 0..self.rounds(data.len(), C::WIDTH) {
            self.deliver(data, k, carrier)?;
            self.reduce_mine(data, op, k, false, carrier);
            self.memory.round = self.memory.round.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies `mine` of every rank to its position in `all`.
    pub(crate) fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        let len = mine.len();
        self.in_chunks(len, |memory, round, first, chunk| {
            if first {
                // SAFETY: this rank's own input, free in this round (see the module).
                let input = unsafe { memory.region.input_mut(memory.rank, round, 0, chunk.len()) };
                vector::copy(&mine[chunk], input);
                return;
            }
            for rank in 0..memory.size {
                // SAFETY: all have arrived.
                let input = unsafe { memory.region.input(rank, round, 0, chunk.len()) };
                vector::copy(input, &mut all[rank * len..][chunk.clone()]);
            }
        })
    }

    /// Copies what every other rank has to its buffer in `parts`. Lengths may differ: each rank's
    /// header says how much it has.
    pub(crate) fn all_gather_any(&mut self, mine: &[u8], parts: &mut [Vec<u8>]) -> Result<()> {
        let at_a_time = self.memory.round_bytes();
        let chunk = |len: usize, start: usize| start.min(len)..(start + at_a_time).min(len);
        let (rank, size) = (self.memory.rank, self.memory.size);
        let mut longest = mine.len();
        let mut start = 0;
        parts.iter_mut().for_each(Vec::clear);
        loop {
            let (memory, round) = (&*self.memory, self.memory.round);
            let now = &mine[chunk(mine.len(), start)];
            // SAFETY: this rank's own input, free in this round (see the module).
            vector::copy(now, unsafe { memory.region.input_mut(rank, round, 0, now.len()) });
            self.arrive();
            self.await_all()?;
            for other in (0..size).filter(|other| *other != rank) {
                // SAFETY: all have arrived: headers and inputs stay until they see this rank in the
                // next round.
                let header = unsafe { self.memory.region.header(other, round) };
                let len = Header::decode(header).map_or(0, |header| header.len as usize);
                longest = longest.max(len);
                let now = chunk(len, start).len();
                // SAFETY: as above.
                let input = unsafe { self.memory.region.input(other, round, 0, now) };
                parts[other].extend_from_slice(input);
            }
            self.memory.round = round.wrapping_add(1);
            start += at_a_time;
            if start >= longest {
                return Ok(());
            }
        }
    }

    /// Copies `data` of `root` to all.
    pub(crate) fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<()> {
        self.in_chunks(data.len(), |memory, round, first, chunk| {
            if first && memory.rank == root {
                // SAFETY: this rank's own input, free in this round (see the module).
                let input = unsafe { memory.region.input_mut(root, round, 0, chunk.len()) };
                vector::copy(&data[chunk], input);
            } else if !first && memory.rank != root {
                // SAFETY: all have arrived.
                let input = unsafe { memory.region.input(root, round, 0, chunk.len()) };
                vector::copy(input, &mut data[chunk]);
            }
        })
    }

    /// Returns when all ranks have come.
    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.in_chunks(0, |_, _, _, _| ())
    }

    /// For every chunk of `len` bytes that fits in a round: calls `copy` before arriving, with
    /// `true`, and again when all have arrived.
    fn in_chunks(
        &mut self,
        len: usize,
        mut copy: impl FnMut(&Memory, u32, bool, Range<usize>),
    ) -> Result<()> {
        let at_a_time = self.memory.round_bytes();
        for k in 0..len.div_ceil(at_a_time).max(1) {
            let chunk = k * at_a_time..((k + 1) * at_a_time).min(len);
            let round = self.memory.round;
            copy(self.memory, round, true, chunk.clone());
            self.arrive();
            self.await_all()?;
            copy(self.memory, round, false, chunk);
            self.memory.round = round.wrapping_add(1);
        }
        Ok(())
    }

    /// Rounds for `len` elements of `width` bytes: the longest part is the first.
    fn rounds(&self, len: usize, width: usize) -> usize {
        let longest = part(len, self.memory.size, 0).len();
        longest.div_ceil(self.memory.region.slot() / width).max(1)
    }

    /// The elements of the part of `owner` that belong to round `k` of the operation.
    fn chunk(&self, len: usize, width: usize, owner: usize, k: usize) -> Range<usize> {
        let part = part(len, self.memory.size, owner);
        let at_a_time = self.memory.region.slot() / width;
        let start = (part.start + k * at_a_time).min(part.end);
        start..(start + at_a_time).min(part.end)
    }

    /// Steps 1 and 2: what the others reduce, and the wait for all.
    fn deliver<T: Element, C: Carrier<T>>(
        &mut self,
        data: &[T],
        k: usize,
        carrier: C,
    ) -> Result<()> {
        let Memory { rank, size, round, .. } = *self.memory;
        for owner in (1..size).map(|step| (rank + step) % size) {
            let chunk = self.chunk(data.len(), C::WIDTH, owner, k);
            let bytes = chunk.len() * C::WIDTH;
            // SAFETY: this rank's own input, free in this round (see the module).
            let input = unsafe { self.memory.region.input_mut(rank, round, owner, bytes) };
            carrier.put(&data[chunk], input);
        }
        self.arrive();
        self.await_all()
    }

    /// Reduces this rank's chunk of round `k`, in the order of ranks, in place and, if `publish`,
    /// into its output.
    fn reduce_mine<T: Element, C: Carrier<T>>(
        &mut self,
        data: &mut [T],
        op: ReduceOp,
        k: usize,
        publish: bool,
        carrier: C,
    ) {
        let Memory { rank, size, round, .. } = *self.memory;
        let region = &self.memory.region;
        let chunk = self.chunk(data.len(), C::WIDTH, rank, k);
        let total = chunk.len() * C::WIDTH;
        // SAFETY: all have arrived: their inputs stay until they see this rank in the next round.
        let input = |other| unsafe { region.input(other, round, rank, total) };
        reduce_in_order(carrier, op, (rank, size), &mut data[chunk], input, |at, result| {
            if publish {
                // SAFETY: this rank's own output, free in this round (see the module).
                let output = unsafe { region.output_mut(rank, round, total) };
                carrier.put(result, &mut output[at]);
            }
        });
    }

    /// Step 3: copies what the others have reduced in `round`, which was round `k` of the
    /// operation.
    fn collect<T: Element, C: Carrier<T>>(
        &mut self,
        data: &mut [T],
        k: usize,
        round: u32,
        carrier: C,
    ) -> Result<()> {
        let Memory { rank, size, .. } = *self.memory;
        for owner in (1..size).map(|step| (rank + step) % size) {
            let chunk = self.chunk(data.len(), C::WIDTH, owner, k);
            self.await_flag(owner, Region::reduced, round.wrapping_add(1))?;
            let bytes = chunk.len() * C::WIDTH;
            // SAFETY: its owner has published it, and keeps it until it has seen this rank arrive
            // two rounds later.
            let output = unsafe { self.memory.region.output(owner, round, bytes) };
            carrier.get(output, &mut data[chunk]);
        }
        Ok(())
    }

    /// Publishes this rank's input of the present round. Every round carries the header, so that
    /// ranks that are in different operations find out at once.
    fn arrive(&mut self) {
        let Memory { rank, round, .. } = *self.memory;
        // SAFETY: this rank's own header, free in this round (see the module).
        unsafe { *self.memory.region.header_mut(rank, round) = self.header.encode() };
        self.memory.region.arrived(rank).publish(round.wrapping_add(1));
    }

    /// Waits for all to arrive in the present round, and checks that they do the same.
    fn await_all(&mut self) -> Result<()> {
        let Memory { rank, size, round, .. } = *self.memory;
        let ours = self.header.encode();
        for other in (1..size).map(|step| (rank + step) % size) {
            self.await_flag(other, Region::arrived, round.wrapping_add(1))?;
            // SAFETY: it has arrived: its header stays until it sees this rank in the next round.
            let theirs = unsafe { self.memory.region.header(other, round) };
            if *theirs != ours {
                self.compare(other, theirs)?;
            }
        }
        Ok(())
    }

    fn compare(&self, other: usize, theirs: &[u8; crate::header::HEADER_LEN]) -> Result<()> {
        let theirs = match Header::decode(theirs) {
            Some(theirs) if self.header.agrees_with(&theirs) => return Ok(()),
            Some(theirs) => theirs.to_string(),
            None => "something unknown".to_owned(),
        };
        Err(self.limits.mismatch(self.memory.rank, &self.header, other, theirs))
    }

    /// Waits until `flag` of `other` has reached `value`: looks for a while, then sleeps.
    #[inline]
    fn await_flag(
        &mut self,
        other: usize,
        flag: fn(&Region, usize) -> &Flag,
        value: u32,
    ) -> Result<()> {
        let Memory { region, patience, .. } = &mut *self.memory;
        let flag = flag(region, other);
        if patience.look(|| flag.has_reached(value)) {
            return Ok(());
        }
        while !flag.has_reached(value) {
            let limit = self.limits.check(&self.header, &[other])?;
            // Before the last look: who has left does not publish any more.
            let member = self.limits.members[other];
            if self.limits.fate.has_left(member) && !flag.has_reached(value) {
                return Err(Error::RankLeft { rank: member, during: self.header.to_string() });
            }
            flag.sleep(value, limit.min(NAP));
        }
        Ok(())
    }
}
