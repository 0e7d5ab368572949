//! Pack buffers that are allocated once and kept.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Page alignment: panels start on a cache line and no buffer shares a page with its neighbour.
const ALIGN: usize = 4096;

/// Working memory of [`gemm`](super::gemm): packed panels of both operands.
///
/// Buffers grow to the largest problem seen and are then reused, so a training step allocates
/// nothing after its first round. Keep one per thread.
#[derive(Debug, Default)]
pub struct GemmScratch {
    pub(crate) a: Buffer,
    pub(crate) b: Buffer,
    pub(crate) c: Buffer,
    /// What convolutions keep beside their products.
    pub(crate) patches: Buffer,
}

/// A page-aligned run of floats that only ever grows.
#[derive(Debug)]
pub(crate) struct Buffer {
    ptr: NonNull<f32>,
    len: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { ptr: NonNull::dangling(), len: 0 }
    }
}

impl Buffer {
    /// At least `len` floats, contents unspecified. Reallocates only when that is more than ever
    /// before.
    pub(crate) fn reserve(&mut self, len: usize) -> &mut [f32] {
        if len > self.len {
            let grown = len.next_multiple_of(ALIGN / size_of::<f32>());
            let layout = Self::layout(grown);
            // SAFETY: `grown >= len > 0`, so the layout has a size.
            let Some(ptr) = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<f32>()) else {
                handle_alloc_error(layout)
            };
            *self = Self { ptr, len: grown };
        }
        // SAFETY: `ptr` is dangling with `len == 0`, or owns `len` initialised floats; the borrow
        // is unique.
        let all = unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) };
        &mut all[..len]
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<f32>());
        bytes
            .and_then(|bytes| Layout::from_size_align(bytes, ALIGN).ok())
            .expect("a pack buffer is far below the address space")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `reserve` with the same layout.
            unsafe { dealloc(self.ptr.as_ptr().cast(), Self::layout(self.len)) }
        }
    }
}

// SAFETY: the buffer is owned memory without thread affinity, reachable through `&mut` only.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Buffer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_once_and_is_aligned() {
        let mut buffer = Buffer::default();
        assert!(buffer.reserve(0).is_empty());
        let first = buffer.reserve(5000).as_ptr();
        assert_eq!(first.addr() % ALIGN, 0);
        assert_eq!(buffer.reserve(10).as_ptr(), first);
        assert_eq!(buffer.reserve(5000).as_ptr(), first);
        assert_eq!(buffer.reserve(50_000).len(), 50_000);
    }
}
