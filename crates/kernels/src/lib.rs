//! CPU kernels over plain slices: matrix multiply with fused epilogues, and element-wise loops.
//!
//! Nothing here knows of tensors, programs or threads.
#![allow(
    unsafe_code,
    reason = "vector intrinsics and raw panels; every block states why it is sound"
)]

pub mod backward;
pub mod gemm;
mod math;
pub mod peak;
pub mod rows;
mod simd;
pub mod unary;
pub mod vector;

pub use simd::has_avx2_fma;
