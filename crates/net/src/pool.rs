//! Buffers that are reused between requests.
//!
//! A fresh large allocation is page-faulted by the kernel on every request, which costs as much as
//! sending it; and a copy whose two ends differ by 1 to 31 bytes modulo a page is ten times slower
//! on some processors. So buffers start on a page and come back here when they are dropped. Those
//! of connections that share memory have their bytes there ([`crate::arena`]).

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::arena::{Arena, Loan, Slot};
use crate::sync::lock;

const PAGE: usize = 4096;
const SMALLEST: usize = PAGE;
/// Powers of two from 4 KiB to 1 TiB.
const CLASSES: usize = 29;

/// A set of free buffers, shared by clones.
///
/// One lock per size class, held for a push or a pop. What is kept is bounded by `max_kept_bytes`;
/// buffers beyond that are freed when they are dropped.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Shelves>,
}

struct Shelves {
    classes: [Mutex<Vec<Vec<u8>>>; CLASSES],
    kept_bytes: AtomicUsize,
    max_kept_bytes: usize,
    allocated: AtomicUsize,
}

impl Pool {
    /// A pool that keeps at most `max_kept_bytes` of unused buffers.
    pub fn new(max_kept_bytes: usize) -> Pool {
        Pool {
            inner: Arc::new(Shelves {
                classes: std::array::from_fn(|_| Mutex::new(Vec::new())),
                kept_bytes: AtomicUsize::new(0),
                max_kept_bytes,
                allocated: AtomicUsize::new(0),
            }),
        }
    }

    /// An empty buffer with room for at least `capacity` bytes.
    pub fn take(&self, capacity: usize) -> Buf {
        let class = class_of(capacity);
        let size = SMALLEST << class;
        let kept = lock(&self.inner.classes[class]).pop();
        let storage = match kept {
            Some(storage) => {
                self.inner.kept_bytes.fetch_sub(storage.len(), Ordering::Relaxed);
                storage
            }
            None => {
                self.inner.allocated.fetch_add(1, Ordering::Relaxed);
                // Zeroed by the system, and resident only where it is written.
                vec![0; size + PAGE]
            }
        };
        let start = storage.as_ptr().align_offset(PAGE).min(PAGE);
        Buf { storage: Storage::Own { bytes: storage, start }, len: 0, pool: self.clone() }
    }

    /// As [`take`](Pool::take), in memory that is shared with the other end of a connection if that
    /// has room.
    pub(crate) fn take_shared(&self, capacity: usize, arena: Option<&Arc<Arena>>) -> Buf {
        match arena.and_then(|arena| arena.take(capacity)) {
            Some(slot) => Buf { storage: Storage::Slot(slot), len: 0, pool: self.clone() },
            None => self.take(capacity),
        }
    }

    /// A payload in the other end's memory.
    pub(crate) fn received(&self, loan: Loan) -> Buf {
        let len = loan.bytes().len();
        Buf { storage: Storage::Loan(loan), len, pool: self.clone() }
    }

    /// How many buffers were allocated since the start. Does not grow in a steady state.
    pub fn allocated(&self) -> usize {
        self.inner.allocated.load(Ordering::Relaxed)
    }

    fn put_back(&self, storage: Vec<u8>) {
        if storage.is_empty() {
            return;
        }
        let size = storage.len();
        let kept = self.inner.kept_bytes.fetch_add(size, Ordering::Relaxed);
        if kept + size > self.inner.max_kept_bytes {
            self.inner.kept_bytes.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        lock(&self.inner.classes[class_of(size - PAGE)]).push(storage);
    }
}

impl Default for Pool {
    /// Keeps up to 256 MiB.
    fn default() -> Pool {
        Pool::new(256 << 20)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("kept_bytes", &self.inner.kept_bytes.load(Ordering::Relaxed))
            .field("allocated", &self.allocated())
            .finish()
    }
}

fn class_of(capacity: usize) -> usize {
    let size = capacity.max(SMALLEST).next_power_of_two();
    ((size / SMALLEST).trailing_zeros() as usize).min(CLASSES - 1)
}

/// A buffer from a [`Pool`]: bytes that start on a page boundary. Dropping it gives it back.
pub struct Buf {
    storage: Storage,
    len: usize,
    pool: Pool,
}

enum Storage {
    /// Of this process, with the index of the first byte on a page boundary.
    Own { bytes: Vec<u8>, start: usize },
    /// Shared with the receiver of what is written here.
    Slot(Slot),
    /// Shared with the sender of what is read here.
    Loan(Loan),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Own { bytes, start } => &bytes[*start..],
            Storage::Slot(slot) => slot.bytes(),
            Storage::Loan(loan) => loan.bytes(),
        }
    }

    /// What may be written to.
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Storage::Own { bytes, start } => &mut bytes[*start..],
            Storage::Slot(slot) => slot.bytes_mut(),
            Storage::Loan(_) => &mut [],
        }
    }
}

impl Buf {
    /// Appends `bytes`.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.grow(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `n_bytes` of unspecified content (earlier traffic, not zeros) and returns them to be
    /// written.
    pub fn grow(&mut self, n_bytes: usize) -> &mut [u8] {
        let old = self.len;
        let new = old + n_bytes;
        if new > self.storage.bytes_mut().len() {
            self.move_to(new);
        }
        self.len = new;
        &mut self.storage.bytes_mut()[old..new]
    }

    /// Makes it `len` bytes long, if it was longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Lends it to the receiver of a frame that will name this slot, if both ends have it.
    pub(crate) fn lend(&self, arena: &Arc<Arena>) -> Option<u32> {
        match &self.storage {
            Storage::Slot(slot) => slot.lend(arena),
            _ => None,
        }
    }

    /// Moves the content to a buffer of this process.
    fn move_to(&mut self, capacity: usize) {
        let mut other = self.pool.take(capacity);
        let len = self.len;
        other.storage.bytes_mut()[..len].copy_from_slice(self);
        other.len = len;
        *self = other;
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage.bytes()[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        if let Storage::Loan(_) = self.storage {
            self.move_to(self.len);
        }
        &mut self.storage.bytes_mut()[..self.len]
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Storage::Own { bytes, .. } = &mut self.storage {
            self.pool.put_back(std::mem::take(bytes));
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_on_a_page_and_are_reused() {
        let pool = Pool::default();
        for len in [0, 1, 4096, 4097, 360_000, 1_000_000] {
            for _ in 0..3 {
                let mut buf = pool.take(len);
                assert!(buf.is_empty());
                buf.grow(len).fill(7);
                assert_eq!(buf.as_ptr().align_offset(PAGE), 0);
                assert_eq!(buf.len(), len);
            }
        }
        // 0, 1 and 4096 share a class.
        assert_eq!(pool.allocated(), 4);
    }

    #[test]
    fn growing_keeps_the_content() {
        let pool = Pool::default();
        let mut buf = pool.take(0);
        let mut expected = Vec::new();
        for i in 0..3000u32 {
            buf.extend_from_slice(&i.to_le_bytes());
            expected.extend_from_slice(&i.to_le_bytes());
        }
        assert_eq!(&buf[..], &expected[..]);
        buf.truncate(5);
        assert_eq!(&buf[..], &expected[..5]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = Pool::new(100_000);
        let bufs: Vec<Buf> = (0..100).map(|_| pool.take(8000)).collect();
        drop(bufs);
        assert!(pool.inner.kept_bytes.load(Ordering::Relaxed) <= 100_000);
        let again: Vec<Buf> = (0..100).map(|_| pool.take(8000)).collect();
        assert_eq!(pool.inner.kept_bytes.load(Ordering::Relaxed), 0);
        assert!(pool.allocated() < 200, "some came back");
        drop(again);
    }
}
