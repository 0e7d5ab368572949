//! The index of one shard: a hash goes in, a [`Place`] comes out.
//!
//! Open addressing over cache lines: a line holds four hashes and their four places, a search
//! starts at the line of the hash and continues to the next one only if the line is full. Lines are
//! numbered by the high bits of the hash, so the index is nearly sorted: growing it is one
//! sequential pass, which makes steps of a third affordable and keeps the index at least two thirds
//! full. Smaller steps cost more than they save: with a sixth, growing took half of the time of
//! making a row.
//!
//! Removing single entries, which only tables with a tier do, moves those behind them back, so that
//! no search ends early. [`Index::retain`] rebuilds, as shrinking a table does.

use regatta_kernels::prefetch;

use crate::Error;
use crate::memory::Region;

/// How many entries share a cache line.
const PER_LINE: usize = 4;
/// Lines of an index that was just made: one page.
const MIN_LINES: usize = 64;
/// Entries per hundred places beyond which the index grows, and after growing.
const MAX_FILL: usize = 88;
const NEW_FILL: usize = 67;

/// A row, a candidate for admission, or nothing; and when it was last seen.
///
/// Bits from low to high: 32 for the slot (0 for nothing, with the highest bit set the number of
/// appearances of a candidate), 8 flags, 24 for the day of the last push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    /// Nothing is here.
    pub(crate) const EMPTY: Place = Place(0);
    /// Not yet known; no entry has all its flags set.
    pub(crate) const FURTHER_ON: Place = Place(u64::MAX);
    /// The row has changed since it was last saved.
    pub(crate) const CHANGED: u64 = 1 << 32;
    /// The row is in the slab of extended rows.
    pub(crate) const EXTENDED: u64 = 1 << 33;
    /// Two marks for what differs from the last checkpoint; see `snapshot.rs`.
    pub(crate) const DIRTY: [u64; 2] = [1 << 34, 1 << 35];
    /// Not as it was when the open snapshot was taken; the old row is copied. See `snapshot.rs`.
    pub(crate) const KEPT: u64 = 1 << 36;
    /// The marks that follow a row wherever it lies.
    pub(crate) const MARKS: u64 = Place::DIRTY[0] | Place::DIRTY[1] | Place::KEPT;
    /// The largest slot and the largest number of appearances.
    pub(crate) const MAX_SLOT: u32 = CANDIDATE - 1;

    pub(crate) fn row(slot: u32, day: u32, flags: u64) -> Place {
        debug_assert!(slot > 0 && slot <= Place::MAX_SLOT);
        Place(u64::from(slot) | flags | u64::from(day) << DAY)
    }

    pub(crate) fn candidate(appearances: u32, day: u32) -> Place {
        Place(u64::from(appearances.min(Place::MAX_SLOT) | CANDIDATE) | u64::from(day) << DAY)
    }

    /// The slot, if this is a row.
    #[inline(always)]
    pub(crate) fn slot(self) -> Option<u32> {
        let slot = self.0 as u32;
        (slot.wrapping_sub(1) < CANDIDATE - 1).then_some(slot)
    }

    /// The appearances so far, if this is a candidate.
    pub(crate) fn appearances(self) -> Option<u32> {
        (self.0 as u32 & CANDIDATE != 0).then_some(self.0 as u32 & Place::MAX_SLOT)
    }

    #[inline(always)]
    pub(crate) fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// The same without a flag.
    pub(crate) fn without(self, flag: u64) -> Place {
        Place(self.0 & !flag)
    }

    /// The same with a flag.
    #[inline(always)]
    pub(crate) fn with(self, flag: u64) -> Place {
        Place(self.0 | flag)
    }

    /// The same row in another slot, and with one more flag.
    pub(crate) fn moved(self, slot: u32, flag: u64) -> Place {
        debug_assert!(slot > 0 && slot <= Place::MAX_SLOT);
        Place(self.0 & !u64::from(u32::MAX) | u64::from(slot) | flag)
    }

    /// The same row, pushed on `day`.
    #[inline(always)]
    pub(crate) fn touched(self, day: u32) -> Place {
        let keep = self.0 & ((1 << DAY) - 1);
        Place(keep | Place::CHANGED | u64::from(day) << DAY)
    }

    /// What a cold record keeps of the place beside its marks: the day and two flags.
    pub(crate) fn to_tag(self) -> u32 {
        (self.0 >> DAY) as u32 | (((self.0 / Place::CHANGED) & 3) as u32) << 24
    }

    /// The place of a row that was cold.
    pub(crate) fn from_tag(slot: u32, tag: u32, marks: u64) -> Place {
        let flags = u64::from(tag >> 24) * Place::CHANGED;
        Place::row(slot, tag & DAY_MASK, flags | marks & Place::MARKS)
    }

    /// The marks alone.
    pub(crate) fn marks(self) -> u64 {
        self.0 & Place::MARKS
    }

    /// Days from the last push to `day`, modulo 2^24.
    pub(crate) fn unseen_days(self, day: u32) -> u32 {
        day.wrapping_sub((self.0 >> DAY) as u32) & DAY_MASK
    }
}

/// Highest bit of the slot.
const CANDIDATE: u32 = 1 << 31;
const DAY: u32 = 40;
/// Days count modulo this plus one.
pub(crate) const DAY_MASK: u32 = (1 << 24) - 1;

/// Four hashes, then their places.
type Line = [u64; 2 * PER_LINE];

/// Hashes and places of the keys of one shard.
#[derive(Debug)]
pub(crate) struct Index {
    lines: Region<Line>,
    len: usize,
    /// How far hashes are shifted so that the bits that chose the shard do not choose the line.
    shift: u32,
    huge: bool,
    /// The mark that changed entries get: 0 or one of [`Place::DIRTY`].
    pub(crate) dirty: u64,
    /// The mark that entries get when they are set: 0, or [`Place::KEPT`] during a snapshot.
    pub(crate) born: u64,
    /// Counts what makes a place of a row that was read before wrong, other than new flags and
    /// days.
    version: u64,
}

impl Index {
    /// An empty index of one of `n_shards` shards.
    pub(crate) fn new(n_shards: usize, huge: bool) -> Result<Self, Error> {
        let lines = Region::new(MIN_LINES, false, 0)?;
        Ok(Index { lines, len: 0, shift: n_shards.ilog2(), huge, dirty: 0, born: 0, version: 0 })
    }

    /// How many rows and candidates there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// As long as this is the same, rows are where they were, and marks of changes that were set
    /// are.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Bytes of memory taken.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash << self.shift) * self.lines.len() as u128) >> 64) as usize
    }

    /// Asks for the line where the search for a hash will begin.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&self.lines, self.home(hash));
    }

    /// The place of a hash if its first line tells; otherwise asks for the next line and gives
    /// [`Place::FURTHER_ON`].
    #[inline(always)]
    pub(crate) fn find_or_prefetch(&self, hash: u64) -> Place {
        let at = self.home(hash);
        let line = &self.lines[at];
        match position(line, hash) {
            Some(i) => Place(line[PER_LINE + i]),
            None if line[2 * PER_LINE - 1] == 0 => Place::EMPTY,
            None => {
                prefetch(&self.lines, at + 1);
                Place::FURTHER_ON
            }
        }
    }

    /// The place of a hash, or [`Place::EMPTY`].
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64) -> Place {
        let mut at = self.home(hash);
        loop {
            let line = &self.lines[at];
            if let Some(i) = position(line, hash) {
                // An empty place may stand beside a hash of zero, and is then the right answer.
                return Place(line[PER_LINE + i]);
            }
            if line[2 * PER_LINE - 1] == 0 {
                return Place::EMPTY;
            }
            at = self.after(at);
        }
    }

    /// Whether a place is that of a row for which [`touch`](Index::touch) has nothing to do.
    #[inline(always)]
    pub(crate) fn is_touched(&self, place: Place, day: u32) -> bool {
        place.slot().is_some() && place.touched(day).with(self.dirty) == place
    }

    /// Marks a row, found at `place`, as pushed on `day`, and gives its new place. Most rows were
    /// pushed before on that day, and their lines stay clean.
    #[inline(always)]
    pub(crate) fn touch(&mut self, hash: u64, place: Place, day: u32) -> Place {
        let touched = place.touched(day).with(self.dirty);
        if touched != place {
            self.put(hash, touched);
        }
        touched
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.lines.len() { 0 } else { at + 1 }
    }

    /// Sets the place of a hash, whether it was there or not. Grows if it must.
    pub(crate) fn set(&mut self, hash: u64, place: Place) -> Result<(), Error> {
        if (self.len + 1) * 100 > self.lines.len() * PER_LINE * MAX_FILL {
            self.rebuild(self.len + 1, |_, place| Some(place))?;
        }
        if self.put(hash, place.with(self.dirty | self.born)).slot().is_some() {
            self.version += 1;
        }
        Ok(())
    }

    /// Makes room for `more` further entries at once, instead of growing step by step.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), Error> {
        let wanted = self.len + more;
        if wanted * 100 > self.lines.len() * PER_LINE * MAX_FILL {
            self.rebuild(wanted, |_, place| Some(place))?;
        }
        Ok(())
    }

    /// Changes the flags of all entries; `change` must leave the rest of a place as it is.
    pub(crate) fn reflag(&mut self, mut change: impl FnMut(Place) -> Place) {
        self.version += 1;
        for line in self.lines.iter_mut() {
            for place in &mut line[PER_LINE..] {
                if *place != 0 {
                    *place = change(Place(*place)).0;
                }
            }
        }
    }

    /// All hashes and places in the order of the hashes.
    ///
    /// Entries stand in their home line or a little behind it, so an insertion sort moves each of
    /// them by a few steps only; those that wrapped around from the last line are set aside first.
    pub(crate) fn sorted(&self) -> Vec<(u64, Place)> {
        let mut entries: Vec<(u64, Place)> = Vec::with_capacity(self.len);
        let mut wrapped = Vec::new();
        for (at, line) in self.lines.iter().enumerate() {
            for i in 0..PER_LINE {
                let entry = (line[i], Place(line[PER_LINE + i]));
                if entry.1 == Place::EMPTY {
                    break;
                }
                if self.home(entry.0) > at {
                    wrapped.push(entry);
                } else {
                    insert_last(&mut entries, entry);
                }
            }
        }
        wrapped.into_iter().for_each(|entry| insert_last(&mut entries, entry));
        entries
    }

    /// Which of so many (a power of two) slices of the shard a hash belongs to; slices are in the
    /// order of hashes.
    #[inline]
    pub(crate) fn slice_of(&self, hash: u64, n_slices: usize) -> usize {
        slice_of(hash, self.shift, n_slices)
    }

    /// Appends the entries of a slice that are as they were at the snapshot, in the order of the
    /// hashes.
    ///
    /// Entries stand in their home line or a little behind it, with no gap between. So they end
    /// with the first gap behind the last home line; the first lines follow on the last one.
    pub(crate) fn slice(&self, n_slices: usize, slice: usize, entries: &mut Vec<(u64, Place)>) {
        let home = |slice: usize| slice as u128 * self.lines.len() as u128 / n_slices as u128;
        let (first, last) = (home(slice) as usize, home(slice + 1) as usize);
        // The bits that chose the shard are the same in all hashes, and shifted out.
        let bits = 64 - n_slices.ilog2();
        let is_in = |hash: u64| (hash << self.shift).checked_shr(bits).unwrap_or(0) == slice as u64;
        let (mut at, mut seen) = (first, 0);
        loop {
            let line = &self.lines[at];
            for i in 0..PER_LINE {
                let (hash, place) = (line[i], Place(line[PER_LINE + i]));
                let wanted = place != Place::EMPTY && !place.has(Place::KEPT);
                if wanted && is_in(hash) {
                    insert_last(entries, (hash, place));
                }
            }
            seen += 1;
            let gap = line[2 * PER_LINE - 1] == 0;
            if seen == self.lines.len() || (gap && first + seen > last) {
                return;
            }
            at = self.after(at);
        }
    }

    /// Marks an entry as [`Place::KEPT`] and gives what it was; none if it is not there or has the
    /// mark.
    pub(crate) fn keep(&mut self, hash: u64) -> Option<Place> {
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            if let Some(i) = position(line, hash) {
                let place = Place(line[PER_LINE + i]);
                if place == Place::EMPTY || place.has(Place::KEPT) {
                    return None;
                }
                line[PER_LINE + i] = place.with(Place::KEPT).0;
                return Some(place);
            }
            if line[2 * PER_LINE - 1] == 0 {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Sets a place, for which there must be room, and gives what was there.
    #[inline(never)]
    fn put(&mut self, hash: u64, place: Place) -> Place {
        debug_assert!(place != Place::EMPTY);
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            for i in 0..PER_LINE {
                let before = Place(line[PER_LINE + i]);
                if before == Place::EMPTY || line[i] == hash {
                    line[i] = hash;
                    line[PER_LINE + i] = place.0;
                    self.len += usize::from(before == Place::EMPTY);
                    return before;
                }
            }
            at = self.after(at);
        }
    }

    /// Adds an entry as it is, marks included. The hash must not be there.
    pub(crate) fn insert(&mut self, hash: u64, place: Place) -> Result<(), Error> {
        self.reserve(1)?;
        self.put(hash, place);
        Ok(())
    }

    /// Takes an entry out and gives its place; [`Place::EMPTY`] if it is not there.
    pub(crate) fn remove(&mut self, hash: u64) -> Place {
        let mut at = self.home(hash);
        let i = loop {
            let line = &self.lines[at];
            match position(line, hash) {
                Some(i) if line[PER_LINE + i] != 0 => break i,
                _ if line[2 * PER_LINE - 1] == 0 => return Place::EMPTY,
                _ => at = self.after(at),
            }
        };
        let place = Place(self.lines[at][PER_LINE + i]);
        self.len -= 1;
        self.version += 1;
        if self.take(at, i) {
            self.fill_hole(at);
        }
        place
    }

    /// Takes an entry out of its line, which stays without gaps. Whether the line was full.
    fn take(&mut self, at: usize, i: usize) -> bool {
        let line = &mut self.lines[at];
        let last = line[PER_LINE..].iter().rposition(|place| *place != 0).unwrap_or(i);
        (line[i], line[PER_LINE + i]) = (line[last], line[PER_LINE + last]);
        (line[last], line[PER_LINE + last]) = (0, 0);
        last == PER_LINE - 1
    }

    /// Moves entries back that stand behind a line that was full, so that no search ends early.
    fn fill_hole(&mut self, mut hole: usize) {
        let n = self.lines.len();
        let mut at = self.after(hole);
        while at != hole {
            let line = &self.lines[at];
            let distance = |from: usize| (at + n - from) % n;
            let found = (0..PER_LINE).find(|&i| {
                line[PER_LINE + i] != 0 && distance(self.home(line[i])) >= distance(hole)
            });
            let mut full = line[2 * PER_LINE - 1] != 0;
            if let Some(i) = found {
                let (hash, place) = (line[i], line[PER_LINE + i]);
                let free = &mut self.lines[hole];
                (free[PER_LINE - 1], free[2 * PER_LINE - 1]) = (hash, place);
                full = self.take(at, i);
                hole = at;
            }
            if !full {
                return;
            }
            at = self.after(at);
        }
    }

    /// All hashes and places, nearly in the order of the hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        self.lines.iter().flat_map(|line| {
            (0..PER_LINE)
                .map(move |i| (line[i], Place(line[PER_LINE + i])))
                .take_while(|(_, place)| *place != Place::EMPTY)
        })
    }

    /// Keeps the entries for which `keep` gives a place.
    pub(crate) fn retain(
        &mut self,
        keep: impl FnMut(u64, Place) -> Option<Place>,
    ) -> Result<(), Error> {
        self.version += 1;
        self.rebuild(self.len, keep)?;
        // Less than half of what there was: give the rest back.
        if self.len * 200 < self.lines.len() * PER_LINE * NEW_FILL && self.lines.len() > MIN_LINES {
            self.rebuild(self.len, |_, place| Some(place))?;
        }
        Ok(())
    }

    /// Forgets everything and gives the memory back.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.lines = Region::new(MIN_LINES, false, 0)?;
        self.len = 0;
        self.version += 1;
        Ok(())
    }

    /// Moves what `keep` wants into new lines with room for `expected` entries. In memory this goes
    /// from front to back on both sides.
    fn rebuild(
        &mut self,
        expected: usize,
        mut keep: impl FnMut(u64, Place) -> Option<Place>,
    ) -> Result<(), Error> {
        let n_lines = (expected * 100).div_ceil(NEW_FILL * PER_LINE).max(MIN_LINES);
        let lines = Region::new(n_lines, self.huge, 0)?;
        let old = Index { lines: std::mem::replace(&mut self.lines, lines), ..*self };
        self.len = 0;
        for (hash, place) in old.iter() {
            if let Some(place) = keep(hash, place) {
                self.put(hash, place);
            }
        }
        Ok(())
    }
}

/// See [`Index::slice_of`].
#[inline]
pub(crate) fn slice_of(hash: u64, shift: u32, n_slices: usize) -> usize {
    ((u128::from(hash << shift) * n_slices as u128) >> 64) as usize
}

/// Appends an entry that belongs near the end of sorted ones.
#[inline(always)]
fn insert_last(entries: &mut Vec<(u64, Place)>, entry: (u64, Place)) {
    entries.push(entry);
    let mut i = entries.len() - 1;
    while i > 0 && entries[i - 1].0 > entry.0 {
        entries[i] = entries[i - 1];
        i -= 1;
    }
    entries[i] = entry;
}

/// Where a line holds a hash. One branch for all four: which one it is cannot be predicted.
#[inline(always)]
fn position(line: &Line, hash: u64) -> Option<usize> {
    let mut matches = 0;
    for (i, stored) in line[..PER_LINE].iter().enumerate() {
        matches |= u32::from(*stored == hash) << i;
    }
    (matches != 0).then(|| matches.trailing_zeros() as usize % PER_LINE)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::hash::hash_of;

    #[test]
    fn places_keep_their_parts() {
        let row = Place::row(Place::MAX_SLOT, 7, Place::EXTENDED);
        assert_eq!(row.slot(), Some(Place::MAX_SLOT));
        assert_eq!(row.appearances(), None);
        assert_eq!(row.unseen_days(9), 2);
        assert_eq!(row.unseen_days(6), DAY_MASK, "days may wrap around");
        let touched = row.touched(9);
        assert!(touched.has(Place::CHANGED) && touched.has(Place::EXTENDED));
        assert!(!touched.without(Place::CHANGED).has(Place::CHANGED));
        assert_eq!((touched.slot(), touched.unseen_days(9)), (row.slot(), 0));
        let candidate = Place::candidate(u32::MAX, 3);
        assert_eq!(candidate.appearances(), Some(Place::MAX_SLOT));
        assert_eq!((candidate.slot(), candidate.unseen_days(3)), (None, 0));
        assert_eq!((Place::EMPTY.slot(), Place::EMPTY.appearances()), (None, None));
    }

    #[test]
    fn the_index_stays_well_filled() {
        let mut index = Index::new(1, false).unwrap();
        for key in 0..200_000 {
            index.set(hash_of(key), Place::row(key as u32 + 1, 0, 0)).unwrap();
            if key > 1000 {
                let per_entry = index.bytes() as f64 / index.len() as f64;
                assert!((18.0..24.0).contains(&per_entry), "{per_entry} bytes at {key}");
            }
        }
        assert!((0..200_000).all(|key| index.find(hash_of(key)).slot() == Some(key as u32 + 1)));
        assert!((200_000..300_000).all(|key| index.find(hash_of(key)) == Place::EMPTY));
    }

    #[test]
    fn the_hash_zero_is_a_hash_like_any_other() {
        let mut index = Index::new(4, false).unwrap();
        assert_eq!(index.find(0), Place::EMPTY);
        index.set(0, Place::row(5, 0, 0)).unwrap();
        assert_eq!(index.find(0).slot(), Some(5));
        assert_eq!(index.find_or_prefetch(1), Place::EMPTY);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            ops in prop::collection::vec((0u64..400, 1u32..1000, 0u8..20), 1..1500),
            clustered in any::<bool>(),
        ) {
            // Clustered hashes all begin at the last line and wrap around.
            let hash = |key: u64| if clustered { u64::MAX - key } else { hash_of(key) };
            let mut index = Index::new(1, false).unwrap();
            let mut map = HashMap::new();
            for (key, slot, op) in ops {
                match op {
                    0 => {
                        map.retain(|_, place: &mut Place| !place.slot().unwrap().is_multiple_of(3));
                        let stays = |p: &Place| !p.slot().unwrap().is_multiple_of(3);
                        index.retain(|_, p| stays(&p).then_some(p)).unwrap();
                    }
                    1 => {
                        if let Some(place) = map.get_mut(&key) {
                            index.touch(hash(key), *place, 3);
                            *place = place.touched(3);
                        }
                    }
                    2..7 => {
                        let wanted = map.remove(&key).unwrap_or(Place::EMPTY);
                        prop_assert_eq!(index.remove(hash(key)), wanted);
                    }
                    _ => {
                        index.set(hash(key), Place::row(slot, 0, 0)).unwrap();
                        map.insert(key, Place::row(slot, 0, 0));
                    }
                }
            }
            prop_assert_eq!(index.len(), map.len());
            prop_assert_eq!(index.iter().count(), map.len());
            let sorted = index.sorted();
            prop_assert_eq!(sorted.len(), map.len());
            prop_assert!(sorted.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert!(sorted.iter().all(|(hash, place)| index.find(*hash) == *place));
            for key in 0..400 {
                let wanted = *map.get(&key).unwrap_or(&Place::EMPTY);
                prop_assert_eq!(index.find(hash(key)), wanted);
                let first = index.find_or_prefetch(hash(key));
                prop_assert!(first == wanted || first == Place::FURTHER_ON);
            }
        }
    }
}
