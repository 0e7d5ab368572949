//! Checksums: bytes go in, 64 bits come out (XXH3). Fast enough to be computed on the way to disk.

use std::fmt;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, Write};
use std::path::Path;

use regatta_tensor::Tensor;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::tensors::element_bytes;

/// The XXH3 hash of some bytes, written as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Checksum(pub u64);

impl Checksum {
    /// The checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(XxHash3_64::oneshot(bytes))
    }

    /// The checksum of the elements of a tensor, whatever its shape.
    pub fn of_elements(tensor: &Tensor) -> Checksum {
        Checksum::of(element_bytes(tensor))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> String {
        checksum.to_string()
    }
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(text: String) -> Result<Checksum, String> {
        // As it is written, to the bit: capital letters are damage, too.
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let valid = text.len() == 16 && text.bytes().all(is_digit);
        let parsed = u64::from_str_radix(&text, 16).ok().filter(|_| valid);
        parsed.map(Checksum).ok_or_else(|| format!("`{text}` is no checksum of 16 digits"))
    }
}

/// Size and checksum of a file, which need not fit into memory.
pub(crate) fn of_file(path: &Path) -> io::Result<(u64, Checksum)> {
    let mut summing = Summing::new(io::sink());
    io::copy(&mut BufReader::with_capacity(1 << 20, File::open(path)?), &mut summing)?;
    Ok(summing.sum())
}

/// What is wrong with something without a checksum.
pub(crate) const NO_CHECKSUM: &str = "it holds no checksum: an earlier version wrote it, or it is \
    damaged; `regatta verify --add-checksums` adds one to what is there now";

/// What is wrong with something of another checksum.
pub(crate) fn damaged(found: Checksum, expected: Checksum) -> String {
    format!("it is damaged: its checksum is {found}, not {expected}")
}

/// Passes bytes on, counting and summing them.
pub(crate) struct Summing<W> {
    inner: W,
    hasher: XxHash3_64,
    bytes: u64,
}

impl<W: Write> Summing<W> {
    pub(crate) fn new(inner: W) -> Self {
        Summing { inner, hasher: XxHash3_64::new(), bytes: 0 }
    }

    pub(crate) fn into_inner(self) -> W {
        self.inner
    }

    /// How many bytes went through, and their checksum.
    pub(crate) fn sum(&self) -> (u64, Checksum) {
        (self.bytes, Checksum(self.hasher.finish()))
    }
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hasher.write(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_fixed_and_comes_in_pieces_too() {
        // Published test vectors of XXH3 without a seed.
        assert_eq!(Checksum::of(b"").to_string(), "2d06800538d394c2");
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * i) as u8).collect();
        let mut summing = Summing::new(Vec::new());
        bytes.chunks(37).for_each(|chunk| summing.write_all(chunk).unwrap());
        assert_eq!(summing.sum(), (5000, Checksum::of(&bytes)));
        let text = String::from(Checksum(0xab));
        assert_eq!(text, "00000000000000ab");
        assert_eq!(Checksum::try_from(text), Ok(Checksum(0xab)));
        assert!(Checksum::try_from("ab".to_string()).is_err());
    }
}
