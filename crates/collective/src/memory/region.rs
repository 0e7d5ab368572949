//! Memory that several processes map, divided into one area per rank. All `unsafe` code of this
//! crate is in this folder.
//!
//! ```text
//! area of a rank:  flag "arrived" | flag "reduced" | header, twice | ... one page
//!                  input, twice:  one slot for every owner
//!                  output, twice: one slot
//! ```
//!
//! Only the rank itself writes to its area; the others read. Who may read or write which slot in
//! which round is the business of `rounds`.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
    memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use crate::header::HEADER_LEN;

const PAGE: usize = 4096;
/// Bytes of input of one rank in one round, in all: small enough for the second-level cache.
const ROUND: usize = 512 << 10;
const HEADERS: usize = 256;
/// Nobody can cut the memory short: reading behind its end would be a signal.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A counter that others wait for. Two cache lines, so that sleepers do not disturb it.
#[repr(C, align(64))]
pub(crate) struct Flag {
    value: AtomicU32,
    apart: [u32; 15],
    sleepers: AtomicU32,
    end: [u32; 15],
}

impl Flag {
    /// Whether `value` has been published; counters may wrap around.
    #[inline]
    pub(crate) fn has_reached(&self, value: u32) -> bool {
        self.value.load(Ordering::Acquire).wrapping_sub(value) as i32 >= 0
    }

    /// Publishes what was written before.
    #[inline]
    pub(crate) fn publish(&self, value: u32) {
        // Sequentially consistent, as in `sleep`: either the sleeper sees the value or this rank
        // sees the sleeper.
        self.value.store(value, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Fails only for addresses that are not mapped.
            let _ = futex::wake(&self.value, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Sleeps until something is published, or for `limit`; not at all if `value` has been.
    pub(crate) fn sleep(&self, value: u32, limit: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.value.load(Ordering::SeqCst);
        if (seen.wrapping_sub(value) as i32) < 0 {
            let limit = futex::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: limit.subsec_nanos().into(),
            };
            // Woken, changed in between, interrupted or timed out: the caller looks again.
            let _ = futex::wait(&self.value, futex::Flags::empty(), seen, Some(&limit));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The mapping, and where things are in it.
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    size: usize,
    slot: usize,
}

// SAFETY: the mapping belongs to no thread; what is in it is accessed through atomics, or through
// the `unsafe` methods whose callers keep readers and writers apart.
unsafe impl Send for Region {}

impl Region {
    /// Bytes of a slot, for `size` ranks.
    fn slot_for(size: usize) -> usize {
        (ROUND / size).next_multiple_of(PAGE)
    }

    fn stride(&self) -> usize {
        PAGE + 2 * self.size * self.slot + 2 * self.slot
    }

    /// New memory for `size` ranks, as a file without a name. It is reserved at once: memory that
    /// runs out later would be a signal, not an error.
    pub(crate) fn create(size: usize) -> io::Result<std::os::fd::OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("regatta-collective", flags)?;
        fallocate(&file, FallocateFlags::empty(), 0, Region::bytes(size) as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(file)
    }

    fn bytes(size: usize) -> usize {
        let slot = Region::slot_for(size);
        size * (PAGE + 2 * size * slot + 2 * slot)
    }

    /// Maps the memory made by [`create`](Region::create) for as many ranks.
    pub(crate) fn map(file: impl AsFd, size: usize) -> io::Result<Region> {
        let len = Region::bytes(size);
        if rustix::fs::fstat(&file)?.st_size as u64 != len as u64 {
            return Err(io::Error::other("the shared memory has another size"));
        }
        if !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::Error::other("the shared memory can be cut short"));
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of this length.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { base, len, size, slot: Region::slot_for(size) })
    }

    /// Bytes of one slot.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Counts the rounds in which `rank` has delivered its input.
    #[inline]
    pub(crate) fn arrived(&self, rank: usize) -> &Flag {
        self.flag(rank, 0)
    }

    /// Counts the rounds of which `rank` has delivered its output.
    #[inline]
    pub(crate) fn reduced(&self, rank: usize) -> &Flag {
        self.flag(rank, size_of::<Flag>())
    }

    #[inline]
    fn flag(&self, rank: usize, at: usize) -> &Flag {
        let at = self.at(rank, at, size_of::<Flag>());
        // SAFETY: inside the mapping and aligned; its fields are atomics, zero at first.
        unsafe { at.cast::<Flag>().as_ref() }
    }

    /// The address of `len` bytes at `offset` of the area of `rank`.
    #[inline]
    fn at(&self, rank: usize, offset: usize, len: usize) -> NonNull<u8> {
        assert!(rank < self.size && offset + len <= self.stride(), "inside the area of a rank");
        // SAFETY: `stride` times `size` is the length of the mapping.
        unsafe { self.base.add(rank * self.stride() + offset) }
    }

    fn input_at(&self, round: u32, owner: usize) -> usize {
        PAGE + (round as usize % 2 * self.size + owner) * self.slot
    }

    fn output_at(&self, round: u32) -> usize {
        PAGE + (2 * self.size + round as usize % 2) * self.slot
    }

    fn header_at(round: u32) -> usize {
        HEADERS + round as usize % 2 * HEADER_LEN
    }

    /// The header of `rank` in `round`.
    ///
    /// # Safety
    /// Nobody may write it meanwhile.
    #[inline]
    pub(crate) unsafe fn header(&self, rank: usize, round: u32) -> &[u8; HEADER_LEN] {
        let at = self.at(rank, Region::header_at(round), HEADER_LEN);
        // SAFETY: inside the mapping; the caller keeps writers away.
        unsafe { at.cast().as_ref() }
    }

    /// # Safety
    /// Nobody may read or write it meanwhile.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller has the only access, see Safety")]
    pub(crate) unsafe fn header_mut(&self, rank: usize, round: u32) -> &mut [u8; HEADER_LEN] {
        let at = self.at(rank, Region::header_at(round), HEADER_LEN);
        // SAFETY: inside the mapping; the caller has the only access.
        unsafe { at.cast().as_mut() }
    }

    /// The first `len` bytes of the input of `rank` for `owner`; the slots of the owners follow
    /// each other.
    ///
    /// # Safety
    /// Nobody may write them meanwhile.
    #[inline]
    pub(crate) unsafe fn input(&self, rank: usize, round: u32, owner: usize, len: usize) -> &[u8] {
        let at = self.at(rank, self.input_at(round, owner), len);
        // SAFETY: inside the mapping; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }
    }

    /// # Safety
    /// Nobody may read or write them meanwhile.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller has the only access, see Safety")]
    pub(crate) unsafe fn input_mut(
        &self,
        rank: usize,
        round: u32,
        owner: usize,
        len: usize,
    ) -> &mut [u8] {
        let at = self.at(rank, self.input_at(round, owner), len);
        // SAFETY: inside the mapping; the caller has the only access.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
    }

    /// The first `len` bytes of the output of `rank`.
    ///
    /// # Safety
    /// Nobody may write them meanwhile.
    #[inline]
    pub(crate) unsafe fn output(&self, rank: usize, round: u32, len: usize) -> &[u8] {
        let at = self.at(rank, self.output_at(round), len);
        // SAFETY: inside the mapping; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }
    }

    /// # Safety
    /// Nobody may read or write them meanwhile.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller has the only access, see Safety")]
    pub(crate) unsafe fn output_mut(&self, rank: usize, round: u32, len: usize) -> &mut [u8] {
        let at = self.at(rank, self.output_at(round), len);
        // SAFETY: inside the mapping; the caller has the only access.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, with this length; nothing borrowed from it outlives it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_can_be_cut_short_is_not_mapped() {
        let file = Region::create(2).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it is sealed");
        assert!(Region::map(&file, 2).is_ok());
        let open = memfd_create("open", MemfdFlags::CLOEXEC).unwrap();
        fallocate(&open, FallocateFlags::empty(), 0, Region::bytes(2) as u64).unwrap();
        let Err(error) = Region::map(&open, 2) else { panic!("it can be cut short") };
        assert!(error.to_string().contains("cut short"), "{error}");
    }
}
