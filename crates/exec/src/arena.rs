//! The memory of all temporaries of a plan: one block, cut at 64-byte boundaries.

/// One cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Zeroed bytes whose address does not change.
pub(crate) struct Arena {
    lines: Vec<Line>,
}

/// Rounds a number of bytes up to whole cache lines.
pub(crate) fn whole_lines(bytes: usize) -> usize {
    bytes.div_ceil(64) * 64
}

impl Arena {
    pub(crate) fn new(bytes: usize) -> Arena {
        Arena { lines: vec![Line([0; 64]); bytes.div_ceil(64)] }
    }

    /// Address of the first byte; the caller must stay within what it asked for.
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}
