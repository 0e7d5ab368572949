//! Copies blocks of the operands into panels that a micro-kernel reads front to back.
//!
//! A panel of B holds the columns of a tile (in whole vectors, if the last panel is narrower), one
//! depth after the other; a panel of A likewise holds the rows of one tile.

use super::Mat;
use super::tile::Tiles;
use std::ops::Range;

/// Rows that are transposed at a time; a store writes as many floats, past the panel it fills too.
const TRANSPOSED: usize = 8;
const SLACK: usize = TRANSPOSED;

/// Depths copied to one panel before going on to the next: reads stay within few pages, writes are
/// long enough to fill whole lines.
const CHUNK: usize = 8;

/// Copies a few rows: source, its stride, count or width, depth, destination, its stride.
type CopyFn = unsafe fn(*const f32, usize, usize, usize, *mut f32, usize);

/// How panels are filled for one instruction set.
pub(super) struct Packing {
    /// The tiles that will read them.
    pub(super) tiles: &'static Tiles,
    /// The panel's depths lie across the source; see [`super::avx2::transpose_rows`].
    pub(super) transpose_rows: CopyFn,
    /// The panel's depths are parts of rows of the source; see [`super::avx2::copy_rows`].
    pub(super) copy_rows: CopyFn,
}

impl Packing {
    /// Distance between depths in a panel of `cols` columns.
    pub(super) fn panel_depth(&self, cols: usize) -> usize {
        cols.next_multiple_of(self.tiles.lanes)
    }

    /// Where the packed panel starts whose first row is the `i`-th of its block. Every panel is
    /// followed by slack, since a store at its last depth writes past it.
    pub(super) fn a_panel(&self, i: usize, k: usize) -> usize {
        i * k + i.div_ceil(self.tiles.rows()) * SLACK
    }

    /// Floats in a packed block of `m` rows.
    pub(super) fn a_block_len(&self, m: usize, k: usize) -> usize {
        self.a_panel(m, k) + SLACK
    }

    /// Floats in a packed block of `n` columns.
    pub(super) fn b_block_len(&self, n: usize, k: usize) -> usize {
        n.next_multiple_of(self.tiles.cols()) * k + SLACK
    }

    /// Packs the part `depths` x `cols` of op(B). The panel that begins with the `j`-th of these
    /// columns starts at `dst[j * depths.len()]`.
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
        let full = self.tiles.cols();
        let panels =
            || cols.clone().step_by(full).map(|j| (j, j - cols.start, full.min(cols.end - j)));
        let k = depths.len();
        assert!(dst.len() >= self.b_block_len(cols.len(), k));
        if b.trans {
            for (j, at, width) in panels() {
                let src = &b.data[j * b.ld + depths.start..];
                let depth = self.panel_depth(width);
                // SAFETY: the features are the caller's promise; the panel and its slack lie in
                // `dst`.
                unsafe { self.transpose(src, b.ld, width, k, &mut dst[at * k..], depth) };
            }
            return;
        }
        for p in depths.clone().step_by(CHUNK) {
            let chunk = CHUNK.min(depths.end - p);
            for (j, at, width) in panels() {
                let depth = self.panel_depth(width);
                let src = &b.data[p * b.ld + j..];
                let dst = &mut dst[at * k + (p - depths.start) * depth..];
                assert!(src.len() >= (chunk - 1) * b.ld + width);
                // SAFETY: the source rows were checked, the panel and its slack lie in `dst`.
                unsafe {
                    let dst = dst.as_mut_ptr();
                    (self.copy_rows)(src.as_ptr(), b.ld, width, chunk, dst, depth);
                }
            }
        }
    }

    /// Packs the part `rows` x `depths` of op(A). The panel that begins with the `i`-th of these
    /// rows starts at [`a_panel`](Self::a_panel).
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
        assert!(dst.len() >= self.a_block_len(rows.len(), k));
        let chunk = if a.trans { CHUNK } else { k };
        for p in depths.clone().step_by(chunk) {
            let chunk = chunk.min(depths.end - p);
            let mut i = rows.start;
            while i < rows.end {
                let height = self.tiles.next_height(rows.end - i);
                let at = self.a_panel(i - rows.start, k) + (p - depths.start) * height;
                let dst = &mut dst[at..];
                if a.trans {
                    let src = &a.data[p * a.ld + i..];
                    assert!(src.len() >= (chunk - 1) * a.ld + height);
                    let dst = dst.as_mut_ptr();
                    // SAFETY: the source rows were checked, the panel and its slack lie in `dst`.
                    unsafe { (self.copy_rows)(src.as_ptr(), a.ld, height, chunk, dst, height) }
                } else {
                    let src = &a.data[i * a.ld + p..];
                    // SAFETY: as above; `transpose` checks the source.
                    unsafe { self.transpose(src, a.ld, height, chunk, dst, height) }
                }
                i += height;
            }
        }
    }

    /// Fills a panel from `height` stored rows of `depth`, `ld` apart.
    ///
    /// # Safety
    /// The CPU has the features, and `dst` holds the panel and its slack.
    unsafe fn transpose(
        &self,
        src: &[f32],
        ld: usize,
        height: usize,
        depth: usize,
        dst: &mut [f32],
        dst_depth: usize,
    ) {
        assert!(src.len() >= (height - 1) * ld + depth);
        let groups = height.div_ceil(TRANSPOSED);
        // The last group first: if it is not whole, its stores reach into the next depth, which the
        // others then write.
        for first in (0..groups).rev().map(|group| group * TRANSPOSED) {
            let rows = TRANSPOSED.min(height - first);
            // SAFETY: the rows were just checked, the panel is the caller's promise.
            unsafe {
                let (src, dst) = (src.as_ptr().add(first * ld), dst.as_mut_ptr().add(first));
                (self.transpose_rows)(src, ld, rows, depth, dst, dst_depth);
            }
        }
    }
}
