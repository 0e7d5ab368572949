//! Tables larger than memory: rows that were not used for long lie in the files of a
//! [`regatta_cold::Store`], and come back when somebody asks for them.
//!
//! The index and the slabs of a shard hold the rows in memory, and pulls and pushes of them are
//! those of any table. Cold rows have an index of their own (`cold_index.rs`). Whatever wants to
//! change a row moves it into memory first (`read.rs`), so cold rows never change. At the end of
//! each request, the coldest rows of a shard leave if there are more than its budget allows
//! (`shard.rs`, `slots.rs`). Rows can be asked for ahead (`prefetch.rs`). What happens to all rows,
//! such as saving and shrinking, goes over the cold ones in slices (`scan.rs`).
//!
//! After a failed read or write the table refuses everything: an error, never a wrong row.

mod cold_index;
mod config;
mod prefetch;
mod read;
mod request;
mod scan;
mod shard;
mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLockWriteGuard};
use std::time::Duration;

pub use regatta_cold::sweep as sweep_tier;
use regatta_cold::{Compactor, EngineChoice, Options, Store};

pub(crate) use cold_index::ColdEntry;
pub use config::TierConfig;
pub(crate) use read::Found;
pub(crate) use scan::ColdReads;
pub(crate) use shard::ShardTier;
pub(crate) use slots::Arrival;

use crate::hash::shard_of;
use crate::row::Kind;
use crate::shard::Shard;
use crate::sparse::{Cell, poisoned};
use crate::{Error, SparseConfig, Stats, TableId};

/// Bytes of a segment: small against the budget, since up to three are in memory, and large enough
/// that there are not too many files.
const SEGMENT_BYTES: (usize, usize) = (16 << 10, 64 << 20);
const USUAL_SEGMENT: usize = 4 << 20;

/// The tier of a table, with its threads.
#[derive(Debug)]
pub(crate) struct Tier {
    // Before what it uses.
    promoter: prefetch::Promoter,
    pub(crate) core: Arc<Core>,
}

/// What the threads of a tier share.
pub(crate) struct Core {
    table: TableId,
    compactor: Compactor,
    cells: Arc<[Cell]>,
    pub(crate) store: Arc<Store>,
    /// The first failure.
    failed: OnceLock<Error>,
    pub(crate) counters: TierCounters,
    /// Rows that are read ahead now, and at most.
    n_ahead: AtomicUsize,
    most_ahead: usize,
    /// Records put when the size of the files was last looked at.
    n_put: AtomicU64,
    record_bytes: u64,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("store", self.store.info()).finish_non_exhaustive()
    }
}

/// What is counted for the whole table.
#[derive(Debug, Default)]
pub(crate) struct TierCounters {
    waits: AtomicU64,
    wait_micros: AtomicU64,
    prefetched: AtomicU64,
    left_out: AtomicU64,
}

impl TierCounters {
    fn waited(&self, time: Duration) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.wait_micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn prefetched(&self, n: usize) {
        self.prefetched.fetch_add(n as u64, Ordering::Relaxed);
    }

    fn left_out(&self, n: usize) {
        self.left_out.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// Opens the store of a table.
pub(crate) fn open(
    config: &SparseConfig,
    kind: &Kind,
    engine: EngineChoice,
) -> Result<Option<Arc<Store>>, Error> {
    let Some(tier) = &config.tier else { return Ok(None) };
    let memory = usize::try_from(tier.memory_bytes).unwrap_or(usize::MAX);
    let wanted = (memory / 32).max(USUAL_SEGMENT.min(memory / 4));
    let options = Options {
        segment_bytes: wanted.clamp(SEGMENT_BYTES.0, SEGMENT_BYTES.1),
        n_waiting: 1,
        engine,
        max_records: cold_index::MAX_RECORDS,
        ..Options::new(kind.base_len().max(kind.extended_len()))
    };
    let store = Store::open(&tier.dir, &options);
    store.map(|store| Some(Arc::new(store))).map_err(|e| shard::cold_error(config.table, &e))
}

/// What a shard needs for its cold rows.
pub(crate) fn of_shard(
    config: &SparseConfig,
    store: Option<&Arc<Store>>,
) -> Result<Option<Box<ShardTier>>, Error> {
    let (Some(tier), Some(store)) = (&config.tier, store) else { return Ok(None) };
    let budget = usize::try_from(tier.memory_bytes).unwrap_or(usize::MAX) / config.n_shards;
    ShardTier::new(config.table, store.clone(), config.n_shards, budget).map(Box::new).map(Some)
}

impl Tier {
    pub(crate) fn start(
        config: &SparseConfig,
        kind: &Kind,
        store: Arc<Store>,
        cells: Arc<[Cell]>,
    ) -> Result<Tier, Error> {
        let own = cells.clone();
        // A row whose record moves is still cold if the index says so.
        let moved = move |hash, old: regatta_cold::RecordNo, new: regatta_cold::RecordNo| {
            let shard = own[shard_of(hash, own.len())].lock.write();
            shard.is_ok_and(|mut shard| {
                let tier = shard.tier.as_mut();
                tier.is_some_and(|tier| tier.cold.replace(hash, old.get(), new.get(), 0))
            })
        };
        let compactor = Compactor::start(store.clone(), moved)
            .map_err(|e| shard::cold_error(config.table, &e))?;
        let words = kind.base_len().max(kind.extended_len());
        let memory_bytes = config.tier.as_ref().map_or(0, |tier| tier.memory_bytes);
        let core = Arc::new(Core {
            table: config.table,
            compactor,
            cells,
            store,
            failed: OnceLock::new(),
            counters: TierCounters::default(),
            n_ahead: AtomicUsize::new(0),
            most_ahead: (memory_bytes as usize / (16 * words)).max(1),
            n_put: AtomicU64::new(0),
            record_bytes: 4 * (words as u64 + 4),
        });
        Ok(Tier { promoter: prefetch::Promoter::start(&core)?, core })
    }

    /// Adds what is known of the whole table.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        let (store, counters) = (self.core.store.stats(), &self.core.counters);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.bytes += store.index_bytes;
        stats.disk_bytes = store.disk_bytes;
        stats.cold_reads = store.reads;
        stats.waits = load(&counters.waits);
        stats.wait_micros = load(&counters.wait_micros);
        stats.prefetched = load(&counters.prefetched);
        stats.left_out = load(&counters.left_out);
    }
}

impl Core {
    /// Refuses whatever a failed table is asked for.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Notes a failure of the store.
    pub(crate) fn cold<T>(&self, result: Result<T, regatta_cold::Error>) -> Result<T, Error> {
        self.settled(result.map_err(|e| shard::cold_error(self.table, &e)))
    }

    /// Notes a failure that a shard has met.
    pub(crate) fn settled<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error @ Error::Cold { .. }) = &result {
            // The first one stays: later ones follow from it.
            let _ = self.failed.set(error.clone());
        }
        result
    }

    fn write(&self, shard: usize) -> Result<RwLockWriteGuard<'_, Shard>, Error> {
        self.cells[shard].lock.write().map_err(|_| poisoned(self.table, shard))
    }

    /// Waits for the files to be compacted if they take much more than twice what lives in them. No
    /// lock may be held.
    pub(crate) fn keep_up(&self) -> Result<(), Error> {
        let info = self.store.info();
        let segment = u64::from(info.records_per_segment);
        let n_put = self.store.n_put();
        if n_put < self.n_put.load(Ordering::Relaxed) + segment {
            return Ok(());
        }
        self.n_put.store(n_put, Ordering::Relaxed);
        let stats = self.store.stats();
        if stats.disk_bytes > (2 * stats.live_on_disk + 4 * segment) * self.record_bytes * 17 / 16 {
            self.cold(self.compactor.keep_up())?;
        }
        Ok(())
    }
}
