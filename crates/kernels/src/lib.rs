//! CPU kernels over plain slices: matrix multiply with fused epilogues, and element-wise loops.
//!
//! Nothing here knows of tensors, programs or threads.

mod simd;

pub use simd::has_avx2_fma;
