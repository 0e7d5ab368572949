//! Large tensors in large pages: tables of embeddings are read at random, and page by page both the
//! first touch and the search for an address would cost more than the rows.
#![allow(unsafe_code, reason = "advice about memory is a system call on addresses")]

/// `len` zeros. Where they take much memory, the system is asked to give it in large pieces.
pub(crate) fn zeros(len: usize) -> Vec<f32> {
    let values = vec![0.0; len];
    advise(&values);
    values
}

#[cfg(target_os = "linux")]
fn advise(values: &[f32]) {
    use rustix::mm::{Advice, madvise};

    const PAGE: usize = 4096;
    /// Below this, a large page or two would be mostly edges.
    const LEAST: usize = 16 << 20;
    let bytes = size_of_val(values);
    if bytes < LEAST {
        return;
    }
    let start = values.as_ptr().cast::<u8>();
    let skip = start.align_offset(PAGE);
    let whole = (bytes - skip) / PAGE * PAGE;
    let from = start.wrapping_add(skip).cast_mut().cast();
    // SAFETY: whole pages inside of the values, whose contents this advice leaves as they are. That it
    // is not followed does no harm.
    let _ = unsafe { madvise(from, whole, Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &[f32]) {}

#[cfg(test)]
mod tests {
    #[test]
    fn large_and_small_zeros_are_zeros() {
        for len in [0, 3, 5_000_001] {
            let values = super::zeros(len);
            assert!(values.len() == len && values.iter().all(|x| *x == 0.0));
        }
    }
}
