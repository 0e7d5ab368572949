//! Checksums of the blocks of a table's file, so that a file that is used where it is can be
//! verified block by block, when a block is first touched.
//!
//! `<file>.sums` holds the size of a block in bytes, then the XXH3 of each block: u64 numbers,
//! little-endian. The manifest lists it like any other file, with its own checksum.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::manifest::{ModelFile, ModelManifest};
use super::{check_file, write_listed};
use crate::checksum::{Checksum, damaged};
use crate::{Error, MANIFEST_FILE};

/// Bytes of a block: a few pages, so that a lookup in a file that is not in memory yet reads
/// little more than it needs. Its checksum is a 2048th of it.
const BLOCK_BYTES: usize = 16 << 10;

/// Name of the file of checksums of another file.
pub(super) fn sums_name(file: &str) -> String {
    format!("{file}.sums")
}

/// Sums up what is written, block by block.
#[derive(Debug, Default)]
pub(super) struct BlockWriter {
    block: Vec<u8>,
    sums: Vec<u64>,
}

impl BlockWriter {
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = bytes.len().min(BLOCK_BYTES - self.block.len());
            self.block.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if self.block.len() == BLOCK_BYTES {
                self.end_block();
            }
        }
    }

    fn end_block(&mut self) {
        self.sums.push(Checksum::of(&self.block).0);
        self.block.clear();
    }

    /// Writes the checksums of the file `name`.
    pub(super) fn finish(mut self, dir: &Path, name: &str) -> Result<ModelFile, Error> {
        if !self.block.is_empty() {
            self.end_block();
        }
        let numbers = [BLOCK_BYTES as u64].into_iter().chain(self.sums);
        let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        write_listed(dir, &sums_name(name), &bytes)
    }
}

/// The checksums of a file's blocks, and which of them were compared already.
#[derive(Debug)]
pub struct BlockSums {
    path: PathBuf,
    block_bytes: usize,
    sums: Vec<u64>,
    /// A bit for each block that is known to be good.
    verified: Vec<AtomicU64>,
}

impl BlockSums {
    /// The checksums of a file of a model; none if an earlier version wrote the model.
    ///
    /// # Errors
    /// If they cannot be read, are damaged or do not fit the file.
    pub fn open(
        dir: &Path,
        manifest: &ModelManifest,
        name: &str,
    ) -> Result<Option<BlockSums>, Error> {
        let own = sums_name(name);
        let Some(file) = manifest.file(name).filter(|_| manifest.file(&own).is_some()) else {
            return Ok(None);
        };
        let bytes = check_file(dir, manifest, &own)?;
        let mut numbers = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
        let block_bytes = numbers.next().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let sums: Vec<u64> = numbers.collect();
        if block_bytes == 0 || sums.len() as u64 != file.bytes.div_ceil(block_bytes as u64) {
            let (n, bytes) = (sums.len(), file.bytes);
            let reason =
                format!("{n} blocks of {block_bytes} bytes are not {name} ({bytes} bytes)");
            return Err(Error::corrupt(&dir.join(own), reason));
        }
        let verified = (0..sums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Some(BlockSums { path: dir.join(name), block_bytes, sums, verified }))
    }

    /// The bytes of the blocks that hold `range` and were not compared yet, if any.
    #[inline]
    pub fn untouched(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let (first, last) = (range.start / self.block_bytes, (range.end - 1) / self.block_bytes);
        let known = (first..=last).all(|block| self.is_verified(block));
        (!known).then(|| first * self.block_bytes..(last + 1) * self.block_bytes)
    }

    #[inline]
    fn is_verified(&self, block: usize) -> bool {
        // Bytes do not change, and a bit says nothing of other memory: no order is needed.
        self.verified[block / 64].load(Ordering::Relaxed) >> (block % 64) & 1 == 1
    }

    /// Compares the blocks that hold `range` with their checksums; `all` is the whole file. Each
    /// is compared once.
    ///
    /// # Errors
    /// If one is damaged: file and block are named, and it stays an error.
    pub fn verify(&self, all: &[u8], range: &Range<usize>) -> Result<(), Error> {
        let Some(bytes) = self.untouched(range) else { return Ok(()) };
        let (first, end) = (bytes.start / self.block_bytes, bytes.end / self.block_bytes);
        for block in (first..end).filter(|block| !self.is_verified(*block)) {
            let from = block * self.block_bytes;
            let to = all.len().min(from + self.block_bytes);
            let (found, expected) = (Checksum::of(&all[from..to]), Checksum(self.sums[block]));
            if found != expected {
                let what = damaged(found, expected);
                let reason = format!("block {block} (bytes {from} to {to}): {what}");
                return Err(Error::corrupt(&self.path, reason));
            }
            self.verified[block / 64].fetch_or(1 << (block % 64), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Compares a whole file with the checksum in the manifest: what models of earlier versions have.
///
/// # Errors
/// If it is damaged, or not listed.
pub fn verify_whole(
    dir: &Path,
    manifest: &ModelManifest,
    name: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    let Some(file) = manifest.file(name) else {
        return Err(Error::corrupt(&dir.join(MANIFEST_FILE), format!("it does not list '{name}'")));
    };
    match Checksum::of(bytes) {
        found if found == file.checksum => Ok(()),
        found => Err(Error::corrupt(&dir.join(name), damaged(found, file.checksum))),
    }
}
