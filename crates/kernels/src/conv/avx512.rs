//! Products and transpose with AVX-512.

use super::isa::{Block, Isa, LANES, Tile, tile_fns};
use std::arch::x86_64::*;

/// 12 x 32 keeps 24 of the 32 registers as accumulators.
pub(super) static ISA: Isa = Isa {
    lanes: LANES,
    tiles: &[
        tile_fns!(tile, 1, 1 2 3 4 5 6 7 8 9 10 11 12),
        tile_fns!(tile, 2, 1 2 3 4 5 6 7 8 9 10 11 12),
    ],
    transpose,
};

/// # Safety
/// See [`TileFn`](super::isa::TileFn); needs AVX-512F.
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn tile<const ROWS: usize, const VECS: usize>(t: &Tile) {
    let t = *t;
    // SAFETY: the caller vouches for every element the strides reach; prefetches may go anywhere.
    unsafe {
        for i in 0..ROWS {
            for v in 0..VECS {
                let c = t.c.wrapping_add(i * t.c_row + v * LANES);
                _mm_prefetch::<_MM_HINT_T0>(c.cast());
            }
        }
        // Strides that occur often; said here, the compiler knows the offsets of the rows.
        let sums = match t.a_row {
            1 => products::<ROWS, VECS>(&t, 1),
            32 => products::<ROWS, VECS>(&t, 32),
            row => products::<ROWS, VECS>(&t, row),
        };
        for (i, sum) in sums.iter().enumerate() {
            for (v, s) in sum.iter().enumerate() {
                let c = t.c.add(i * t.c_row + v * LANES);
                let s = if t.accumulate { _mm512_add_ps(*s, _mm512_loadu_ps(c)) } else { *s };
                _mm512_storeu_ps(c, s);
            }
        }
    }
}

/// The sums of a tile over its runs.
///
/// # Safety
/// As for [`tile`]; `a_row` is that of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn products<const ROWS: usize, const VECS: usize>(
    t: &Tile,
    a_row: usize,
) -> [[__m512; VECS]; ROWS] {
    // Few sums would wait for themselves: depths then take turns with several sets of them.
    let mut sets = [[[_mm512_setzero_ps(); VECS]; ROWS]; 4];
    let turns = if ROWS * VECS <= 4 { 4 } else { 1 };
    let (mut a_run, mut b_run) = (t.a, t.b);
    for _ in 0..t.runs {
        let (mut a, mut b) = (a_run, b_run);
        let mut step = |sums: &mut [[__m512; VECS]; ROWS]| {
            // SAFETY: the caller vouches for every element the strides reach; pointers past the
            // last depth are formed with wrapping arithmetic and never read.
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
        };
        for _ in 0..t.k / turns {
            for sums in &mut sets[..turns] {
                step(sums);
            }
        }
        for _ in 0..t.k % turns {
            step(&mut sets[0]);
        }
        a_run = a_run.wrapping_offset(t.a_run);
        b_run = b_run.wrapping_offset(t.b_run);
    }
    let mut sums = sets[0];
    for more in &sets[1..turns] {
        for (sum, more) in sums.as_flattened_mut().iter_mut().zip(more.as_flattened()) {
            *sum = _mm512_add_ps(*sum, *more);
        }
    }
    sums
}

/// Selects the first `n` lanes.
#[inline]
fn lane_mask(n: usize) -> __mmask16 {
    if n >= LANES { __mmask16::MAX } else { (1 << n) - 1 }
}

/// # Safety
/// See [`TransposeFn`](super::isa::TransposeFn); needs AVX-512F.
#[target_feature(enable = "avx2,fma,avx512f")]
unsafe fn transpose(block: &Block) {
    let (some, rows) = (lane_mask(block.cols), lane_mask(block.rows));
    let mut r = [_mm512_setzero_ps(); 16];
    // SAFETY: the mask selects what the rows have.
    unsafe {
        if block.rows == LANES {
            for (i, r) in r.iter_mut().enumerate() {
                *r = _mm512_maskz_loadu_ps(some, block.src.add(i * block.src_row));
            }
        } else {
            for (i, r) in r[..block.rows].iter_mut().enumerate() {
                *r = _mm512_maskz_loadu_ps(some, block.src.add(i * block.src_row));
            }
        }
    }
    let columns = transposed(r);
    // SAFETY: the mask selects what the columns have.
    unsafe {
        let add = _mm512_loadu_ps(block.add.as_ptr());
        for (place, column) in block.places[..block.cols].iter().zip(columns) {
            let to = block.dst.add(*place);
            let column = _mm512_add_ps(column, add);
            if block.rows == LANES {
                _mm512_storeu_ps(to, column);
            } else {
                _mm512_mask_storeu_ps(to, rows, column);
            }
        }
    }
}

/// Columns of 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f")]
fn transposed(r: [__m512; 16]) -> [__m512; 16] {
    let pd = |x: __m512| _mm512_castps_pd(x);
    let ps = |x: __m512d| _mm512_castpd_ps(x);
    // Pairs of rows, then fours: vector `4 * i + j` has column `4 * quarter + j` of rows `4 * i..`.
    let mut fours = [_mm512_setzero_ps(); 16];
    for i in 0..4 {
        let low = [0, 2].map(|k| _mm512_unpacklo_ps(r[4 * i + k], r[4 * i + k + 1]));
        let high = [0, 2].map(|k| _mm512_unpackhi_ps(r[4 * i + k], r[4 * i + k + 1]));
        fours[4 * i] = ps(_mm512_unpacklo_pd(pd(low[0]), pd(low[1])));
        fours[4 * i + 1] = ps(_mm512_unpackhi_pd(pd(low[0]), pd(low[1])));
        fours[4 * i + 2] = ps(_mm512_unpacklo_pd(pd(high[0]), pd(high[1])));
        fours[4 * i + 3] = ps(_mm512_unpackhi_pd(pd(high[0]), pd(high[1])));
    }
    let mut out = [_mm512_setzero_ps(); 16];
    for j in 0..4 {
        let [a, b, c, d] = [0, 4, 8, 12].map(|i| fours[i + j]);
        let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
        let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
        out[j] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
        out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
        out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
        out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
    }
    out
}
