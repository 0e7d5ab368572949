//! What a table has done and holds: counters go in, [`Stats`] come out.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crate::sparse::SparseTable;

/// Counts of one shard since the table was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pulls: AtomicU64,
    hits: AtomicU64,
    pushes: AtomicU64,
    updated: AtomicU64,
    created: AtomicU64,
    admitted: AtomicU64,
    evicted: AtomicU64,
    cold_hits: AtomicU64,
}

fn add(counter: &AtomicU64, n: usize) {
    if n > 0 {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn pulled(&self, keys: usize, hits: usize) {
        add(&self.pulls, keys);
        add(&self.hits, hits);
    }

    pub(crate) fn pushed(&self, keys: usize, updated: usize) {
        add(&self.pushes, keys);
        add(&self.updated, updated);
    }

    pub(crate) fn created(&self, created: usize, admitted: usize) {
        add(&self.created, created);
        add(&self.admitted, admitted);
    }

    pub(crate) fn cold_hits(&self, rows: usize) {
        add(&self.cold_hits, rows);
    }

    pub(crate) fn evicted(&self, rows: usize) {
        add(&self.evicted, rows);
    }
}

/// What a table or one of its shards holds now and has done since it was made. Padding is counted
/// nowhere; imported rows do not count as created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows.
    pub rows: u64,
    /// Rows with their second stage (CTR).
    pub extended: u64,
    /// Ids that wait for admission.
    pub candidates: u64,
    /// Bytes of memory: the index, and all rows ever in use at the same time.
    pub bytes: u64,
    /// Keys pulled.
    pub pulls: u64,
    /// Keys pulled that had a row.
    pub hits: u64,
    /// Distinct keys pushed.
    pub pushes: u64,
    /// Rows updated by pushes.
    pub updated: u64,
    /// Rows created.
    pub created: u64,
    /// Rows created that had waited for admission.
    pub admitted: u64,
    /// Rows removed by shrinking.
    pub evicted: u64,
    /// Rows that are not in memory; part of `rows`.
    pub cold: u64,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// Keys pulled or pushed whose row was not in memory.
    pub cold_hits: u64,
    /// Rows read from files or from what waits to be written, ahead or when they were needed.
    pub cold_reads: u64,
    /// Pulls and pushes that waited for reads.
    pub waits: u64,
    /// How long, in microseconds.
    pub wait_micros: u64,
    /// Rows brought into memory ahead of their use.
    pub prefetched: u64,
    /// Rows that were not brought ahead, because too many were under way.
    pub left_out: u64,
    /// Rows moved out of memory.
    pub demoted: u64,
}

impl Stats {
    /// Of the keys pulled that had a row, the part whose row was in memory; 1 before any pull.
    pub fn hit_rate(&self) -> f64 {
        let cold = self.cold_hits.min(self.hits);
        if self.hits == 0 { 1.0 } else { 1.0 - cold as f64 / self.hits as f64 }
    }

    fn plus(self, other: Stats) -> Stats {
        Stats {
            rows: self.rows + other.rows,
            extended: self.extended + other.extended,
            candidates: self.candidates + other.candidates,
            bytes: self.bytes + other.bytes,
            pulls: self.pulls + other.pulls,
            hits: self.hits + other.hits,
            pushes: self.pushes + other.pushes,
            updated: self.updated + other.updated,
            created: self.created + other.created,
            admitted: self.admitted + other.admitted,
            evicted: self.evicted + other.evicted,
            cold: self.cold + other.cold,
            disk_bytes: self.disk_bytes + other.disk_bytes,
            cold_hits: self.cold_hits + other.cold_hits,
            cold_reads: self.cold_reads + other.cold_reads,
            waits: self.waits + other.waits,
            wait_micros: self.wait_micros + other.wait_micros,
            prefetched: self.prefetched + other.prefetched,
            left_out: self.left_out + other.left_out,
            demoted: self.demoted + other.demoted,
        }
    }
}

impl SparseTable {
    /// Statistics of the whole table.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn stats(&self) -> Result<Stats, Error> {
        let mut stats = self.shard_stats()?.into_iter().fold(Stats::default(), Stats::plus);
        if let Some(tier) = &self.tier {
            tier.add_to(&mut stats);
        }
        Ok(stats)
    }

    /// Statistics per shard, each read at its own moment. What a tier counts for the whole table is
    /// zero here.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn shard_stats(&self) -> Result<Vec<Stats>, Error> {
        let one = |(shard_idx, cell): (usize, &crate::sparse::Cell)| {
            let shard = self.read(shard_idx)?;
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (counters, tier) = (&cell.counters, shard.tier.as_ref());
            Ok(Stats {
                rows: shard.all_rows() as u64,
                extended: (shard.n_extended + tier.map_or(0, |t| t.n_cold_extended)) as u64,
                candidates: shard.n_candidates() as u64,
                bytes: shard.bytes() as u64,
                pulls: load(&counters.pulls),
                hits: load(&counters.hits),
                pushes: load(&counters.pushes),
                updated: load(&counters.updated),
                created: load(&counters.created),
                admitted: load(&counters.admitted),
                evicted: load(&counters.evicted),
                cold: tier.map_or(0, |tier| tier.cold.len()) as u64,
                cold_hits: load(&counters.cold_hits),
                demoted: tier.map_or(0, |tier| tier.demoted),
                ..Stats::default()
            })
        };
        self.shards.iter().enumerate().map(one).collect()
    }

    /// How many rows there are.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn n_rows(&self) -> Result<usize, Error> {
        (0..self.shards.len()).try_fold(0, |sum, shard| Ok(sum + self.read(shard)?.all_rows()))
    }
}
