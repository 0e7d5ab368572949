//! Bytes of a segment: a page with the header, then pages of records that cross no page.
//!
//! A record is `[hash u64 | tag u32 | crc32c u32 | words u32 x n]`. Numbers are in the order of
//! this machine: nobody else reads these files. The checksum also covers the serial number of the
//! segment and the position in it, so a page of another place is not taken for the right one.

use std::path::Path;

use crate::Error;

/// Bytes of a page: what a disk reads at least, and what direct reads are aligned to.
pub(crate) const PAGE: usize = 4096;

/// Words before those of the caller: hash, tag and checksum.
pub(crate) const HEAD: usize = 4;

const MAGIC: u64 = u64::from_le_bytes(*b"RGTCOLD\n");
const VERSION: u32 = 1;
const CRC_AT: usize = 32;

/// Where records of one size are in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Words of the caller in a record.
    pub(crate) words: usize,
    /// Records of a page.
    pub(crate) per_page: usize,
    /// Records of a full segment.
    pub(crate) slots: u32,
}

impl Layout {
    pub(crate) fn new(words: usize, segment_bytes: usize) -> Result<Layout, Error> {
        let most = PAGE / 4 - HEAD;
        if words == 0 || words > most {
            let why = format!("{words} words per record; 1 to {most} fit into a page");
            return Err(Error::Options(why));
        }
        let per_page = PAGE / 4 / (words + HEAD);
        let n_pages = segment_bytes / PAGE;
        if !(2..=1 << 20).contains(&n_pages) {
            let why = format!("segments of {segment_bytes} bytes; 8 KB to 4 GB are possible");
            return Err(Error::Options(why));
        }
        let slots = u32::try_from((n_pages - 1) * per_page)
            .map_err(|_| Error::Options("segments with 2^32 records".into()))?;
        Ok(Layout { words, per_page, slots })
    }

    /// Words of a record with its head.
    pub(crate) fn record_words(&self) -> usize {
        self.words + HEAD
    }

    /// The page of the file that holds a position.
    pub(crate) fn page(&self, position: u32) -> u32 {
        1 + position / self.per_page as u32
    }

    /// Pages of `n_records`, without the header.
    pub(crate) fn data_pages(&self, n_records: u32) -> u32 {
        n_records.div_ceil(self.per_page as u32)
    }

    /// Bytes of a file of `n_records`.
    pub(crate) fn file_bytes(&self, n_records: u32) -> u64 {
        (1 + u64::from(self.data_pages(n_records))) * PAGE as u64
    }

    /// The byte of the file where a position begins.
    pub(crate) fn offset(&self, position: u32) -> u64 {
        u64::from(self.page(position)) * PAGE as u64 + 4 * self.within_page(position) as u64
    }

    /// The record at a position, in words that begin with page `first_page`.
    pub(crate) fn record<'a>(&self, pages: &'a [u32], first_page: u32, pos: u32) -> &'a [u32] {
        let page = (self.page(pos) - first_page) as usize;
        let at = page * (PAGE / 4) + self.within_page(pos);
        &pages[at..at + self.record_words()]
    }

    fn within_page(&self, position: u32) -> usize {
        (position as usize % self.per_page) * self.record_words()
    }
}

/// The checksum of a record at its place, the field for it aside.
pub(crate) fn checksum(record: &[u32], serial: u64, position: u32) -> u32 {
    let place = (serial as u32).wrapping_mul(0x9e37_79b1) ^ position;
    let crc = crc32c::crc32c_append(place, bytemuck::cast_slice(&record[..3]));
    crc32c::crc32c_append(crc, bytemuck::cast_slice(&record[HEAD..]))
}

/// Writes head and words of a record; the checksum is set when its place is known.
pub(crate) fn append_record(to: &mut Vec<u32>, hash: u64, tag: u32, words: &[u32]) {
    to.extend_from_slice(&[hash as u32, (hash >> 32) as u32, tag, 0]);
    to.extend_from_slice(words);
}

/// The hash in a record.
pub(crate) fn hash_of(record: &[u32]) -> u64 {
    u64::from(record[0]) | u64::from(record[1]) << 32
}

/// What the first page of a segment says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) layout: Layout,
    pub(crate) n_records: u32,
    pub(crate) serial: u64,
}

impl Header {
    /// Field, offset, width in bytes and value.
    fn fields(&self) -> [(&'static str, usize, usize, u64); 6] {
        [
            ("the mark", 0, 8, MAGIC),
            ("the version", 8, 4, u64::from(VERSION)),
            ("the number of words", 12, 4, self.layout.words as u64),
            ("the number of records per page", 16, 4, self.layout.per_page as u64),
            ("the number of records", 20, 4, u64::from(self.n_records)),
            ("the serial number", 24, 8, self.serial),
        ]
    }

    pub(crate) fn write(&self, page: &mut [u8]) {
        page.fill(0);
        for (_, at, width, value) in self.fields() {
            page[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        let crc = crc32c::crc32c(&page[..CRC_AT]);
        page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Compares a page with what belongs there.
    pub(crate) fn check(&self, page: &[u8], file: &Path) -> Result<(), Error> {
        for (field, at, width, expected) in self.fields() {
            let mut bytes = [0; 8];
            bytes[..width].copy_from_slice(&page[at..at + width]);
            let actual = u64::from_le_bytes(bytes);
            if actual != expected {
                let offset = at as u64;
                return Err(Error::Header { file: file.into(), field, offset, expected, actual });
            }
        }
        let crc = crc32c::crc32c(&page[..CRC_AT]);
        if page[CRC_AT..CRC_AT + 4] != crc.to_le_bytes() {
            return Err(Error::Checksum { file: file.into(), offset: CRC_AT as u64 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_cross_no_page() {
        for words in [1, 27, 1020] {
            let layout = Layout::new(words, 1 << 20).unwrap();
            for position in 0..layout.slots {
                let offset = layout.offset(position) as usize;
                let last = offset + 4 * layout.record_words() - 1;
                assert_eq!(offset / PAGE, last / PAGE);
                assert_eq!(offset / PAGE, layout.page(position) as usize);
            }
            assert_eq!(layout.file_bytes(layout.slots), 1 << 20);
        }
    }

    #[test]
    fn impossible_sizes_are_refused_by_name() {
        let error = Layout::new(1021, 1 << 20).unwrap_err().to_string();
        assert_eq!(error, "cold store: 1021 words per record; 1 to 1020 fit into a page");
        assert!(Layout::new(1, 4096).unwrap_err().to_string().contains("4096 bytes"));
    }

    #[test]
    fn a_changed_header_is_named() {
        let layout = Layout::new(3, 1 << 20).unwrap();
        let header = Header { layout, n_records: 7, serial: 5 };
        let mut page = vec![0; PAGE];
        header.write(&mut page);
        header.check(&page, Path::new("f")).unwrap();
        page[8] = 2;
        let error = header.check(&page, Path::new("f")).unwrap_err().to_string();
        assert_eq!(error, "f: the version at byte 8 is 2, not 1");
    }
}
