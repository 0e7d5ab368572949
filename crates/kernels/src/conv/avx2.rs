//! Products with AVX2 and FMA. The compiler's own transpose will do for these CPUs.

use super::isa::{Block, Isa, Tile, tile_fns};
use super::portable;
use std::arch::x86_64::*;

const LANES: usize = 8;

/// 6 x 16 keeps 12 of the 16 registers as accumulators.
pub(super) static ISA: Isa = Isa {
    lanes: LANES,
    tiles: &[tile_fns!(tile, 1, 1 2 3 4 5 6), tile_fns!(tile, 2, 1 2 3 4 5 6)],
    transpose,
};

/// # Safety
/// See [`TileFn`](super::isa::TileFn); needs AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize, const VECS: usize>(t: &Tile) {
    let mut sums = [[_mm256_setzero_ps(); VECS]; ROWS];
    let (mut a_run, mut b_run) = (t.a, t.b);
    // SAFETY: the caller vouches for every element the strides reach; pointers past the last depth
    // are formed with wrapping arithmetic and never read.
    unsafe {
        for _ in 0..t.runs {
            let (mut a, mut b) = (a_run, b_run);
            for _ in 0..t.k {
                let mut row = [_mm256_setzero_ps(); VECS];
                for (v, x) in row.iter_mut().enumerate() {
                    *x = _mm256_loadu_ps(b.add(v * LANES));
                }
                for (i, sum) in sums.iter_mut().enumerate() {
                    let x = _mm256_broadcast_ss(&*a.add(i * t.a_row));
                    for (s, y) in sum.iter_mut().zip(&row) {
                        *s = _mm256_fmadd_ps(x, *y, *s);
                    }
                }
                a = a.wrapping_add(t.a_depth);
                b = b.wrapping_add(t.b_depth);
            }
            a_run = a_run.wrapping_offset(t.a_run);
            b_run = b_run.wrapping_offset(t.b_run);
        }
        for (i, sum) in sums.iter().enumerate() {
            for (v, s) in sum.iter().enumerate() {
                let c = t.c.add(i * t.c_row + v * LANES);
                let s = if t.accumulate { _mm256_add_ps(*s, _mm256_loadu_ps(c)) } else { *s };
                _mm256_storeu_ps(c, s);
            }
        }
    }
}

/// # Safety
/// See [`TransposeFn`](super::isa::TransposeFn); needs AVX2.
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(b: &Block) {
    // SAFETY: the promise of the caller.
    unsafe { portable::transpose(b) };
}
