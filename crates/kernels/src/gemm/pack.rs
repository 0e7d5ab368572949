//! Copies blocks of the operands into panels that a micro-kernel reads front to back.
//!
//! A panel of B holds 16 columns (8 if the last panel is that narrow), one depth after the other; a
//! panel of A likewise holds the rows of one tile.

use super::Mat;
use super::tile::{COLS, LANES, MAX_ROWS, next_height};
use std::ops::Range;

/// Floats a packing store may write past the panel it fills.
const SLACK: usize = LANES;

/// Depths copied to one panel before going on to the next: reads stay within few pages, writes are
/// long enough to fill whole lines.
const CHUNK: usize = 8;

/// Copies a few rows: source, its stride, count or width, depth, destination, its stride.
type CopyFn = unsafe fn(*const f32, usize, usize, usize, *mut f32, usize);

/// The two ways to fill a panel, for one instruction set.
pub(super) struct Packing {
    /// The panel's depths lie across the source; see [`super::avx2::transpose_rows`].
    pub(super) transpose_rows: CopyFn,
    /// The panel's depths are pieces of rows of the source; see [`super::avx2::copy_rows`].
    pub(super) copy_rows: CopyFn,
}

/// Distance between depths in a panel of `cols` columns.
pub(super) fn panel_depth(cols: usize) -> usize {
    if cols <= LANES { LANES } else { COLS }
}

/// Where the packed panel starts whose first row is the `i`-th of its block. Every panel is followed
/// by slack, since a store at its last depth writes past it.
pub(super) fn a_panel(i: usize, k: usize) -> usize {
    i * k + i.div_ceil(MAX_ROWS) * SLACK
}

/// Floats in a packed block of `m` rows.
pub(super) fn a_block_len(m: usize, k: usize) -> usize {
    a_panel(m, k) + SLACK
}

/// Floats in a packed block of `n` columns.
pub(super) fn b_block_len(n: usize, k: usize) -> usize {
    n.next_multiple_of(COLS) * k + SLACK
}

impl Packing {
    /// Packs the part `depths` x `cols` of op(B). Panel `j` starts at `dst[j * 16 * depths.len()]`.
    ///
    /// # Safety
    /// The CPU has the features the copying functions were built for.
    pub(super) unsafe fn b(
        &self,
        b: &Mat,
        depths: Range<usize>,
        cols: Range<usize>,
        dst: &mut [f32],
    ) {
        let panels =
            || cols.clone().step_by(COLS).map(|j| (j, j - cols.start, COLS.min(cols.end - j)));
        let k = depths.len();
        assert!(dst.len() >= b_block_len(cols.len(), k));
        if b.trans {
            for (j, at, width) in panels() {
                let depth = panel_depth(width);
                for half in (0..width).step_by(LANES) {
                    let height = LANES.min(width - half);
                    let src = &b.data[(j + half) * b.ld + depths.start..];
                    let dst = &mut dst[at * k + half..];
                    assert!(src.len() >= (height - 1) * b.ld + k);
                    // SAFETY: the source rows were checked, the panel and its slack lie in `dst`.
                    unsafe {
                        let dst = dst.as_mut_ptr();
                        (self.transpose_rows)(src.as_ptr(), b.ld, height, k, dst, depth);
                    }
                }
            }
            return;
        }
        for p in depths.clone().step_by(CHUNK) {
            let chunk = CHUNK.min(depths.end - p);
            for (j, at, width) in panels() {
                let depth = panel_depth(width);
                let src = &b.data[p * b.ld + j..];
                let dst = &mut dst[at * k + (p - depths.start) * depth..];
                assert!(src.len() >= (chunk - 1) * b.ld + width);
                // SAFETY: as above.
                unsafe {
                    let dst = dst.as_mut_ptr();
                    (self.copy_rows)(src.as_ptr(), b.ld, width, chunk, dst, depth);
                }
            }
        }
    }

    /// Packs the part `rows` x `depths` of op(A). The panel that begins with the `i`-th of these
    /// rows starts at [`a_panel`].
    ///
    /// # Safety
    /// The CPU has the features the copying functions were built for.
    pub(super) unsafe fn a(
        &self,
        a: &Mat,
        rows: Range<usize>,
        depths: Range<usize>,
        dst: &mut [f32],
    ) {
        let k = depths.len();
        assert!(dst.len() >= a_block_len(rows.len(), k));
        let chunk = if a.trans { CHUNK } else { k };
        for p in depths.clone().step_by(chunk) {
            let chunk = chunk.min(depths.end - p);
            let mut i = rows.start;
            while i < rows.end {
                let height = next_height(rows.end - i);
                let at = a_panel(i - rows.start, k) + (p - depths.start) * height;
                let dst = &mut dst[at..];
                let dst = dst.as_mut_ptr();
                if a.trans {
                    let src = &a.data[p * a.ld + i..];
                    assert!(src.len() >= (chunk - 1) * a.ld + height);
                    // SAFETY: the source rows were checked, the panel and its slack lie in `dst`.
                    unsafe { (self.copy_rows)(src.as_ptr(), a.ld, height, chunk, dst, height) }
                } else {
                    let src = &a.data[i * a.ld + p..];
                    assert!(src.len() >= (height - 1) * a.ld + chunk);
                    // SAFETY: as above.
                    unsafe { (self.transpose_rows)(src.as_ptr(), a.ld, height, chunk, dst, height) }
                }
                i += height;
            }
        }
    }
}
