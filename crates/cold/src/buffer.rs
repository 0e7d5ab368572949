//! Memory that direct reads and writes accept: aligned to a page.

use crate::layout::PAGE;

/// Zeroed bytes whose first one is at a multiple of the page size.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// `n_pages` pages.
    pub(crate) fn pages(n_pages: usize) -> Buffer {
        let len = n_pages * PAGE;
        let bytes = vec![0; len + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Buffer { bytes, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn words(&self) -> &[u32] {
        bytemuck::cast_slice(self.bytes())
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u32] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    pub(crate) fn n_pages(&self) -> usize {
        self.len / PAGE
    }
}
