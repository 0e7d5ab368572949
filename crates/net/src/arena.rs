//! Memory that both ends of a Unix socket map: a payload there is not copied into the
//! kernel and out again, only its slot is sent. All `unsafe` code of this crate is here.
//!
//! Each end makes one [`Arena`] per connection for what it sends, and hands the other end the file
//! behind it in its first frame.
//!
//! ```text
//! one page: for every slot, how often it is lent | slot 0 | slot 1 | ...
//! ```
//!
//! A slot belongs to one [`Slot`] of the sender, which fills it, and is lent with every frame that
//! names it. The receiver's [`Loan`] gives it back when it is dropped. The sender takes a slot
//! again when it has no owner and is not lent. Pages that were never written take no memory.
//!
//! Why: a header travels through the Unix socket and names a slot that the sender has filled and
//! the receiver reads in place, so the kernel copies nothing. No figure was kept when this was
//! added (2026-11-16). To measure: `bench/compare/run --only keys-52000` with Unix sockets and with
//! TCP loopback, or `cargo bench -p regatta-net --bench wire`.
#![expect(
    unsafe_code,
    reason = "memory shared with another process; every block says why it is sound"
)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::frame::{Header, kind};
use crate::stream::Stream;

const SLOTS: usize = 8;
const PAGE: usize = 4096;
/// Bytes of a slot: larger payloads are sent through the socket.
const SLOT: usize = 64 << 20;
const BYTES: usize = PAGE + SLOTS * SLOT;
/// Smaller payloads are sent through the socket, which is as fast and needs no slot.
const SMALLEST: usize = 32 << 10;

/// The mapping, the same at both ends.
struct Memory(MmapRaw);

// The counters are in the first page, the slots behind it.
const _: () = assert!(SLOTS * size_of::<AtomicU32>() <= PAGE);

impl Memory {
    fn map(file: &OwnedFd) -> io::Result<Memory> {
        Ok(Memory(MmapOptions::new().len(BYTES).map_raw(file)?))
    }

    /// How many frames with this slot the receiver has not dropped.
    fn lent(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < SLOTS, "slot {slot}");
        // SAFETY: inside the first page of the mapping and aligned; zero at first, and both ends
        // access it only as an atomic.
        unsafe { &*self.0.as_ptr().cast::<AtomicU32>().add(slot) }
    }

    fn start(&self, slot: usize) -> *mut u8 {
        assert!(slot < SLOTS, "slot {slot}");
        // SAFETY: inside the mapping, which has a page and `SLOTS` slots.
        unsafe { self.0.as_mut_ptr().add(PAGE + slot * SLOT) }
    }
}

/// The sending end.
pub(crate) struct Arena {
    memory: Memory,
    /// A bit for every slot that has an owner.
    owned: AtomicU32,
}

impl Arena {
    /// A new arena and the file that the other end needs.
    fn create() -> io::Result<(Arc<Arena>, OwnedFd)> {
        let file = new_file()?;
        let arena = Arena { memory: Memory::map(&file)?, owned: AtomicU32::new(0) };
        Ok((Arc::new(arena), file))
    }

    /// Shares a new arena with the far end of a new connection, on which nothing else is being
    /// sent; `None` where that cannot be.
    pub(crate) fn share(stream: &dyn Stream, sender: u32) -> io::Result<Option<Arc<Arena>>> {
        let Ok((arena, file)) = Arena::create() else { return Ok(None) };
        let header = Header { kind: kind::ARENA, sender, ..Header::default() }.encode();
        match stream.write_with_file(&header, file.as_fd()) {
            Ok(()) => Ok(Some(arena)),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Room for a payload of this size, if it should travel this way and a slot is free.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Slot> {
        if !(SMALLEST..=SLOT).contains(&bytes) {
            return None;
        }
        // The lowest one, whose pages are there already.
        (0..SLOTS).find(|&slot| self.try_own(slot)).map(|slot| Slot { arena: self.clone(), slot })
    }

    fn try_own(&self, slot: usize) -> bool {
        let bit = 1 << slot;
        if self.owned.fetch_or(bit, Ordering::Acquire) & bit != 0 {
            return false;
        }
        // Pairs with the end of a loan: what the receiver read was read before this.
        let free = self.memory.lent(slot).load(Ordering::Acquire) == 0;
        if !free {
            self.owned.fetch_and(!bit, Ordering::Release);
        }
        free
    }
}

/// A file without a name that nobody can cut short: reading behind its end would be a signal.
#[cfg(target_os = "linux")]
fn new_file() -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("regatta-payloads", flags)?;
    ftruncate(&file, BYTES as u64)?;
    fcntl_add_seals(&file, seals())?;
    Ok(file)
}

#[cfg(target_os = "linux")]
fn seals() -> rustix::fs::SealFlags {
    use rustix::fs::SealFlags;
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

#[cfg(target_os = "linux")]
fn check_file(file: &OwnedFd) -> io::Result<()> {
    use rustix::fs::{fcntl_get_seals, fstat};
    if fstat(file)?.st_size as u64 != BYTES as u64 {
        return Err(io::Error::other("the shared memory has another size"));
    }
    if fcntl_get_seals(file)? != seals() {
        return Err(io::Error::other("the shared memory is not sealed"));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn new_file() -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn check_file(_: &OwnedFd) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A slot that one buffer of the sender owns.
pub(crate) struct Slot {
    arena: Arc<Arena>,
    slot: usize,
}

impl Slot {
    /// Lends it, if it is of this arena; to be called for every frame that names it.
    pub(crate) fn lend(&self, arena: &Arc<Arena>) -> Option<u32> {
        if !Arc::ptr_eq(&self.arena, arena) {
            return None;
        }
        arena.memory.lent(self.slot).fetch_add(1, Ordering::Relaxed);
        Some(self.slot as u32)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a slot inside the mapping. Only its owner writes it, which is borrowed here; the
        // receiver only reads.
        unsafe { std::slice::from_raw_parts(self.arena.memory.start(self.slot), SLOT) }
    }

    /// The caller must not have lent it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let lent = self.arena.memory.lent(self.slot).load(Ordering::Acquire);
        assert!(lent == 0, "a payload that was sent is changed");
        // SAFETY: a slot inside the mapping. It has this owner alone, which is borrowed here, and
        // no receiver has it now; it gets one only through the owner.
        unsafe { std::slice::from_raw_parts_mut(self.arena.memory.start(self.slot), SLOT) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.arena.owned.fetch_and(!(1 << self.slot), Ordering::Release);
    }
}

/// The arena of the other end.
pub(crate) struct PeerArena(Memory);

impl PeerArena {
    pub(crate) fn open(file: &OwnedFd) -> io::Result<Arc<PeerArena>> {
        check_file(file)?;
        Ok(Arc::new(PeerArena(Memory::map(file)?)))
    }

    /// The payload of a frame that names this slot; `None` if there is no such payload.
    pub(crate) fn loan(self: &Arc<Self>, slot: u32, len: usize) -> Option<Loan> {
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < SLOTS)?;
        let lent = self.0.lent(slot).load(Ordering::Acquire) > 0;
        (lent && len <= SLOT).then(|| Loan { arena: self.clone(), slot, len })
    }
}

/// A received payload.
pub(crate) struct Loan {
    arena: Arc<PeerArena>,
    slot: usize,
    len: usize,
}

impl Loan {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping, of a file that cannot shrink. The sender, a process of this
        // job that has proven its token, does not write a slot while it is lent.
        unsafe { std::slice::from_raw_parts(self.arena.0.start(self.slot), self.len) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.arena.0.lent(self.slot).fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_taken_again_when_it_has_no_owner_and_is_not_lent() {
        let (arena, file) = Arena::create().unwrap();
        let peer = PeerArena::open(&file).unwrap();
        let mut slot = arena.take(SMALLEST).unwrap();
        slot.bytes_mut()[..3].copy_from_slice(b"abc");
        let number = slot.lend(&arena).unwrap();
        drop(slot);
        let others: Vec<Slot> = (1..SLOTS).map(|_| arena.take(SLOT).unwrap()).collect();
        assert!(arena.take(SMALLEST).is_none(), "the last one is lent");
        let loan = peer.loan(number, 3).unwrap();
        assert_eq!(loan.bytes(), b"abc");
        drop(loan);
        assert_eq!(arena.take(SMALLEST).unwrap().slot, number as usize);
        drop(others);
        assert_eq!(arena.owned.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_nobody_lent_is_no_payload() {
        let (arena, file) = Arena::create().unwrap();
        let (other, _) = Arena::create().unwrap();
        let peer = PeerArena::open(&file).unwrap();
        assert!(arena.take(SMALLEST - 1).is_none() && arena.take(SLOT + 1).is_none());
        let slot = arena.take(SLOT).unwrap();
        assert!(peer.loan(0, 1).is_none());
        assert!(slot.lend(&other).is_none(), "the receiver does not know it");
        slot.lend(&arena).unwrap();
        assert!(peer.loan(0, SLOT + 1).is_none() && peer.loan(SLOTS as u32, 1).is_none());
        assert!(peer.loan(u32::MAX, 1).is_none());
        assert_eq!(peer.loan(0, SLOT).unwrap().bytes().len(), SLOT);
    }

    #[test]
    fn files_that_could_shrink_or_are_too_short_are_refused() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let loose = memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
        assert!(PeerArena::open(&loose).is_err());
        ftruncate(&loose, BYTES as u64).unwrap();
        let refused = PeerArena::open(&loose).err().unwrap().to_string();
        assert!(refused.contains("not sealed"), "{refused}");
    }
}
