//! Products over a very short depth, such as the gradient behind an output layer of two columns.
//!
//! Almost all the time goes into writing C, so each row of C is written once, front to back, from a
//! few rows of op(B) that stay in the nearest cache.

use super::driver::Problem;
use super::{GemmScratch, Mat};
use crate::math::{MulAdd, Separate};

/// The longest depth that is handled here.
pub(super) const MAX_DEPTH: usize = 4;

/// Multiplies without the epilogue, on a CPU with AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn run_avx2(problem: &Problem, c: &mut [f32], scratch: &mut GemmScratch) {
    run::<crate::math::Fused>(problem, c, scratch);
}

/// Multiplies without the epilogue.
pub(super) fn run_portable(problem: &Problem, c: &mut [f32], scratch: &mut GemmScratch) {
    run::<Separate>(problem, c, scratch);
}

#[inline(always)]
fn run<M: MulAdd>(problem: &Problem, c: &mut [f32], scratch: &mut GemmScratch) {
    let &Problem { n, k, b, .. } = problem;
    let (b, b_row) = if b.trans { (untransposed(&b, k, n, scratch), n) } else { (b.data, b.ld) };
    match k {
        1 => write_rows::<M, 1>(problem, b, b_row, c),
        2 => write_rows::<M, 2>(problem, b, b_row, c),
        3 => write_rows::<M, 3>(problem, b, b_row, c),
        4 => write_rows::<M, MAX_DEPTH>(problem, b, b_row, c),
        _ => unreachable!("a depth of {k} is not short"),
    }
}

/// The `k` x `n` matrix whose transpose is stored.
#[inline(always)]
fn untransposed<'a>(b: &Mat, k: usize, n: usize, scratch: &'a mut GemmScratch) -> &'a [f32] {
    let rows = scratch.b.reserve(k * n);
    for (j, column) in b.data.chunks(b.ld).take(n).enumerate() {
        for (p, x) in column[..k].iter().enumerate() {
            rows[p * n + j] = *x;
        }
    }
    rows
}

#[inline(always)]
fn write_rows<M: MulAdd, const K: usize>(
    problem: &Problem,
    b: &[f32],
    b_row: usize,
    c: &mut [f32],
) {
    let &Problem { m, n, ref a, accumulate, ldc, .. } = problem;
    let (a_row, a_depth) = if a.trans { (1, a.ld) } else { (a.ld, 1) };
    let b: [&[f32]; K] = std::array::from_fn(|p| &b[p * b_row..][..n]);
    for i in 0..m {
        let a: [f32; K] = std::array::from_fn(|p| a.data[i * a_row + p * a_depth]);
        for (j, c) in c[i * ldc..][..n].iter_mut().enumerate() {
            let before = if accumulate { *c } else { 0.0 };
            *c = (0..K).fold(before, |sum, p| M::mul_add(a[p], b[p][j], sum));
        }
    }
}
