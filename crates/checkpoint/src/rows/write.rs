//! Rows go in, in order, and a file grows block by block; memory stays at a few blocks.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use regatta_table::{Row, RowBody, row_order};

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
    file: File,
    header: TableHeader,
    head_checksum: Checksum,
    at: u64,
    open: [OpenBlock; 4],
    index: Vec<u8>,
    n_blocks: u64,
    counts: [u64; 4],
    /// The bytes of a block on their way.
    buffer: Vec<u8>,
}

/// Rows of one kind that wait for their block to be full.
#[derive(Debug, Default)]
struct OpenBlock {
    keys: Vec<u64>,
    about: Vec<u32>,
    words: Vec<f32>,
    /// The last order number of this kind so far, in this block or before.
    last: Option<u64>,
    rows_per_block: usize,
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
        let open = RowKind::ALL.map(|kind| OpenBlock {
            rows_per_block: rows_per_block(header.words(kind)),
            ..OpenBlock::default()
        });
        let mut writer = TableWriter {
            name: name.to_string(),
            path,
            file,
            header,
            head_checksum: Checksum::of(&head),
            at: 0,
            open,
            index: Vec::new(),
            n_blocks: 0,
            counts: [0; 4],
            buffer: Vec::new(),
        };
        writer.put(&head)?;
        Ok(writer)
    }

    /// Appends a row. Rows of one kind come in the order of [`row_order`].
    ///
    /// # Errors
    /// If the row has another length than the description says or comes out of order, or the file
    /// cannot be written.
    pub fn write(&mut self, row: &Row<'_>) -> Result<(), Error> {
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
        self.push(RowKind::Removed, key, 0, &[])
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
        open.last = Some(order);
        open.keys.push(key);
        open.about.push(about);
        open.words.extend_from_slice(words);
        if open.keys.len() == open.rows_per_block { self.flush(kind) } else { Ok(()) }
    }

    /// Writes the block of a kind and begins a new one.
    fn flush(&mut self, kind: RowKind) -> Result<(), Error> {
        let open = &mut self.open[kind as usize];
        let n = open.keys.len();
        let (Some(first), Some(last)) = (open.keys.first(), open.keys.last()) else {
            return Ok(());
        };
        let (first, last) = (row_order(*first), row_order(*last));
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend_from_slice(bytemuck::cast_slice(&open.keys));
        buffer.extend_from_slice(bytemuck::cast_slice(&open.about));
        buffer.resize(words_offset(n), 0);
        buffer.extend_from_slice(bytemuck::cast_slice(&open.words));
        buffer.resize(block_bytes(n, self.header.words(kind)), 0);
        open.keys.clear();
        open.about.clear();
        open.words.clear();
        let (offset, checksum) = (self.at, Checksum::of(&buffer));
        let (n_rows, bytes) = (n as u32, buffer.len() as u32);
        Block { offset, first, last, n_rows, kind, bytes, checksum }.encode(&mut self.index);
        self.n_blocks += 1;
        self.counts[kind as usize] += n as u64;
        self.put(&buffer)?;
        self.buffer = buffer;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::io("write", &self.path))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Writes the index, forces the file to disk and gives its description.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<Part, Error> {
        RowKind::ALL.into_iter().try_for_each(|kind| self.flush(kind))?;
        let (n_blocks, index_offset, counts) = (self.n_blocks, self.at, self.counts);
        let end = End { n_blocks, index_offset, head_checksum: self.head_checksum, counts };
        let mut tail = std::mem::take(&mut self.index);
        tail.extend(end.encode());
        let checksum = Checksum::of(&tail);
        tail.extend(checksum.0.to_le_bytes());
        tail.extend(END_MAGIC);
        self.put(&tail)?;
        self.file.sync_all().map_err(Error::io("write", &self.path))?;
        let [base, extended, candidates, removed] = counts;
        let (table, rows) = (self.header.table, base + extended);
        let content = Content::Table { table, rows, candidates, removed };
        Ok(Part { name: self.name, bytes: self.at, checksum, content })
    }
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
