//! A table's file goes in; blocks of checked rows come out, in any order and from several threads,
//! or single rows by their ids.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use regatta_table::{Row, RowBody, row_order};

use super::direct::ReadOnce;
use super::layout::{
    Block, CHANGED, DAYS, END, END_MAGIC, End, FIXED_HEAD, INDEX_ENTRY, MAGIC, MAX_DESCRIPTION,
    RowKind, TableHeader, block_bytes, u32_at, u64_at, words_offset,
};
use crate::checksum::Checksum;
use crate::manifest::Part;
use crate::{Error, FORMAT_VERSION};

/// An open table's file. Head, index and end are checked when it is opened, blocks when they are
/// read.
#[derive(Debug)]
pub struct TableReader {
    path: PathBuf,
    file: File,
    header: TableHeader,
    blocks: Vec<Block>,
    counts: [u64; 4],
    checksum: Checksum,
}

/// Memory for a block, used again for the next one.
#[derive(Debug, Default)]
pub struct BlockBuffer {
    /// As `u64`, so that every column is aligned.
    memory: Vec<u64>,
    /// Where the block begins in it.
    first: usize,
}

impl BlockBuffer {
    /// From the beginning of the block.
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.memory[self.first..])
    }
}

/// The rows of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockRows<'a> {
    pub(crate) kind: RowKind,
    keys: &'a [u64],
    about: &'a [u32],
    words: &'a [f32],
    width: usize,
}

/// One entry of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Saved<'a> {
    /// A row or a candidate.
    Row(Row<'a>),
    /// An id that is gone (in a delta).
    Removed(u64),
}

impl Saved<'_> {
    /// Its id.
    pub fn key(&self) -> u64 {
        match self {
            Saved::Row(row) => row.key,
            Saved::Removed(key) => *key,
        }
    }
}

/// Something wrong at a place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) offset: u64,
    pub(crate) reason: String,
}

impl Flaw {
    fn new(offset: u64, reason: impl Into<String>) -> Flaw {
        Flaw { offset, reason: reason.into() }
    }

    pub(crate) fn error(&self, path: &Path) -> Error {
        Error::corrupt(path, format!("{} (at byte {})", self.reason, self.offset))
    }
}

impl TableReader {
    /// Opens a file and checks all of it but the blocks.
    ///
    /// # Errors
    /// If it is missing, truncated, damaged, of another version or no table's file.
    pub fn open(path: impl Into<PathBuf>) -> Result<TableReader, Error> {
        let path = path.into();
        let file = File::open(&path).map_err(Error::io("read", &path))?;
        let size = file.metadata().map_err(Error::io("read", &path))?.len();
        check_version(&path, &file, size)?;
        match open_checked(&file, size) {
            Err(flaw) => Err(flaw.error(&path)),
            Ok((header, blocks, end, checksum)) => {
                let counts = end.counts;
                Ok(TableReader { path, file, header, blocks, counts, checksum })
            }
        }
    }

    /// Opens a part of a checkpoint and makes sure that it is the one that the manifest means.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if size or checksum are others than in the manifest.
    pub fn open_part(dir: &Path, part: &Part) -> Result<TableReader, Error> {
        let path = dir.join(&part.name);
        let reader = TableReader::open(&path)?;
        if reader.checksum != part.checksum {
            let (actual, expected) = (reader.checksum, part.checksum);
            let reason = format!("it is of another checkpoint: checksum {actual}, not {expected}");
            return Err(Error::corrupt(&path, reason));
        }
        Ok(reader)
    }

    /// What the file says about itself.
    pub fn header(&self) -> &TableHeader {
        &self.header
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many rows and candidates there are.
    pub fn len(&self) -> u64 {
        self.counts[..3].iter().sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many blocks there are.
    pub fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The same file once more, for a thread that reads blocks one after the other: the system
    /// reads ahead for each open file on its own.
    pub(crate) fn stream(&self) -> Result<Stream<'_>, Error> {
        let file = ReadOnce::open(&self.path).map_err(Error::io("read", &self.path))?;
        Ok(Stream { reader: self, file })
    }

    /// Reads a block and compares it with its checksum.
    ///
    /// # Errors
    /// If it cannot be read or is damaged; the message says where.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn read_block<'b>(
        &self,
        block: usize,
        buffer: &'b mut BlockBuffer,
    ) -> Result<BlockRows<'b>, Error> {
        self.check_block(block, buffer).map_err(|flaw| flaw.error(&self.path))
    }

    pub(crate) fn check_block<'b>(
        &self,
        at: usize,
        buffer: &'b mut BlockBuffer,
    ) -> Result<BlockRows<'b>, Flaw> {
        let file = &self.file;
        self.check_block_by(at, buffer, |memory, offset, len| {
            memory.resize(len / 8, 0);
            read_at(file, bytemuck::cast_slice_mut(memory), offset).map(|()| 0)
        })
    }

    /// `read` fills memory with that many bytes from so far into the file, and says where they
    /// begin.
    fn check_block_by<'b>(
        &self,
        at: usize,
        buffer: &'b mut BlockBuffer,
        read: impl FnOnce(&mut Vec<u64>, u64, usize) -> io::Result<usize>,
    ) -> Result<BlockRows<'b>, Flaw> {
        let block = &self.blocks[at];
        let n = block.n_rows;
        let len = block.bytes as usize;
        buffer.first = read(&mut buffer.memory, block.offset, len)
            .map_err(|e| Flaw::new(block.offset, e.to_string()))?;
        let actual = Checksum::of(&buffer.bytes()[..len]);
        if actual != block.checksum {
            let reason = format!(
                "a block of {len} bytes ({n} rows) is damaged: its checksum is {actual}, not {}",
                block.checksum
            );
            return Err(Flaw::new(block.offset, reason));
        }
        Ok(self.view(at, buffer))
    }

    /// The rows of a block that is in the buffer.
    pub(crate) fn view<'b>(&self, at: usize, buffer: &'b BlockBuffer) -> BlockRows<'b> {
        let block = &self.blocks[at];
        let (n, width) = (block.n_rows as usize, self.header.words(block.kind));
        let bytes = buffer.bytes();
        let words = &bytes[words_offset(n)..][..n * width * 4];
        BlockRows {
            kind: block.kind,
            keys: bytemuck::cast_slice(&bytes[..n * 8]),
            about: bytemuck::cast_slice(&bytes[n * 8..][..n * 4]),
            words: bytemuck::cast_slice(words),
            width,
        }
    }

    /// Finds one id, reading at most one block per kind of rows.
    ///
    /// # Errors
    /// If a block cannot be read or is damaged.
    pub fn find<'b>(
        &self,
        key: u64,
        buffer: &'b mut BlockBuffer,
    ) -> Result<Option<Saved<'b>>, Error> {
        let order = row_order(key);
        for kind in RowKind::ALL {
            // A linear search: reading a block takes longer.
            let holds = |b: &Block| b.kind == kind && (b.first..=b.last).contains(&order);
            let Some(block) = self.blocks.iter().position(holds) else { continue };
            self.read_block(block, buffer)?;
            let rows = self.view(block, buffer);
            if let Ok(at) = rows.keys.binary_search_by_key(&order, |key| row_order(*key)) {
                return Ok(Some(self.view(block, buffer).get(at)));
            }
        }
        Ok(None)
    }
}

/// Blocks of a file in order.
pub(crate) struct Stream<'r> {
    reader: &'r TableReader,
    file: ReadOnce,
}

impl Stream<'_> {
    /// As [`TableReader::read_block`].
    pub(crate) fn read_block(&self, block: usize, buffer: &mut BlockBuffer) -> Result<(), Error> {
        let read = self.reader.check_block_by(block, buffer, |memory, offset, len| {
            self.file.read(memory, offset, len)
        });
        read.map(|_| ()).map_err(|flaw| flaw.error(&self.reader.path))
    }
}

impl<'a> BlockRows<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn get(&self, at: usize) -> Saved<'a> {
        let (key, about) = (self.keys[at], self.about[at]);
        let words = &self.words[at * self.width..(at + 1) * self.width];
        let body = match self.kind {
            RowKind::Base => RowBody::Base(words),
            RowKind::Extended => RowBody::Extended(words),
            RowKind::Candidate => RowBody::Candidate { appearances: words[0].to_bits() },
            RowKind::Removed => return Saved::Removed(key),
        };
        let (unseen_days, changed) = (about & DAYS, about & CHANGED != 0);
        Saved::Row(Row { key, unseen_days, changed, body })
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = Saved<'a>> {
        (0..self.len()).map(move |at| self.get(at))
    }

    pub(crate) fn key(&self, at: usize) -> u64 {
        self.keys[at]
    }
}

/// Another version is no damage, and is told before anything else is looked at.
fn check_version(path: &Path, file: &File, size: u64) -> Result<(), Error> {
    let mut head = [0; FIXED_HEAD];
    if size < FIXED_HEAD as u64 {
        let reason = format!("truncated: {size} bytes are too few for a table's file");
        return Err(Error::corrupt(path, reason));
    }
    read_at(file, &mut head, 0).map_err(Error::io("read", path))?;
    if head[..8] != MAGIC {
        return Err(Error::corrupt(path, "not a table's file: it begins with something else"));
    }
    match u32_at(&head, 8) {
        FORMAT_VERSION => Ok(()),
        found => Err(Error::Version {
            path: path.to_path_buf(),
            found: found.to_string(),
            supported: FORMAT_VERSION,
        }),
    }
}

type Checked = (TableHeader, Vec<Block>, End, Checksum);

/// Reads everything but the blocks; the end first, because it says where the rest is.
fn open_checked(file: &File, size: u64) -> Result<Checked, Flaw> {
    let (tail, end, checksum) = read_tail(file, size)?;
    let index = &tail[..tail.len() - END];
    let first = u64_at(&index.get(..8).map_or([0; 8], |b| b.try_into().unwrap_or([0; 8])), 0);
    let head_len = if end.n_blocks > 0 { first } else { end.index_offset };
    let header = read_head(file, head_len, end.head_checksum)?;
    let mut blocks = Vec::with_capacity(index.len() / INDEX_ENTRY);
    let mut at = head_len;
    for entry in index.as_chunks::<INDEX_ENTRY>().0 {
        let block = Block::decode(entry);
        let fits = |b: &Block| {
            let bytes = block_bytes(b.n_rows as usize, header.words(b.kind));
            b.offset == at && b.n_rows > 0 && b.bytes as usize == bytes
        };
        let Some(block) = block.filter(fits) else {
            return Err(Flaw::new(at, "the index does not fit the blocks"));
        };
        at += u64::from(block.bytes);
        blocks.push(block);
    }
    if at != end.index_offset {
        return Err(Flaw::new(at, "the index does not fit the blocks"));
    }
    Ok((header, blocks, end, checksum))
}

/// Index and end, compared with their checksum.
fn read_tail(file: &File, size: u64) -> Result<(Vec<u8>, End, Checksum), Flaw> {
    let truncated = |offset| {
        let reason = format!("truncated or not written completely: no end after {size} bytes");
        Flaw::new(offset, reason)
    };
    let Some(end_at) = size.checked_sub(END as u64) else { return Err(truncated(size)) };
    let mut bytes = [0; END];
    read_at(file, &mut bytes, end_at).map_err(|e| Flaw::new(end_at, e.to_string()))?;
    if bytes[END - 8..] != END_MAGIC {
        return Err(truncated(size));
    }
    let end = End::decode(&bytes);
    let index_len = end.n_blocks.checked_mul(INDEX_ENTRY as u64);
    if index_len.and_then(|len| len.checked_add(end.index_offset)) != Some(end_at) {
        return Err(Flaw::new(end_at, "the end is damaged: the index is not where it says"));
    }
    let mut tail = vec![0; (size - end.index_offset) as usize];
    read_at(file, &mut tail, end.index_offset).map_err(|e| Flaw::new(end_at, e.to_string()))?;
    let expected = Checksum(u64_at(&bytes, END - 16));
    let actual = Checksum::of(&tail[..tail.len() - 16]);
    if actual != expected {
        let reason = format!("the index is damaged: its checksum is {actual}, not {expected}");
        return Err(Flaw::new(end.index_offset, reason));
    }
    Ok((tail, end, expected))
}

fn read_head(file: &File, len: u64, expected: Checksum) -> Result<TableHeader, Flaw> {
    let flaw = |reason: String| Flaw::new(0, format!("the head is damaged: {reason}"));
    let valid = (FIXED_HEAD as u64..=(FIXED_HEAD + MAX_DESCRIPTION + 64) as u64).contains(&len);
    if !valid {
        return Err(flaw(format!("it has {len} bytes")));
    }
    let mut head = vec![0; len as usize];
    read_at(file, &mut head, 0).map_err(|e| flaw(e.to_string()))?;
    let actual = Checksum::of(&head);
    if actual != expected {
        return Err(flaw(format!("its checksum is {actual}, not {expected}")));
    }
    let description = head.get(FIXED_HEAD..FIXED_HEAD + u32_at(&head, 12) as usize);
    let description = description.ok_or_else(|| flaw("its length is wrong".into()))?;
    let header: TableHeader =
        serde_json::from_slice(description).map_err(|e| flaw(e.to_string()))?;
    header.problem().map_or(Ok(header), |problem| Err(flaw(problem)))
}

#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                bytes = &mut bytes[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}
