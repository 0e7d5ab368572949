//! Whole rows, weights and optimizer state, for somebody who updates them elsewhere, such as on a
//! device: [`SparseTable::lease`] copies them out, [`SparseTable::give_back`] writes them over what
//! is here. In the meantime nobody else may push to them; the table does not check that.

use crate::error::check_len;
use crate::row::Kind;
use crate::{Error, PullMode, Scratch, SparseTable};

impl SparseTable {
    /// Floats of a whole row.
    ///
    /// # Errors
    /// [`Error::Config`] for rows with two stages, which only their accessor can update.
    pub fn row_width(&self) -> Result<usize, Error> {
        match &self.kind {
            Kind::Plain(plain) => Ok(plain.row_len()),
            Kind::Ctr(_) => {
                let what =
                    "rows of the ctr accessor have two stages, which only their table updates: \
                            let servers update them, and compute without a device"
                        .to_string();
                Err(Error::Config { table: self.config.table, what })
            }
        }
    }

    /// Copies the rows of distinct keys: [`row_width`](Self::row_width) floats for each, weights
    /// first. Absent ids are created; what is not admitted gives zeros, and its position is
    /// returned. `counts` says how often each key appeared; once, if it is empty.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn lease(
        &self,
        keys: &[u64],
        counts: &[u32],
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<Vec<u32>, Error> {
        let expected = keys.len() * self.row_width()?;
        check_len(self.config.table, "output of a lease", out.len(), expected)?;
        let mode = match counts.is_empty() {
            true => PullMode::Train,
            false => PullMode::TrainCounted(counts),
        };
        scratch.work.whole = true;
        let pulled = self.pull(keys, out, mode, scratch);
        scratch.work.whole = false;
        let absent = std::mem::take(&mut scratch.work.absent);
        pulled.map(|_| absent)
    }

    /// Writes rows as they are now over those of distinct keys; what is no row stays none. Counts
    /// as a push of each row for days and changes, and as no step.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn give_back(
        &self,
        keys: &[u64],
        rows: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let expected = keys.len() * self.row_width()?;
        check_len(self.config.table, "rows that are given back", rows.len(), expected)?;
        scratch.work.whole = true;
        let written = self.overwrite(keys, rows, scratch);
        scratch.work.whole = false;
        written
    }
}
