//! The index of the cold rows of one shard: a hash goes in, numbers of records that may be its come
//! out.
//!
//! An entry takes eight bytes: the number of the record, three marks, and the first 30 bits of the
//! hash behind those that chose the shard. The whole hash stands in the record, so only a read
//! tells whose it is; in a shard of a million rows, one lookup in a thousand finds a record of
//! somebody else. The same 30 bits choose the line, so that growing is a sequential pass that needs
//! no hashes, and entries stand nearly in the order of the hashes.
//!
//! Open addressing over cache lines as in `index.rs`, with lines of eight and steps of a fifteenth:
//! together with what the store keeps of a record, a cold row takes less than 12 bytes of memory.

use regatta_kernels::prefetch;

use crate::Error;
use crate::index::Place;
use crate::memory::Region;

/// How many entries share a cache line.
const PER_LINE: usize = 8;
/// Lines of an index that was just made: one page.
const MIN_LINES: usize = 64;
/// Entries per hundred places beyond which the index grows, and after growing.
const MAX_FILL: usize = 94;
const NEW_FILL: usize = 88;

/// Bits from low to high: 31 for the record plus one (0 for nothing), 3 marks, 30 for the tag.
const RECORD: u64 = (1 << 31) - 1;
const TAG_BITS: u32 = 30;
const TAG: u32 = 64 - TAG_BITS;
/// How much higher marks stand in a [`Place`].
const MARKS_UP: u32 = Place::MARKS.trailing_zeros() - 31;
/// Record numbers are smaller than this.
pub(crate) const MAX_RECORDS: u32 = RECORD as u32;

type Line = [u64; PER_LINE];

/// What the index knows of a cold row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ColdEntry(u64);

impl ColdEntry {
    /// The number of the record.
    pub(crate) fn record(self) -> u32 {
        (self.0 & RECORD) as u32 - 1
    }

    /// The marks, as in a [`Place`].
    pub(crate) fn marks(self) -> u64 {
        (self.0 << MARKS_UP) & Place::MARKS
    }

    fn tag(self) -> u64 {
        self.0 >> TAG
    }

    /// Which of so many slices of the shard the row belongs to.
    pub(crate) fn slice(self, n_slices: usize) -> usize {
        (self.tag() >> (TAG_BITS - n_slices.ilog2())) as usize
    }

    fn new(tag: u64, record: u32, marks: u64) -> ColdEntry {
        debug_assert!(record < MAX_RECORDS);
        ColdEntry(tag << TAG | (marks & Place::MARKS) >> MARKS_UP | (u64::from(record) + 1))
    }
}

/// Records of the cold rows of one shard.
#[derive(Debug)]
pub(crate) struct ColdIndex {
    lines: Region<Line>,
    len: usize,
    /// How far hashes are shifted so that the bits that chose the shard are gone.
    shift: u32,
}

impl ColdIndex {
    /// An empty index of one of `n_shards` shards.
    pub(crate) fn new(n_shards: usize) -> Result<Self, Error> {
        let lines = Region::new(MIN_LINES, false, 0)?;
        Ok(ColdIndex { lines, len: 0, shift: n_shards.ilog2() })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory taken.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    fn tag(&self, hash: u64) -> u64 {
        (hash << self.shift) >> TAG
    }

    fn home(&self, tag: u64) -> usize {
        ((tag * self.lines.len() as u64) >> TAG_BITS) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.lines.len() { 0 } else { at + 1 }
    }

    /// Asks for the line where the search for a hash will begin.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&self.lines, self.home(self.tag(hash)));
    }

    /// Line and place in it of all entries that may be of a hash.
    fn places(&self, hash: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        let tag = self.tag(hash);
        let mut at = self.home(tag);
        let mut found = matches(&self.lines[at], tag);
        std::iter::from_fn(move || {
            while found == 0 {
                if self.lines[at][PER_LINE - 1] == 0 {
                    return None;
                }
                at = self.after(at);
                found = matches(&self.lines[at], tag);
            }
            let i = found.trailing_zeros() as usize;
            found &= found - 1;
            Some((at, i))
        })
    }

    /// All entries that may be of a hash.
    pub(crate) fn candidates(&self, hash: u64) -> impl Iterator<Item = ColdEntry> + '_ {
        self.places(hash).map(|(at, i)| ColdEntry(self.lines[at][i]))
    }

    fn place(&self, hash: u64, record: u32) -> Option<(usize, usize)> {
        self.places(hash).find(|&(at, i)| ColdEntry(self.lines[at][i]).record() == record)
    }

    /// The entry of a hash with this record, if it is there.
    pub(crate) fn find(&self, hash: u64, record: u32) -> Option<ColdEntry> {
        self.place(hash, record).map(|(at, i)| ColdEntry(self.lines[at][i]))
    }

    /// Adds an entry. Grows if it must.
    pub(crate) fn insert(&mut self, hash: u64, record: u32, marks: u64) -> Result<(), Error> {
        self.reserve(1)?;
        self.put(ColdEntry::new(self.tag(hash), record, marks));
        Ok(())
    }

    /// Makes room for `more` entries.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), Error> {
        if (self.len + more) * 100 > self.lines.len() * PER_LINE * MAX_FILL {
            self.rebuild(self.len + more)?;
        }
        Ok(())
    }

    /// Gives an entry another record. Whether it was there.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32, marks: u64) -> bool {
        let Some((at, i)) = self.place(hash, old) else { return false };
        let entry = ColdEntry(self.lines[at][i]);
        self.lines[at][i] = ColdEntry::new(entry.tag(), new, entry.marks() | marks).0;
        true
    }

    /// Changes the marks of all entries.
    pub(crate) fn reflag(&mut self, mut change: impl FnMut(u64) -> u64) {
        for entry in self.lines.iter_mut().flatten().filter(|entry| **entry != 0) {
            let old = ColdEntry(*entry);
            *entry = ColdEntry::new(old.tag(), old.record(), change(old.marks())).0;
        }
    }

    /// All entries, nearly in the order of the hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ColdEntry> + '_ {
        self.lines.iter().flatten().filter(|entry| **entry != 0).map(|entry| ColdEntry(*entry))
    }

    /// Appends the entries of a slice that lack a mark, nearly in the order of the hashes; see
    /// [`Index::slice`](crate::index::Index::slice).
    pub(crate) fn slice(
        &self,
        n_slices: usize,
        slice: usize,
        without: u64,
        to: &mut Vec<ColdEntry>,
    ) {
        let home = |slice: usize| slice as u128 * self.lines.len() as u128 / n_slices as u128;
        let (first, last) = (home(slice) as usize, home(slice + 1) as usize);
        let is_in = |entry: ColdEntry| entry.slice(n_slices) == slice;
        let (mut at, mut seen) = (first.min(self.lines.len() - 1), 0);
        loop {
            let line = &self.lines[at];
            let there = line.iter().filter(|entry| **entry != 0).map(|entry| ColdEntry(*entry));
            to.extend(there.filter(|entry| entry.marks() & without == 0 && is_in(*entry)));
            seen += 1;
            let gap = line[PER_LINE - 1] == 0;
            if seen == self.lines.len() || (gap && first + seen > last) {
                return;
            }
            at = self.after(at);
        }
    }

    /// Forgets everything and gives the memory back.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.lines = Region::new(MIN_LINES, false, 0)?;
        self.len = 0;
        Ok(())
    }

    /// Takes the entry of a hash with this record out and gives it, if it is there.
    pub(crate) fn remove(&mut self, hash: u64, record: u32) -> Option<ColdEntry> {
        let (at, i) = self.place(hash, record)?;
        let entry = ColdEntry(self.lines[at][i]);
        self.len -= 1;
        if self.take(at, i) {
            self.fill_hole(at);
        }
        Some(entry)
    }

    /// Takes an entry out of its line, which stays without gaps. Whether the line was full.
    fn take(&mut self, at: usize, i: usize) -> bool {
        let line = &mut self.lines[at];
        let last = line.iter().rposition(|entry| *entry != 0).unwrap_or(i);
        line[i] = line[last];
        line[last] = 0;
        last == PER_LINE - 1
    }

    /// Moves entries back that stand behind a line that was full, so that no search ends early.
    fn fill_hole(&mut self, mut hole: usize) {
        let n = self.lines.len();
        let mut at = self.after(hole);
        while at != hole {
            let distance = |from: usize| (at + n - from) % n;
            let belongs_before =
                |entry: &u64| *entry != 0 && distance(self.home(entry >> TAG)) >= distance(hole);
            let found = self.lines[at].iter().position(belongs_before);
            let mut full = self.lines[at][PER_LINE - 1] != 0;
            if let Some(i) = found {
                self.lines[hole][PER_LINE - 1] = self.lines[at][i];
                full = self.take(at, i);
                hole = at;
            }
            if !full {
                return;
            }
            at = self.after(at);
        }
    }

    /// Adds an entry, for which there must be room.
    fn put(&mut self, entry: ColdEntry) {
        let mut at = self.home(entry.tag());
        loop {
            let line = &mut self.lines[at];
            if let Some(free) = line.iter_mut().find(|entry| **entry == 0) {
                *free = entry.0;
                self.len += 1;
                return;
            }
            at = self.after(at);
        }
    }

    /// Moves everything into new lines with room for `expected` entries, from front to back.
    fn rebuild(&mut self, expected: usize) -> Result<(), Error> {
        let n_lines = (expected * 100).div_ceil(NEW_FILL * PER_LINE).max(MIN_LINES);
        let lines = Region::new(n_lines, false, 0)?;
        let old = ColdIndex { lines: std::mem::replace(&mut self.lines, lines), ..*self };
        self.len = 0;
        old.iter().for_each(|entry| self.put(entry));
        Ok(())
    }
}

/// Which entries of a line have a tag, a bit each.
#[inline(always)]
fn matches(line: &Line, tag: u64) -> u32 {
    let is = |entry: u64| u32::from(entry >> TAG == tag) & u32::from(entry != 0);
    line.iter().enumerate().fold(0, |bits, (i, entry)| bits | is(*entry) << i)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use regatta_tensor::rng::mix;

    use super::*;

    /// Hashes of one of four shards, of which many share a line and some a tag.
    fn hash(i: u64, crowded: bool) -> u64 {
        let tag = if crowded { i / 40 } else { mix(i) >> 34 };
        1 << 62 | (tag << 34 | i) & (u64::MAX >> 2)
    }

    fn contents(index: &ColdIndex) -> Vec<ColdEntry> {
        let mut entries: Vec<ColdEntry> = index.iter().collect();
        entries.sort_unstable();
        entries
    }

    proptest! {
        #[test]
        fn any_order_of_changes_gives_what_a_map_holds(
            steps in proptest::collection::vec((0_u64..700, 0_u8..8), 1..3000),
            crowded: bool,
        ) {
            let mut index = ColdIndex::new(4).unwrap();
            let mut map = HashMap::<u64, (u32, u64)>::new();
            let mut next = 0_u32;
            for (i, step) in steps {
                let hash = hash(i, crowded);
                match (map.get(&hash).copied(), step) {
                    (None, _) => {
                        let marks = u64::from(step) << Place::MARKS.trailing_zeros();
                        index.insert(hash, next, marks).unwrap();
                        map.insert(hash, (next, marks));
                        next += 1;
                    }
                    (Some((record, marks)), 0..4) => {
                        prop_assert_eq!(index.remove(hash, record).unwrap().marks(), marks);
                        prop_assert!(index.remove(hash, record).is_none());
                        map.remove(&hash);
                    }
                    (Some((record, marks)), _) => {
                        prop_assert!(index.replace(hash, record, next, Place::KEPT));
                        map.insert(hash, (next, marks | Place::KEPT));
                        next += 1;
                    }
                }
            }
            prop_assert_eq!(index.len(), map.len());
            for (hash, (record, marks)) in &map {
                prop_assert_eq!(index.find(*hash, *record).map(ColdEntry::marks), Some(*marks));
            }
            for n_slices in [1, 2, 64] {
                let mut sliced = Vec::new();
                (0..n_slices).for_each(|slice| index.slice(n_slices, slice, 0, &mut sliced));
                sliced.sort_unstable();
                prop_assert_eq!(&sliced, &contents(&index));
            }
        }
    }

    #[test]
    fn growing_keeps_everything_in_little_memory() {
        let mut index = ColdIndex::new(1).unwrap();
        for i in 0..200_000 {
            index.insert(mix(i), i as u32, Place::DIRTY[1]).unwrap();
            if i > 20_000 && i % 1000 == 0 {
                assert!(index.bytes() as f64 / index.len() as f64 <= 9.25);
            }
        }
        for i in 0..200_000 {
            let found: Vec<u32> = index.candidates(mix(i)).map(ColdEntry::record).collect();
            assert!(found.contains(&(i as u32)));
            assert_eq!(index.find(mix(i), i as u32).unwrap().marks(), Place::DIRTY[1]);
        }
        index.reflag(|marks| marks & !Place::DIRTY[1] | Place::KEPT);
        assert!(index.iter().all(|entry| entry.marks() == Place::KEPT));
        index.clear().unwrap();
        assert_eq!((index.len(), index.iter().count()), (0, 0));
    }
}
