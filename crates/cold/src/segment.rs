//! A segment in a file: immutable but for the bits that say which of its records live.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Error;
use crate::bits::{Bits, Order};
use crate::buffer::Buffer;
use crate::directory::Directory;
use crate::health::Health;
use crate::layout::{Header, Layout, PAGE, append_record, checksum, hash_of};

/// Pages written at once.
const WRITE_PAGES: usize = 256;

/// A file of sorted records. It is removed with its last user.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: u32,
    pub(crate) header: Header,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Live records, by position.
    pub(crate) live: Bits,
    /// Positions by slot, if the slots were given out before the records were sorted.
    pub(crate) order: Option<Order>,
    /// Compaction still decides which of its records live.
    pub(crate) filling: AtomicBool,
    /// The number `id` is not given out again while somebody holds this.
    pub(crate) life: Arc<()>,
    health: Arc<Health>,
}

impl Segment {
    pub(crate) fn position(&self, slot: u32) -> Option<u32> {
        match &self.order {
            Some(order) => order.get(slot),
            None => (slot < self.header.n_records).then_some(slot),
        }
    }

    /// Less than half of it lives.
    pub(crate) fn is_sparse(&self) -> bool {
        2 * u64::from(self.live.count()) < u64::from(self.header.n_records)
    }

    /// It is less than half as large as segments can be.
    pub(crate) fn is_small(&self) -> bool {
        self.header.n_records < self.layout().slots / 2
    }

    /// Nothing of it lives, and nothing of it will.
    pub(crate) fn may_go(&self) -> bool {
        self.live.count() == 0 && !self.filling.load(Ordering::Acquire)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.header.layout
    }

    pub(crate) fn index_bytes(&self) -> usize {
        self.header.n_records as usize / 8 + self.order.as_ref().map_or(0, Order::bytes)
    }

    /// Compares a record with its checksum.
    pub(crate) fn check(&self, record: &[u32], position: u32) -> Result<(), Error> {
        if checksum(record, self.header.serial, position) == record[3] {
            return Ok(());
        }
        let offset = self.layout().offset(position);
        Err(Error::Checksum { file: self.path.clone(), offset })
    }

    /// Reads pages; all of them, or an error.
    pub(crate) fn read_pages(&self, page: u32, to: &mut [u8]) -> Result<(), Error> {
        let offset = u64::from(page) * PAGE as u64;
        let mut n_read = 0;
        while n_read < to.len() {
            match self.file.read_at(&mut to[n_read..], offset + n_read as u64) {
                Ok(0) => break,
                Ok(n) => n_read += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", &self.path, offset, e)),
            }
        }
        self.check_length(page, to.len(), n_read)
    }

    /// An error unless all bytes of a read have come.
    pub(crate) fn check_length(&self, page: u32, expected: usize, got: usize) -> Result<(), Error> {
        if got == expected {
            return Ok(());
        }
        let offset = u64::from(page) * PAGE as u64;
        Err(Error::ShortRead { file: self.path.clone(), offset, expected, actual: got })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let bytes = self.layout().file_bytes(self.header.n_records);
        self.health.counters.disk_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // What cannot be removed now is removed at the next start.
        self.health.unless_closed(|| drop(fs::remove_file(&self.path)));
    }
}

/// Writes records in the order in which they come.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    file: File,
    path: PathBuf,
    health: Arc<Health>,
    header: Header,
    /// Pages not yet written, beginning with `first_page`.
    buffer: Buffer,
    first_page: u32,
    /// Bytes counted as on disk.
    n_counted: u64,
    scratch: Vec<u32>,
    finished: bool,
}

impl SegmentWriter {
    pub(crate) fn create(
        dir: &Directory,
        layout: Layout,
        serials: &AtomicU64,
        health: &Arc<Health>,
    ) -> Result<SegmentWriter, Error> {
        let serial = serials.fetch_add(1, Ordering::Relaxed);
        let path = dir.segment_path(serial);
        Ok(SegmentWriter {
            file: dir.create(&path)?,
            path,
            health: health.clone(),
            header: Header { layout, n_records: 0, serial },
            buffer: Buffer::pages(WRITE_PAGES),
            first_page: 1,
            n_counted: 0,
            scratch: Vec::new(),
            finished: false,
        })
    }

    /// Records so far.
    pub(crate) fn len(&self) -> u32 {
        self.header.n_records
    }

    pub(crate) fn push(&mut self, hash: u64, tag: u32, words: &[u32]) -> Result<(), Error> {
        let mut record = std::mem::take(&mut self.scratch);
        record.clear();
        append_record(&mut record, hash, tag, words);
        let result = self.push_record(&record);
        self.scratch = record;
        result
    }

    /// Appends a record with any checksum; the right one for its new place is written.
    pub(crate) fn push_record(&mut self, record: &[u32]) -> Result<(), Error> {
        let layout = self.header.layout;
        let position = self.header.n_records;
        if (layout.page(position) - self.first_page) as usize == self.buffer.n_pages() {
            self.write_out(self.buffer.n_pages())?;
        }
        let page = (layout.page(position) - self.first_page) as usize;
        let at = page * (PAGE / 4) + position as usize % layout.per_page * layout.record_words();
        let place = &mut self.buffer.words_mut()[at..at + layout.record_words()];
        place.copy_from_slice(record);
        place[3] = checksum(place, self.header.serial, position);
        self.header.n_records += 1;
        Ok(())
    }

    fn write_out(&mut self, n_pages: usize) -> Result<(), Error> {
        self.write_at(self.first_page, n_pages)?;
        self.first_page += n_pages as u32;
        self.buffer.bytes_mut().fill(0);
        Ok(())
    }

    fn write_at(&mut self, page: u32, n_pages: usize) -> Result<(), Error> {
        let offset = u64::from(page) * PAGE as u64;
        let bytes = &self.buffer.bytes()[..n_pages * PAGE];
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|e| Error::io("write", &self.path, offset, e))?;
        self.n_counted += bytes.len() as u64;
        self.health.counters.add_disk(bytes.len() as u64);
        Ok(())
    }

    /// Writes the rest and the header.
    pub(crate) fn finish(
        mut self,
        id: u32,
        live: Bits,
        order: Option<Order>,
        life: Arc<()>,
    ) -> Result<Segment, Error> {
        let end = 1 + self.header.layout.data_pages(self.header.n_records);
        self.write_out((end - self.first_page) as usize)?;
        self.header.write(&mut self.buffer.bytes_mut()[..PAGE]);
        self.write_at(0, 1)?;
        let n_records = self.header.n_records as usize;
        self.health.counters.written.fetch_add(n_records as u64, Ordering::Relaxed);
        let file = self.file.try_clone().map_err(|e| Error::io("keep", &self.path, 0, e))?;
        self.finished = true;
        Ok(Segment {
            id,
            header: self.header,
            file,
            path: self.path.clone(),
            live,
            order,
            filling: AtomicBool::new(false),
            life,
            health: self.health.clone(),
        })
    }
}

impl Drop for SegmentWriter {
    fn drop(&mut self) {
        if !self.finished {
            self.health.counters.disk_bytes.fetch_sub(self.n_counted, Ordering::Relaxed);
            self.health.unless_closed(|| drop(fs::remove_file(&self.path)));
        }
    }
}

/// Reads a segment from its beginning to its end, a piece at a time.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    segment: Arc<Segment>,
    buffer: Buffer,
    first_page: u32,
    n_loaded: u32,
    position: u32,
}

impl SegmentReader {
    /// Checks the header.
    pub(crate) fn open(segment: Arc<Segment>, n_pages: usize) -> Result<SegmentReader, Error> {
        let mut buffer = Buffer::pages(n_pages.max(1));
        segment.read_pages(0, &mut buffer.bytes_mut()[..PAGE])?;
        segment.header.check(&buffer.bytes()[..PAGE], &segment.path)?;
        Ok(SegmentReader { segment, buffer, first_page: 1, n_loaded: 0, position: 0 })
    }

    /// Goes to a position, not before the last one, and returns the hash there.
    pub(crate) fn seek(&mut self, position: u32) -> Result<u64, Error> {
        let layout = *self.segment.layout();
        let page = layout.page(position);
        if page >= self.first_page + self.n_loaded {
            let left = 1 + layout.data_pages(self.segment.header.n_records) - page;
            let n_pages = left.min(self.buffer.n_pages() as u32);
            let to = &mut self.buffer.bytes_mut()[..n_pages as usize * PAGE];
            self.segment.read_pages(page, to)?;
            (self.first_page, self.n_loaded) = (page, n_pages);
        }
        self.position = position;
        self.segment.check(self.record(), position)?;
        Ok(hash_of(self.record()))
    }

    /// The record at the position.
    pub(crate) fn record(&self) -> &[u32] {
        self.segment.layout().record(self.buffer.words(), self.first_page, self.position)
    }
}
