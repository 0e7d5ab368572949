//! A file that is read once, from front to back: a place in it goes in, its bytes come out.
//!
//! What is in the page cache is taken from there. The rest is read past it, straight into the
//! buffer: a table that is loaded should not drive other files out of memory, and on a machine that
//! must first ask its host for memory, filling the cache takes several times as long as the disk.
//! Systems and file systems that cannot do that read as usual.

use std::fs::File;
use std::io;
use std::path::Path;

/// Places in the file and in memory are multiples of this when the cache is left out.
const ALIGN: usize = 4096;

pub(crate) struct ReadOnce {
    file: File,
    /// The same file, past the cache.
    direct: Option<File>,
}

impl ReadOnce {
    pub(crate) fn open(path: &Path) -> io::Result<ReadOnce> {
        let file = File::open(path)?;
        will_read_in_order(&file);
        Ok(ReadOnce { file, direct: open_direct(path) })
    }

    /// Reads `len` bytes; says with which word of `memory` they begin. `offset` is that of a word.
    pub(crate) fn read(&self, memory: &mut Vec<u64>, offset: u64, len: usize) -> io::Result<usize> {
        let before = offset as usize % ALIGN;
        let span = (before + len).next_multiple_of(ALIGN);
        memory.resize((span + ALIGN) / 8, 0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory);
        let aligned = bytes.as_ptr().align_offset(ALIGN);
        let first = aligned + before;
        let wanted = first..first + len;
        let done = self.direct.as_ref().is_some_and(|direct| {
            read_cached(&self.file, &mut bytes[wanted.clone()], offset)
                || read_direct(direct, &mut bytes[aligned..aligned + span], offset - before as u64)
                    >= before + len
        });
        if !done {
            super::read::read_at(&self.file, &mut bytes[wanted], offset)?;
        }
        Ok(first / 8)
    }
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};
    open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT, Mode::empty())
        .ok()
        .map(File::from)
}

/// Whether all of it was in the page cache.
#[cfg(target_os = "linux")]
fn read_cached(file: &File, bytes: &mut [u8], offset: u64) -> bool {
    use rustix::io::{ReadWriteFlags, preadv2};
    let len = bytes.len();
    let bufs = &mut [io::IoSliceMut::new(bytes)];
    preadv2(file, bufs, offset, ReadWriteFlags::NOWAIT) == Ok(len)
}

/// How much came. Less than there is, or nothing after an error, is read again as usual.
#[cfg(target_os = "linux")]
fn read_direct(file: &File, bytes: &mut [u8], offset: u64) -> usize {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset).unwrap_or(0)
}

#[cfg(target_os = "linux")]
fn will_read_in_order(file: &File) {
    use rustix::fs::{Advice, fadvise};
    // Reading is right without it, only slower.
    let _ = fadvise(file, 0, None, Advice::Sequential);
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
fn read_cached(_: &File, _: &mut [u8], _: u64) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn read_direct(_: &File, _: &mut [u8], _: u64) -> usize {
    0
}

#[cfg(not(target_os = "linux"))]
fn will_read_in_order(_: &File) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// On disk and not in the cache, so that both ways are taken.
    #[test]
    fn bytes_are_those_of_the_file_wherever_they_are() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut memory = Vec::new();
        for cached in [true, false] {
            for (offset, len) in [(0, 8), (8, 4096), (4096, 4096), (5000, 60_000), (99_992, 8)] {
                if !cached {
                    forget(&path);
                }
                let file = ReadOnce::open(&path).unwrap();
                let first = file.read(&mut memory, offset, len).unwrap();
                let read = &bytemuck::cast_slice::<u64, u8>(&memory)[first * 8..][..len];
                assert_eq!(read, &bytes[offset as usize..][..len], "{len} bytes at {offset}");
            }
        }
        let file = ReadOnce::open(&path).unwrap();
        let past = file.read(&mut memory, 99_000, 4096);
        assert_eq!(past.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[cfg(target_os = "linux")]
    fn forget(path: &Path) {
        use rustix::fs::{Advice, fadvise};
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }

    #[cfg(not(target_os = "linux"))]
    fn forget(_: &Path) {}
}
