//! The values of one batch as the bytes that travel to the device.

use std::collections::HashMap;

use regatta_ir::{Layout, VarType};
use regatta_tensor::{Data, Value};

use super::lookups::{Lists, Lookups};
use crate::Error;
use crate::plan::type_of;

/// What a part of a batch holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// The values of an input.
    Feed(String),
    /// Rows by segment, of the lookups of that number.
    Ids(usize),
    /// First ids of segments.
    Starts(usize),
    /// First positions of distinct rows.
    RowStarts(usize),
    /// Segments by distinct row.
    Positions(usize),
    /// Where the distinct rows of a table lie in its arena.
    Slots(usize),
}

/// Labels that must be classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LabelCheck {
    pub(super) feed: String,
    pub(super) classes: i64,
    pub(super) ignored: i64,
}

/// Makes batches for a [`DeviceProgram`](super::DeviceProgram), on any thread: it touches no
/// device.
#[derive(Debug, Clone)]
pub struct Preparer {
    pub(super) parts: Vec<Part>,
    pub(super) lookups: Vec<Lookups>,
    pub(super) checks: Vec<LabelCheck>,
    /// For each table, the input that takes its pulled rows, their width, and the number of rows
    /// before the first key.
    pub(super) tables: Vec<(String, usize, usize)>,
    /// Parts begin at multiples of this many bytes.
    pub(super) align: usize,
}

/// One batch, ready to travel. Its memory is used again by the next [`Preparer::prepare`].
#[derive(Debug, Default)]
pub struct DeviceBatch {
    pub(super) bytes: Vec<u8>,
    /// First byte and bytes of each part.
    pub(super) parts: Vec<(usize, usize)>,
    /// Types of all inputs, by which an execution plan is found.
    pub(super) types: Vec<(String, VarType)>,
    /// Examples of the whole batch, if this is a part of one.
    pub(super) total: Option<usize>,
    /// Distinct rows of each table.
    pub(super) table_rows: Vec<u32>,
    lists: Vec<Lists>,
}

impl DeviceBatch {
    /// Bytes that travel.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Distinct rows of a table in this batch.
    pub fn table_rows(&self, table: usize) -> usize {
        self.table_rows[table] as usize
    }
}

impl Preparer {
    /// Makes a batch of named inputs: the model's own, and for each table the ids as row numbers
    /// ([`Lookup::feeds`](crate::Lookup::feeds), whose pulled rows are ignored). `slots` says for
    /// each table where its distinct rows ([`Lookup::keys`](crate::Lookup::keys), in that order)
    /// lie in the arena.
    ///
    /// # Errors
    /// If an input is missing or has another type, an id is beyond the rows, or a label is no
    /// class.
    pub fn prepare(
        &self,
        feeds: &[(&str, &Value)],
        slots: &[&[u32]],
        batch: &mut DeviceBatch,
    ) -> Result<(), Error> {
        self.prepare_part(feeds, slots, None, batch)
    }

    /// As [`Preparer::prepare`], of a part of a batch with `total` examples: means are then those
    /// of the whole batch, as far as this part goes, and the parts add up.
    ///
    /// # Errors
    /// As [`Preparer::prepare`].
    pub(super) fn prepare_part(
        &self,
        feeds: &[(&str, &Value)],
        slots: &[&[u32]],
        total: Option<usize>,
        batch: &mut DeviceBatch,
    ) -> Result<(), Error> {
        let by_name: HashMap<&str, &Value> = feeds.iter().copied().collect();
        batch.total = total;
        self.check_labels(&by_name)?;
        let rows = self.types(&by_name, &mut batch.types)?;
        batch.table_rows.clear();
        batch.table_rows.extend(slots.iter().map(|slots| slots.len() as u32));
        batch.lists.resize_with(self.lookups.len(), Lists::default);
        for (lookups, lists) in self.lookups.iter().zip(&mut batch.lists) {
            let slots = lookups.table().map_or(&[][..], |table| slots[table]);
            lookups.list(&by_name, rows, slots, lists)?;
        }
        self.fill(&by_name, slots, batch);
        Ok(())
    }

    /// Inputs that must be given.
    fn wanted(&self) -> impl Iterator<Item = &str> {
        let fed = self.parts.iter().filter_map(|part| match part {
            Part::Feed(name) => Some(name.as_str()),
            _ => None,
        });
        fed.chain(self.lookups.iter().flat_map(|l| l.inputs().iter().map(String::as_str)))
    }

    /// The types of all inputs in a fixed order, and the number of examples.
    fn types(
        &self,
        feeds: &HashMap<&str, &Value>,
        types: &mut Vec<(String, VarType)>,
    ) -> Result<usize, Error> {
        types.clear();
        let mut rows = 0;
        for name in self.wanted() {
            if types.iter().any(|(known, _)| known == name) {
                continue;
            }
            let missing = || Error::MissingFeed { name: name.into(), ty: "an input".into() };
            let value = feeds.get(name).ok_or_else(missing)?;
            types.push((name.to_string(), type_of(value)));
            rows = rows.max(value.rows());
        }
        for (table, (pulled, dim, offset)) in self.tables.iter().enumerate() {
            // As many rows as there are ids at most; where their number varies, up to the next
            // power of two, so that a plan fits many batches.
            let of = || self.lookups.iter().filter(|l| l.table() == Some(table));
            let n_ids: usize = of().map(|lookups| lookups.count(feeds)).sum();
            let varies = of().any(|lookups| lookups.ragged);
            let n = if varies { n_ids.max(64).next_power_of_two() } else { n_ids } + offset;
            types.push((pulled.clone(), VarType::f32([n as i64, *dim as i64])));
        }
        Ok(rows)
    }

    fn check_labels(&self, feeds: &HashMap<&str, &Value>) -> Result<(), Error> {
        for LabelCheck { feed, classes, ignored } in &self.checks {
            let Some(Data::I64(labels)) = feeds.get(feed.as_str()).map(|value| value.data()) else {
                continue;
            };
            let wrong = |label: &&i64| **label != *ignored && !(0..*classes).contains(*label);
            if let Some(label) = labels.iter().find(wrong) {
                let reason = format!("label {label} is not one of the {classes} classes");
                return Err(Error::FeedValue { name: feed.clone(), reason });
            }
        }
        Ok(())
    }

    fn fill(&self, feeds: &HashMap<&str, &Value>, slots: &[&[u32]], batch: &mut DeviceBatch) {
        batch.bytes.clear();
        batch.parts.clear();
        for part in &self.parts {
            let list: &[u8] = match part {
                Part::Feed(name) => bytes_of(feeds[name.as_str()].data()),
                Part::Ids(l) => bytemuck::cast_slice(&batch.lists[*l].ids),
                Part::Starts(l) => bytemuck::cast_slice(&batch.lists[*l].starts),
                Part::RowStarts(l) => bytemuck::cast_slice(&batch.lists[*l].row_starts),
                Part::Positions(l) => bytemuck::cast_slice(&batch.lists[*l].positions),
                Part::Slots(table) => bytemuck::cast_slice(slots[*table]),
            };
            batch.bytes.resize(batch.bytes.len().next_multiple_of(self.align), 0);
            batch.parts.push((batch.bytes.len(), list.len()));
            batch.bytes.extend_from_slice(list);
        }
    }
}

fn bytes_of(data: &Data) -> &[u8] {
    match data {
        Data::F32(v) => bytemuck::cast_slice(v),
        Data::F16(v) | Data::BF16(v) => bytemuck::cast_slice(v),
        Data::I64(v) => bytemuck::cast_slice(v),
        Data::U64(v) => bytemuck::cast_slice(v),
    }
}

/// Whether values of this type can travel.
pub(super) fn travels(ty: &VarType) -> bool {
    ty.layout == Layout::Dense && !ty.dtype.is_half()
}
