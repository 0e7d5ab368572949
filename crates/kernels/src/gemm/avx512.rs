//! AVX-512 micro-kernels: twice as wide as those of [`avx2`](super::avx2), with twice as many
//! registers.
//!
//! Why: on a Sapphire Rapids, whose multiply-add peak doubles with AVX-512, the dense products of a
//! click model went from 80 to 150 GFLOP/s (0.62 and 1.06 times `matrixmultiply`), products with
//! 20 % non-zero values from 1.6 to 2.2 times `matrixmultiply`, and training from 49 to 70 k
//! examples/s (batch 512, one thread, medians of interleaved runs, 2026-11-17, together with
//! sending gradients from where they are computed and branch-free key selection). To repeat:
//! `cargo bench -p regatta-kernels --bench gemm`.
//!
//! Panels 9 vectors wide beat 13 despite the free registers: more loads per value, but deeper
//! panels, so C is touched less often. The panel depth follows the first-level cache size that
//! `cpuid` reports. Counter-intuitively, prefetching the next row of C costs 2 % and prefetching
//! the next list gains 3 %.

use super::sparse::{self, ENTRIES, LIST, Rows, Task};
use super::tile::{Tile, Tiles, tile_fns};
use std::arch::{asm, x86_64::*};

/// Floats in a vector.
pub(super) const LANES: usize = 16;

/// How far ahead copying prefetches its source.
const PREFETCH_DEPTHS: usize = 8;

/// 12 x 32 keeps 24 of the 32 registers as accumulators.
pub(super) const TILES: Tiles = Tiles {
    lanes: LANES,
    by_shape: &[
        tile_fns!(tile, 1, 1 2 3 4 5 6 7 8 9 10 11 12),
        tile_fns!(tile, 2, 1 2 3 4 5 6 7 8 9 10 11 12),
    ],
};

/// Computes one tile of `ROWS` rows and `VECS` vectors, with the epilogue on the way out.
///
/// # Safety
/// See [`TileFn`](super::tile::TileFn); needs AVX-512F.
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn tile<const ROWS: usize, const VECS: usize>(t: &Tile) {
    let t = *t;
    // SAFETY: the caller vouches for every element the strides reach; prefetches may go anywhere.
    unsafe {
        for i in 0..ROWS {
            // Writes are coming: have the lines of C here by then.
            let c = t.c.wrapping_add(i * t.c_row);
            for v in 0..VECS {
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(v * LANES).cast());
            }
            _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(VECS * LANES - 1).cast());
        }
        // A panel has its rows side by side; said here, the compiler knows their offsets.
        let mut sums = match t.a_row {
            1 => products::<ROWS, VECS>(&t, 1),
            row => products::<ROWS, VECS>(&t, row),
        };
        if t.accumulate {
            for (i, sum) in sums.iter_mut().enumerate() {
                for (v, s) in sum.iter_mut().enumerate() {
                    *s = _mm512_add_ps(*s, _mm512_loadu_ps(t.c.add(i * t.c_row + v * LANES)));
                }
            }
        }
        if !t.bias.is_null() {
            for v in 0..VECS {
                let bias = _mm512_loadu_ps(t.bias.add(v * LANES));
                for sum in &mut sums {
                    sum[v] = _mm512_add_ps(sum[v], bias);
                }
            }
        }
        if t.relu {
            for s in sums.as_flattened_mut() {
                *s = relu(*s);
            }
        }
        if !t.open.is_null() {
            for (i, sum) in sums.iter_mut().enumerate() {
                for (v, s) in sum.iter_mut().enumerate() {
                    *s = behind(_mm512_loadu_ps(t.open.add(i * t.c_row + v * LANES)), *s);
                }
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            for (v, s) in sum.iter().enumerate() {
                _mm512_storeu_ps(t.c.add(i * t.c_row + v * LANES), *s);
            }
        }
    }
}

/// The sums of a tile over its depth.
///
/// # Safety
/// As for [`tile`]; `a_row` is that of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn products<const ROWS: usize, const VECS: usize>(
    t: &Tile,
    a_row: usize,
) -> [[__m512; VECS]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); VECS]; ROWS];
    let (mut a, mut b) = (t.a, t.b);
    for _ in 0..t.k {
        // SAFETY: the caller vouches for every element the strides reach; pointers past the last
        // depth are formed with wrapping arithmetic and never read.
        unsafe {
            let mut row = [_mm512_setzero_ps(); VECS];
            for (v, x) in row.iter_mut().enumerate() {
                *x = _mm512_loadu_ps(b.add(v * LANES));
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(i * a_row));
                for (s, y) in sum.iter_mut().zip(&row) {
                    *s = _mm512_fmadd_ps(x, *y, *s);
                }
            }
        }
        a = a.wrapping_add(t.a_depth);
        b = b.wrapping_add(t.b_depth);
    }
    sums
}

/// Panels of up to 12 vectors: with wider ones, which had the registers, more of C is read and
/// written.
pub(super) const LISTS: sparse::Kernels = sparse::Kernels {
    lanes: LANES,
    panel: |cache| cache / 16 * 15,
    list,
    run_lists: sparse::lists_fns!(1 2 3 4 5 6 7 8 9 10 11 12),
};

/// Lists what is not zero.
///
/// # Safety
/// See [`Rows`]; needs AVX-512F.
#[target_feature(enable = "avx2,fma,avx512f,popcnt")]
unsafe fn list(rows: &Rows, counts: &mut [u32]) {
    let stride = _mm512_set1_epi32(rows.stride as i32);
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let first_places = _mm512_mullo_epi32(lanes, stride);
    let step = _mm512_slli_epi32::<4>(stride);
    for (i, count) in counts.iter_mut().enumerate() {
        let (mut places, mut listed) = (first_places, 0);
        for p in (0..rows.len).step_by(LANES) {
            // SAFETY: as many values are read as there are; fewer have been listed than were read,
            // and a vector more fits.
            unsafe {
                let some = lane_mask(rows.len - p);
                let values = _mm512_maskz_loadu_ps(some, rows.values.add(i * rows.ld + p));
                let full = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(values, _mm512_setzero_ps());
                let at = rows.lists.add(i * LIST + listed);
                // Into registers first: compressing into memory is slow on some processors.
                _mm512_storeu_ps(at, _mm512_maskz_compress_ps(full, values));
                let offsets = _mm512_maskz_compress_epi32(full, places);
                _mm512_storeu_si512(at.add(ENTRIES).cast(), offsets);
                listed += full.count_ones() as usize;
            }
            places = _mm512_add_epi32(places, step);
        }
        *count = listed as u32;
    }
}

/// Runs the lists of a block against a panel of `V` vectors.
///
/// # Safety
/// See [`Task`]; needs AVX-512F.
#[expect(clippy::pointers_in_nomem_asm_block, reason = "the empty block does not follow it")]
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn run_lists<const V: usize>(t: &Task) {
    let tail = lane_mask(t.tail);
    // SAFETY: the caller's promise; the mask selects what the last vector of a row has.
    unsafe {
        let read = |row: *const f32, v: usize| {
            let at = row.add(v * LANES);
            if v + 1 == V { _mm512_maskz_loadu_ps(tail, at) } else { _mm512_loadu_ps(at) }
        };
        for row in t.rows() {
            let mut sums = [_mm512_setzero_ps(); V];
            for line in row.next_list() {
                _mm_prefetch::<_MM_HINT_T0>(line.cast());
            }
            if t.accumulate {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = read(row.c, v);
                }
            }
            for (x, mut dense) in row.entries() {
                // The address in one register: sums of two cost these instructions a step more.
                asm!("/* {0} */", inout(reg) dense, options(pure, nomem, nostack, preserves_flags));
                let x = _mm512_set1_ps(*x);
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(x, _mm512_loadu_ps(dense.add(v * LANES)), *sum);
                }
            }
            if !t.bias.is_null() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_add_ps(*sum, _mm512_loadu_ps(t.bias.add(v * LANES)));
                }
            }
            if t.relu {
                for sum in &mut sums {
                    *sum = relu(*sum);
                }
            }
            if !row.open.is_null() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = behind(read(row.open, v), *sum);
                }
            }
            for (v, sum) in sums.iter().enumerate() {
                let c = row.c.add(v * LANES);
                if v + 1 == V {
                    _mm512_mask_storeu_ps(c, tail, *sum);
                } else {
                    _mm512_storeu_ps(c, *sum);
                }
            }
        }
    }
}

/// The positive part; a NaN stays.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f")]
fn relu(x: __m512) -> __m512 {
    // This operand order lets a NaN through.
    _mm512_max_ps(_mm512_setzero_ps(), x)
}

/// `x` where the output `open` of a relu is positive, 0 elsewhere.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f")]
fn behind(open: __m512, x: __m512) -> __m512 {
    let positive = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(open, _mm512_setzero_ps());
    _mm512_maskz_mov_ps(positive, x)
}

/// Selects the first `n` lanes of a vector, at most all.
#[inline]
fn lane_mask(n: usize) -> __mmask16 {
    if n >= LANES { __mmask16::MAX } else { (1 << n) - 1 }
}

/// Copies `depth` short rows of `width <= 32` floats from `src_depth` apart to `dst_depth` apart.
///
/// # Safety
/// The rows are readable at `src` and writable at `dst`. Needs AVX-512F.
#[target_feature(enable = "avx2,fma,avx512f")]
pub(super) unsafe fn copy_rows(
    src: *const f32,
    src_depth: usize,
    width: usize,
    depth: usize,
    dst: *mut f32,
    dst_depth: usize,
) {
    let (first, second) = (lane_mask(width), lane_mask(width.saturating_sub(LANES)));
    // SAFETY: masks select what the rows have.
    unsafe {
        for p in 0..depth {
            let (src, dst) = (src.add(p * src_depth), dst.add(p * dst_depth));
            let ahead = src.wrapping_add(PREFETCH_DEPTHS * src_depth);
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            _mm512_mask_storeu_ps(dst, first, _mm512_maskz_loadu_ps(first, src));
            if width > LANES {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(LANES).cast());
                let (src, dst) = (src.add(LANES), dst.add(LANES));
                _mm512_mask_storeu_ps(dst, second, _mm512_maskz_loadu_ps(second, src));
            }
        }
    }
}
