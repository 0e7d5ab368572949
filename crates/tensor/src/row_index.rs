//! Numbers the distinct ids of a batch in order of first appearance.

use crate::rng::mix;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    id: u64,
    /// A slot counts only if this equals the current generation, so clearing costs nothing.
    generation: u32,
    position: u32,
}

/// A reusable set of ids: open addressing with linear probing. No allocation once it has grown to
/// the largest batch.
#[derive(Debug, Clone, Default)]
pub struct RowIndex {
    slots: Vec<Slot>,
    generation: u32,
    len: usize,
}

impl RowIndex {
    /// Forgets all ids and makes room for `expected` distinct ones.
    pub fn clear(&mut self, expected: usize) {
        let wanted = (expected.max(8) * 2).next_power_of_two();
        if self.slots.len() < wanted || self.generation == u32::MAX {
            self.slots.clear();
            self.slots.resize(wanted, Slot::default());
            self.generation = 0;
        }
        self.generation += 1;
        self.len = 0;
    }

    /// Number of distinct ids so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Position of the id among the distinct ones, and whether it is new.
    ///
    /// # Panics
    /// If more distinct ids are inserted than `clear` made room for.
    #[inline]
    pub fn insert(&mut self, id: u64) -> (usize, bool) {
        let mask = self.slots.len() - 1;
        let mut at = mix(id) as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.generation != self.generation {
                assert!(self.len <= mask / 2 + 1, "more distinct ids than announced to clear()");
                *slot = Slot { id, generation: self.generation, position: self.len as u32 };
                self.len += 1;
                return (self.len - 1, true);
            }
            if slot.id == id {
                return (slot.position as usize, false);
            }
            at = (at + 1) & mask;
        }
    }
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
            assert_eq!(index.len(), 4);
        }
    }
}
