//! AVX2+FMA micro-kernels and the 8 x 8 transpose used for packing.

use super::sparse::{self, ENTRIES, LIST, Rows, Task, load};
use super::tile::{Tile, Tiles, tile_fns};
use std::arch::x86_64::*;

/// Floats in a vector.
pub(super) const LANES: usize = 8;

/// How far ahead copying prefetches its source. Rows of a large matrix are too far apart for the
/// hardware to guess the next one.
const PREFETCH_DEPTHS: usize = 8;

/// 6 x 16 keeps 12 of the 16 registers as accumulators.
pub(super) const TILES: Tiles = Tiles {
    lanes: LANES,
    by_shape: &[tile_fns!(tile, 1, 1 2 3 4 5 6), tile_fns!(tile, 2, 1 2 3 4 5 6)],
};

/// Computes one tile of `ROWS` rows and `VECS` vectors, with the epilogue on the way out.
///
/// # Safety
/// See [`TileFn`](super::tile::TileFn); needs AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize, const VECS: usize>(t: &Tile) {
    let t = *t;
    let mut sums = [[_mm256_setzero_ps(); VECS]; ROWS];
    // SAFETY: the caller vouches for every element the strides reach; pointers past the last depth
    // are formed with wrapping arithmetic and never read.
    unsafe {
        prefetch_c::<ROWS, VECS>(&t);
        let (mut a, mut b) = (t.a, t.b);
        let mut step = || {
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
        };
        for _ in 0..t.k / 4 {
            step();
            step();
            step();
            step();
        }
        for _ in 0..t.k % 4 {
            step();
        }
        if t.accumulate {
            for (i, sum) in sums.iter_mut().enumerate() {
                for (v, s) in sum.iter_mut().enumerate() {
                    *s = _mm256_add_ps(*s, _mm256_loadu_ps(t.c.add(i * t.c_row + v * LANES)));
                }
            }
        }
        if !t.bias.is_null() {
            for v in 0..VECS {
                let bias = _mm256_loadu_ps(t.bias.add(v * LANES));
                for sum in &mut sums {
                    sum[v] = _mm256_add_ps(sum[v], bias);
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
                    *s = behind(_mm256_loadu_ps(t.open.add(i * t.c_row + v * LANES)), *s);
                }
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            for (v, s) in sum.iter().enumerate() {
                _mm256_storeu_ps(t.c.add(i * t.c_row + v * LANES), *s);
            }
        }
    }
}

/// Prefetches the lines of C that a tile writes at its end.
#[inline(always)]
fn prefetch_c<const ROWS: usize, const VECS: usize>(t: &Tile) {
    for i in 0..ROWS {
        let c = t.c.wrapping_add(i * t.c_row);
        // SAFETY: prefetching reads nothing and faults for no address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(c.cast());
            if VECS > 1 {
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(VECS * LANES - 1).cast());
            }
        }
    }
}

/// Panels of up to 12 vectors: as many sums, and two registers for operands.
pub(super) const LISTS: sparse::Kernels = sparse::Kernels {
    lanes: LANES,
    panel: |cache| cache / 4 * 3,
    list,
    run_lists: sparse::lists_fns!(1 2 3 4 5 6 7 8 9 10 11 12),
};

/// Lists what is not zero.
///
/// # Safety
/// See [`Rows`]; needs AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn list(rows: &Rows, counts: &mut [u32]) {
    let stride = _mm256_set1_epi32(rows.stride as i32);
    let first_places = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), stride);
    let step = _mm256_slli_epi32::<3>(stride);
    for (i, count) in counts.iter_mut().enumerate() {
        let (mut places, mut listed) = (first_places, 0);
        for p in (0..rows.len).step_by(LANES) {
            // SAFETY: as many values are read as there are; fewer have been listed than were read,
            // and a vector more fits.
            unsafe {
                let values = load(rows.values.add(i * rows.ld + p), LANES.min(rows.len - p));
                let full = _mm256_cmp_ps::<_CMP_NEQ_UQ>(values, _mm256_setzero_ps());
                let first = FIRST[_mm256_movemask_ps(full) as usize];
                let order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(first as i64));
                let at = rows.lists.add(i * LIST + listed);
                _mm256_storeu_ps(at, _mm256_permutevar8x32_ps(values, order));
                let offsets = _mm256_permutevar8x32_epi32(places, order);
                _mm256_storeu_si256(at.add(ENTRIES).cast(), offsets);
                listed += (first >> COUNT) as usize;
            }
            places = _mm256_add_epi32(places, step);
        }
        *count = listed as u32;
    }
}

/// For every set of lanes, as bits: their numbers, as bytes from the lowest on, and how many they
/// are in the four highest bits, which are beyond the number of any lane.
static FIRST: [u64; 256] = {
    let mut table = [0; 256];
    let mut set = 0;
    while set < 256 {
        let (mut lane, mut at) = (0, 0);
        while lane < 8 {
            if set >> lane & 1 == 1 {
                table[set] |= lane << (8 * at);
                at += 1;
            }
            lane += 1;
        }
        table[set] |= at << COUNT;
        set += 1;
    }
    table
};

/// Where the number of lanes stands.
const COUNT: u32 = 60;

/// Runs the lists of a block against a panel of `V` vectors.
///
/// # Safety
/// See [`Task`]; needs AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn run_lists<const V: usize>(t: &Task) {
    // SAFETY: the caller's promise.
    unsafe {
        let read = |row: *const f32, v: usize| {
            load(row.add(v * LANES), if v + 1 == V { t.tail } else { LANES })
        };
        for row in t.rows() {
            let mut sums = [_mm256_setzero_ps(); V];
            // The end of a list is rarely foreseen: have the next row here by then.
            for v in (0..V).step_by(2) {
                _mm_prefetch::<_MM_HINT_T0>(row.next_c.wrapping_add(v * LANES).cast());
            }
            if t.accumulate {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = read(row.c, v);
                }
            }
            for (x, dense) in row.entries() {
                let x = _mm256_broadcast_ss(&*x);
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_fmadd_ps(x, _mm256_loadu_ps(dense.add(v * LANES)), *sum);
                }
            }
            if !t.bias.is_null() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_add_ps(*sum, _mm256_loadu_ps(t.bias.add(v * LANES)));
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
                if v + 1 == V && t.tail < LANES {
                    _mm256_maskstore_ps(c, lane_mask(t.tail), *sum);
                } else {
                    _mm256_storeu_ps(c, *sum);
                }
            }
        }
    }
}

/// The positive part; a NaN stays.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn relu(x: __m256) -> __m256 {
    // This operand order lets a NaN through.
    _mm256_max_ps(_mm256_setzero_ps(), x)
}

/// `x` where the output `open` of a relu is positive, 0 elsewhere.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn behind(open: __m256, x: __m256) -> __m256 {
    _mm256_and_ps(x, _mm256_cmp_ps::<_CMP_GT_OQ>(open, _mm256_setzero_ps()))
}

/// Transposes eight vectors in registers.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn transpose(r: [__m256; 8]) -> [__m256; 8] {
    let pair = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let (a0, a1) = pair(r[0], r[1]);
    let (a2, a3) = pair(r[2], r[3]);
    let (a4, a5) = pair(r[4], r[5]);
    let (a6, a7) = pair(r[6], r[7]);
    let quad = |a, b| (_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
    let (b0, b1) = quad(a0, a2);
    let (b2, b3) = quad(a1, a3);
    let (b4, b5) = quad(a4, a6);
    let (b6, b7) = quad(a5, a7);
    let low = |a, b| _mm256_permute2f128_ps::<0x20>(a, b);
    let high = |a, b| _mm256_permute2f128_ps::<0x31>(a, b);
    [
        low(b0, b4),
        low(b1, b5),
        low(b2, b6),
        low(b3, b7),
        high(b0, b4),
        high(b1, b5),
        high(b2, b6),
        high(b3, b7),
    ]
}

/// Copies `height` rows of `src` (`depth` long, `src_row` apart) to `dst` transposed, so that each
/// depth holds its `height <= 8` values `dst_depth` apart.
///
/// # Safety
/// `height` rows of `depth` floats are readable at `src`. At `dst`, `depth * dst_depth + 8` floats
/// are writable, `dst_depth >= height`; those between written values are clobbered. Needs AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn transpose_rows(
    src: *const f32,
    src_row: usize,
    height: usize,
    depth: usize,
    dst: *mut f32,
    dst_depth: usize,
) {
    let blocks = depth / LANES;
    // SAFETY: rows past `height` repeat row 0, reads stay below `depth`, and a store starts at
    // most at the last depth, with room for eight.
    unsafe {
        for block in 0..blocks {
            let p = block * LANES;
            let mut rows = [_mm256_setzero_ps(); LANES];
            for (i, row) in rows.iter_mut().enumerate() {
                let i = if i < height { i } else { 0 };
                *row = _mm256_loadu_ps(src.add(i * src_row + p));
            }
            for (q, column) in transpose(rows).into_iter().enumerate() {
                _mm256_storeu_ps(dst.add((p + q) * dst_depth), column);
            }
        }
        for p in blocks * LANES..depth {
            for i in 0..height {
                *dst.add(p * dst_depth + i) = *src.add(i * src_row + p);
            }
        }
    }
}

/// Copies `depth` short rows of `width <= 16` floats from `src_depth` apart to `dst_depth` apart.
///
/// # Safety
/// The rows are readable at `src`. At `dst`, `depth * dst_depth + 8` floats are writable,
/// `dst_depth >= width`; those between written values are clobbered. Needs AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn copy_rows(
    src: *const f32,
    src_depth: usize,
    width: usize,
    depth: usize,
    dst: *mut f32,
    dst_depth: usize,
) {
    // SAFETY: full vectors are read only when the row has them and masked ones read the rest; a
    // store starts at most `width` before the end of its row, rounded up to eight.
    unsafe {
        if width == 2 * LANES {
            for p in 0..depth {
                let (src, dst) = (src.add(p * src_depth), dst.add(p * dst_depth));
                _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(PREFETCH_DEPTHS * src_depth).cast());
                let row = (_mm256_loadu_ps(src), _mm256_loadu_ps(src.add(LANES)));
                _mm256_storeu_ps(dst, row.0);
                _mm256_storeu_ps(dst.add(LANES), row.1);
            }
            return;
        }
        let mask = lane_mask(width % LANES);
        for p in 0..depth {
            let (mut src, mut dst) = (src.add(p * src_depth), dst.add(p * dst_depth));
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(PREFETCH_DEPTHS * src_depth).cast());
            if width >= LANES {
                _mm256_storeu_ps(dst, _mm256_loadu_ps(src));
                (src, dst) = (src.add(LANES), dst.add(LANES));
            }
            if !width.is_multiple_of(LANES) {
                _mm256_storeu_ps(dst, _mm256_maskload_ps(src, mask));
            }
        }
    }
}

/// Selects the first `n` lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn lane_mask(n: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes)
}
