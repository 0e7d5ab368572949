//! Rows of one length: a slot number goes in, a slice of floats comes out.
//!
//! Rows stand in large chunks that never move. A chunk is reserved whole and becomes resident as
//! its rows are first written, so reserving costs address space only.

use regatta_kernels::prefetch;

use crate::Error;
use crate::index::Place;
use crate::memory::{HUGE_PAGE, Region};

/// Address space reserved at once.
const CHUNK_BYTES: usize = 64 << 20;
/// Floats in a cache line.
const LINE: usize = 16;

/// All rows of one length of one shard.
#[derive(Debug)]
pub(crate) struct Slab {
    stride: usize,
    /// A chunk holds two to the power of this rows.
    chunk_bits: u32,
    chunks: Vec<Region<f32>>,
    /// The first slot that was never used. Slot 0 stays unused: it means "no row" elsewhere.
    next: u32,
    free: Vec<u32>,
    huge: bool,
}

impl Slab {
    /// An empty slab for rows of `stride` floats.
    pub(crate) fn new(stride: usize, huge: bool) -> Self {
        let rows = (CHUNK_BYTES / size_of::<f32>() / stride.max(1)).max(1);
        Slab {
            stride,
            chunk_bits: rows.ilog2(),
            chunks: Vec::new(),
            next: 1,
            free: Vec::new(),
            huge,
        }
    }

    /// Floats per row.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Makes room for a row and gives its slot; the row holds whatever was there.
    pub(crate) fn alloc(&mut self) -> Result<u32, Error> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.next > Place::MAX_SLOT {
            return Err(Error::ShardFull { rows: self.next as usize });
        }
        if (self.next >> self.chunk_bits) as usize == self.chunks.len() {
            // Small tables exist in numbers: let the first rows of a shard live in small pages.
            let small_head = if self.chunks.is_empty() { HUGE_PAGE } else { 0 };
            let len = self.stride << self.chunk_bits;
            self.chunks.push(Region::new(len, self.huge, small_head)?);
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Gives a slot back.
    pub(crate) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Forgets all rows and gives the memory back.
    pub(crate) fn clear(&mut self) {
        *self = Slab::new(self.stride, self.huge);
    }

    /// Bytes that rows have ever taken, up to the last slot in use.
    pub(crate) fn bytes(&self) -> usize {
        let rows = if self.chunks.is_empty() { 0 } else { self.next as usize };
        rows * self.stride * size_of::<f32>() + self.free.capacity() * size_of::<u32>()
    }

    #[inline(always)]
    fn split(&self, slot: u32) -> (usize, usize) {
        let in_chunk = slot & ((1 << self.chunk_bits) - 1);
        ((slot >> self.chunk_bits) as usize, in_chunk as usize * self.stride)
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, slot: u32) -> &[f32] {
        let (chunk, at) = self.split(slot);
        &self.chunks[chunk][at..at + self.stride]
    }

    /// One row, to be changed.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, slot: u32) -> &mut [f32] {
        let (chunk, at) = self.split(slot);
        &mut self.chunks[chunk][at..at + self.stride]
    }

    /// Asks for the cache lines of the first `n` floats of a row.
    #[inline(always)]
    pub(crate) fn prefetch(&self, slot: u32, n: usize) {
        let (chunk, at) = self.split(slot);
        let Some(chunk) = self.chunks.get(chunk) else { return };
        prefetch(chunk, at);
        let mut i = LINE;
        while i < n {
            prefetch(chunk, at + i);
            i += LINE;
        }
        if !self.stride.is_multiple_of(LINE) {
            // The last float may be one line further on.
            prefetch(chunk, at + n - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_contents_and_slots_are_reused() {
        // Wide rows, so that several chunks are needed.
        let stride = 1 << 20;
        let mut slab = Slab::new(stride, true);
        assert_eq!(slab.bytes(), 0);
        let slots: Vec<u32> = (0..40).map(|_| slab.alloc().unwrap()).collect();
        assert!(!slots.contains(&0));
        for &slot in &slots {
            slab.row_mut(slot)[stride - 1] = slot as f32;
            slab.row_mut(slot)[0] = -(slot as f32);
        }
        for &slot in &slots {
            assert_eq!(slab.row(slot)[stride - 1], slot as f32);
            assert_eq!(slab.row(slot)[0], -(slot as f32));
        }
        slab.free(slots[7]);
        assert_eq!(slab.alloc().unwrap(), slots[7]);
        slab.clear();
        assert_eq!(slab.bytes(), 0);
        assert_eq!(slab.alloc().unwrap(), 1);
    }
}
