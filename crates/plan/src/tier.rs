//! Tables with rows on disk: what stays in the memory of a server, and what its disk takes.

use serde::Serialize;

use crate::workload::{ROW_OVERHEAD, TableLoad};

/// Bytes of memory that a row on disk takes: its entry in the index. Tables hold themselves to it
/// (`regatta-table`), and a test of this crate compares.
pub const COLD_ROW: f64 = 12.0;
/// Bytes of a record beyond the floats of its row.
const RECORD_OVERHEAD: f64 = 16.0;
/// Records do not cross the pages of a file.
const PAGE: f64 = 4096.0;
/// Compaction keeps files below this many times what is in them.
const DISK_FACTOR: f64 = 2.0;

/// The part of a table's load that concerns its tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TierLoad {
    /// Bytes of rows in the memory of each server, the index not counted.
    pub memory: f64,
    /// Bytes of a row's floats, in memory and out of it.
    pub float_bytes: f64,
    /// Bytes that a row takes in a file.
    pub record_bytes: f64,
}

impl TierLoad {
    pub(crate) fn new(memory_mb: u64, table: &TableLoad) -> TierLoad {
        let float_bytes = table.row_bytes - ROW_OVERHEAD;
        let per_page = (PAGE / (float_bytes + RECORD_OVERHEAD)).floor().max(1.0);
        TierLoad {
            memory: memory_mb as f64 * (1u64 << 20) as f64,
            float_bytes,
            record_bytes: PAGE / per_page,
        }
    }

    /// Of `rows` rows on a server, those in memory.
    pub fn hot(&self, rows: f64) -> f64 {
        rows.min((self.memory / self.float_bytes).floor())
    }
}

impl TableLoad {
    /// Bytes of memory that `rows` rows take on a server, with their index.
    pub fn memory_of(&self, rows: f64) -> f64 {
        let hot = self.tier.map_or(rows, |tier| tier.hot(rows));
        hot * self.row_bytes + (rows - hot) * COLD_ROW
    }

    /// Bytes of disk that `rows` rows take on a server at most, beside what is saved.
    pub fn disk_of(&self, rows: f64) -> f64 {
        let cold = |tier: TierLoad| (rows - tier.hot(rows)) * tier.record_bytes;
        DISK_FACTOR * self.tier.map_or(0.0, cold)
    }
}
