//! CPU kernels over plain slices: matrix multiply with fused epilogues, and element-wise loops.
//!
//! Nothing here knows of tensors, programs or threads, and nothing allocates after its first call.
//! Every kernel is built for the baseline CPU and for AVX2 with FMA, products and some long loops
//! also for AVX-512, and picks one when it runs.
//!
//! ```
//! use regatta_kernels::{backward, rows, unary};
//! let x = [1.0, -2.0, 0.5, 3.0]; // 2 x 2
//! let mut y = [0.0; 4];
//! unary::relu(&x, &mut y);
//! assert_eq!(y, [1.0, 0.0, 0.5, 3.0]);
//! let mut dz = [10.0; 4];
//! backward::relu_backward_in_place(&y, &mut dz);
//! let mut bias_gradient = [0.0; 2];
//! rows::column_sums(&dz, false, &mut bias_gradient);
//! assert_eq!(bias_gradient, [20.0, 10.0]);
//! ```
//!
//! Reading order: [`simd!`] (the run-time choice), [`vector`], [`unary`] and [`backward`],
//! [`rows`], [`gemm`](mod@gemm), [`conv`], [`pool`], [`norm`], [`rnn`], [`half`] (16-bit floats),
//! [`prefetch`](fn@prefetch), [`peak`] (the yardstick of the benchmarks).
#![allow(
    unsafe_code,
    reason = "vector intrinsics and raw panels; every block states why it is sound"
)]

pub mod backward;
pub mod conv;
pub mod gemm;
pub mod half;
mod math;
pub mod norm;
pub mod peak;
pub mod pool;
mod prefetch;
pub mod rnn;
pub mod rows;
mod simd;
pub mod unary;
pub mod vector;

pub use prefetch::{prefetch, prefetch_row};
pub use simd::{has_avx2_fma, has_avx512};
