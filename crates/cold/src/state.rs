//! Which segment has which number, and where its records are.

use std::sync::{Arc, Weak};

use crate::batch::Plan;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::segment::Segment;
use crate::{Error, RecordNo};

/// Where the records of a segment number are.
pub(crate) enum Entry {
    /// Nobody's, once the last one who has read from it is gone.
    Free(Weak<()>),
    /// The open segment, or one that is loaded or compacted and not readable yet.
    Taken,
    /// In memory until it is written.
    Waiting(Arc<Memory>),
    /// In a file.
    File(Arc<Segment>),
}

pub(crate) struct State {
    pub(crate) open: Memory,
    pub(crate) entries: Vec<Entry>,
    next: usize,
}

impl Layout {
    pub(crate) fn number(&self, id: u32, slot: u32) -> RecordNo {
        RecordNo(id * self.slots + slot)
    }

    /// Segment and slot.
    fn place(&self, number: RecordNo) -> (u32, u32) {
        (number.0 / self.slots, number.0 % self.slots)
    }
}

/// A segment in a batch that is being planned.
#[derive(Clone, Copy)]
enum Seen {
    Not,
    InMemory,
    Number(u32),
}

impl State {
    pub(crate) fn new(layout: Layout) -> State {
        State { open: Memory::new(0, layout), entries: vec![Entry::Taken], next: 1 }
    }

    /// A segment number that nobody uses, in turn, so that they return late.
    pub(crate) fn take_number(&mut self, most: u32, layout: &Layout) -> Result<u32, Error> {
        let n = self.entries.len();
        let unused = |e: &Entry| matches!(e, Entry::Free(life) if life.strong_count() == 0);
        let id = if n < most as usize {
            self.entries.push(Entry::Taken);
            n
        } else {
            let in_turn = (self.next..n).chain(0..self.next.min(n));
            let found = in_turn.into_iter().find(|&id| unused(&self.entries[id]));
            found.ok_or(Error::Full(most * layout.slots))?
        };
        self.entries[id] = Entry::Taken;
        self.next = (id + 1) % most as usize;
        Ok(id as u32)
    }

    /// Copies what is in memory into a plan and notes the places of the rest. How many records were
    /// in memory.
    pub(crate) fn resolve(&self, numbers: &[RecordNo], layout: &Layout, plan: &mut Plan) -> usize {
        let mut seen = vec![Seen::Not; self.entries.len()];
        let mut n_in_memory = 0;
        for (at, &number) in numbers.iter().enumerate() {
            let (id, slot) = layout.place(number);
            if let Some(memory) = self.memory(id) {
                if memory.live.get(slot) {
                    plan.copy(at, memory.record(slot));
                    n_in_memory += 1;
                    if matches!(seen[id as usize], Seen::Not) {
                        plan.hold(&memory.life);
                        seen[id as usize] = Seen::InMemory;
                    }
                }
            } else if let Some(Entry::File(segment)) = self.entries.get(id as usize) {
                let live = segment.position(slot).filter(|&position| segment.live.get(position));
                let Some(position) = live else { continue };
                let number = match seen[id as usize] {
                    Seen::Number(number) => number,
                    _ => plan.segment(segment),
                };
                seen[id as usize] = Seen::Number(number);
                plan.want(at, number, position);
            }
        }
        n_in_memory
    }

    /// The segment, if it is in memory.
    fn memory(&self, id: u32) -> Option<&Memory> {
        match self.entries.get(id as usize)? {
            Entry::Waiting(memory) => Some(memory),
            Entry::Taken if id == self.open.id => Some(&self.open),
            _ => None,
        }
    }

    /// Ends the life of a record. False if it was not alive. Segments that have none left are added
    /// to `dead`; `sparse` is set if compaction has something to do.
    pub(crate) fn release(
        &self,
        number: RecordNo,
        layout: &Layout,
        dead: &mut Vec<Arc<Segment>>,
        sparse: &mut bool,
    ) -> bool {
        let (id, slot) = layout.place(number);
        if let Some(memory) = self.memory(id) {
            return memory.live.clear(slot);
        }
        let Some(Entry::File(segment)) = self.entries.get(id as usize) else { return false };
        let was = segment.position(slot).is_some_and(|position| segment.live.clear(position));
        if was && segment.live.count() == 0 {
            dead.push(segment.clone());
        }
        *sparse |= was && segment.is_sparse();
        was
    }

    /// Takes a segment without live records out. It is returned, to be dropped without a lock.
    pub(crate) fn remove_if_dead(&mut self, segment: &Arc<Segment>) -> Option<Entry> {
        let entry = &mut self.entries[segment.id as usize];
        let same = matches!(entry, Entry::File(other) if Arc::ptr_eq(other, segment));
        (same && segment.may_go())
            .then(|| std::mem::replace(entry, Entry::Free(Arc::downgrade(&segment.life))))
    }

    /// All segments in files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::File(segment) => Some(segment),
            _ => None,
        })
    }

    /// All segments in memory.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &Memory> {
        let waiting = self.entries.iter().filter_map(|entry| match entry {
            Entry::Waiting(memory) => Some(&**memory),
            _ => None,
        });
        waiting.chain([&self.open])
    }
}
