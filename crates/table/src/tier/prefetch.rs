//! Rows that are brought into memory ahead of their use.
//!
//! [`SparseTable::prefetch`] tells a thread of the table and returns. The thread looks for the
//! rows, begins to read them, and moves them into memory in the order in which their reads began.
//! Who needs a row whose read is under way waits for that read.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use regatta_cold::{RecordNo, Ticket};

use crate::Error;
use crate::group::{Groups, Item, Scratch};
use crate::index::Place;
use crate::shard::Shard;
use crate::sparse::{SparseTable, poisoned};
use crate::tier::Core;
use crate::tier::slots::Arrival;

/// Calls that wait at most.
const MOST_CALLS: usize = 256;

/// How far ahead lines of the index are asked for.
const AHEAD: usize = 16;

/// Reads that were begun together.
#[derive(Debug, Default)]
pub(crate) struct Load {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Load {
    pub(crate) fn is_done(&self) -> bool {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the rows are in memory, or will not come this way.
    pub(crate) fn wait(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while !*done {
            done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// A row that is read ahead.
#[derive(Debug, Clone, Copy)]
struct Want {
    shard: u32,
    record: u32,
    hash: u64,
}

/// Rows that are read ahead together. However it ends, nobody waits for it any more.
struct Task {
    core: Arc<Core>,
    wants: Vec<Want>,
    load: Arc<Load>,
}

impl Drop for Task {
    fn drop(&mut self) {
        for of_shard in self.wants.chunk_by(|a, b| a.shard == b.shard) {
            let Ok(shard) = self.core.cells[of_shard[0].shard as usize].lock.read() else {
                continue;
            };
            let Some(tier) = &shard.tier else { continue };
            let mut loading = tier.loading();
            for want in of_shard {
                if loading.get(&want.record).is_some_and(|load| Arc::ptr_eq(load, &self.load)) {
                    loading.remove(&want.record);
                }
            }
        }
        self.core.n_ahead.fetch_sub(self.wants.len(), Ordering::Relaxed);
        self.load.finish();
    }
}

impl Task {
    /// Waits for the reads and moves the rows into memory.
    fn run(&self, ticket: Ticket) -> Result<(), Error> {
        let core = &self.core;
        let held = core.cold(ticket.wait())?;
        let mut at = 0;
        for of_shard in self.wants.chunk_by(|a, b| a.shard == b.shard) {
            let first = at;
            at += of_shard.len();
            let mut shard = core.write(of_shard[0].shard as usize)?;
            let mut n = 0;
            shard.expect(of_shard.iter().take(AHEAD).map(|want| want.hash));
            for (i, want) in of_shard.iter().enumerate() {
                shard.expect(of_shard.get(i + AHEAD).into_iter().map(|want| want.hash));
                let Some(record) = held.get(first + i) else { continue };
                let tier = shard.tier.as_ref();
                let entry = tier.and_then(|tier| tier.cold.find(want.hash, want.record));
                if let Some(entry) = entry.filter(|_| record.hash == want.hash) {
                    shard.promote(entry, &record, Arrival::Ahead)?;
                    n += 1;
                }
            }
            core.settled(shard.settle())?;
            core.counters.prefetched(n);
        }
        Ok(())
    }
}

/// The thread that reads rows ahead and moves them into memory. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Promoter {
    queue: Option<SyncSender<Vec<u64>>>,
    thread: Option<JoinHandle<()>>,
}

impl Promoter {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Promoter, Error> {
        let (queue, wanted) = sync_channel(MOST_CALLS);
        let (name, own) = (format!("tier-{}", core.table.0), core.clone());
        let thread = std::thread::Builder::new().name(name).spawn(move || serve(&own, &wanted));
        let thread = thread.map_err(|e| Error::Cold {
            table: core.table,
            what: format!("cannot start the thread that reads ahead: {e}"),
        })?;
        Ok(Promoter { queue: Some(queue), thread: Some(thread) })
    }
}

impl Drop for Promoter {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // Should it have panicked, a lock is poisoned, and whoever comes next says so.
            let _ = thread.join();
        }
    }
}

/// Begins the reads of all that is wanted, and then waits for the oldest of them, until nobody can
/// want anything any more. An error has poisoned the table: whoever asks next gets it.
fn serve(core: &Arc<Core>, wanted: &Receiver<Vec<u64>>) {
    let mut groups = Groups::default();
    let mut under_way = VecDeque::new();
    loop {
        let keys = match under_way.is_empty() {
            true => wanted.recv().map_err(|_| TryRecvError::Disconnected),
            false => wanted.try_recv(),
        };
        match keys {
            Ok(keys) => {
                groups.arrange(&keys, core.cells.len(), None);
                under_way.extend(begin(core, &groups).unwrap_or_default());
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let Some((task, ticket)): Option<(Task, Ticket)> = under_way.pop_front() else {
                    continue;
                };
                let done = task.run(ticket);
                drop(task);
                let _ = done.and_then(|()| core.keep_up());
            }
        }
    }
}

/// Begins to read the cold rows of keys, if there are some.
fn begin(core: &Arc<Core>, groups: &Groups) -> Result<Option<(Task, Ticket)>, Error> {
    core.check()?;
    let load = Arc::new(Load::default());
    let mut task = Task { core: core.clone(), wants: Vec::new(), load };
    for (shard_idx, cell) in core.cells.iter().enumerate() {
        let items = groups.shard(shard_idx);
        if !items.is_empty() {
            let shard = cell.lock.read().map_err(|_| poisoned(core.table, shard_idx))?;
            task.want(shard_idx, &shard, items);
        }
    }
    if task.wants.is_empty() {
        return Ok(None);
    }
    let numbers: Vec<_> = task.wants.iter().map(|w| RecordNo::from_u32(w.record)).collect();
    let ticket = core.cold(core.store.submit(&numbers))?;
    Ok(Some((task, ticket)))
}

impl SparseTable {
    /// Begins to bring the rows of `keys` into memory and returns at once, for a pull of them that
    /// comes soon. It changes no result: pulls and pushes bring what they need by themselves. A
    /// table without a tier has all rows in memory, and does nothing.
    ///
    /// At most a quarter of the rows that fit into memory are under way at a time; more are left
    /// to the pull.
    ///
    /// # Errors
    /// [`Error::Cold`] if reads or writes have failed, ahead or not.
    pub fn prefetch(&self, keys: &[u64], _scratch: &mut Scratch) -> Result<(), Error> {
        let Some(tier) = &self.tier else { return Ok(()) };
        tier.core.check()?;
        if let Some(queue) = &tier.promoter.queue {
            // If the thread is behind, these rows are left to the pull.
            if queue.try_send(keys.to_vec()).is_err() {
                tier.core.counters.left_out(keys.len());
            }
        }
        Ok(())
    }
}

impl Task {
    /// Notes the cold rows of a shard among items, and pins the others.
    fn want(&mut self, shard_idx: usize, shard: &Shard, items: &[Item]) {
        let Some(tier) = shard.tier.as_ref().filter(|tier| tier.cold.len() > 0) else { return };
        let mut loading = tier.loading();
        for (i, item) in items.iter().enumerate() {
            if let Some(ahead) = items.get(i + AHEAD) {
                shard.index.prefetch(ahead.hash);
            }
            let place = shard.index.find(item.hash);
            if let Some(slot) = place.slot() {
                tier.slots[usize::from(place.has(Place::EXTENDED))].pin(slot);
                continue;
            }
            if place != Place::EMPTY {
                continue;
            }
            for entry in tier.cold.candidates(item.hash) {
                if loading.contains_key(&entry.record()) {
                    continue;
                }
                if self.core.n_ahead.fetch_add(1, Ordering::Relaxed) >= self.core.most_ahead {
                    self.core.n_ahead.fetch_sub(1, Ordering::Relaxed);
                    self.core.counters.left_out(1);
                    continue;
                }
                loading.insert(entry.record(), self.load.clone());
                let (shard, record) = (shard_idx as u32, entry.record());
                self.wants.push(Want { shard, record, hash: item.hash });
            }
        }
    }
}
