//! How often a device was asked for what; tests and reports read it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since a device was opened.
#[derive(Debug, Default)]
pub struct Counters {
    launches: AtomicU64,
    uploads: AtomicU64,
    bytes_up: AtomicU64,
    downloads: AtomicU64,
    bytes_down: AtomicU64,
    copies: AtomicU64,
}

/// [`Counters`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels launched.
    pub launches: u64,
    /// Transfers from host memory to the device.
    pub uploads: u64,
    /// Their bytes.
    pub bytes_up: u64,
    /// Transfers from the device to host memory.
    pub downloads: u64,
    /// Their bytes.
    pub bytes_down: u64,
    /// Copies and fills within the device that are no launches.
    pub copies: u64,
}

impl Counters {
    pub(crate) fn launch(&self) {
        self.launches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn upload(&self, bytes: u64) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        self.bytes_up.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn download(&self, bytes: u64) {
        self.downloads.fetch_add(1, Ordering::Relaxed);
        self.bytes_down.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts now.
    pub fn now(&self) -> Counts {
        Counts {
            launches: self.launches.load(Ordering::Relaxed),
            uploads: self.uploads.load(Ordering::Relaxed),
            bytes_up: self.bytes_up.load(Ordering::Relaxed),
            downloads: self.downloads.load(Ordering::Relaxed),
            bytes_down: self.bytes_down.load(Ordering::Relaxed),
            copies: self.copies.load(Ordering::Relaxed),
        }
    }
}

impl Counts {
    /// What was counted after `earlier`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            launches: self.launches - earlier.launches,
            uploads: self.uploads - earlier.uploads,
            bytes_up: self.bytes_up - earlier.bytes_up,
            downloads: self.downloads - earlier.downloads,
            bytes_down: self.bytes_down - earlier.bytes_down,
            copies: self.copies - earlier.copies,
        }
    }
}
