//! The fastest multiply-add rate of one core, as the yardstick of the benchmarks.

use std::hint::black_box;
use std::time::Instant;

/// Vectors in flight: enough to cover the latency of two multiply-adds a cycle.
const CHAINS: usize = 12;
const ROUNDS: usize = 400_000;

/// Measures the multiply-add peak of the calling thread's core in GFLOP/s.
///
/// Runs a loop that touches registers only, several times for some 15 ms in all, and returns the
/// best. Call it in the same run as the code it is compared with: clocks differ between runs.
pub fn fma_gflops() -> f64 {
    (0..20).map(|_| fma_gflops_once()).fold(0.0, f64::max)
}

/// One round of [`fma_gflops`], of about a millisecond, to be interleaved with what is compared.
pub fn fma_gflops_once() -> f64 {
    let start = Instant::now();
    let lanes = spin(ROUNDS, black_box(1.0e-9));
    let seconds = start.elapsed().as_secs_f64();
    (2 * lanes * CHAINS * ROUNDS) as f64 / seconds / 1e9
}

/// Runs the chains and returns the number of lanes in each.
fn spin(rounds: usize, step: f32) -> usize {
    #[cfg(target_arch = "x86_64")]
    if crate::has_avx512() {
        // SAFETY: AVX-512 was just detected.
        black_box(unsafe { spin_avx512(rounds, step) });
        return 16;
    }
    #[cfg(target_arch = "x86_64")]
    if crate::has_avx2_fma() {
        // SAFETY: AVX2 and FMA were just detected.
        black_box(unsafe { spin_avx2(rounds, step) });
        return 8;
    }
    let mut acc = [[1.0f32; 4]; CHAINS];
    for _ in 0..rounds {
        for x in acc.as_flattened_mut() {
            *x = *x * step + step;
        }
    }
    black_box(acc);
    4
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn spin_avx2(rounds: usize, step: f32) -> f32 {
    use std::arch::x86_64::*;
    let x = _mm256_set1_ps(step);
    let mut acc = [x; CHAINS];
    for _ in 0..rounds {
        for a in &mut acc {
            *a = _mm256_fmadd_ps(*a, x, x);
        }
    }
    let total = acc.into_iter().reduce(|a, b| _mm256_add_ps(a, b)).unwrap_or(x);
    _mm256_cvtss_f32(total)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f")]
fn spin_avx512(rounds: usize, step: f32) -> f32 {
    use std::arch::x86_64::*;
    let x = _mm512_set1_ps(step);
    let mut acc = [x; CHAINS];
    for _ in 0..rounds {
        for a in &mut acc {
            *a = _mm512_fmadd_ps(*a, x, x);
        }
    }
    let total = acc.into_iter().reduce(|a, b| _mm512_add_ps(a, b)).unwrap_or(x);
    _mm512_cvtss_f32(total)
}

#[cfg(test)]
mod tests {
    #[test]
    fn peak_is_a_positive_number() {
        assert!(super::fma_gflops() > 0.01);
    }
}
