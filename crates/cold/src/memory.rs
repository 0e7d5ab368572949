//! A segment in memory: it fills, or waits to be written. Its records are readable all the time.

use std::sync::Arc;

use crate::bits::Bits;
use crate::layout::{Layout, append_record, hash_of};

/// Bytes of a block, about: what a pinned segment copies at most when it goes on filling.
const BLOCK_BYTES: usize = 256 << 10;

/// Records in the order in which they came. A clone shares them: copy on write.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(crate) id: u32,
    layout: Layout,
    per_block: u32,
    blocks: Vec<Arc<Vec<u32>>>,
    n_records: u32,
    /// Live records, by slot.
    pub(crate) live: Arc<Bits>,
    /// The number `id` is not given out again while somebody holds this.
    pub(crate) life: Arc<()>,
}

impl Memory {
    pub(crate) fn new(id: u32, layout: Layout) -> Memory {
        let per_block = (BLOCK_BYTES / 4 / layout.record_words()).max(1) as u32;
        let live = Arc::new(Bits::none(layout.slots));
        let life = Arc::new(());
        Memory { id, layout, per_block, blocks: Vec::new(), n_records: 0, live, life }
    }

    pub(crate) fn len(&self) -> u32 {
        self.n_records
    }

    pub(crate) fn is_full(&self) -> bool {
        self.n_records == self.layout.slots
    }

    /// Appends a live record and returns its slot.
    pub(crate) fn push(&mut self, hash: u64, tag: u32, words: &[u32]) -> u32 {
        let slot = self.n_records;
        if slot.is_multiple_of(self.per_block) {
            let n_words = self.per_block as usize * self.layout.record_words();
            self.blocks.push(Arc::new(Vec::with_capacity(n_words)));
        }
        let last = self.blocks.last_mut().expect("the first record of a block made it");
        append_record(Arc::make_mut(last), hash, tag, words);
        self.n_records += 1;
        self.live.set(slot);
        slot
    }

    pub(crate) fn record(&self, slot: u32) -> &[u32] {
        let width = self.layout.record_words();
        let at = (slot % self.per_block) as usize * width;
        &self.blocks[(slot / self.per_block) as usize][at..at + width]
    }

    /// Slots in the order of their hashes.
    pub(crate) fn sorted(&self, slots: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut keyed: Vec<(u64, u32)> =
            slots.map(|slot| (hash_of(self.record(slot)), slot)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, slot)| slot).collect()
    }
}
