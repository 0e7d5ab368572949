//! Single-threaded f32 matrix multiply with an optional bias and activation on the way out.
//!
//! One function, [`gemm`]. Row-major operands with leading dimensions go in, either may be
//! transposed; a row-major block of C comes out. The way is chosen by shape: products with one side
//! of at most four go through `thin`, those over a depth of at most four through `flat`. Large ones
//! with many zeros on one side, as behind a relu, go through `sparse`, all others through `driver`,
//! which packs blocks and calls a micro-kernel of `avx512`, `avx2` or `portable`.
//!
//! ```
//! use regatta_kernels::gemm::{Act, Epilogue, GemmScratch, Mat, gemm};
//! let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // 2 x 3
//! let w = [1.0, 0.0, 0.0, -1.0, 1.0, 1.0]; // 3 x 2
//! let epilogue = Epilogue { bias: Some(&[0.5, -2.0]), act: Act::Relu, open: None };
//! let mut y = [0.0; 4];
//! let mut scratch = GemmScratch::default();
//! gemm(2, 2, 3, Mat::new(&x, 3), Mat::new(&w, 2), false, &mut y, 2, epilogue, &mut scratch);
//! assert_eq!(y, [4.5, 0.0, 10.5, 0.0]);
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod driver;
mod finish;
mod flat;
mod pack;
mod portable;
mod scratch;
#[cfg(target_arch = "x86_64")]
mod sparse;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod thin;
mod tile;

pub use scratch::GemmScratch;

use driver::Problem;
use pack::Packing;

/// An operand: row-major, rows `ld` apart, used as it is stored or transposed.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a> {
    /// The stored matrix, from its first element on.
    pub data: &'a [f32],
    /// Distance between stored rows, at least their length.
    pub ld: usize,
    /// Whether the product takes the transpose of what is stored.
    pub trans: bool,
}

impl<'a> Mat<'a> {
    /// The matrix as it is stored.
    pub fn new(data: &'a [f32], ld: usize) -> Self {
        Self { data, ld, trans: false }
    }

    /// The transpose of the stored matrix.
    pub fn transposed(data: &'a [f32], ld: usize) -> Self {
        Self { data, ld, trans: true }
    }
}

/// What is applied to each element of the product last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`; a NaN stays.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// What happens to a finished element of C before it is stored: add the bias, then activate, then
/// clear what lies behind a closed relu.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// One value per column of C.
    pub bias: Option<&'a [f32]>,
    /// The activation.
    pub act: Act,
    /// Outputs of a relu, as large as C with rows as far apart: C becomes 0 where they are not
    /// positive. So a gradient goes back through the relu on its way out.
    pub open: Option<&'a [f32]>,
}

/// Computes `C = act(op(A) op(B) + bias)`, or with `accumulate` `C = act(C + op(A) op(B) + bias)`.
///
/// C is `m` x `n`, row-major, rows `ldc` apart; op(A) is `m` x `k` and op(B) `k` x `n`. Elements of
/// `c` between the rows are left alone. Sums run over the depth in a fixed order, so equal calls on
/// one machine give equal bits. Zeros of an operand that has many of them may be skipped, also
/// where the other one is infinite or NaN.
///
/// # Panics
/// If a leading dimension is shorter than its rows, or a slice does not hold its matrix.
pub fn gemm(
    m: usize,
    n: usize,
    k: usize,
    a: Mat,
    b: Mat,
    accumulate: bool,
    c: &mut [f32],
    ldc: usize,
    epilogue: Epilogue,
    scratch: &mut GemmScratch,
) {
    let problem = Problem { m, n, k, a, b, accumulate, ldc, epilogue };
    check(&problem, c);
    #[cfg(target_arch = "x86_64")]
    {
        if crate::has_avx512() {
            // SAFETY: AVX-512 was just detected.
            return unsafe { run_wide(&problem, c, &AVX512, scratch) };
        }
        if crate::has_avx2_fma() {
            // SAFETY: AVX2 and FMA were just detected.
            return unsafe { run_wide(&problem, c, &AVX2, scratch) };
        }
    }
    run_portable(&problem, c, scratch);
}

/// What differs between the instruction sets with wide vectors.
#[cfg(target_arch = "x86_64")]
struct Wide {
    packing: Packing,
    lists: sparse::Kernels,
}

#[cfg(target_arch = "x86_64")]
const AVX2: Wide = Wide {
    packing: Packing {
        tiles: &avx2::TILES,
        transpose_rows: avx2::transpose_rows,
        copy_rows: avx2::copy_rows,
    },
    lists: avx2::LISTS,
};

#[cfg(target_arch = "x86_64")]
const AVX512: Wide = Wide {
    packing: Packing {
        tiles: &avx512::TILES,
        transpose_rows: avx2::transpose_rows,
        copy_rows: avx512::copy_rows,
    },
    lists: avx512::LISTS,
};

/// # Safety
/// The CPU has AVX2 and FMA, and the features of `wide`.
#[cfg(target_arch = "x86_64")]
unsafe fn run_wide(problem: &Problem, c: &mut [f32], wide: &Wide, scratch: &mut GemmScratch) {
    if is_empty(problem) {
        finish::empty_product(problem, c);
    } else if problem.m.min(problem.n) <= thin::MAX_SHORT {
        // SAFETY: the features are the caller's promise, the short side was just compared.
        unsafe { thin::run(problem, c, scratch) };
        finish::apply(problem, c);
    } else if problem.k <= flat::MAX_DEPTH {
        // SAFETY: the features are the caller's promise.
        unsafe { flat::run_avx2(problem, c, scratch) };
        finish::apply(problem, c);
    // SAFETY: the features are the caller's promise.
    } else if let Some(side) = unsafe { sparse::side(problem) } {
        // SAFETY: as above.
        unsafe { sparse::run(problem, c, &wide.lists, scratch, side) };
    } else {
        // SAFETY: as above.
        unsafe { driver::run(problem, c, &wide.packing, scratch) };
    }
}

fn run_portable(problem: &Problem, c: &mut [f32], scratch: &mut GemmScratch) {
    const PACKING: Packing = Packing {
        tiles: &portable::TILES,
        transpose_rows: portable::transpose_rows,
        copy_rows: portable::copy_rows,
    };
    if is_empty(problem) {
        finish::empty_product(problem, c);
    } else if problem.k <= flat::MAX_DEPTH {
        flat::run_portable(problem, c, scratch);
        finish::apply(problem, c);
    } else {
        // SAFETY: portable kernels need no CPU features.
        unsafe { driver::run(problem, c, &PACKING, scratch) };
    }
}

fn is_empty(&Problem { m, n, k, .. }: &Problem) -> bool {
    m == 0 || n == 0 || k == 0
}

/// Panics, naming the operand, unless every matrix lies inside its slice.
fn check(problem: &Problem, c: &[f32]) {
    let &Problem { m, n, k, ref a, ref b, ldc, ref epilogue, .. } = problem;
    let stored = |mat: &Mat, rows, cols| if mat.trans { (cols, rows) } else { (rows, cols) };
    let holds = |name: &str, len: usize, ld: usize, (rows, cols): (usize, usize)| {
        if rows == 0 || cols == 0 {
            return;
        }
        assert!(ld >= cols, "gemm: rows of {name} are {cols} long but only {ld} apart");
        let needed = (rows - 1).checked_mul(ld).and_then(|x| x.checked_add(cols));
        assert!(
            needed.is_some_and(|needed| needed <= len),
            "gemm: {name} is {rows} x {cols} with rows {ld} apart, but its slice holds {len}"
        );
    };
    holds("A", a.data.len(), a.ld, stored(a, m, k));
    holds("B", b.data.len(), b.ld, stored(b, k, n));
    holds("C", c.len(), ldc, (m, n));
    if let Some(open) = epilogue.open {
        holds("the relu's output", open.len(), ldc, (m, n));
    }
    if let Some(bias) = epilogue.bias {
        assert!(bias.len() == n, "gemm: the bias holds {} values for {n} columns", bias.len());
    }
}
