//! Products of which one operand has many zeros, such as what comes out of a relu and what
//! goes back through one.
//!
//! A row of the result is a sum of rows of the dense operand; those that the sparse operand
//! multiplies by zero are left out. First the positions and values of a block of the sparse operand
//! are listed, then each list is run through against panels of the dense operand that stay in the
//! nearest cache.
//!
//! Where the right operand is the sparse one, the transposed product is computed: its left is
//! sparse. A zero is skipped whatever it would be multiplied by, infinities and NaN included.
//!
//! Why: behind a relu 42, 16 and 18 % of the activations of a 400-400-400 click model are non-zero
//! after one epoch, and eight of nine products per step have such an operand. This way reaches 45 %
//! of the multiply-add peak, which pays below 60 % non-zero values; a sample of rows decides.
//! Training gains 1.4 to 1.5 times (`bench/compare/run --only local --batch 512`, one thread, AMD
//! EPYC with AVX2, 2026-11-16). Record: docs/decisions/0008-zeros-are-skipped.md.

use super::avx2::{LANES, lane_mask, transpose, transpose_rows};
use super::driver::Problem;
use super::scratch::Buffer;
use super::{Act, Epilogue, GemmScratch, Mat, finish};
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

/// Largest depth of a block.
const MAX_DEPTH: usize = 128;
/// Rows of a block: their lists and their part of C stay in the second level of cache.
const ROWS: usize = 96;
/// Entries of a list, with room for a whole vector behind the last one.
pub(super) const ENTRIES: usize = MAX_DEPTH + 16;
/// A list: values, then offsets of rows in the panel.
pub(super) const LIST: usize = 2 * ENTRIES;
/// Columns of the widest panel of any instruction set.
const MAX_WIDTH: usize = 256;

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

/// The inner loops of one instruction set.
pub(super) struct Kernels {
    /// Floats in a vector.
    pub(super) lanes: usize,
    /// Bytes of a panel that stays in a first-level cache of N bytes.
    pub(super) panel: fn(usize) -> usize,
    /// Lists what is not zero in rows of values.
    pub(super) list: unsafe fn(&Rows, &mut [u32]),
    /// By the vectors of a panel, less one: as many sums fit into the registers.
    pub(super) run_lists: &'static [unsafe fn(&Task)],
}

/// Rows of a block of the sparse operand, and where their lists go. The caller that lists them
/// relies on this: there are as many rows as counts, of `len` values, `ld` apart; lists are
/// [`LIST`] apart, with room for `len` values and a vector, and [`ENTRIES`] behind for as many
/// offsets of rows in a panel with that `stride`.
pub(super) struct Rows {
    pub(super) values: *const f32,
    pub(super) ld: usize,
    pub(super) len: usize,
    pub(super) stride: usize,
    pub(super) lists: *mut f32,
}

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// Which operand has enough zeros that it pays to skip them.
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
///
/// # Safety
/// The CPU has the features that `kernels` was built for.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run(
    problem: &Problem,
    c: &mut [f32],
    kernels: &Kernels,
    scratch: &mut GemmScratch,
    side: Side,
) {
    let &Problem { m, n, k, a, b, accumulate, ldc, epilogue } = problem;
    let GemmScratch { a: lists, b: panels, c: result, .. } = scratch;
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
            // SAFETY: the features are the caller's promise.
            unsafe { product.run(c, kernels, lists, panels) };
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
            // SAFETY: as above.
            unsafe { product.run(result, kernels, lists, panels) };
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
    /// # Safety
    /// The CPU has the features that `kernels` was built for.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn run(
        &self,
        c: &mut [f32],
        kernels: &Kernels,
        lists: &mut Buffer,
        panels: &mut Buffer,
    ) {
        let lanes = kernels.lanes;
        let vecs = self.cols.div_ceil(lanes);
        // Panels of equal width; only the last may be narrower.
        let width = vecs.div_ceil(vecs.div_ceil(kernels.run_lists.len())) * lanes;
        let n_panels = self.cols.div_ceil(width);
        let panel = (kernels.panel)(nearest_cache()) / size_of::<f32>();
        let depth = (panel / width / LANES * LANES).clamp(LANES, MAX_DEPTH);
        let in_place = self.reads_in_place(lanes);
        let panel_len = depth * width;
        let panels: &[f32] = if in_place {
            &[]
        } else {
            let n_depths = self.depth.div_ceil(depth);
            let panels = panels.reserve(n_depths * n_panels * panel_len + LANES);
            self.pack(panels, width, depth);
            panels
        };
        let stride = if in_place { self.dense.ld } else { width };
        let lists = lists.reserve(ROWS * LIST);
        let mut counts = [0u32; ROWS];
        for rows in blocks(self.rows, ROWS) {
            for (i, depths) in blocks(self.depth, depth).enumerate() {
                // SAFETY: the features are the caller's promise.
                unsafe { self.list(&rows, &depths, stride, kernels, lists, &mut counts) };
                for j in 0..n_panels {
                    let first = j * width;
                    let cols = first..self.cols.min(first + width);
                    let panel = match in_place {
                        true => &self.dense.data[depths.start * stride + first..],
                        false => &panels[(i * n_panels + j) * panel_len..],
                    };
                    let vectors = cols.len().next_multiple_of(lanes);
                    assert!(panel.len() >= (depths.len() - 1) * stride + vectors);
                    // SAFETY: the features are the caller's promise; the lists were made for this
                    // block, and the panel has a row for each of its depths.
                    unsafe {
                        self.run_panel(&rows, &depths, cols, panel, kernels, lists, &counts, c)
                    };
                }
            }
        }
    }

    /// Whether rows of the dense operand are read where they lie: when they are whole vectors that
    /// begin with a cache line, and do not share few sets of the cache.
    fn reads_in_place(&self, lanes: usize) -> bool {
        let Mat { data, ld, trans } = self.dense;
        let lines = ld / LINE;
        let aligned = data.as_ptr().addr().is_multiple_of(LINE * size_of::<f32>());
        let whole = ld.is_multiple_of(LINE) && self.cols.is_multiple_of(lanes);
        // Offsets within a block have 31 bits.
        !trans
            && aligned
            && whole
            && !lines.is_multiple_of(8)
            && ld <= i32::MAX as usize / MAX_DEPTH
    }

    /// Copies the dense operand into panels: blocks of depth one after the other, in each the
    /// panels.
    #[target_feature(enable = "avx2,fma")]
    fn pack(&self, panels: &mut [f32], width: usize, depth: usize) {
        let Mat { data, ld, trans } = self.dense;
        let mut at = 0;
        for depths in blocks(self.depth, depth) {
            for first in (0..self.cols).step_by(width) {
                let cols = first..self.cols.min(first + width);
                let panel = &mut panels[at..at + depth * width + LANES];
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
                at += depth * width;
            }
        }
    }

    /// Lists what is not zero in a block of the sparse operand.
    ///
    /// # Safety
    /// The CPU has the features that `kernels` was built for.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn list(
        &self,
        rows: &Range<usize>,
        depths: &Range<usize>,
        stride: usize,
        kernels: &Kernels,
        lists: &mut [f32],
        counts: &mut [u32; ROWS],
    ) {
        assert!(lists.len() >= rows.len() * LIST && depths.len() <= MAX_DEPTH);
        let Mat { data, ld, trans } = self.sparse;
        let (len, counts) = (depths.len(), &mut counts[..rows.len()]);
        if !trans {
            let block = &data[rows.start * ld + depths.start..][..(rows.len() - 1) * ld + len];
            let rows = Rows { values: block.as_ptr(), ld, len, stride, lists: lists.as_mut_ptr() };
            // SAFETY: the features are the caller's promise; the block and its lists were checked.
            return unsafe { (kernels.list)(&rows, counts) };
        }
        let mut turned = [0.0; LANES * MAX_DEPTH];
        let groups = lists.chunks_mut(LANES * LIST).zip(counts.chunks_mut(LANES));
        for ((lists, counts), first) in groups.zip(rows.clone().step_by(LANES)) {
            turn(data, ld, depths, first..first + counts.len(), &mut turned);
            let (values, lists) = (turned.as_ptr(), lists.as_mut_ptr());
            let rows = Rows { values, ld: MAX_DEPTH, len, stride, lists };
            // SAFETY: as above; as many rows are there as counts, at most eight.
            unsafe { (kernels.list)(&rows, counts) };
        }
    }

    /// Runs the lists of a block against one panel.
    ///
    /// # Safety
    /// The CPU has the features that `kernels` was built for; there is a list for every row of the
    /// block, with offsets of rows in the panel, which have whole vectors.
    unsafe fn run_panel(
        &self,
        rows: &Range<usize>,
        depths: &Range<usize>,
        cols: Range<usize>,
        panel: &[f32],
        kernels: &Kernels,
        lists: &[f32],
        counts: &[u32; ROWS],
        c: &mut [f32],
    ) {
        let vecs = cols.len().div_ceil(kernels.lanes);
        let last = depths.end == self.depth;
        let at = rows.start * self.ldc + cols.start;
        let c = &mut c[at..];
        assert!(c.len() >= (rows.len() - 1) * self.ldc + cols.len());
        let Epilogue { bias, act, open } = self.finish;
        let mut padded_bias = [0.0; MAX_WIDTH];
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
            tail: cols.len() - (vecs - 1) * kernels.lanes,
            accumulate: self.accumulate || depths.start > 0,
            bias: bias.filter(|_| last).map_or(std::ptr::null(), |_| padded_bias.as_ptr()),
            relu: last && act == Act::Relu,
            open: open.map_or(std::ptr::null(), <[f32]>::as_ptr),
        };
        // SAFETY: C and what is open were just checked, the rest is the caller's promise.
        unsafe { kernels.run_lists[vecs - 1](&task) };
    }
}

/// Bytes of the first-level cache for data.
pub(super) fn nearest_cache() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // Intel and AMD describe one cache after the other, in the same form at two places.
        let of = |leaf| (0..4).map(move |n| cpuid(leaf, n));
        let caches =
            [4, 0x8000_001d].into_iter().filter(|leaf| cpuid(leaf & 1 << 31, 0).eax >= *leaf);
        let of_data = caches.flat_map(of).filter(|cache| cache.eax & 0xff == 1 << 5 | 1);
        let bytes = of_data.map(|cache| {
            let part = |at: u32, bits: u32| (cache.ebx >> at & ((1 << bits) - 1)) as usize + 1;
            let (line, partitions, ways) = (part(0, 12), part(12, 10), part(22, 10));
            line * partitions * ways * (cache.ecx as usize + 1)
        });
        bytes.max().unwrap_or(32 * 1024)
    })
}

#[allow(unused_unsafe, reason = "the instruction was unsafe to call in older compilers")]
fn cpuid(leaf: u32, n: u32) -> CpuidResult {
    // SAFETY: every processor with AVX2 has it.
    unsafe { __cpuid_count(leaf, n) }
}

/// Blocks of at most `size`.
fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |start| start..len.min(start + size))
}

/// Copies a part of a stored matrix, `rows` x `cols`, to `to` transposed: at most eight columns
/// become rows that are [`MAX_DEPTH`] apart.
#[target_feature(enable = "avx2,fma")]
fn turn(
    data: &[f32],
    ld: usize,
    rows: &Range<usize>,
    cols: Range<usize>,
    to: &mut [f32; LANES * MAX_DEPTH],
) {
    for (at, p) in rows.clone().step_by(LANES).enumerate() {
        let mut values = [_mm256_setzero_ps(); LANES];
        let height = LANES.min(rows.end - p);
        let block = &data[p * ld + cols.start..][..(height - 1) * ld + cols.len()];
        for (q, values) in values[..height].iter_mut().enumerate() {
            // SAFETY: `height` rows of as many values are there.
            *values = unsafe { load(block.as_ptr().add(q * ld), cols.len()) };
        }
        for (to, values) in to.chunks_exact_mut(MAX_DEPTH).zip(transpose(values)) {
            let to = &mut to[at * LANES..][..LANES];
            // SAFETY: there is room for eight.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) };
        }
    }
}

/// The first `n` floats at `src`, then zeros.
///
/// # Safety
/// `n` floats are readable there.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn load(src: *const f32, n: usize) -> __m256 {
    // SAFETY: the caller's promise; a masked load reads no more than its lanes.
    unsafe { if n == LANES { _mm256_loadu_ps(src) } else { _mm256_maskload_ps(src, lane_mask(n)) } }
}

/// A block of rows against a panel. The caller that runs it relies on this: there is a list for
/// every count, with offsets of rows in the panel; C and, if not null, `open` have rows of as many
/// vectors as the panel, the last of them with `tail` lanes; `bias` is padded to whole ones.
pub(super) struct Task<'a> {
    counts: &'a [u32],
    lists: *const f32,
    panel: *const f32,
    c: *mut f32,
    ldc: usize,
    /// Columns in the last vector.
    pub(super) tail: usize,
    pub(super) accumulate: bool,
    /// One value per column, or null.
    pub(super) bias: *const f32,
    pub(super) relu: bool,
    /// Rows like those of C, or null.
    open: *const f32,
}

/// Fills [`Kernels::run_lists`] from the `run_lists` of a module, which is generic over vectors.
macro_rules! lists_fns {
    ($($vecs:literal)*) => {
        &[$(run_lists::<$vecs>),*]
    };
}
pub(super) use lists_fns;

/// A row of a [`Task`].
pub(super) struct Row {
    pub(super) c: *mut f32,
    /// The same position in the next row of C.
    pub(super) next_c: *const f32,
    /// Or null.
    pub(super) open: *const f32,
    values: *const f32,
    panel: *const f32,
    len: usize,
}

impl Task<'_> {
    /// The rows, in order.
    #[inline(always)]
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.counts.iter().enumerate().map(|(i, len)| {
            let c = self.c.wrapping_add(i * self.ldc);
            Row {
                c,
                next_c: c.wrapping_add(self.ldc),
                open: match self.open.is_null() {
                    true => self.open,
                    false => self.open.wrapping_add(i * self.ldc),
                },
                values: self.lists.wrapping_add(i * LIST),
                panel: self.panel,
                len: *len as usize,
            }
        })
    }
}

impl Row {
    /// Where the list of the next row has its first values and offsets, by cache lines. The end of
    /// a list is rarely foreseen, so its successor should be near by then.
    #[inline(always)]
    pub(super) fn next_list(&self) -> [*const f32; 4] {
        [0, LINE, ENTRIES, ENTRIES + LINE].map(|at| self.values.wrapping_add(LIST + at))
    }

    /// What is not zero: values, and the rows of the panel that they multiply.
    #[inline(always)]
    pub(super) fn entries(&self) -> impl Iterator<Item = (*const f32, *const f32)> {
        let offsets = self.values.wrapping_add(ENTRIES).cast::<u32>();
        (0..self.len).map(move |entry| {
            // SAFETY: a list has as many values and offsets.
            let offset = unsafe { *offsets.wrapping_add(entry) };
            (self.values.wrapping_add(entry), self.panel.wrapping_add(offset as usize))
        })
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
