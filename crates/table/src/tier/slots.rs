//! Which rows are in memory, how warm they are, and whose turn it is to go: a clock with two bits.
//!
//! Every slot has a byte. A pull raises its heat, up to three; the hand takes one away each time it
//! passes, and a row without heat goes. Rows that were asked for ahead, and rows that were pulled
//! and not yet pushed, are pinned: the hand takes the pin down first, so that a pin whose push
//! never comes ends after some turns. Pins save reads; nothing relies on them.

use std::sync::atomic::{AtomicU8, Ordering};

/// Most heat, in the lowest bits.
const HEAT: u8 = 3;
/// The bits of a pin, which counts how often the hand may still pass.
const PIN: u8 = 3 << 2;
const PIN_STEP: u8 = 1 << 2;
/// No row is here.
const FREE: u8 = 1 << 7;

/// How warm a row is when it comes into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Somebody uses it now.
    Used,
    /// Somebody will.
    Ahead,
    /// It was loaded with others.
    Loaded,
}

/// The slots of one slab.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    hashes: Vec<u64>,
    heat: Vec<AtomicU8>,
}

impl Slots {
    /// A row has come to a slot.
    pub(crate) fn took(&mut self, slot: u32, hash: u64, arrival: Arrival) {
        let slot = slot as usize;
        if slot >= self.hashes.len() {
            // Small steps: this is memory beside the budget.
            let more = slot + 1 - self.hashes.len() + self.hashes.len() / 16;
            self.hashes.reserve_exact(more);
            self.heat.reserve_exact(more);
            self.hashes.resize(slot + 1, 0);
            self.heat.resize_with(slot + 1, || AtomicU8::new(FREE));
        }
        self.hashes[slot] = hash;
        *self.heat[slot].get_mut() = match arrival {
            Arrival::Used => 1 | PIN,
            Arrival::Ahead => PIN,
            Arrival::Loaded => 0,
        };
    }

    /// The row of a slot is gone.
    pub(crate) fn freed(&mut self, slot: u32) {
        *self.heat[slot as usize].get_mut() = FREE;
    }

    pub(crate) fn clear(&mut self) {
        *self = Slots::default();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>() + self.heat.capacity()
    }

    /// A row is used, by training if it is pinned. Bytes that are right already stay clean.
    #[inline(always)]
    pub(crate) fn warm(&self, slot: u32, pin: bool) {
        let heat = &self.heat[slot as usize];
        let before = heat.load(Ordering::Relaxed);
        let raised = if before & HEAT == HEAT { before } else { before + 1 };
        let after = if pin { raised | PIN } else { raised };
        if after != before {
            heat.store(after, Ordering::Relaxed);
        }
    }

    /// A row will be used.
    #[inline(always)]
    pub(crate) fn pin(&self, slot: u32) {
        let heat = &self.heat[slot as usize];
        let before = heat.load(Ordering::Relaxed);
        if before & PIN != PIN {
            heat.store(before | PIN, Ordering::Relaxed);
        }
    }

    /// A row was pushed.
    #[inline(always)]
    pub(crate) fn unpin(&mut self, slot: u32) {
        *self.heat[slot as usize].get_mut() &= !PIN;
    }

    pub(crate) fn is_free(&self, slot: u32) -> bool {
        self.heat[slot as usize].load(Ordering::Relaxed) == FREE
    }

    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// The hand passes a slot; the hash if its row has to go.
    fn pass(&mut self, slot: usize) -> Option<u64> {
        let heat = self.heat[slot].get_mut();
        match *heat {
            FREE => return None,
            0 => return Some(self.hashes[slot]),
            pinned if pinned & PIN != 0 => *heat -= PIN_STEP,
            _ => *heat -= 1,
        }
        None
    }
}

/// Where the hand is: it goes over the slots of both slabs.
#[derive(Debug, Default)]
pub(crate) struct Hand(usize);

impl Hand {
    /// Chooses rows until `enough` says so, which is told the slab, slot and hash of each. A row is
    /// chosen once, for its byte says that it is gone.
    pub(crate) fn sweep(
        &mut self,
        slots: &mut [Slots; 2],
        mut enough: impl FnMut(usize, u32, u64) -> bool,
    ) {
        let ends = [slots[0].len(), slots[0].len() + slots[1].len()];
        // After so many turns no pin and no heat is left.
        let most_steps = ends[1] * (PIN / PIN_STEP + HEAT + 1) as usize;
        for _ in 0..most_steps {
            self.0 = if self.0 + 1 >= ends[1] { 0 } else { self.0 + 1 };
            let slab = usize::from(self.0 >= ends[0]);
            let slot = self.0 - slab * ends[0];
            let Some(hash) = slots[slab].pass(slot) else { continue };
            slots[slab].freed(slot as u32);
            if enough(slab, slot as u32, hash) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swept(slots: &mut [Slots; 2], hand: &mut Hand, n: usize) -> Vec<u64> {
        let mut chosen = Vec::new();
        hand.sweep(slots, |_, _, hash| {
            chosen.push(hash);
            chosen.len() == n
        });
        chosen
    }

    #[test]
    fn cold_rows_go_before_warm_ones_and_pinned_ones_last() {
        let mut slots = [Slots::default(), Slots::default()];
        for i in 0..10 {
            slots[usize::from(i >= 6)].took(1 + i % 6, u64::from(100 + i), Arrival::Loaded);
        }
        slots[0].warm(1, false);
        slots[1].warm(2, false);
        slots[0].pin(2);
        let mut hand = Hand::default();
        assert_eq!(swept(&mut slots, &mut hand, 3), [102, 103, 104]);
        slots[0].took(4, 200, Arrival::Loaded);
        assert_eq!(swept(&mut slots, &mut hand, 5), [105, 106, 108, 109, 100]);
        assert_eq!(swept(&mut slots, &mut hand, 2), [200, 107]);
        assert_eq!(swept(&mut slots, &mut hand, 9), [101], "pins end");
        assert!(swept(&mut slots, &mut hand, 1).is_empty());
    }

    #[test]
    fn a_push_ends_a_pin_and_heat_has_a_limit() {
        let mut slots = [Slots::default(), Slots::default()];
        (1..4).for_each(|slot| slots[0].took(slot, u64::from(slot), Arrival::Used));
        (0..9).for_each(|_| slots[0].warm(1, true));
        (1..3).for_each(|slot| slots[0].unpin(slot));
        assert_eq!(swept(&mut slots, &mut Hand::default(), 9), [2, 1, 3]);
    }
}
