//! The bytes of a table's file. All numbers are little-endian.
//!
//! ```text
//! head    magic, version, length of the description, description as JSON, zeros up to 64 bytes
//! blocks  up to BLOCK_BYTES of rows of one kind each: ids | what they are | words | zeros up to 8
//! index   one entry of 48 bytes per block: where it is, its ids, its checksum
//! end     128 bytes: counts, where the index is, checksum of the head, checksum of index and end
//! ```
//!
//! Rows of one kind stand in the order of [`row_order`](regatta_table::row_order) throughout the
//! file and have one size, so a row is found by two binary searches. The last checksum covers the
//! index, which holds those of the blocks, and the head: it stands for the whole file.

use regatta_table::SaveMode;
use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;

pub(crate) const MAGIC: [u8; 8] = *b"regatta\x01";
pub(crate) const END_MAGIC: [u8; 8] = *b"regatta\x02";
/// Magic, version and length of the description.
pub(crate) const FIXED_HEAD: usize = 16;
/// Longest description that is believed.
pub(crate) const MAX_DESCRIPTION: usize = 1 << 20;
/// About how large a block is: small enough to stay in a processor's cache on its way.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
pub(crate) const INDEX_ENTRY: usize = 48;
pub(crate) const END: usize = 128;

/// What a table's file says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableHeader {
    /// Name of the table.
    pub table: String,
    /// Names and lengths of the parts of a full row.
    pub parts: Vec<(String, usize)>,
    /// Words of a row in its first stage.
    pub base_len: usize,
    /// Which rows it holds.
    pub mode: SaveMode,
    /// Whether it holds changes only.
    pub delta: bool,
    /// The day of the table, from which days without a push count back.
    pub day: u32,
}

impl TableHeader {
    /// Words of a full row.
    pub fn full_len(&self) -> usize {
        self.parts.iter().map(|(_, len)| len).sum()
    }

    /// Words of a row of a kind.
    pub(crate) fn words(&self, kind: RowKind) -> usize {
        match kind {
            RowKind::Base => self.base_len,
            RowKind::Extended => self.full_len(),
            RowKind::Candidate => 1,
            RowKind::Removed => 0,
        }
    }

    /// What makes no sense in it.
    pub(crate) fn problem(&self) -> Option<String> {
        let full = self.parts.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len));
        match full {
            Some(full) if self.base_len <= full && full <= 1 << 20 => None,
            _ => Some(format!("rows of {} words of {full:?}", self.base_len)),
        }
    }
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// Rows of one stage, or in their first stage.
    Base = 0,
    /// Rows in their second stage.
    Extended = 1,
    /// Ids that wait for admission; their word is the number of appearances.
    Candidate = 2,
    /// Ids that are gone.
    Removed = 3,
}

impl RowKind {
    pub(crate) const ALL: [RowKind; 4] =
        [RowKind::Base, RowKind::Extended, RowKind::Candidate, RowKind::Removed];

    fn from_number(number: u32) -> Option<RowKind> {
        RowKind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// Days of a row in what stands beside its id; above them whether it has changed.
pub(crate) const DAYS: u32 = (1 << 24) - 1;
pub(crate) const CHANGED: u32 = 1 << 24;

/// An entry of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) n_rows: u32,
    pub(crate) kind: RowKind,
    pub(crate) bytes: u32,
    pub(crate) checksum: Checksum,
}

impl Block {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_le_bytes());
        out.extend(self.first.to_le_bytes());
        out.extend(self.last.to_le_bytes());
        out.extend(self.n_rows.to_le_bytes());
        out.extend((self.kind as u32).to_le_bytes());
        out.extend(u64::from(self.bytes).to_le_bytes());
        out.extend(self.checksum.0.to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8; INDEX_ENTRY]) -> Option<Block> {
        Some(Block {
            offset: u64_at(bytes, 0),
            first: u64_at(bytes, 8),
            last: u64_at(bytes, 16),
            n_rows: u32_at(bytes, 24),
            kind: RowKind::from_number(u32_at(bytes, 28))?,
            bytes: u32::try_from(u64_at(bytes, 32)).ok()?,
            checksum: Checksum(u64_at(bytes, 40)),
        })
    }
}

/// The last bytes of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) n_blocks: u64,
    pub(crate) index_offset: u64,
    pub(crate) head_checksum: Checksum,
    /// Rows of each kind.
    pub(crate) counts: [u64; 4],
}

impl End {
    /// The bytes up to the checksum of index and end.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(END);
        out.extend(self.n_blocks.to_le_bytes());
        out.extend(self.index_offset.to_le_bytes());
        out.extend(self.head_checksum.0.to_le_bytes());
        self.counts.iter().for_each(|count| out.extend(count.to_le_bytes()));
        out.resize(END - 16, 0);
        out
    }

    pub(crate) fn decode(bytes: &[u8; END]) -> End {
        End {
            n_blocks: u64_at(bytes, 0),
            index_offset: u64_at(bytes, 8),
            head_checksum: Checksum(u64_at(bytes, 16)),
            counts: [24, 32, 40, 48].map(|at| u64_at(bytes, at)),
        }
    }
}

/// Bytes of a block of this many rows.
pub(crate) fn block_bytes(n_rows: usize, words: usize) -> usize {
    words_offset(n_rows) + (n_rows * words * 4).next_multiple_of(8)
}

/// Where the words of a block begin.
pub(crate) fn words_offset(n_rows: usize) -> usize {
    n_rows * 8 + (n_rows * 4).next_multiple_of(8)
}

/// Rows in a full block.
pub(crate) fn rows_per_block(words: usize) -> usize {
    (BLOCK_BYTES / (12 + words * 4)).max(1)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}
