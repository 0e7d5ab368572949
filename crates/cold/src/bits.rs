//! Which records live, a bit each, and where a sorted segment put them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A set of positions that several threads change, with its size.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[AtomicU64]>,
    n_set: AtomicU32,
}

impl Bits {
    /// None of `n`.
    pub(crate) fn none(n: u32) -> Bits {
        let words = (0..n.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Bits { words, n_set: AtomicU32::new(0) }
    }

    /// All of `n`.
    pub(crate) fn all(n: u32) -> Bits {
        let bits = Bits::none(n);
        for i in 0..n {
            bits.words[i as usize / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
        }
        bits.n_set.store(n, Ordering::Relaxed);
        bits
    }

    pub(crate) fn count(&self) -> u32 {
        self.n_set.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, i: u32) -> bool {
        match self.words.get(i as usize / 64) {
            Some(word) => word.load(Ordering::Acquire) >> (i % 64) & 1 == 1,
            None => false,
        }
    }

    /// Adds `i`. Whether it was not there before.
    pub(crate) fn set(&self, i: u32) -> bool {
        let bit = 1 << (i % 64);
        let new = self.words[i as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0;
        if new {
            self.n_set.fetch_add(1, Ordering::AcqRel);
        }
        new
    }

    /// Takes `i` away. Whether it was there.
    pub(crate) fn clear(&self, i: u32) -> bool {
        let Some(word) = self.words.get(i as usize / 64) else { return false };
        let bit = 1 << (i % 64);
        let was = word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        if was {
            self.n_set.fetch_sub(1, Ordering::AcqRel);
        }
        was
    }

    /// The set as it is now.
    pub(crate) fn copy(&self) -> Copied {
        Copied(self.words.iter().map(|w| w.load(Ordering::Acquire)).collect())
    }
}

/// A set as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copied(Vec<u64>);

impl Copied {
    pub(crate) fn get(&self, i: u32) -> bool {
        self.0[i as usize / 64] >> (i % 64) & 1 == 1
    }

    pub(crate) fn clear(&mut self, i: u32) {
        self.0[i as usize / 64] &= !(1 << (i % 64));
    }

    /// The first one from `i` on.
    pub(crate) fn next(&self, i: u32) -> Option<u32> {
        let mut at = i as usize / 64;
        let mut word = self.0.get(at)? & (u64::MAX << (i % 64));
        while word == 0 {
            at += 1;
            word = *self.0.get(at)?;
        }
        Some(64 * at as u32 + word.trailing_zeros())
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().enumerate().flat_map(|(i, &word)| ones(word).map(move |b| 64 * i as u32 + b))
    }

    /// What was in this set and is not in `now`.
    pub(crate) fn lost(&self, now: &Copied) -> impl Iterator<Item = u32> {
        let gone = self.0.iter().zip(&now.0).map(|(&then, &now)| then & !now);
        gone.enumerate().flat_map(|(i, word)| ones(word).map(move |b| 64 * i as u32 + b))
    }
}

fn ones(word: u64) -> impl Iterator<Item = u32> {
    let mut left = word;
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros())?;
        left &= left - 1;
        Some(bit)
    })
}

/// The position of every slot, in as few bits as the positions need: 2.5 bytes per record of a
/// segment of 64 MB, where four would be a third of the memory that a cold row may take.
#[derive(Debug)]
pub(crate) struct Order {
    width: u32,
    words: Box<[u64]>,
    n: u32,
}

impl Order {
    /// Packs positions by slot.
    pub(crate) fn pack(positions: &[u32]) -> Order {
        let most = positions.iter().copied().max().unwrap_or(0);
        let width = (u32::BITS - most.leading_zeros()).max(1);
        // One more word, so that reading two at once never leaves the slice.
        let mut words = vec![0_u64; (positions.len() * width as usize).div_ceil(64) + 1];
        for (i, &position) in positions.iter().enumerate() {
            let at = i * width as usize;
            let shifted = u128::from(position) << (at % 64);
            words[at / 64] |= shifted as u64;
            words[at / 64 + 1] |= (shifted >> 64) as u64;
        }
        Order { width, words: words.into(), n: positions.len() as u32 }
    }

    pub(crate) fn get(&self, slot: u32) -> Option<u32> {
        if slot >= self.n {
            return None;
        }
        let at = slot as usize * self.width as usize;
        let pair = u128::from(self.words[at / 64]) | u128::from(self.words[at / 64 + 1]) << 64;
        Some((pair >> (at % 64)) as u32 & (u32::MAX >> (32 - self.width)))
    }

    pub(crate) fn len(&self) -> u32 {
        self.n
    }

    pub(crate) fn bytes(&self) -> usize {
        8 * self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_return_what_was_packed() {
        for most in [0_u32, 1, 6, 255, 540_000, u32::MAX] {
            let positions: Vec<u32> = (0..1000_u32)
                .map(|i| i.wrapping_mul(0x9e37_79b1) % most.max(1))
                .chain([most])
                .collect();
            let order = Order::pack(&positions);
            let back: Vec<u32> = (0..order.len()).map(|i| order.get(i).unwrap()).collect();
            assert_eq!(back, positions);
            assert_eq!(order.get(order.len()), None);
        }
    }

    #[test]
    fn sets_count_what_they_hold() {
        let bits = Bits::all(130);
        let then = bits.copy();
        assert!(bits.clear(129) && !bits.clear(129) && !bits.get(129) && !bits.clear(1000));
        assert_eq!(bits.count(), 129);
        assert_eq!(then.lost(&bits.copy()).collect::<Vec<_>>(), [129]);
        assert!(bits.set(129) && !bits.set(129));
        assert_eq!(then, bits.copy());
        assert_eq!((then.iter().count(), then.count()), (130, 130));
        assert_eq!((then.next(64), then.next(129), then.next(130)), (Some(64), Some(129), None));
    }
}
