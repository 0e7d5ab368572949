//! The memory of all temporaries of an execution plan: one block, divided at 64-byte boundaries.

const LINE: usize = 64;

/// Zeroed bytes whose address does not change.
pub(crate) struct Arena {
    /// Short arrays, because a vector of those takes zeroed memory from the system as it comes; one
    /// more than requested, because they do not begin at a boundary.
    lines: Vec<[u64; LINE / 8]>,
}

/// Rounds a number of bytes up to whole cache lines.
pub(crate) fn whole_lines(bytes: usize) -> usize {
    bytes.div_ceil(LINE) * LINE
}

impl Arena {
    pub(crate) fn new(bytes: usize) -> Arena {
        Arena { lines: vec![[0; LINE / 8]; bytes.div_ceil(LINE) + 1] }
    }

    /// Address of the first byte, to read from.
    pub(crate) fn start(&self) -> *const u8 {
        let start = self.lines.as_ptr().cast::<u8>();
        start.wrapping_add(start.align_offset(LINE))
    }

    /// Address of the first byte; the caller must stay within what it requested.
    pub(crate) fn base(&mut self) -> *mut u8 {
        let start = self.lines.as_mut_ptr().cast::<u8>();
        start.wrapping_add(start.align_offset(LINE))
    }
}
