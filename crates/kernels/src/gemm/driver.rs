//! Blocking: walks C so that the panels in use stay in the nearest caches.
//!
//! The loops, outside in: blocks of columns, blocks of depth (op(B) is packed), blocks of rows
//! (op(A) is packed), panels as wide as a tile, tiles. A panel of B then lives in the first level
//! of cache, or just behind it, while the tiles pass over it, and the block of A in the second.

use super::pack::Packing;
use super::tile::{MAX_COLS, MAX_ROWS, Tile, Tiles};
use super::{Act, Epilogue, GemmScratch, Mat, finish};
use std::ops::Range;
use std::ptr;

/// Depth of a block: a panel of B of 16 columns (25 KiB) then stays in a 32 KiB first-level cache.
/// One of 32 does not, but is used by tiles twice as high, and with the same depth sums are the
/// same everywhere. Deeper blocks save passes over C; measured, the gain ends here.
const MAX_K: usize = 400;
/// Rows of a block: its part of A takes a third of a 512 KiB second-level cache.
const MAX_M: usize = 96;
/// Columns of a block: its part of B stays well inside the third level.
const MAX_N: usize = 2048;

/// A multiplication whose extents are positive and whose slices were checked to be long enough.
pub(super) struct Problem<'a> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Mat<'a>,
    pub(super) b: Mat<'a>,
    pub(super) accumulate: bool,
    pub(super) ldc: usize,
    pub(super) epilogue: Epilogue<'a>,
}

/// Runs `problem` on `c`.
///
/// # Safety
/// The CPU has the features `packing` and its tiles were built for.
pub(super) unsafe fn run(
    problem: &Problem,
    c: &mut [f32],
    packing: &Packing,
    scratch: &mut GemmScratch,
) {
    let &Problem { m, n, k, ref a, ref b, .. } = problem;
    let (direct_a, direct_b) = (reads_a_in_place(problem), reads_b_in_place(problem));
    let tiles = packing.tiles;
    for cols in blocks(n, MAX_N, tiles.cols()) {
        for depths in blocks(k, MAX_K, 1) {
            // Read in place, the last columns are still packed: a tile is wider than what is left.
            let packed_from =
                if direct_b { cols.end - cols.len() % tiles.cols() } else { cols.start };
            let packed_cols = packed_from..cols.end;
            let packed_b = scratch.b.reserve(packing.b_block_len(packed_cols.len(), depths.len()));
            // SAFETY: the features are the caller's promise.
            unsafe { packing.b(b, depths.clone(), packed_cols, packed_b) };
            for rows in blocks(m, MAX_M, tiles.rows()) {
                let a_block = if direct_a {
                    ABlock::in_place(a, &rows, &depths)
                } else {
                    let packed = scratch.a.reserve(packing.a_block_len(rows.len(), depths.len()));
                    // SAFETY: as above.
                    unsafe { packing.a(a, rows.clone(), depths.clone(), packed) };
                    ABlock::Packed { data: packed, packing }
                };
                for j in cols.clone().step_by(tiles.cols()) {
                    let cols = j..cols.end.min(j + tiles.cols());
                    let (b, b_depth) = if j < packed_from {
                        (&b.data[depths.start * b.ld + j..], b.ld)
                    } else {
                        let depth = packing.panel_depth(cols.len());
                        (&packed_b[(j - packed_from) * depths.len()..], depth)
                    };
                    let panel =
                        Panel { rows: rows.clone(), cols, depths: depths.clone(), b, b_depth };
                    // SAFETY: as above.
                    unsafe { panel.run(problem, &a_block, &mut *c, tiles) };
                }
            }
        }
    }
}

/// Splits `0..len` into equal blocks of at most `max`, rounded up to a multiple of `unit`.
fn blocks(len: usize, max: usize, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let size = len.div_ceil(len.div_ceil(max)).next_multiple_of(unit);
    (0..len).step_by(size).map(move |start| start..len.min(start + size))
}

/// An operand of at most this many floats stays in the nearer caches however it is read.
const SMALL: usize = 16 * 1024;

/// Whether stored rows are so far apart (whole pages) that they share one set of the cache.
fn rows_collide(mat: &Mat) -> bool {
    mat.ld.is_multiple_of(1024)
}

/// Whether tiles read A where it lies: when it is read too few times to repay a copy. These limits
/// are measured.
fn reads_a_in_place(&Problem { m, n, k, ref a, .. }: &Problem) -> bool {
    let few_reads = if a.trans { m * k <= SMALL } else { n <= 1024 };
    few_reads && !rows_collide(a)
}

/// Likewise for B, which must have its columns side by side.
fn reads_b_in_place(&Problem { m, n, k, ref b, .. }: &Problem) -> bool {
    let few_reads = m <= 24 || (m <= 64 && k * n <= SMALL);
    few_reads && !b.trans && !rows_collide(b)
}

/// A block of op(A) as tiles see it.
enum ABlock<'a> {
    Packed { data: &'a [f32], packing: &'a Packing },
    InPlace { data: &'a [f32], row: usize, depth: usize },
}

impl<'a> ABlock<'a> {
    fn in_place(a: &Mat<'a>, rows: &Range<usize>, depths: &Range<usize>) -> Self {
        let (row, depth) = if a.trans { (1, a.ld) } else { (a.ld, 1) };
        let (last_row, last_depth) = (rows.end - 1, depths.end - 1);
        let data =
            &a.data[rows.start * row + depths.start * depth..=last_row * row + last_depth * depth];
        Self::InPlace { data, row, depth }
    }

    /// The operand of the tile that starts at row `i` of the block: first element, row and depth
    /// stride.
    #[inline]
    fn tile(&self, i: usize, height: usize, k: usize) -> (*const f32, usize, usize) {
        match *self {
            Self::Packed { data, packing } => (data[packing.a_panel(i, k)..].as_ptr(), 1, height),
            Self::InPlace { data, row, depth } => (data[i * row..].as_ptr(), row, depth),
        }
    }
}

/// A panel of B and the part of C it contributes to.
struct Panel<'a> {
    rows: Range<usize>,
    cols: Range<usize>,
    depths: Range<usize>,
    b: &'a [f32],
    b_depth: usize,
}

impl Panel<'_> {
    /// Runs all tiles of the panel.
    ///
    /// # Safety
    /// The CPU has the features `tiles` was built for.
    unsafe fn run(&self, problem: &Problem, a: &ABlock, c: &mut [f32], tiles: &Tiles) {
        let Epilogue { bias, act, .. } = problem.epilogue;
        let (width, ldc) = (self.cols.len(), problem.ldc);
        let last = self.depths.end == problem.k;
        let mut padded_bias = [0.0; MAX_COLS];
        let bias = bias.filter(|_| last).map_or(ptr::null(), |bias| {
            padded_bias[..width].copy_from_slice(&bias[self.cols.clone()]);
            padded_bias.as_ptr()
        });
        let open = problem.epilogue.open.filter(|_| last);
        // Not where an activation that tiles do not know comes first, nor on the copy of an edge.
        let in_tile = matches!(act, Act::None | Act::Relu) && width.is_multiple_of(tiles.lanes);
        let at = self.rows.start * ldc + self.cols.start;
        let c = &mut c[at..];
        let tile = Tile {
            k: self.depths.len(),
            a: ptr::null(),
            a_row: 0,
            a_depth: 0,
            b: self.b.as_ptr(),
            b_depth: self.b_depth,
            c: ptr::null_mut(),
            c_row: ldc,
            accumulate: problem.accumulate || self.depths.start > 0,
            bias,
            relu: last && act == Act::Relu,
            open: open.filter(|_| in_tile).map_or(ptr::null(), |open| open[at..].as_ptr()),
        };
        // What the tiles reach: whole vectors of B at each depth, the rows of C.
        let padded_width = width.next_multiple_of(tiles.lanes);
        assert!(self.b.len() >= (tile.k - 1) * tile.b_depth + padded_width);
        assert!(c.len() >= (self.rows.len() - 1) * ldc + width);
        assert!(open.is_none_or(|open| open.len() - at >= (self.rows.len() - 1) * ldc + width));
        // SAFETY: B and C were just checked, `padded_bias` is a full tile wide and outlives the
        // calls, A was divided to fit when its block was made.
        unsafe {
            if width == padded_width {
                run_tiles(self.rows.len(), a, tile, tiles, c, width);
            } else {
                run_edge_tiles(self.rows.len(), a, tile, tiles, c, width);
            }
        }
        if last && act != Act::Relu {
            finish::activate(act, c, ldc, self.rows.len(), width);
        }
        if let Some(open) = open.filter(|_| !in_tile) {
            finish::close(&open[at..], c, ldc, self.rows.len(), width);
        }
    }
}

/// Runs the tiles of a panel whose width is whole vectors.
///
/// # Safety
/// `tile.b`, `tile.bias` and `tile.open` are as [`TileFn`](super::tile::TileFn) needs them, `a`
/// holds `m` rows and `c` as many of `width` columns; the CPU has the features of `tiles`.
unsafe fn run_tiles(
    m: usize,
    a: &ABlock,
    mut tile: Tile,
    tiles: &Tiles,
    c: &mut [f32],
    width: usize,
) {
    let fns = tiles.by_shape[width / tiles.lanes - 1];
    let (mut i, open) = (0, tile.open);
    while i < m {
        let height = tiles.next_height(m - i);
        (tile.a, tile.a_row, tile.a_depth) = a.tile(i, height, tile.k);
        tile.c = c[i * tile.c_row..].as_mut_ptr();
        if !open.is_null() {
            tile.open = open.wrapping_add(i * tile.c_row);
        }
        // SAFETY: the operands are the caller's promise; `height` rows are left in A and C.
        unsafe { fns[height - 1](&tile) };
        i += height;
    }
}

/// Runs the tiles of a panel of `width` columns on a copy of C that has room for whole vectors.
///
/// # Safety
/// As for [`run_tiles`].
unsafe fn run_edge_tiles(
    m: usize,
    a: &ABlock,
    mut tile: Tile,
    tiles: &Tiles,
    c: &mut [f32],
    width: usize,
) {
    let fns = tiles.by_shape[width.div_ceil(tiles.lanes) - 1];
    let ldc = tile.c_row;
    tile.c_row = MAX_COLS;
    let mut i = 0;
    while i < m {
        let height = tiles.next_height(m - i);
        let mut edge = [[0.0f32; MAX_COLS]; MAX_ROWS];
        if tile.accumulate {
            for (r, edge) in edge[..height].iter_mut().enumerate() {
                edge[..width].copy_from_slice(&c[(i + r) * ldc..][..width]);
            }
        }
        (tile.a, tile.a_row, tile.a_depth) = a.tile(i, height, tile.k);
        tile.c = edge.as_flattened_mut().as_mut_ptr();
        // SAFETY: the operands are the caller's promise; `edge` has room for the largest tile.
        unsafe { fns[height - 1](&tile) };
        for (r, edge) in edge[..height].iter().enumerate() {
            c[(i + r) * ldc..][..width].copy_from_slice(&edge[..width]);
        }
        i += height;
    }
}
