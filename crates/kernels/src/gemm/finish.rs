//! The epilogue where it is not part of a micro-kernel.

use super::driver::Problem;
use super::{Act, Epilogue};
use crate::{backward, unary};

/// Applies `act` to a block of C: `rows` rows of `cols`, `ldc` apart. The block was just written,
/// so it is still in the nearest cache.
pub(super) fn activate(act: Act, c: &mut [f32], ldc: usize, rows: usize, cols: usize) {
    let apply: fn(&mut [f32]) = match act {
        Act::None => return,
        Act::Relu => unary::relu_in_place,
        Act::Tanh => unary::tanh_in_place,
        Act::Sigmoid => unary::sigmoid_in_place,
    };
    for i in 0..rows {
        apply(&mut c[i * ldc..][..cols]);
    }
}

/// Clears a block of C where the output of a relu is not positive. As with [`activate`], the block
/// is still in the nearest cache.
pub(super) fn close(open: &[f32], c: &mut [f32], ldc: usize, rows: usize, cols: usize) {
    for i in 0..rows {
        let row = i * ldc..i * ldc + cols;
        backward::relu_backward_in_place(&open[row.clone()], &mut c[row]);
    }
}

/// Adds the bias to all of C, activates it and clears what is behind a closed relu.
pub(super) fn apply(problem: &Problem, c: &mut [f32]) {
    let &Problem { m, n, ldc, epilogue: Epilogue { bias, act, open }, .. } = problem;
    if let Some(bias) = bias {
        for i in 0..m {
            for (c, bias) in c[i * ldc..][..n].iter_mut().zip(bias) {
                *c += bias;
            }
        }
    }
    if ldc == n {
        activate(act, c, 0, 1, m * n);
    } else {
        activate(act, c, ldc, m, n);
    }
    if let Some(open) = open {
        close(open, c, ldc, m, n);
    }
}

/// The product over no depth at all is zero; there may still be a C to finish.
pub(super) fn empty_product(problem: &Problem, c: &mut [f32]) {
    let &Problem { m, n, ldc, accumulate, .. } = problem;
    if m == 0 || n == 0 {
        return;
    }
    if !accumulate {
        for i in 0..m {
            c[i * ldc..][..n].fill(0.0);
        }
    }
    apply(problem, c);
}
