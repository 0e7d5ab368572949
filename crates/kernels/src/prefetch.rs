//! Memory that is asked for before it is needed.

/// Asks for the cache line that holds `slice[idx]`. Costs a slot in a queue and never waits; an
/// index out of range is harmless.
#[inline(always)]
pub fn prefetch<T>(slice: &[T], idx: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = slice.as_ptr().wrapping_add(idx);
        // SAFETY: prefetching reads nothing and faults for no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, idx);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_index_is_harmless() {
        [0, 2, 99, usize::MAX].iter().for_each(|idx| prefetch(&[1.0f32, 2.0], *idx));
        prefetch::<u64>(&[], 0);
    }
}
