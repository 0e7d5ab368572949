//! A temporary file mapped into memory: activations wait in it until their gradients come. The
//! system writes pages to disk when memory gets short, and reads them back when they are touched.
#![expect(unsafe_code, reason = "maps a file; every block says why it is sound")]

use std::io::{Read, Write};
use std::path::Path;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;

/// Bytes of an unnamed file, zeroed at first, whose address does not change.
pub(crate) struct MappedFile {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone, and bytes belong to no thread.
unsafe impl Send for MappedFile {}

impl MappedFile {
    /// Makes a file of `len` bytes, at least one, in a folder or else in the system's temporary
    /// folder, and maps it. It has no name and is gone when the mapping is.
    pub(crate) fn new(len: usize, folder: Option<&Path>) -> Result<MappedFile, Error> {
        let place = folder.map_or("the temporary folder".into(), |f| f.display().to_string());
        let failed = |what: &str, why: String| {
            Error::Options(format!(
                "offload: cannot {what} a file of {len} bytes in {place}: {why}"
            ))
        };
        let file = match folder {
            Some(folder) => tempfile::tempfile_in(folder),
            None => tempfile::tempfile(),
        };
        let mut file = file.map_err(|e| failed("create", e.to_string()))?;
        // Written out, so that a full disk is found now and not by a signal when a page is touched.
        std::io::copy(&mut std::io::repeat(0).take(len as u64), &mut file)
            .and_then(|_| file.flush())
            .map_err(|e| failed("write", e.to_string()))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no other memory. The
        // file has no name, so nobody else can shorten it under the mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) };
        let start = start.map_err(|e| failed("map", e.to_string()))?;
        let start = NonNull::new(start.cast());
        Ok(MappedFile { start: start.ok_or_else(|| failed("map", "address 0".into()))?, len })
    }

    /// Address of the first byte, to read from.
    pub(crate) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Address of the first byte, which is that of a page; the caller must stay within the length.
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped; no pointer into it outlives the segment.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
