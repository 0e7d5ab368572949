//! The life of rows between requests: days end, rows are forgotten.

use std::sync::atomic::Ordering;

use crate::Error;
use crate::ctr::{CLICK, SHOW};
use crate::index::DAY_MASK;
use crate::row::Kind;
use crate::sparse::SparseTable;

/// What a shrink removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShrinkCounts {
    /// Rows that went.
    pub rows: usize,
    /// Rows that stayed.
    pub kept: usize,
    /// Ids waiting for admission that went.
    pub candidates: usize,
}

impl SparseTable {
    /// Ends a day: all rows and candidates have gone one more day without a push. Takes no time.
    ///
    /// This is what Paddle does to the rows when it saves in mode 3.
    pub fn end_day(&self) {
        let next = |day: u32| Some(day.wrapping_add(1) & DAY_MASK);
        // The function always gives a value, so the update cannot fail.
        let _ = self.day.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Removes rows that are not worth keeping, one shard after the other.
    ///
    /// Plain rows go after more days without a push than configured. CTR rows first lose a part of
    /// their shows and clicks, and go if their score is below `delete_threshold` or after too many
    /// days. Candidates for admission go by days in both. `unseen_days` replaces the configured
    /// number of days. Memory of removed rows is used again for new ones.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Poisoned`].
    pub fn shrink(&self, unseen_days: Option<u32>) -> Result<ShrinkCounts, Error> {
        let limit = unseen_days.unwrap_or(self.kind.delete_after_unseen_days());
        let day = self.day();
        let decays = matches!(self.kind, Kind::Ctr(_));
        let mut counts = ShrinkCounts::default();
        for (shard_idx, cell) in self.shards.iter().enumerate() {
            let shard = &mut *self.write(shard_idx)?;
            let (rows, candidates) = (shard.all_rows(), shard.n_candidates());
            let retained = shard.retain(decays, |place, row| {
                let worth_keeping = row.is_none_or(|row| self.decay(row));
                worth_keeping && place.unseen_days(day) <= limit
            });
            self.settled(retained)?;
            let gone = rows - shard.all_rows();
            cell.counters.evicted(gone);
            counts.rows += gone;
            counts.kept += shard.all_rows();
            counts.candidates += candidates - shard.n_candidates();
        }
        Ok(counts)
    }

    /// Lets statistics of a row decay; whether it is still worth keeping.
    fn decay(&self, row: &mut [f32]) -> bool {
        let Kind::Ctr(ctr) = &self.kind else { return true };
        row[SHOW] *= ctr.config.show_click_decay_rate;
        row[CLICK] *= ctr.config.show_click_decay_rate;
        ctr.score(row[SHOW], row[CLICK]) >= ctr.config.delete_threshold
    }

    /// Removes everything and gives the memory back. Counters and the day stay.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Poisoned`].
    pub fn clear(&self) -> Result<(), Error> {
        let clear = |shard| self.settled(self.write(shard)?.clear());
        (0..self.shards.len()).try_for_each(clear)
    }
}
