//! Which rows of a table are on a device: a key and its slot, pins of batches in flight, rows that
//! changed, and a clock that chooses who leaves. Pure bookkeeping: what moves is returned.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The rows of a table that are in the slots of an arena.
#[derive(Debug)]
pub(crate) struct Window {
    slots: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    rows: Vec<Row>,
    free: Vec<u32>,
    /// Slots that a batch in flight uses.
    pinned: usize,
    /// Where the clock looks next.
    hand: usize,
}

/// What is in a slot.
#[derive(Debug, Clone, Default)]
struct Row {
    key: Option<u64>,
    /// Batches in flight that use it.
    pins: u32,
    /// Used since the clock came by.
    hot: bool,
    /// Differs from the row of the table.
    dirty: bool,
}

/// What a batch needs: the slot of each of its keys, and what must move before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Slots in the order of the keys.
    pub(crate) slots: Vec<u32>,
    /// Rows that are brought, with their slots.
    pub(crate) rows_in: Vec<(u64, u32)>,
    /// The positions of their keys.
    pub(crate) positions: Vec<u32>,
    /// Changed rows that leave these slots, before others come.
    pub(crate) rows_out: Vec<(u64, u32)>,
}

impl Window {
    /// An empty one of so many slots.
    pub(crate) fn new(slots: usize) -> Window {
        let slots = slots.min(u32::MAX as usize);
        Window {
            slots: HashMap::default(),
            rows: vec![Row::default(); slots],
            free: (0..slots as u32).rev().collect(),
            pinned: 0,
            hand: 0,
        }
    }

    /// How many rows it has room for.
    pub(crate) fn capacity(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is room for distinct keys beside the rows of batches in flight.
    pub(crate) fn has_room(&self, keys: &[u64]) -> bool {
        let unpinned = |slot: &&u32| self.rows[**slot as usize].pins == 0;
        let (mut missing, mut found) = (0, 0);
        for key in keys {
            match self.slots.get(key) {
                None => missing += 1,
                Some(slot) => found += usize::from(unpinned(&slot)),
            }
        }
        missing <= self.rows.len() - self.pinned - found
    }

    /// Finds or makes room for distinct keys, for which there is room, and pins them.
    pub(crate) fn plan(&mut self, keys: &[u64]) -> Moves {
        let mut moves = Moves { slots: vec![u32::MAX; keys.len()], ..Moves::default() };
        let mut missing = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            match self.slots.get(key).copied() {
                Some(slot) => {
                    self.pin(slot);
                    moves.slots[at] = slot;
                }
                None => missing.push(at),
            }
        }
        for at in missing {
            let slot = self.free.pop().unwrap_or_else(|| self.evict(&mut moves.rows_out));
            self.slots.insert(keys[at], slot);
            self.rows[slot as usize] = Row { key: Some(keys[at]), ..Row::default() };
            self.pin(slot);
            moves.slots[at] = slot;
            moves.rows_in.push((keys[at], slot));
            moves.positions.push(at as u32);
        }
        moves
    }

    fn pin(&mut self, slot: u32) {
        let row = &mut self.rows[slot as usize];
        self.pinned += usize::from(row.pins == 0);
        row.pins += 1;
        row.hot = true;
    }

    /// The next slot that nobody uses: rows that were used since the last round stay for one more.
    /// There is one, or this would not be called.
    fn evict(&mut self, rows_out: &mut Vec<(u64, u32)>) -> u32 {
        loop {
            let slot = self.hand as u32;
            self.hand = (self.hand + 1) % self.rows.len();
            let row = &mut self.rows[slot as usize];
            if row.pins > 0 || std::mem::take(&mut row.hot) {
                continue;
            }
            let Some(key) = row.key.take() else { continue };
            self.slots.remove(&key);
            if std::mem::take(&mut row.dirty) {
                rows_out.push((key, slot));
            }
            return slot;
        }
    }

    /// The key in a slot that was planned just now is no row: the slot belongs to that batch alone
    /// and is free after it. The next batch with the key asks again.
    pub(crate) fn disown(&mut self, slot: u32) {
        if let Some(key) = self.rows[slot as usize].key.take() {
            self.slots.remove(&key);
        }
    }

    /// A batch will change these rows.
    pub(crate) fn change(&mut self, slots: &[u32]) {
        slots.iter().for_each(|slot| self.rows[*slot as usize].dirty = true);
    }

    /// A batch does not need these rows any more.
    pub(crate) fn release(&mut self, slots: &[u32]) {
        for slot in slots {
            let row = &mut self.rows[*slot as usize];
            row.pins -= 1;
            if row.pins == 0 {
                self.pinned -= 1;
                if row.key.is_none() {
                    *row = Row::default();
                    self.free.push(*slot);
                }
            }
        }
    }

    /// All rows that changed, which then count as unchanged: somebody writes them to the table.
    pub(crate) fn take_changed(&mut self) -> Vec<(u64, u32)> {
        let rows = self.rows.iter_mut().enumerate();
        let changed = rows.filter_map(|(slot, row)| {
            std::mem::take(&mut row.dirty).then_some((row.key?, slot as u32))
        });
        changed.collect()
    }
}

/// Keys are ids, often small ones: a product spreads them.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        let product = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 29);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn keys(moves: &[(u64, u32)]) -> Vec<u64> {
        moves.iter().map(|(key, _)| *key).collect()
    }

    #[test]
    fn rows_stay_while_they_are_used() {
        let mut window = Window::new(4);
        let first = window.plan(&[10, 11, 12]);
        assert_eq!((keys(&first.rows_in), first.rows_out.len()), (vec![10, 11, 12], 0));
        window.change(&first.slots[..2]);
        // Two batches in flight need five rows.
        assert!(!window.has_room(&[12, 13, 14]) && window.has_room(&[12, 13]));
        window.release(&first.slots);
        assert!(window.has_room(&[12, 13, 14]));
        let second = window.plan(&[12, 13, 14]);
        assert_eq!(keys(&second.rows_in), [13, 14]);
        assert_eq!(second.slots[0], first.slots[2]);
        // One of the changed rows went, and is to be written.
        assert_eq!(second.rows_out.len(), 1);
        let gone = second.rows_out[0].0;
        let left = if gone == 10 { 11 } else { 10 };
        assert_eq!(keys(&window.take_changed()), [left]);
        assert_eq!(window.take_changed(), []);
        window.release(&second.slots);
        let third = window.plan(&[left, 12, 13, 14]);
        assert_eq!((third.rows_in.len(), third.rows_out.len()), (0, 0));
        window.release(&third.slots);
        assert!(!window.has_room(&[1, 2, 3, 4, 5]));
    }

    #[test]
    fn keys_without_a_row_leave_nothing_behind() {
        let mut window = Window::new(3);
        let first = window.plan(&[10, 11, 12]);
        assert_eq!(first.positions, [0, 1, 2]);
        window.disown(first.slots[1]);
        window.change(&first.slots);
        assert!(!window.has_room(&[11]), "its slot is still used");
        window.release(&first.slots);
        // Nothing of it is written, and it is asked for again.
        assert_eq!(keys(&window.take_changed()), [10, 12]);
        let second = window.plan(&[12, 11]);
        assert_eq!((keys(&second.rows_in), second.rows_out.len()), (vec![11], 0));
        assert_eq!(second.positions, [1]);
        window.release(&second.slots);
        let third = window.plan(&[10, 11, 12]);
        assert_eq!(third.rows_in, []);
    }

    /// Random batches against a model: every row is where the window says, no value is lost.
    #[test]
    fn no_change_is_lost() {
        let random = regatta_tensor::Rng::new(7, 0);
        let mut window = Window::new(16);
        let (mut table, mut arena) = (vec![0u64; 100], vec![0u64; 16]);
        let mut in_flight: VecDeque<(Vec<usize>, Vec<u32>)> = VecDeque::new();
        let mut expected = vec![0u64; 100];
        let settle = |window: &mut Window, arena: &mut Vec<u64>, done: (Vec<usize>, Vec<u32>)| {
            done.1.iter().for_each(|slot| arena[*slot as usize] += 1);
            window.change(&done.1);
            window.release(&done.1);
        };
        for batch in 0..2000u64 {
            let mut ids: Vec<usize> =
                (0..6).map(|i| (random.u64(batch * 8 + i) % 100) as usize).collect();
            ids.sort_unstable();
            ids.dedup();
            let wanted: Vec<u64> = ids.iter().map(|id| *id as u64).collect();
            while !window.has_room(&wanted) {
                settle(&mut window, &mut arena, in_flight.pop_front().unwrap());
            }
            let moves = window.plan(&wanted);
            for (key, slot) in &moves.rows_out {
                table[*key as usize] = arena[*slot as usize];
            }
            for (key, slot) in &moves.rows_in {
                arena[*slot as usize] = table[*key as usize];
            }
            ids.iter().for_each(|id| expected[*id] += 1);
            in_flight.push_back((ids, moves.slots));
        }
        in_flight.drain(..).for_each(|done| settle(&mut window, &mut arena, done));
        for (key, slot) in window.take_changed() {
            table[key as usize] = arena[slot as usize];
        }
        assert_eq!(table, expected);
    }
}
