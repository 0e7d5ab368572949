//! Numbers the distinct ids of a batch in order of first appearance.

use crate::rng::mix;

/// A reusable set of ids: open addressing with linear probing. No allocation once it has grown to
/// the largest batch.
///
/// Slots hold positions and not ids: those of a batch of 50,000 then fit into the second cache,
/// and ids that come again and again are in the first.
#[derive(Debug, Clone, Default)]
pub struct RowIndex {
    /// One more than the position of an id, or 0. May be longer than what is in use.
    slots: Vec<u32>,
    /// The number of slots in use, a power of two, less one.
    mask: usize,
    ids: Vec<u64>,
}

impl RowIndex {
    /// Forgets all ids and makes room for `expected` distinct ones.
    pub fn clear(&mut self, expected: usize) {
        self.empty_slots(slots_for(expected));
        self.ids.clear();
    }

    /// Makes room for N more distinct ids. Those that are there keep their positions.
    pub fn reserve(&mut self, more: usize) {
        let wanted = slots_for(self.ids.len() + more);
        if wanted <= self.mask + 1 {
            return;
        }
        self.empty_slots(wanted);
        for (position, id) in self.ids.iter().enumerate() {
            let mut at = mix(*id) as usize & self.mask;
            while self.slots[at] != 0 {
                at = (at + 1) & self.mask;
            }
            self.slots[at] = position as u32 + 1;
        }
    }

    fn empty_slots(&mut self, wanted: usize) {
        if self.slots.len() < wanted {
            self.slots = vec![0; wanted];
        } else {
            self.slots[..wanted].fill(0);
        }
        self.mask = wanted - 1;
    }

    /// The distinct ids so far, in order of first appearance.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Number of distinct ids so far.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Position of the id among the distinct ones, if it is there.
    #[inline]
    pub fn find(&self, id: u64) -> Option<usize> {
        let mut at = mix(id) as usize & self.mask;
        loop {
            // Nothing is there before room was made.
            let position = (*self.slots.get(at)? as usize).checked_sub(1)?;
            if self.ids[position] == id {
                return Some(position);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Position of the id among the distinct ones, and whether it is new.
    ///
    /// # Panics
    /// If more distinct ids are inserted than there is room for.
    #[inline]
    pub fn insert(&mut self, id: u64) -> (usize, bool) {
        let mut at = mix(id) as usize & self.mask;
        loop {
            let slot = &mut self.slots[at];
            if *slot == 0 {
                let position = self.ids.len();
                assert!(position <= self.mask / 2, "more distinct ids than announced");
                self.ids.push(id);
                *slot = position as u32 + 1;
                return (position, true);
            }
            let position = *slot as usize - 1;
            if self.ids[position] == id {
                return (position, false);
            }
            at = (at + 1) & self.mask;
        }
    }
}

/// At most every second slot is taken.
fn slots_for(ids: usize) -> usize {
    (ids.max(8) * 2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ids_by_first_appearance() {
        let mut index = RowIndex::default();
        for _ in 0..3 {
            index.clear(5);
            let got: Vec<_> = [9, 7, 9, u64::MAX, 0, 7].map(|id| index.insert(id)).to_vec();
            let want = [(0, true), (1, true), (0, false), (2, true), (3, true), (1, false)];
            assert_eq!(got, want);
            assert_eq!(index.ids(), [9, 7, u64::MAX, 0]);
        }
    }

    #[test]
    fn a_small_batch_after_a_large_one_begins_anew() {
        let mut index = RowIndex::default();
        for n in [1000, 3, 1000, 100] {
            index.clear(n);
            assert!(index.is_empty());
            for id in 0..n as u64 {
                assert_eq!(index.insert(id * 7), (id as usize, true));
                assert_eq!(index.insert(id / 2 * 7), (id as usize / 2, false));
            }
            assert_eq!(index.len(), n);
        }
    }

    #[test]
    fn ids_keep_their_positions_when_room_is_made() {
        let mut index = RowIndex::default();
        assert_eq!(index.find(7), None);
        for round in 0..50u64 {
            index.reserve(7);
            for id in round * 7..round * 7 + 7 {
                assert_eq!(index.find(id * 3), None);
                assert_eq!(index.insert(id * 3), (id as usize, true));
            }
            for id in 0..round * 7 {
                assert_eq!(index.find(id * 3), Some(id as usize));
            }
        }
    }

    #[test]
    #[should_panic(expected = "more distinct ids than announced")]
    fn more_ids_than_announced_are_refused() {
        let mut index = RowIndex::default();
        index.clear(8);
        for id in 0..100 {
            index.insert(id);
        }
    }
}
