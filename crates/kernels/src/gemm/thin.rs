//! Products with one very short side: an output layer of one or two columns, a batch of one.
//!
//! A tile of 16 columns would waste most of its lanes. Here the vectors run along the depth (`dot`)
//! or along the long side (`outer`), whichever is contiguous in the large operand, which is read
//! once, in place.

use super::avx2::{LANES, lane_mask};
use super::driver::Problem;
use super::{GemmScratch, Mat};
use std::arch::x86_64::*;

/// The longest short side that is handled here.
pub(super) const MAX_SHORT: usize = 4;

/// How many depths ahead `outer` prefetches its rows.
const PREFETCH_DEPTHS: usize = 8;

/// The product seen from its long side: `C[l, s] (+)= sum over p of big[l, p] * small[p, s]`.
struct Thin<'a> {
    long: usize,
    k: usize,
    big: Mat<'a>,
    small: Strided<'a>,
    /// Where `C[l, s]` lies: `l * c_long + s * c_short`.
    c_long: usize,
    c_short: usize,
    accumulate: bool,
}

/// The short operand: depth `p`, column `s` is at `p * depth + s * short`.
struct Strided<'a> {
    data: &'a [f32],
    depth: usize,
    short: usize,
}

/// Multiplies without the epilogue, on a CPU with AVX2 and FMA.
///
/// # Safety
/// The CPU has AVX2 and FMA; either side is at most [`MAX_SHORT`].
pub(super) unsafe fn run(problem: &Problem, c: &mut [f32], scratch: &mut GemmScratch) {
    let &Problem { m, n, k, a, b, accumulate, ldc, .. } = problem;
    let (short, thin) = if n <= MAX_SHORT {
        let (depth, short) = if b.trans { (1, b.ld) } else { (b.ld, 1) };
        let small = Strided { data: b.data, depth, short };
        (n, Thin { long: m, k, big: a, small, c_long: ldc, c_short: 1, accumulate })
    } else {
        let (depth, short) = if a.trans { (a.ld, 1) } else { (1, a.ld) };
        let small = Strided { data: a.data, depth, short };
        let big = Mat { trans: !b.trans, ..b };
        (m, Thin { long: n, k, big, small, c_long: 1, c_short: ldc, accumulate })
    };
    // SAFETY: the features are the caller's promise.
    unsafe {
        match (thin.big.trans, short) {
            (false, 1) => thin.dot::<8, 1>(c, scratch),
            (false, 2) => thin.dot::<4, 2>(c, scratch),
            (false, 3) => thin.dot::<4, 3>(c, scratch),
            (false, _) => thin.dot::<2, 4>(c, scratch),
            (true, 1) => thin.outer::<1, 8>(c),
            (true, 2) => thin.outer::<2, 4>(c),
            (true, 3) => thin.outer::<3, 4>(c),
            (true, _) => thin.outer::<4, 3>(c),
        }
    }
}

impl Thin<'_> {
    /// Rows of the large operand are contiguous along the depth: dot products, `ROWS` at a time.
    #[target_feature(enable = "avx2,fma")]
    fn dot<const ROWS: usize, const SHORT: usize>(&self, c: &mut [f32], scratch: &mut GemmScratch) {
        let k_padded = self.k.next_multiple_of(LANES);
        let small = scratch.a.reserve(SHORT * k_padded);
        for (s, row) in small.chunks_exact_mut(k_padded).enumerate() {
            for (p, x) in row[..self.k].iter_mut().enumerate() {
                *x = self.small.data[p * self.small.depth + s * self.small.short];
            }
            row[self.k..].fill(0.0);
        }
        let rows_at = |l: usize| &self.big.data[l * self.big.ld..];
        let mut l = 0;
        while l + ROWS <= self.long {
            self.put(c, l, &dot_rows::<ROWS, SHORT>(rows_at(l), self.big.ld, self.k, small));
            l += ROWS;
        }
        for l in l..self.long {
            self.put(c, l, &dot_rows::<1, SHORT>(rows_at(l), self.big.ld, self.k, small));
        }
    }

    /// Rows of the large operand are contiguous along the long side: scaled rows are summed,
    /// `VECS` vectors of them at a time.
    #[target_feature(enable = "avx2,fma")]
    fn outer<const SHORT: usize, const VECS: usize>(&self, c: &mut [f32]) {
        let mut l = 0;
        while l < self.long {
            let left = self.long - l;
            if left >= VECS * LANES {
                let sums = outer_rows::<SHORT, VECS>(self, l, VECS * LANES);
                for (v, sums) in sums.iter().enumerate() {
                    self.put(c, l + v * LANES, sums);
                }
                l += VECS * LANES;
            } else {
                let width = left.min(LANES);
                let [sums] = outer_rows::<SHORT, 1>(self, l, width);
                self.put(c, l, &sums[..width]);
                l += width;
            }
        }
    }

    /// Writes or adds the results of consecutive positions of the long side, from `l` on.
    fn put<const SHORT: usize>(&self, c: &mut [f32], l: usize, results: &[[f32; SHORT]]) {
        for (r, result) in results.iter().enumerate() {
            for (s, x) in result.iter().enumerate() {
                let c = &mut c[(l + r) * self.c_long + s * self.c_short];
                *c = if self.accumulate { *c + x } else { *x };
            }
        }
    }
}

/// `ROWS` rows of `big` times `SHORT` rows of `small`, which are padded with zeros to whole
/// vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dot_rows<const ROWS: usize, const SHORT: usize>(
    big: &[f32],
    ld: usize,
    k: usize,
    small: &[f32],
) -> [[f32; SHORT]; ROWS] {
    let k_padded = k.next_multiple_of(LANES);
    assert!(big.len() >= (ROWS - 1) * ld + k && small.len() >= SHORT * k_padded);
    let (big, small) = (big.as_ptr(), small.as_ptr());
    let mut sums = [[_mm256_setzero_ps(); SHORT]; ROWS];
    let mask = lane_mask(k % LANES);
    // SAFETY: whole vectors end at or before `k` in each row, the masked one reads up to `k`; rows
    // of `small` are `k_padded` long. Both were asserted.
    unsafe {
        let mut step = |p: usize, whole: bool| {
            let mut ys = [_mm256_setzero_ps(); SHORT];
            for (s, y) in ys.iter_mut().enumerate() {
                *y = _mm256_loadu_ps(small.add(s * k_padded + p));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let at = big.add(r * ld + p);
                let x = if whole { _mm256_loadu_ps(at) } else { _mm256_maskload_ps(at, mask) };
                for (sum, y) in sums.iter_mut().zip(&ys) {
                    *sum = _mm256_fmadd_ps(x, *y, *sum);
                }
            }
        };
        let whole = k - k % LANES;
        for p in (0..whole).step_by(LANES) {
            step(p, true);
        }
        if whole < k {
            step(whole, false);
        }
    }
    let mut out = [[0.0; SHORT]; ROWS];
    for (out, sums) in out.as_flattened_mut().chunks_mut(4).zip(sums.as_flattened().chunks(4)) {
        let at = |i: usize| sums.get(i).copied().unwrap_or(_mm256_setzero_ps());
        let total = lane_sums([at(0), at(1), at(2), at(3)]);
        out.copy_from_slice(&total[..out.len()]);
    }
    out
}

/// The sum over the lanes of each of four vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn lane_sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    let quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    let total = _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps::<1>(quads));
    let mut out = [0.0; 4];
    // SAFETY: `out` has room for four floats.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), total) };
    out
}

/// The results of `width` positions from `l` on: `VECS` whole vectors, or part of one.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn outer_rows<const SHORT: usize, const VECS: usize>(
    thin: &Thin,
    l: usize,
    width: usize,
) -> [[[f32; SHORT]; LANES]; VECS] {
    let Thin { k, big: Mat { data, ld, .. }, ref small, .. } = *thin;
    let whole = width == VECS * LANES;
    assert!(k > 0 && (whole || (VECS == 1 && width < LANES)));
    assert!(data.len() >= (k - 1) * ld + l + width);
    assert!(small.data.len() > (k - 1) * small.depth + (SHORT - 1) * small.short);
    let mask = lane_mask(width % LANES);
    let mut sums = [[_mm256_setzero_ps(); VECS]; SHORT];
    // SAFETY: the asserted lengths cover every depth; prefetches may go past the end.
    unsafe {
        for p in 0..k {
            let row = data.as_ptr().add(p * ld + l);
            for line in (0..VECS).step_by(2) {
                let ahead = row.wrapping_add(PREFETCH_DEPTHS * ld + line * LANES);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            let mut xs = [_mm256_setzero_ps(); VECS];
            for (v, x) in xs.iter_mut().enumerate() {
                let at = row.add(v * LANES);
                *x = if whole { _mm256_loadu_ps(at) } else { _mm256_maskload_ps(at, mask) };
            }
            for (s, sums) in sums.iter_mut().enumerate() {
                let y = small.data.as_ptr().add(p * small.depth + s * small.short);
                let y = _mm256_broadcast_ss(&*y);
                for (sum, x) in sums.iter_mut().zip(&xs) {
                    *sum = _mm256_fmadd_ps(*x, y, *sum);
                }
            }
        }
    }
    let mut out = [[[0.0; SHORT]; LANES]; VECS];
    for (s, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            let mut lanes = [0.0; LANES];
            // SAFETY: `lanes` has room for a vector.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), *sum) };
            for (out, lane) in out[v].iter_mut().zip(lanes) {
                out[s] = lane;
            }
        }
    }
    out
}
