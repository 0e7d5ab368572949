//! Zeroed memory straight from the system: a length goes in, a slice comes out.
//!
//! All `unsafe` code of the crate is here. A region is mapped as a whole and becomes resident page
//! by page as it is touched, so a slab can reserve room generously without paying for it.
#![allow(unsafe_code, reason = "memory mappings; every block states why it is sound")]

use std::ops::{Deref, DerefMut};

use crate::Error;

/// The size of a huge page on the systems that matter here.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// The size of other pages.
const PAGE: usize = 4096;

/// Types of which every bit pattern is a value, that of zeros included, and that need no drop.
///
/// # Safety
/// Implementors promise exactly that.
pub(crate) unsafe trait Pod: Copy + Default {}

// SAFETY: every bit pattern is a float.
unsafe impl Pod for f32 {}

// SAFETY: an array of integers has no padding and no invalid patterns.
unsafe impl Pod for [u64; 8] {}

/// `len` values that start as zeros, aligned to a page.
#[derive(Debug)]
pub(crate) struct Region<T: Pod> {
    inner: imp::Mapping<T>,
}

impl<T: Pod> Region<T> {
    /// Maps `len` values; nothing is resident yet. With `huge`, whatever lies behind the first
    /// `small_head` bytes asks for huge pages; a system without them is no error.
    pub(crate) fn new(len: usize, huge: bool, small_head: usize) -> Result<Self, Error> {
        let huge = huge && (len * size_of::<T>()).saturating_sub(small_head) >= HUGE_PAGE;
        let inner = imp::Mapping::new(len, if huge { HUGE_PAGE } else { PAGE })?;
        if huge {
            inner.advise_huge(small_head);
        }
        Ok(Region { inner })
    }
}

impl<T: Pod> Deref for Region<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        self.inner.as_slice()
    }
}

impl<T: Pod> DerefMut for Region<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        self.inner.as_mut_slice()
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::ffi::c_void;
    use std::ptr::NonNull;

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::{PAGE, Pod};
    use crate::Error;

    /// A private anonymous mapping of `bytes` bytes that holds `len` values from its start.
    #[derive(Debug)]
    pub(super) struct Mapping<T: Pod> {
        start: NonNull<T>,
        len: usize,
        bytes: usize,
    }

    // SAFETY: the mapping is owned by this value alone, and `Pod` values have no thread of their
    // own.
    unsafe impl<T: Pod + Send> Send for Mapping<T> {}
    // SAFETY: shared access only reads.
    unsafe impl<T: Pod + Sync> Sync for Mapping<T> {}

    impl<T: Pod> Mapping<T> {
        /// Maps `len` values, the first one at a multiple of `align` bytes: huge pages lie at
        /// multiples of their size.
        pub(super) fn new(len: usize, align: usize) -> Result<Self, Error> {
            let bytes = len
                .checked_mul(size_of::<T>())
                .and_then(|bytes| bytes.max(1).checked_next_multiple_of(PAGE))
                .filter(|bytes| *bytes < isize::MAX as usize / 2)
                .ok_or(Error::Memory { bytes: usize::MAX, why: "too large".into() })?;
            let reserve = bytes + align - PAGE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory.
            let start = unsafe { mmap_anonymous(std::ptr::null_mut(), reserve, access, flags) };
            let start = start.map_err(|e| Error::Memory { bytes, why: e.to_string() })?;
            let head = start.cast::<u8>().align_offset(align);
            let own = start.cast::<u8>().wrapping_add(head);
            for (from, len) in
                [(start.cast(), head), (own.wrapping_add(bytes), align - PAGE - head)]
            {
                if len > 0 {
                    // SAFETY: the part of our own mapping before or behind what is kept.
                    let _ = unsafe { munmap(from.cast(), len) };
                }
            }
            match NonNull::new(own.cast()) {
                Some(start) => Ok(Mapping { start, len, bytes }),
                None => Err(Error::Memory { bytes, why: "mapped at address zero".into() }),
            }
        }

        pub(super) fn advise_huge(&self, small_head: usize) {
            let skip = small_head.next_multiple_of(PAGE);
            let from = self.start.as_ptr().cast::<u8>().wrapping_add(skip);
            // SAFETY: the range lies in our own mapping, and this advice changes no contents.
            let _ =
                unsafe { madvise(from.cast::<c_void>(), self.bytes - skip, Advice::LinuxHugepage) };
        }

        #[inline(always)]
        pub(super) fn as_slice(&self) -> &[T] {
            // SAFETY: the mapping holds `len` values, page-aligned and readable, zero or written
            // through `as_mut_slice`, until `drop`; every bit pattern of a `Pod` is a value.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }

        #[inline(always)]
        pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
            // SAFETY: as in `as_slice`; the mapping is writable, and `&mut self` makes it
            // exclusive.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }
    }

    impl<T: Pod> Drop for Mapping<T> {
        fn drop(&mut self) {
            // SAFETY: exactly the range that was mapped; no slice of it outlives `self`.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::Pod;
    use crate::Error;

    /// Elsewhere the allocator has to do.
    #[derive(Debug)]
    pub(super) struct Mapping<T: Pod>(Vec<T>);

    impl<T: Pod> Mapping<T> {
        pub(super) fn new(len: usize, _align: usize) -> Result<Self, Error> {
            Ok(Mapping(vec![T::default(); len]))
        }

        pub(super) fn advise_huge(&self, _small_head: usize) {}

        #[inline(always)]
        pub(super) fn as_slice(&self) -> &[T] {
            &self.0
        }

        #[inline(always)]
        pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
            &mut self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_start_as_zeros_and_keep_what_is_written() {
        for huge in [false, true] {
            let mut region = Region::<f32>::new(3 << 20, huge, HUGE_PAGE).unwrap();
            assert!(region.iter().step_by(4096).all(|x| *x == 0.0));
            region[(3 << 20) - 1] = 5.0;
            assert_eq!(region.iter().rev().step_by(1 << 19).next(), Some(&5.0));
        }
        assert!(Region::<[u64; 8]>::new(0, true, 0).unwrap().is_empty());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let error = Region::<[u64; 8]>::new(usize::MAX / 8, false, 0).unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
    }
}
