//! Micro-kernels in plain Rust, for CPUs without AVX2. The compiler vectorises the inner loops.

use super::tile::{Tile, Tiles, tile_fns};
use std::ptr;

const LANES: usize = 8;

pub(super) const TILES: Tiles = Tiles {
    lanes: LANES,
    by_shape: &[tile_fns!(tile, 1, 1 2 3 4 5 6), tile_fns!(tile, 2, 1 2 3 4 5 6)],
};

/// Rows summed at a time: 3 x 8 fits the 16 four-lane registers of the x86-64 baseline.
const ROWS_AT_ONCE: usize = 3;

/// Computes one tile, three rows and eight columns at a time.
///
/// # Safety
/// See [`TileFn`](super::tile::TileFn).
unsafe fn tile<const ROWS: usize, const VECS: usize>(t: &Tile) {
    for v in 0..VECS {
        let mut first = 0;
        while first < ROWS {
            let height = (ROWS - first).min(ROWS_AT_ONCE);
            let part = Tile {
                a: t.a.wrapping_add(first * t.a_row),
                b: t.b.wrapping_add(v * LANES),
                c: t.c.wrapping_add(first * t.c_row + v * LANES),
                bias: if t.bias.is_null() { t.bias } else { t.bias.wrapping_add(v * LANES) },
                open: match t.open.is_null() {
                    true => t.open,
                    false => t.open.wrapping_add(first * t.c_row + v * LANES),
                },
                ..*t
            };
            // SAFETY: each part lies inside the tile the caller vouches for.
            unsafe {
                match height {
                    1 => rows::<1>(&part),
                    2 => rows::<2>(&part),
                    _ => rows::<ROWS_AT_ONCE>(&part),
                }
            }
            first += height;
        }
    }
}

/// Computes `ROWS` rows of eight columns.
///
/// # Safety
/// As for [`tile`].
#[inline]
unsafe fn rows<const ROWS: usize>(t: &Tile) {
    let mut sums = [[0.0f32; LANES]; ROWS];
    // SAFETY: the caller vouches for every element the strides reach.
    unsafe {
        for p in 0..t.k {
            let b = *t.b.add(p * t.b_depth).cast::<[f32; LANES]>();
            for (i, sum) in sums.iter_mut().enumerate() {
                let a = *t.a.add(i * t.a_row + p * t.a_depth);
                for (s, b) in sum.iter_mut().zip(b) {
                    *s += a * b;
                }
            }
        }
        for (i, sum) in sums.iter_mut().enumerate() {
            let c = &mut *t.c.add(i * t.c_row).cast::<[f32; LANES]>();
            for (j, (c, s)) in c.iter_mut().zip(sum).enumerate() {
                let mut x = if t.accumulate { *c + *s } else { *s };
                if !t.bias.is_null() {
                    x += *t.bias.add(j);
                }
                // Written so that a NaN passes.
                let open = t.open.is_null() || *t.open.add(i * t.c_row + j) > 0.0;
                *c = if !open || (t.relu && x < 0.0) { 0.0 } else { x };
            }
        }
    }
}

/// Plain form of [`super::avx2::transpose_rows`], which see.
///
/// # Safety
/// As there, without the CPU features.
pub(super) unsafe fn transpose_rows(
    src: *const f32,
    src_row: usize,
    height: usize,
    depth: usize,
    dst: *mut f32,
    dst_depth: usize,
) {
    for p in 0..depth {
        for i in 0..height {
            // SAFETY: inside the extents the caller vouches for.
            unsafe { *dst.add(p * dst_depth + i) = *src.add(i * src_row + p) }
        }
    }
}

/// Plain form of [`super::avx2::copy_rows`], which see.
///
/// # Safety
/// As there, without the CPU features.
pub(super) unsafe fn copy_rows(
    src: *const f32,
    src_depth: usize,
    width: usize,
    depth: usize,
    dst: *mut f32,
    dst_depth: usize,
) {
    for p in 0..depth {
        // SAFETY: inside the extents the caller vouches for; the buffers are distinct.
        unsafe { ptr::copy_nonoverlapping(src.add(p * src_depth), dst.add(p * dst_depth), width) }
    }
}
