//! Segments that are mostly dead are written again without their dead, so that files take at most
//! twice what lives in them.
//!
//! Some segments are merged into a new one. When that is complete, the owner of the records is told
//! about them one by one, old and new number, and takes the new one or refuses it: the row may have
//! changed since. Until then the old record is the right one, so nothing waits for a compaction.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::bits::Bits;
use crate::health::Counters;
use crate::layout::hash_of;
use crate::scan::{Merge, Pinned};
use crate::segment::{Segment, SegmentWriter};
use crate::store::Shared;
use crate::{Error, RecordNo, Store};

/// Segments that are less than half full are merged when there are so many: small ones take as many
/// numbers as large ones.
const MOST_SMALL: usize = 4;

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compacted {
    /// Segments read.
    pub n_segments: usize,
    /// Records with a new number.
    pub n_moved: usize,
    /// Records that their owner did not want moved.
    pub n_refused: usize,
}

#[derive(Default)]
pub(crate) struct Compaction {
    /// One at a time.
    turn: Mutex<()>,
    moving: Mutex<Option<Moving>>,
    signal: Mutex<Signal>,
    changed: Condvar,
}

/// The record whose owner is being told.
struct Moving {
    from: (Arc<Segment>, u32),
    to: (Arc<Segment>, u32),
}

#[derive(Default)]
struct Signal {
    pending: bool,
    working: bool,
    started: bool,
    stop: bool,
}

/// A segment that is compacted: the numbers of its records that lived, in the order of the file.
struct Victim {
    segment: Arc<Segment>,
    places: Vec<(u32, RecordNo)>,
    next: usize,
}

/// Where a record of the new segment comes from.
struct Move {
    hash: u64,
    victim: u32,
    position: u32,
    number: RecordNo,
}

impl Store {
    /// Compacts once, if there is something to compact: a segment of which less than half lives, or
    /// several small ones. `moved` is told hash, old and new number of each record. If it returns
    /// true, the new number is the record's and the old one is gone. If it returns false, the new
    /// one is gone, and the old one stays until it is released.
    ///
    /// No lock of the store is held while `moved` runs.
    ///
    /// # Errors
    ///
    /// If files cannot be read or written. The store is poisoned then.
    pub fn compact(
        &self,
        moved: impl FnMut(u64, RecordNo, RecordNo) -> bool,
    ) -> Result<Option<Compacted>, Error> {
        let shared = &self.shared;
        shared.health.check()?;
        let _turn = shared.compaction.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let victims = shared.victims();
        if victims.is_empty() {
            return Ok(None);
        }
        let id = shared.take_number()?;
        let written = shared.health.note(shared.merge(id, &victims));
        let (segment, moves) = match written {
            Ok(written) => written,
            Err(error) => {
                shared.give_back(id);
                return Err(error);
            }
        };
        Ok(Some(shared.tell(shared.add(segment), &victims, &moves, moved)))
    }
}

impl Shared {
    /// The emptiest segments, as many as fit into one.
    fn victims(&self) -> Vec<Arc<Segment>> {
        let state = self.read();
        let files = || state.files().filter(|s| !s.filling.load(Ordering::Acquire));
        let mut victims: Vec<_> = files().filter(|s| s.is_sparse()).cloned().collect();
        if victims.is_empty() {
            victims = files().filter(|s| s.is_small()).cloned().collect();
            if victims.len() < MOST_SMALL {
                return Vec::new();
            }
        }
        drop(state);
        victims.sort_by_cached_key(|s| s.live.count());
        let mut room = self.layout.slots;
        victims.retain(|s| {
            let live = s.live.count();
            let fits = live <= room;
            room -= if fits { live } else { 0 };
            fits
        });
        victims
    }

    /// Writes the live records of all victims into one segment. None of them lives there yet.
    fn merge(&self, id: u32, from: &[Arc<Segment>]) -> Result<(Segment, Vec<Move>), Error> {
        let pinned: Vec<Pinned> =
            from.iter().map(|s| Pinned::File(s.clone(), s.live.copy())).collect();
        let mut victims: Vec<Victim> = pinned.iter().filter_map(Victim::new).collect();
        let mut writer =
            SegmentWriter::create(&self.dir, self.layout, &self.serials, &self.health)?;
        let mut merge = Merge::new(&pinned)?;
        let mut moves = Vec::new();
        while let Some(source) = merge.advance()? {
            let record = merge.record(source);
            let (position, number) = victims[source].take();
            moves.push(Move { hash: hash_of(record), victim: source as u32, position, number });
            writer.push_record(record)?;
        }
        let live = Bits::none(writer.len());
        Counters::add(&self.health.counters.moved, moves.len());
        let segment = writer.finish(id, live, None, Arc::new(()))?;
        segment.filling.store(true, Ordering::Release);
        Ok((segment, moves))
    }

    fn tell(
        &self,
        new: Arc<Segment>,
        victims: &[Arc<Segment>],
        moves: &[Move],
        mut moved: impl FnMut(u64, RecordNo, RecordNo) -> bool,
    ) -> Compacted {
        let mut done = Compacted { n_segments: victims.len(), ..Compacted::default() };
        for (slot, step) in moves.iter().enumerate() {
            let slot = slot as u32;
            let old = &victims[step.victim as usize];
            if !self.begin_move(old, step.position, &new, slot) {
                continue;
            }
            let accepted = moved(step.hash, step.number, self.layout.number(new.id, slot));
            self.end_move(accepted);
            done.n_moved += usize::from(accepted);
            done.n_refused += usize::from(!accepted);
        }
        new.filling.store(false, Ordering::Release);
        victims.iter().chain([&new]).for_each(|segment| self.remove_if_dead(segment));
        done
    }

    /// From now on the record can be read by both numbers, if it still lives.
    fn begin_move(&self, old: &Arc<Segment>, position: u32, new: &Arc<Segment>, slot: u32) -> bool {
        // Pins are taken under the lock for writing, so they see all of a step or nothing.
        let _state = self.read();
        if !old.live.get(position) {
            return false;
        }
        let moving = Moving { from: (old.clone(), position), to: (new.clone(), slot) };
        *self.compaction.moving() = Some(moving);
        new.live.set(slot);
        true
    }

    fn end_move(&self, accepted: bool) {
        let _state = self.read();
        if let Some(moving) = self.compaction.moving().take() {
            let (segment, position) = if accepted { moving.from } else { moving.to };
            segment.live.clear(position);
        }
    }
}

impl Victim {
    fn new(pinned: &Pinned) -> Option<Victim> {
        let Pinned::File(segment, live) = pinned else { return None };
        let layout = segment.layout();
        let n_slots = segment.order.as_ref().map_or(segment.header.n_records, |o| o.len());
        let mut places: Vec<(u32, RecordNo)> = (0..n_slots)
            .filter_map(|slot| Some((segment.position(slot)?, layout.number(segment.id, slot))))
            .filter(|&(position, _)| position < segment.header.n_records && live.get(position))
            .collect();
        places.sort_unstable();
        Some(Victim { segment: segment.clone(), places, next: 0 })
    }

    /// Position and number of the next record.
    fn take(&mut self) -> (u32, RecordNo) {
        let place = self.places[self.next];
        debug_assert!(place.0 < self.segment.header.n_records);
        self.next += 1;
        place
    }
}

impl Compaction {
    fn moving(&self) -> MutexGuard<'_, Option<Moving>> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self) -> MutexGuard<'_, Signal> {
        self.signal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to compact.
    pub(crate) fn notify(&self) {
        let mut signal = self.signal();
        if signal.started && !signal.pending {
            signal.pending = true;
            self.changed.notify_all();
        }
    }

    /// Decides for pins about the record whose owner is being told. If both of its numbers live,
    /// the old one stands for it. If its owner has released the one it knows, neither does.
    pub(crate) fn settle(&self, pins: &mut [Pinned]) {
        let Some(moving) = &*self.moving() else { return };
        let [from, to] = [&moving.from, &moving.to];
        let both = from.0.live.get(from.1) && to.0.live.get(to.1);
        for pinned in pins {
            let Pinned::File(segment, live) = pinned else { continue };
            if Arc::ptr_eq(segment, &to.0) {
                live.clear(to.1);
            } else if Arc::ptr_eq(segment, &from.0) && !both {
                live.clear(from.1);
            }
        }
    }
}

/// A thread that compacts whenever there is something to compact. It ends when this is dropped.
pub struct Compactor {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Compactor {
    /// Starts the thread; `moved` is as in [`Store::compact`]. A store has one at most.
    ///
    /// # Errors
    ///
    /// If there is one already, or no thread can be started.
    pub fn start(
        store: Arc<Store>,
        mut moved: impl FnMut(u64, RecordNo, RecordNo) -> bool + Send + 'static,
    ) -> Result<Compactor, Error> {
        {
            let mut signal = store.shared.compaction.signal();
            if signal.started {
                return Err(Error::Options("a store has one compactor".into()));
            }
            *signal = Signal { pending: true, started: true, ..Signal::default() };
        }
        let own = store.clone();
        let run = move || while work(&own, &mut moved) {};
        let thread = std::thread::Builder::new().name("cold-compact".into()).spawn(run);
        let mut compactor = Compactor { store, thread: None };
        compactor.thread = Some(thread.map_err(|e| Error::start("the thread that compacts", e))?);
        Ok(compactor)
    }

    /// Waits until everything that could be compacted is. Whoever puts records calls this now and
    /// then, with no lock held that `moved` takes, so that files stay below twice what lives.
    ///
    /// # Errors
    ///
    /// If the store has failed.
    pub fn keep_up(&self) -> Result<(), Error> {
        let (compaction, health) = (&self.store.shared.compaction, &self.store.shared.health);
        let mut signal = compaction.signal();
        while (signal.pending || signal.working) && !health.failed() {
            signal = compaction.changed.wait(signal).unwrap_or_else(PoisonError::into_inner);
        }
        health.check()
    }
}

/// Waits for a signal and compacts until nothing is left. False when the thread is to end.
fn work(store: &Store, moved: &mut impl FnMut(u64, RecordNo, RecordNo) -> bool) -> bool {
    let compaction = &store.shared.compaction;
    let mut signal = compaction.signal();
    while !signal.pending && !signal.stop {
        signal = compaction.changed.wait(signal).unwrap_or_else(PoisonError::into_inner);
    }
    if signal.stop {
        return false;
    }
    (signal.pending, signal.working) = (false, true);
    drop(signal);
    // A round that moved little would find the same segments again, or its own: a segment whose
    // records are mostly refused is as sparse as those that it was made of.
    let result = loop {
        match store.compact(&mut *moved) {
            Ok(Some(done)) if done.n_moved > done.n_refused => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    compaction.signal().working = false;
    compaction.changed.notify_all();
    // All numbers taken is the only error that passes: records are released, and it goes on.
    !matches!(result, Err(error) if !matches!(error, Error::Full(_)))
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.store.shared.compaction.signal().stop = true;
        self.store.shared.compaction.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread that compacts does not panic");
        }
        *self.store.shared.compaction.signal() = Signal::default();
    }
}
