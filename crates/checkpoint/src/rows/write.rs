//! Rows go in, in order, and a file grows block by block; memory stays at a few blocks.
//!
//! A row is copied once, to its place in its block; the block goes to disk from there.

use std::path::{Path, PathBuf};

use regatta_table::{Row, RowBody, row_order};

use super::behind::{Buffer, WriteBehind};
use super::layout::{
    Block, CHANGED, DAYS, END_MAGIC, End, FIXED_HEAD, MAGIC, RowKind, TableHeader, block_bytes,
    rows_per_block, words_offset,
};
use crate::checksum::Checksum;
use crate::manifest::{Content, Part};
use crate::parts::create_part;
use crate::{Error, FORMAT_VERSION};

/// Writes the rows of one table of one participant into a draft.
#[derive(Debug)]
pub struct TableWriter {
    name: String,
    path: PathBuf,
    file: WriteBehind,
    header: TableHeader,
    head_checksum: Checksum,
    at: u64,
    open: [OpenBlock; 4],
    /// Blocks that wait for [`write_full`](Self::write_full), and memory for the next ones.
    full: Vec<FullBlock>,
    empty: Vec<Buffer>,
    index: Vec<u8>,
    n_blocks: u64,
    counts: [u64; 4],
}

/// Rows of one kind that wait for their block to be full.
#[derive(Debug, Default)]
struct OpenBlock {
    /// Laid out as a full block.
    buffer: Buffer,
    n_rows: usize,
    /// The first order number of this block.
    first: u64,
    /// The last order number of this kind so far, in this block or before.
    last: Option<u64>,
    rows_per_block: usize,
    /// Words of a row.
    width: usize,
}

/// A block that is ready to be written.
#[derive(Debug)]
struct FullBlock {
    kind: RowKind,
    n_rows: usize,
    first: u64,
    last: u64,
    buffer: Buffer,
}

impl OpenBlock {
    fn new(width: usize) -> OpenBlock {
        OpenBlock { rows_per_block: rows_per_block(width), width, ..OpenBlock::default() }
    }

    /// Puts a row at its place in the columns.
    #[inline]
    fn push(&mut self, key: u64, about: u32, words: &[f32]) {
        let (at, full) = (self.n_rows, self.rows_per_block);
        let memory = &mut self.buffer.memory;
        if at == 0 {
            memory.resize(block_bytes(full, self.width) / 8, 0);
        }
        let (keys, rest) = memory.split_at_mut(full);
        let (abouts, rest) = rest.split_at_mut(words_offset(full) / 8 - full);
        keys[at] = key;
        bytemuck::cast_slice_mut::<u64, u32>(abouts)[at] = about;
        let to = &mut bytemuck::cast_slice_mut::<u64, f32>(rest)[at * self.width..][..self.width];
        copy_words(words, to);
        self.n_rows += 1;
    }

    /// Takes the block as it is in the file, and continues with other memory.
    fn take(&mut self, next: Buffer) -> Buffer {
        let mut buffer = std::mem::replace(&mut self.buffer, next);
        let (n, full, width) = (self.n_rows, self.rows_per_block, self.width);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut buffer.memory);
        buffer.len = block_bytes(n, width);
        if n < full {
            bytes.copy_within(full * 8..full * 8 + n * 4, n * 8);
            let from = words_offset(full);
            bytes.copy_within(from..from + n * width * 4, words_offset(n));
        }
        bytes[n * 12..words_offset(n)].fill(0);
        bytes[words_offset(n) + n * width * 4..buffer.len].fill(0);
        self.n_rows = 0;
        buffer
    }
}

impl TableWriter {
    /// Begins the part `name` in a draft.
    ///
    /// # Errors
    /// If the name is no file name, the description makes no sense, or the file cannot be written.
    pub fn create(draft: &Path, name: &str, header: TableHeader) -> Result<TableWriter, Error> {
        if let Some(problem) = header.problem() {
            return Err(Error::refused(draft, format!("{name}: {problem}")));
        }
        let (path, file) = create_part(draft, name)?;
        let head = encode_head(&header).map_err(|reason| Error::refused(&path, reason))?;
        let file = WriteBehind::new(file).map_err(Error::io("write", &path))?;
        let open = RowKind::ALL.map(|kind| OpenBlock::new(header.words(kind)));
        let mut writer = TableWriter {
            name: name.to_string(),
            path,
            file,
            header,
            head_checksum: Checksum::of(&head),
            at: 0,
            open,
            full: Vec::new(),
            empty: Vec::new(),
            index: Vec::new(),
            n_blocks: 0,
            counts: [0; 4],
        };
        writer.put_bytes(&head)?;
        Ok(writer)
    }

    /// Appends a row. Rows of one kind come in the order of [`row_order`].
    ///
    /// # Errors
    /// If the row has another length than the description says or comes out of order, or the file
    /// cannot be written.
    pub fn write(&mut self, row: &Row<'_>) -> Result<(), Error> {
        self.add(row)?;
        self.write_full()
    }

    /// As [`write`](Self::write), but never waits for the disk: blocks that become full do.
    pub(crate) fn add(&mut self, row: &Row<'_>) -> Result<(), Error> {
        let about = row.unseen_days & DAYS | if row.changed { CHANGED } else { 0 };
        match row.body {
            RowBody::Base(words) => self.push(RowKind::Base, row.key, about, words),
            RowBody::Extended(words) => self.push(RowKind::Extended, row.key, about, words),
            RowBody::Candidate { appearances } => {
                self.push(RowKind::Candidate, row.key, about, &[f32::from_bits(appearances)])
            }
        }
    }

    /// Appends an id that is gone since the checkpoint that this one builds on.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn remove(&mut self, key: u64) -> Result<(), Error> {
        self.push(RowKind::Removed, key, 0, &[])?;
        self.write_full()
    }

    #[inline]
    fn push(&mut self, kind: RowKind, key: u64, about: u32, words: &[f32]) -> Result<(), Error> {
        let (expected, order) = (self.header.words(kind), row_order(key));
        let open = &mut self.open[kind as usize];
        if words.len() != expected {
            let reason = format!("row {key} has {} words instead of {expected}", words.len());
            return Err(Error::refused(&self.path, reason));
        }
        if open.last.is_some_and(|last| last >= order) {
            return Err(Error::refused(&self.path, format!("row {key} comes out of order")));
        }
        if open.n_rows == 0 {
            open.first = order;
        }
        open.last = Some(order);
        open.push(key, about, words);
        if open.n_rows == open.rows_per_block {
            self.close(kind);
        }
        Ok(())
    }

    /// Ends the block of a kind, if it has rows.
    fn close(&mut self, kind: RowKind) {
        let open = &mut self.open[kind as usize];
        if let (n_rows @ 1.., first, Some(last)) = (open.n_rows, open.first, open.last) {
            let buffer = open.take(self.empty.pop().unwrap_or_default());
            self.full.push(FullBlock { kind, n_rows, first, last, buffer });
        }
    }

    /// Sends the blocks that are full on their way.
    pub(crate) fn write_full(&mut self) -> Result<(), Error> {
        for block in std::mem::take(&mut self.full) {
            let FullBlock { kind, n_rows, first, last, buffer } = block;
            let (offset, checksum) = (self.at, Checksum::of(buffer.bytes()));
            self.counts[kind as usize] += n_rows as u64;
            let (n_rows, bytes) = (n_rows as u32, buffer.len as u32);
            Block { offset, first, last, n_rows, kind, bytes, checksum }.encode(&mut self.index);
            self.n_blocks += 1;
            let empty = self.put(buffer)?;
            self.empty.push(empty);
        }
        Ok(())
    }

    /// Sends a buffer on its way; gives one to continue with.
    fn put(&mut self, buffer: Buffer) -> Result<Buffer, Error> {
        self.at += buffer.len as u64;
        self.file.put(buffer).map_err(Error::io("write", &self.path))
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut buffer = Buffer { memory: vec![0; bytes.len().div_ceil(8)], len: bytes.len() };
        bytemuck::cast_slice_mut(&mut buffer.memory)[..bytes.len()].copy_from_slice(bytes);
        self.put(buffer).map(|_| ())
    }

    /// Writes the index, forces the file to disk and gives its description.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<Part, Error> {
        RowKind::ALL.into_iter().for_each(|kind| self.close(kind));
        self.write_full()?;
        let (n_blocks, index_offset, counts) = (self.n_blocks, self.at, self.counts);
        let end = End { n_blocks, index_offset, head_checksum: self.head_checksum, counts };
        let mut tail = std::mem::take(&mut self.index);
        tail.extend(end.encode());
        let checksum = Checksum::of(&tail);
        tail.extend(checksum.0.to_le_bytes());
        tail.extend(END_MAGIC);
        self.put_bytes(&tail)?;
        self.file.finish().map_err(Error::io("write", &self.path))?;
        let [base, extended, candidates, removed] = counts;
        let (table, rows) = (self.header.table, base + extended);
        let content = Content::Table { table, rows, candidates, removed };
        Ok(Part { name: self.name, bytes: self.at, checksum, content })
    }
}

/// Copies a row; shorter than a call of the C library for the usual widths.
#[inline(always)]
fn copy_words(from: &[f32], to: &mut [f32]) {
    let (from8, from_rest) = from.as_chunks::<8>();
    let (to8, to_rest) = to.as_chunks_mut::<8>();
    from8.iter().zip(to8).for_each(|(from, to)| *to = *from);
    from_rest.iter().zip(to_rest).for_each(|(from, to)| *to = *from);
}

fn encode_head(header: &TableHeader) -> Result<Vec<u8>, String> {
    let description = serde_json::to_vec(header).map_err(|e| e.to_string())?;
    let len = u32::try_from(description.len()).map_err(|e| e.to_string())?;
    let mut head = Vec::with_capacity(FIXED_HEAD + description.len());
    head.extend(MAGIC);
    head.extend(FORMAT_VERSION.to_le_bytes());
    head.extend(len.to_le_bytes());
    head.extend(description);
    head.resize(head.len().next_multiple_of(64), 0);
    Ok(head)
}
