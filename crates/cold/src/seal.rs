//! Full segments are sorted and written by a thread of their own, behind a bounded queue.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::Error;
use crate::bits::{Bits, Copied, Order};
use crate::health::Health;
use crate::memory::Memory;
use crate::segment::{Segment, SegmentWriter};
use crate::state::Entry;
use crate::store::Shared;

/// Segments that wait to be written.
pub(crate) struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct Waiting {
    segments: VecDeque<Arc<Memory>>,
    writing: bool,
    stop: bool,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Queue {
        Queue { state: Mutex::default(), changed: Condvar::new(), capacity }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.lock().segments.len() < self.capacity
    }

    /// Adds a segment. The caller holds the lock of the store and has seen room.
    pub(crate) fn push(&self, segment: Arc<Memory>) {
        self.lock().segments.push_back(segment);
        self.changed.notify_all();
    }

    pub(crate) fn wait_for_room(&self, health: &Health) -> Result<(), Error> {
        self.wait(health, |waiting| waiting.segments.len() < self.capacity)
    }

    pub(crate) fn wait_until_empty(&self, health: &Health) -> Result<(), Error> {
        self.wait(health, |waiting| waiting.segments.is_empty() && !waiting.writing)
    }

    fn wait(&self, health: &Health, enough: impl Fn(&Waiting) -> bool) -> Result<(), Error> {
        let mut waiting = self.lock();
        while !enough(&waiting) && !health.failed() {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        health.check()
    }

    /// The next segment to write; `None` when the store ends or has failed.
    fn next(&self, health: &Health) -> Option<Arc<Memory>> {
        let mut waiting = self.lock();
        waiting.writing = false;
        self.changed.notify_all();
        loop {
            if waiting.stop || health.failed() {
                return None;
            }
            if let Some(segment) = waiting.segments.pop_front() {
                waiting.writing = true;
                return Some(segment);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }
}

pub(crate) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    let run = move || {
        while let Some(segment) = shared.queue.next(&shared.health) {
            // Whoever puts or flushes next gets the error.
            let _ = shared.health.note(shared.seal(&segment));
        }
    };
    let thread = std::thread::Builder::new().name("cold-write".into()).spawn(run);
    thread.map_err(|e| Error::start("the thread that writes", e))
}

impl Shared {
    fn seal(&self, memory: &Memory) -> Result<(), Error> {
        let then = memory.live.copy();
        let (segment, positions) = self.write_sorted(memory, &then)?;
        let mut state = self.write();
        for slot in then.lost(&memory.live.copy()) {
            segment.live.clear(positions[slot as usize]);
        }
        let sparse = segment.is_sparse() || segment.is_small();
        let segment = Arc::new(segment);
        let before =
            std::mem::replace(&mut state.entries[memory.id as usize], Entry::File(segment.clone()));
        let dead = state.remove_if_dead(&segment);
        drop(state);
        // Memory and files are given back without the lock.
        drop((before, dead));
        if sparse {
            self.compaction.notify();
        }
        Ok(())
    }

    /// Writes what lived `then`; what is not in the file gets the position after its last.
    fn write_sorted(&self, memory: &Memory, then: &Copied) -> Result<(Segment, Vec<u32>), Error> {
        let slots = memory.sorted(then.iter());
        let n_records = slots.len() as u32;
        let mut positions = vec![n_records; memory.len() as usize];
        let mut writer =
            SegmentWriter::create(&self.dir, self.layout, &self.serials, &self.health)?;
        for (position, &slot) in slots.iter().enumerate() {
            writer.push_record(memory.record(slot))?;
            positions[slot as usize] = position as u32;
        }
        let (live, order) = (Bits::all(n_records), Order::pack(&positions));
        let segment = writer.finish(memory.id, live, Some(order), memory.life.clone())?;
        Ok((segment, positions))
    }
}
