//! Prefetching: memory is requested before it is needed.
//!
//! Why the second-level cache: a core can have more lines in flight there than in the first. On a
//! Zen 4 a pull of random rows from a table of a million went from 39 to 25 ns per row, a push with
//! Adam from 64 to 45 ns, and a worker that does little else got a quarter more keys per second
//! from its server (`bench/micro`; `bench/compare/run --only keys-52000`; 2026-11-17).

/// Prefetches the cache line that holds `slice[idx]`. Costs a slot in a queue and never waits; an
/// index out of range is harmless. The line comes as far as the second cache, where a core can wait
/// for more of them than in the first.
#[inline(always)]
pub fn prefetch<T>(slice: &[T], idx: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let at = slice.as_ptr().wrapping_add(idx);
        // SAFETY: prefetching reads nothing and faults for no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, idx);
}

/// Prefetches the cache lines of `values[at..at + width]`, at most four.
#[inline(always)]
pub fn prefetch_row(values: &[f32], at: usize, width: usize) {
    const LINE: usize = 16;
    (0..width.min(4 * LINE)).step_by(LINE).for_each(|i| prefetch(values, at.wrapping_add(i)));
    // A row seldom begins with a line.
    prefetch(values, at.wrapping_add(width.clamp(1, 4 * LINE) - 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_index_is_harmless() {
        [0, 2, 99, usize::MAX].iter().for_each(|idx| prefetch(&[1.0f32, 2.0], *idx));
        prefetch::<u64>(&[], 0);
        prefetch_row(&[1.0], usize::MAX, 9);
    }
}
