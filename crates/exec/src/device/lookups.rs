//! Which ids look up which rows: the lists that a batch brings to the device.

use std::collections::HashMap;

use regatta_ir::{Block, Layout, Op, Origin};
use regatta_passes::TableExchange;
use regatta_tensor::Value;

use super::refused;
use crate::Error;

/// A list that names no row.
pub(super) const NO_ROW: u32 = u32::MAX;

/// Where the rows of a lookup are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// In the arena of a table, by the slots that a batch brings.
    Pulled(usize),
    /// In a parameter, of which all rows are on the device.
    Param(String),
}

/// The lookups of some inputs in one table, forward and backward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lookups {
    w: String,
    ids: Vec<String>,
    padding: Option<u64>,
    hash: bool,
    pub(super) source: Source,
    /// Vectors per example of each input; 0 for one that pools.
    widths: Vec<usize>,
    /// Vectors per example of all inputs.
    pub(super) vectors: usize,
    /// Whether an input is ragged.
    pub(super) ragged: bool,
    /// Rows of a parameter.
    height: usize,
    /// Number of the first row that is a key.
    offset: u64,
}

/// The lists of one batch.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// The row of each id, by segment.
    pub(super) ids: Vec<u32>,
    /// First id of each segment, and one more; empty where every segment has one.
    pub(super) starts: Vec<u32>,
    /// First position of each distinct row, and one more.
    pub(super) row_starts: Vec<u32>,
    /// Segments by distinct row.
    pub(super) positions: Vec<u32>,
    /// Distinct row and segment of each id, in the order of inputs.
    contributions: Vec<(u32, u32)>,
}

pub(super) fn is_lookup(kind: &str) -> bool {
    matches!(kind, "embedding" | "embedding_row" | "embedding_grad" | "embedding_row_grad")
}

impl Lookups {
    /// What an op looks up.
    pub(super) fn of(op: &Op, block: &Block, tables: &[TableExchange]) -> Result<Lookups, Error> {
        let w = op.ins("W")[0].clone();
        let table = tables.iter().position(|table| table.pulled == w);
        let height = block.var(&w, &op.kind)?.ty.shape[0];
        let mut widths = Vec::new();
        let mut ragged = false;
        for name in op.ins("Ids") {
            let var = block.var(name, &op.kind)?;
            if var.origin != Origin::Data {
                let reason =
                    format!("the ids '{name}' are computed, and only inputs are looked up");
                return Err(refused(op, reason));
            }
            let is_ragged = var.ty.layout == Layout::Ragged;
            ragged |= is_ragged;
            let known = var.ty.shape.get(1..).unwrap_or_default();
            if known.iter().any(|&d| d < 0) {
                return Err(refused(op, format!("'{name}' is {} of unknown size", var.ty)));
            }
            let n: i64 = known.iter().product();
            widths.push(if is_ragged { 0 } else { n as usize });
        }
        let offset = table.and_then(|t| tables[t].padding).map_or(0, |_| 1);
        Ok(Lookups {
            source: table.map_or_else(|| Source::Param(w.clone()), Source::Pulled),
            w,
            ids: op.ins("Ids").to_vec(),
            padding: u64::try_from(op.int("padding_idx")?).ok(),
            hash: op.bool("hash")?,
            vectors: widths.iter().map(|&n| n.max(1)).sum(),
            widths,
            ragged,
            height: usize::try_from(height).unwrap_or(0),
            offset,
        })
    }

    /// Whether it is the lookups of these inputs in that table.
    pub(super) fn is_of(&self, w: &str, ids: &[String], padding: Option<u64>) -> bool {
        self.w == w && self.ids == ids && self.padding == padding
    }

    /// Names of the inputs.
    pub(super) fn inputs(&self) -> &[String] {
        &self.ids
    }

    /// The table of pulled rows.
    pub(super) fn table(&self) -> Option<usize> {
        match self.source {
            Source::Pulled(table) => Some(table),
            Source::Param(_) => None,
        }
    }

    /// Ids of a batch, in all.
    pub(super) fn count(&self, feeds: &HashMap<&str, &Value>) -> usize {
        self.ids.iter().filter_map(|name| feeds.get(name.as_str())?.ids()).map(<[u64]>::len).sum()
    }

    /// Makes the lists of a batch, whose distinct rows of the table lie at `slots`.
    pub(super) fn list(
        &self,
        feeds: &HashMap<&str, &Value>,
        rows: usize,
        slots: &[u32],
        lists: &mut Lists,
    ) -> Result<(), Error> {
        let inputs: Vec<(&str, &Value)> =
            self.ids.iter().map(|name| (name.as_str(), feeds[name.as_str()])).collect();
        let segments = rows * self.vectors;
        self.starts(&inputs, segments, lists);
        let n_ids = lists.starts.last().map_or(segments, |&n| n as usize);
        lists.ids.clear();
        lists.ids.resize(n_ids, NO_ROW);
        lists.contributions.clear();
        let mut at = 0;
        for (&(name, value), &width) in inputs.iter().zip(&self.widths) {
            let ids = value.ids().unwrap_or_default();
            match value {
                Value::Ragged(ragged) => {
                    for (example, range) in ragged.offsets().windows(2).enumerate() {
                        let segment = example * self.vectors + at;
                        let first = lists.starts[segment] as usize;
                        let ids = &ids[range[0] as usize..range[1] as usize];
                        for (i, &id) in ids.iter().enumerate() {
                            self.put(name, id, slots, segment, first + i, lists)?;
                        }
                    }
                }
                Value::Dense(_) => {
                    for (i, &id) in ids.iter().enumerate() {
                        let segment = i / width * self.vectors + at + i % width;
                        let to = lists.starts.get(segment).map_or(segment, |&to| to as usize);
                        self.put(name, id, slots, segment, to, lists)?;
                    }
                }
            }
            at += width.max(1);
        }
        self.sort(slots.len(), lists);
        Ok(())
    }

    fn starts(&self, inputs: &[(&str, &Value)], segments: usize, lists: &mut Lists) {
        lists.starts.clear();
        if !self.ragged {
            return;
        }
        lists.starts.resize(segments + 1, 1);
        let mut at = 0;
        for ((_, value), &width) in inputs.iter().zip(&self.widths) {
            if let Value::Ragged(ragged) = value {
                for (example, range) in ragged.offsets().windows(2).enumerate() {
                    lists.starts[example * self.vectors + at] = range[1] - range[0];
                }
            }
            at += width.max(1);
        }
        let mut sum = 0;
        for start in &mut lists.starts {
            sum += std::mem::replace(start, sum);
        }
    }

    fn put(
        &self,
        name: &str,
        id: u64,
        slots: &[u32],
        segment: usize,
        to: usize,
        lists: &mut Lists,
    ) -> Result<(), Error> {
        if self.padding == Some(id) {
            return Ok(());
        }
        let beyond = |height: usize| Error::FeedValue {
            name: name.to_string(),
            reason: format!("id {id} is beyond the table of {height} rows"),
        };
        let (row, slot) = match self.source {
            Source::Pulled(_) => {
                let row = id.wrapping_sub(self.offset) as usize;
                (row, *slots.get(row).ok_or_else(|| beyond(slots.len()))?)
            }
            Source::Param(_) => {
                let height = self.height as u64;
                let row = if self.hash && height > 0 { id % height } else { id };
                if row >= height {
                    return Err(beyond(self.height));
                }
                (row as usize, row as u32)
            }
        };
        lists.ids[to] = slot;
        lists.contributions.push((row as u32, segment as u32));
        Ok(())
    }

    /// Positions by distinct row, those of a row in the order of inputs: sums are then added up
    /// in the order of the CPU.
    fn sort(&self, n_distinct: usize, lists: &mut Lists) {
        let rows = if self.table().is_some() { n_distinct } else { self.height };
        lists.row_starts.clear();
        lists.row_starts.resize(rows + 1, 0);
        for &(row, _) in &lists.contributions {
            lists.row_starts[row as usize] += 1;
        }
        let mut sum = 0;
        for start in &mut lists.row_starts {
            sum += *start;
            *start = sum;
        }
        lists.positions.clear();
        lists.positions.resize(lists.contributions.len(), 0);
        // From the end, each row's start moves to where its first position is.
        for &(row, segment) in lists.contributions.iter().rev() {
            let start = &mut lists.row_starts[row as usize];
            *start -= 1;
            lists.positions[*start as usize] = segment;
        }
    }
}
