//! Products of which one operand is zero in many places, such as what comes out of a relu and what
//! goes back through one.
//!
//! A row of the result is a sum of rows of the dense operand; those that the sparse operand multiplies
//! by zero are left out. First the places and values of a block of the sparse operand are listed, then
//! each list is run through against panels of the dense operand that stay in the nearest cache.
//!
//! Where the right operand is the sparse one, the transposed product is computed: its left is sparse.
//! A zero is skipped whatever it would be multiplied by, infinities and NaN included.

use super::avx2::{lane_mask, transpose, transpose_rows};
use super::driver::Problem;
use super::scratch::Buffer;
use super::tile::LANES;
use super::{Act, Epilogue, GemmScratch, Mat, finish};
use std::arch::x86_64::*;
use std::ops::Range;

/// Depth of a block: a panel of the dense operand then takes 24 KiB at most.
const DEPTH: usize = 64;
/// Rows of a block: their lists and their part of C stay in the second level of cache.
const ROWS: usize = 96;
/// Vectors of a panel: sums that fit into the registers.
const VECS: usize = 12;
/// Entries of a list, with room for a whole vector behind the last one.
const ENTRIES: usize = DEPTH + LANES;
/// A list: values, then offsets of rows in the panel.
const LIST: usize = 2 * ENTRIES;

/// Floats in a cache line.
const LINE: usize = 16;

/// Products with fewer multiplications gain nothing.
const MIN_WORK: usize = 1 << 20;
/// Neither do those with a short side.
const MIN_SIDE: usize = 24;
/// Share of values that are not zero beyond which multiplying all of them is faster. Measured.
const MAX_DENSITY: f32 = 0.6;
/// Transposing the result costs a little.
const TRANSPOSED: f32 = 1.1;
/// Stored rows that are looked at to guess how many values are zero.
const LOOKS: usize = 16;

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// Which operand has so many zeros that it pays to skip them.
#[target_feature(enable = "avx2,fma")]
pub(super) fn side(problem: &Problem) -> Option<Side> {
    let &Problem { m, n, k, ref a, ref b, .. } = problem;
    if m * n * k < MIN_WORK || m.min(n).min(k) < MIN_SIDE {
        return None;
    }
    let stored = |mat: &Mat, rows, cols| if mat.trans { (cols, rows) } else { (rows, cols) };
    let left = density(a, stored(a, m, k));
    let right = density(b, stored(b, k, n)) * TRANSPOSED;
    match left <= right {
        true => (left <= MAX_DENSITY).then_some(Side::Left),
        false => (right <= MAX_DENSITY).then_some(Side::Right),
    }
}

/// The share of values that are not zero, judged by a few rows.
#[target_feature(enable = "avx2,fma")]
fn density(mat: &Mat, (rows, cols): (usize, usize)) -> f32 {
    let step = (rows / LOOKS).max(1);
    let (mut seen, mut full) = (0, 0);
    for row in mat.data.chunks(mat.ld).step_by(step).take(LOOKS) {
        let row = &row[..cols];
        seen += row.len();
        full += row.iter().filter(|x| **x != 0.0).count();
    }
    full as f32 / seen as f32
}

/// Runs `problem`, in which `side` is the sparse operand.
#[target_feature(enable = "avx2,fma")]
pub(super) fn run(problem: &Problem, c: &mut [f32], scratch: &mut GemmScratch, side: Side) {
    let &Problem { m, n, k, a, b, accumulate, ldc, epilogue } = problem;
    let GemmScratch { a: lists, b: panels, c: result } = scratch;
    match side {
        Side::Left => {
            let in_kernel = matches!(epilogue.act, Act::None | Act::Relu);
            let finish = if in_kernel { epilogue } else { Epilogue::default() };
            let product = Product {
                rows: m,
                cols: n,
                depth: k,
                sparse: a,
                dense: b,
                accumulate,
                ldc,
                finish,
            };
            product.run(c, lists, panels);
            if !in_kernel {
                finish::apply(problem, c);
            }
        }
        Side::Right => {
            let finish = Epilogue::default();
            // Rows of the result end with room for whole vectors.
            let ld = m.next_multiple_of(LANES);
            let product = Product {
                rows: n,
                cols: m,
                depth: k,
                sparse: Mat { trans: !b.trans, ..b },
                dense: Mat { trans: !a.trans, ..a },
                accumulate: false,
                ldc: ld,
                finish,
            };
            let result = result.reserve(n * ld);
            product.run(result, lists, panels);
            add_transposed(result, ld, (m, n), accumulate, c, ldc);
            finish::apply(problem, c);
        }
    }
}

/// `C += S D` or `C = S D`, with a sparse S of `rows` x `depth` and a dense D of `depth` x `cols`.
struct Product<'a> {
    rows: usize,
    cols: usize,
    depth: usize,
    sparse: Mat<'a>,
    dense: Mat<'a>,
    accumulate: bool,
    ldc: usize,
    /// Bias, relu and what is open behind it; no other activation.
    finish: Epilogue<'a>,
}

impl Product<'_> {
    #[target_feature(enable = "avx2,fma")]
    fn run(&self, c: &mut [f32], lists: &mut Buffer, panels: &mut Buffer) {
        let vecs = self.cols.div_ceil(LANES);
        // Panels of equal width; only the last may be narrower.
        let width = vecs.div_ceil(vecs.div_ceil(VECS)) * LANES;
        let n_panels = self.cols.div_ceil(width);
        let in_place = self.reads_in_place();
        let panel_len = DEPTH * width;
        let panels: &[f32] = if in_place {
            &[]
        } else {
            let n_depths = self.depth.div_ceil(DEPTH);
            let panels = panels.reserve(n_depths * n_panels * panel_len + LANES);
            self.pack(panels, width);
            panels
        };
        let stride = if in_place { self.dense.ld } else { width };
        let lists = lists.reserve(ROWS * LIST);
        let mut counts = [0u32; ROWS];
        for rows in blocks(self.rows, ROWS) {
            for (i, depths) in blocks(self.depth, DEPTH).enumerate() {
                self.list(&rows, &depths, stride, lists, &mut counts);
                for j in 0..n_panels {
                    let first = j * width;
                    let cols = first..self.cols.min(first + width);
                    let panel = match in_place {
                        true => &self.dense.data[depths.start * stride + first..],
                        false => &panels[(i * n_panels + j) * panel_len..],
                    };
                    let vectors = cols.len().next_multiple_of(LANES);
                    assert!(panel.len() >= (depths.len() - 1) * stride + vectors);
                    self.run_panel(&rows, &depths, cols, panel, lists, &counts, c);
                }
            }
        }
    }

    /// Whether rows of the dense operand are read where they lie: when they are whole vectors that
    /// begin with a cache line, and do not share few sets of the cache.
    fn reads_in_place(&self) -> bool {
        let Mat { data, ld, trans } = self.dense;
        let lines = ld / LINE;
        let aligned = data.as_ptr().addr().is_multiple_of(LINE * size_of::<f32>());
        let whole = ld.is_multiple_of(LINE) && self.cols.is_multiple_of(LANES);
        // Offsets within a block have 31 bits.
        !trans && aligned && whole && !lines.is_multiple_of(8) && ld <= i32::MAX as usize / DEPTH
    }

    /// Copies the dense operand into panels: blocks of depth one after the other, in each the panels.
    #[target_feature(enable = "avx2,fma")]
    fn pack(&self, panels: &mut [f32], width: usize) {
        let Mat { data, ld, trans } = self.dense;
        let mut at = 0;
        for depths in blocks(self.depth, DEPTH) {
            for first in (0..self.cols).step_by(width) {
                let cols = first..self.cols.min(first + width);
                let panel = &mut panels[at..at + DEPTH * width + LANES];
                if trans {
                    for j in cols.clone().step_by(LANES) {
                        let height = LANES.min(cols.end - j);
                        let src = &data[j * ld + depths.start..];
                        assert!(src.len() >= (height - 1) * ld + depths.len());
                        let dst = &mut panel[j - first..];
                        assert!(dst.len() >= (depths.len() - 1) * width + LANES);
                        // SAFETY: both were just checked; the last store is within the panel.
                        unsafe {
                            let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
                            transpose_rows(src, ld, height, depths.len(), dst, width);
                        }
                    }
                } else {
                    for (row, p) in panel.chunks_exact_mut(width).zip(depths.clone()) {
                        row[..cols.len()].copy_from_slice(&data[p * ld..][cols.clone()]);
                    }
                }
                at += DEPTH * width;
            }
        }
    }

    /// Lists what is not zero in a block of the sparse operand.
    #[target_feature(enable = "avx2,fma")]
    fn list(
        &self,
        rows: &Range<usize>,
        depths: &Range<usize>,
        stride: usize,
        lists: &mut [f32],
        counts: &mut [u32; ROWS],
    ) {
        assert!(lists.len() >= rows.len() * LIST && rows.len() <= ROWS && depths.len() <= DEPTH);
        let Mat { data, ld, trans } = self.sparse;
        let mut places = Places::new(stride);
        let lists = lists.as_mut_ptr();
        if !trans {
            for (i, row) in rows.clone().enumerate() {
                let row = &data[row * ld..][depths.clone()];
                let mut list = List::at(lists, i);
                places.restart();
                for values in row.chunks(LANES) {
                    // SAFETY: as many values are read as there are.
                    let values = unsafe { load(values.as_ptr(), values.len()) };
                    // SAFETY: a list has room for the depth of a block and a vector.
                    unsafe { list.push(values, places.next()) };
                }
                counts[i] = list.len as u32;
            }
            return;
        }
        for (group, first) in rows.clone().step_by(LANES).enumerate() {
            let height = LANES.min(rows.end - first);
            let mut eight: [List; LANES] =
                std::array::from_fn(|i| List::at(lists, group * LANES + i));
            places.restart();
            for p in depths.clone().step_by(LANES) {
                let mut values = [_mm256_setzero_ps(); LANES];
                let depth = LANES.min(depths.end - p);
                let block = &data[p * ld + first..][..(depth - 1) * ld + height];
                let block = block.as_ptr();
                // SAFETY: `depth` rows of `height` values are there.
                unsafe {
                    if depth == LANES && height == LANES {
                        for (q, values) in values.iter_mut().enumerate() {
                            *values = _mm256_loadu_ps(block.add(q * ld));
                        }
                    } else {
                        for (q, values) in values[..depth].iter_mut().enumerate() {
                            *values = load(block.add(q * ld), height);
                        }
                    }
                }
                let place = places.next();
                for (list, values) in eight[..height].iter_mut().zip(transpose(values)) {
                    // SAFETY: as above.
                    unsafe { list.push(values, place) };
                }
            }
            for (i, list) in eight[..height].iter().enumerate() {
                counts[group * LANES + i] = list.len as u32;
            }
        }
    }

    /// Runs the lists of a block against one panel.
    #[target_feature(enable = "avx2,fma")]
    fn run_panel(
        &self,
        rows: &Range<usize>,
        depths: &Range<usize>,
        cols: Range<usize>,
        panel: &[f32],
        lists: &[f32],
        counts: &[u32; ROWS],
        c: &mut [f32],
    ) {
        let vecs = cols.len().div_ceil(LANES);
        let last = depths.end == self.depth;
        let at = rows.start * self.ldc + cols.start;
        let c = &mut c[at..];
        assert!(c.len() >= (rows.len() - 1) * self.ldc + cols.len());
        let Epilogue { bias, act, open } = self.finish;
        let mut padded_bias = [0.0; VECS * LANES];
        if let Some(bias) = bias {
            padded_bias[..cols.len()].copy_from_slice(&bias[cols.clone()]);
        }
        let open = open.filter(|_| last).map(|open| &open[at..]);
        assert!(open.is_none_or(|open| open.len() >= (rows.len() - 1) * self.ldc + cols.len()));
        let task = Task {
            counts: &counts[..rows.len()],
            lists: lists.as_ptr(),
            panel: panel.as_ptr(),
            c: c.as_mut_ptr(),
            ldc: self.ldc,
            tail: cols.len() - (vecs - 1) * LANES,
            accumulate: self.accumulate || depths.start > 0,
            bias: bias.filter(|_| last).map_or(std::ptr::null(), |_| padded_bias.as_ptr()),
            relu: last && act == Act::Relu,
            open: open.map_or(std::ptr::null(), <[f32]>::as_ptr),
        };
        // SAFETY: C and what is open were just checked, lists were made for this block and panel.
        unsafe {
            match vecs {
                1 => run_lists::<1>(&task),
                2 => run_lists::<2>(&task),
                3 => run_lists::<3>(&task),
                4 => run_lists::<4>(&task),
                5 => run_lists::<5>(&task),
                6 => run_lists::<6>(&task),
                7 => run_lists::<7>(&task),
                8 => run_lists::<8>(&task),
                9 => run_lists::<9>(&task),
                10 => run_lists::<10>(&task),
                11 => run_lists::<11>(&task),
                12 => run_lists::<VECS>(&task),
                _ => unreachable!("a panel of {vecs} vectors"),
            }
        }
    }
}

/// Blocks of at most `size`.
fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |start| start..len.min(start + size))
}

/// Where rows of a panel begin, eight after the other.
struct Places {
    first: __m256i,
    next: __m256i,
    step: __m256i,
}

impl Places {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(stride: usize) -> Places {
        let stride = _mm256_set1_epi32(stride as i32);
        let first = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), stride);
        Places { first, next: first, step: _mm256_slli_epi32::<3>(stride) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn restart(&mut self) {
        self.next = self.first;
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn next(&mut self) -> __m256i {
        let place = self.next;
        self.next = _mm256_add_epi32(self.next, self.step);
        place
    }
}

/// A list that is being filled.
#[derive(Clone, Copy)]
struct List {
    start: *mut f32,
    len: usize,
}

impl List {
    /// That of a row; it may only be pushed to if there is such a row.
    fn at(lists: *mut f32, row: usize) -> List {
        List { start: lists.wrapping_add(row * LIST), len: 0 }
    }

    /// Appends those of eight values that are not zero, with their places.
    ///
    /// # Safety
    /// The list is that of a row in memory. Fewer values than [`DEPTH`] were pushed before, in whole
    /// vectors.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn push(&mut self, values: __m256, places: __m256i) {
        let full = _mm256_cmp_ps::<_CMP_NEQ_UQ>(values, _mm256_setzero_ps());
        let full = _mm256_movemask_ps(full) as usize;
        let first = FIRST[full];
        let order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(first as i64));
        // SAFETY: `len` is at most the number of values pushed so far, and a vector more fits.
        unsafe {
            let at = self.start.add(self.len);
            _mm256_storeu_ps(at, _mm256_permutevar8x32_ps(values, order));
            let places = _mm256_permutevar8x32_epi32(places, order);
            _mm256_storeu_si256(at.add(ENTRIES).cast(), places);
        }
        self.len += (first >> COUNT) as usize;
    }
}

/// For every set of lanes, as bits: their numbers, as bytes from the lowest on, and how many they are
/// in the four highest bits, which are beyond the number of any lane.
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

/// The first `n` floats at `src`, then zeros.
///
/// # Safety
/// `n` floats are readable there.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load(src: *const f32, n: usize) -> __m256 {
    // SAFETY: the caller's promise; a masked load reads no more than its lanes.
    unsafe { if n == LANES { _mm256_loadu_ps(src) } else { _mm256_maskload_ps(src, lane_mask(n)) } }
}

/// A block of rows against a panel.
struct Task<'a> {
    counts: &'a [u32],
    lists: *const f32,
    panel: *const f32,
    c: *mut f32,
    ldc: usize,
    /// Columns in the last vector.
    tail: usize,
    accumulate: bool,
    /// One value per column, or null.
    bias: *const f32,
    relu: bool,
    /// Rows like those of C, or null.
    open: *const f32,
}

/// # Safety
/// There is a list for every count, with offsets of rows in the panel; C and, if not null, `bias` and
/// `open` have as many columns as `V` vectors, the last of them with `tail` lanes; `bias` is padded.
#[target_feature(enable = "avx2,fma")]
unsafe fn run_lists<const V: usize>(t: &Task<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        let read = |row: *const f32, v: usize| {
            load(row.add(v * LANES), if v + 1 == V { t.tail } else { LANES })
        };
        for (i, n) in t.counts.iter().enumerate() {
            let c = t.c.add(i * t.ldc);
            let values = t.lists.add(i * LIST);
            let offsets = values.add(ENTRIES).cast::<u32>();
            let mut sums = [_mm256_setzero_ps(); V];
            // The end of a list is rarely foreseen: have the next row here by then.
            for v in (0..V).step_by(2) {
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(t.ldc + v * LANES).cast());
            }
            if t.accumulate {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = read(c, v);
                }
            }
            for entry in 0..*n as usize {
                let x = _mm256_broadcast_ss(&*values.add(entry));
                let row = t.panel.add(*offsets.add(entry) as usize);
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_fmadd_ps(x, _mm256_loadu_ps(row.add(v * LANES)), *sum);
                }
            }
            if !t.bias.is_null() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_add_ps(*sum, _mm256_loadu_ps(t.bias.add(v * LANES)));
                }
            }
            if t.relu {
                for sum in &mut sums {
                    // This operand order lets a NaN through.
                    *sum = _mm256_max_ps(_mm256_setzero_ps(), *sum);
                }
            }
            if !t.open.is_null() {
                let open = t.open.add(i * t.ldc);
                for (v, sum) in sums.iter_mut().enumerate() {
                    let positive = _mm256_cmp_ps::<_CMP_GT_OQ>(read(open, v), _mm256_setzero_ps());
                    *sum = _mm256_and_ps(*sum, positive);
                }
            }
            for (v, sum) in sums.iter().enumerate() {
                let c = c.add(v * LANES);
                if v + 1 == V && t.tail < LANES {
                    _mm256_maskstore_ps(c, lane_mask(t.tail), *sum);
                } else {
                    _mm256_storeu_ps(c, *sum);
                }
            }
        }
    }
}

/// Writes the transpose of `from` (`n` rows of `m`, `ld` apart) to C, or adds it.
#[target_feature(enable = "avx2,fma")]
fn add_transposed(
    from: &[f32],
    ld: usize,
    (m, n): (usize, usize),
    accumulate: bool,
    c: &mut [f32],
    ldc: usize,
) {
    for i in (0..m).step_by(LANES) {
        for j in (0..n).step_by(LANES) {
            let (rows, cols) = (LANES.min(m - i), LANES.min(n - j));
            let mut block = [_mm256_setzero_ps(); LANES];
            for (q, values) in block[..cols].iter_mut().enumerate() {
                let row = &from[(j + q) * ld + i..][..LANES];
                // SAFETY: eight floats are there, rows being padded.
                *values = unsafe { _mm256_loadu_ps(row.as_ptr()) };
            }
            for (q, values) in transpose(block)[..rows].iter().enumerate() {
                let row = &mut c[(i + q) * ldc + j..][..cols];
                // SAFETY: `cols` floats are read and written, and there.
                unsafe {
                    let mut values = *values;
                    if accumulate {
                        values = _mm256_add_ps(values, load(row.as_ptr(), cols));
                    }
                    if cols == LANES {
                        _mm256_storeu_ps(row.as_mut_ptr(), values);
                    } else {
                        _mm256_maskstore_ps(row.as_mut_ptr(), lane_mask(cols), values);
                    }
                }
            }
        }
    }
}
