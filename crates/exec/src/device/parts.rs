//! Batches that several devices share: divided into parts, with the distinct keys of the whole.

use regatta_tensor::{Data, Ragged, RowIndex, Tensor, Value};

use super::batch::DeviceBatch;
use super::group::DeviceGroup;
use super::program::DeviceInputs;
use crate::{Error, Lookup};

/// A batch that is divided over the devices of a group.
#[derive(Default)]
pub struct GroupBatch {
    pub(super) examples: usize,
    pub(super) parts: Vec<Part>,
    /// By table, the distinct keys of the whole batch; after [`DeviceGroup::join`] those of all
    /// processes.
    pub(super) tables: Vec<TableKeys>,
}

/// Keys of a table in a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableKeys {
    /// Distinct ones.
    pub keys: Vec<u64>,
    /// How often each appears; empty if nobody counts.
    pub counts: Vec<u32>,
}

/// The part of one device.
#[derive(Default)]
pub(super) struct Part {
    pub(super) values: Vec<(String, Value)>,
    pub(super) lookups: Vec<Lookup>,
    /// By table, the row of the whole batch that each distinct row of this part is.
    pub(super) rows: Vec<Vec<u32>>,
    pub(super) inputs: DeviceInputs,
    pub(super) batch: DeviceBatch,
}

impl GroupBatch {
    /// The distinct keys of a table.
    pub fn keys(&self, table: usize) -> &TableKeys {
        &self.tables[table]
    }

    /// Bytes of the uploads of its parts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.batch.bytes()).sum()
    }
}

impl DeviceGroup {
    /// Divides a batch and finds its distinct keys, with how often they appear if `count` says so.
    ///
    /// # Errors
    /// If it lacks an input or has no examples.
    pub fn prepare(
        &mut self,
        feeds: &[(&str, &Value)],
        count: bool,
        batch: &mut GroupBatch,
    ) -> Result<(), Error> {
        let n = self.programs.len();
        let vars = &self.split.trainer.block().vars;
        let ids = |name: &str| {
            let mut inputs = self.split.exchange.tables.iter().flat_map(|table| &table.inputs);
            inputs.any(|(ids, _)| ids == name)
        };
        let is_batched =
            |name: &str| ids(name) || vars.get(name).is_some_and(|var| var.ty.is_batched());
        let batched = feeds.iter().filter(|(name, _)| is_batched(name));
        batch.examples = batched.map(|(_, value)| value.rows()).max().unwrap_or(0);
        if batch.examples == 0 {
            return Err(Error::Options("a batch without examples cannot be divided".into()));
        }
        // The last batch of a data pass may be too small for all.
        let n = n.min(batch.examples);
        batch.parts.resize_with(n, Part::default);
        for (at, part) in batch.parts.iter_mut().enumerate() {
            let range = batch.examples * at / n..batch.examples * (at + 1) / n;
            part.values.clear();
            for (name, value) in feeds {
                let own = if is_batched(name) { rows_of(value, &range) } else { (*value).clone() };
                part.values.push((name.to_string(), own));
            }
        }
        self.look_up(count, batch)
    }

    fn look_up(&mut self, count: bool, batch: &mut GroupBatch) -> Result<(), Error> {
        let tables = &self.split.exchange.tables;
        batch.tables.resize_with(tables.len(), TableKeys::default);
        for part in &mut batch.parts {
            part.lookups.resize_with(tables.len(), Lookup::default);
            part.rows.resize_with(tables.len(), Vec::new);
            let values = &part.values;
            let value = |name: &str| values.iter().find(|(n, _)| n == name).map(|(_, v)| v);
            for (lookup, table) in part.lookups.iter_mut().zip(tables) {
                lookup.prepare(table, count, &mut self.index, value)?;
            }
        }
        for (at, table) in batch.tables.iter_mut().enumerate() {
            let lookups = batch.parts.iter().map(|part| &part.lookups[at]);
            let lists: Vec<_> = lookups.map(|lookup| (lookup.keys(), lookup.counts())).collect();
            table.merge(&lists, &mut self.index);
            for part in &mut batch.parts {
                let keys = part.lookups[at].keys().iter();
                part.rows[at] = keys.map(|&key| self.index.insert(key).0 as u32).collect();
            }
        }
        Ok(())
    }

    /// A batch without examples, for a step in which only other processes have some.
    pub fn prepare_none(&self, batch: &mut GroupBatch) {
        batch.examples = 0;
        batch.parts.clear();
        batch.tables.clear();
        batch.tables.resize_with(self.split.exchange.tables.len(), TableKeys::default);
    }

    /// Makes a prepared batch part of a larger one: `all` has by process and table the distinct
    /// keys, those of this batch among them. All processes get the same list of keys.
    pub fn join(&mut self, batch: &mut GroupBatch, all: &[Vec<TableKeys>]) {
        for (at, table) in batch.tables.iter_mut().enumerate() {
            let own = std::mem::take(&mut table.keys);
            let lists = all.iter().map(|tables| (&*tables[at].keys, &*tables[at].counts));
            table.merge(&lists.collect::<Vec<_>>(), &mut self.index);
            let rows: Vec<u32> = own.iter().map(|key| self.index.insert(*key).0 as u32).collect();
            for part in &mut batch.parts {
                part.rows[at].iter_mut().for_each(|row| *row = rows[*row as usize]);
            }
        }
    }
}

impl TableKeys {
    /// Becomes the distinct keys of lists, in order of first appearance; `index` then numbers them.
    fn merge(&mut self, lists: &[(&[u64], &[u32])], index: &mut RowIndex) {
        index.clear(lists.iter().map(|(keys, _)| keys.len()).sum());
        self.counts.clear();
        for (keys, counts) in lists {
            for (at, key) in keys.iter().enumerate() {
                let row = index.insert(*key).0;
                if let Some(count) = counts.get(at) {
                    self.counts.resize(self.counts.len().max(row + 1), 0);
                    self.counts[row] += count;
                }
            }
        }
        self.keys.clear();
        self.keys.extend_from_slice(index.ids());
    }
}

/// Some examples of a value.
fn rows_of(value: &Value, range: &std::ops::Range<usize>) -> Value {
    fn cut(data: &Data, from: usize, to: usize) -> Data {
        match data {
            Data::F32(v) => Data::F32(v[from..to].to_vec()),
            Data::F16(v) => Data::F16(v[from..to].to_vec()),
            Data::BF16(v) => Data::BF16(v[from..to].to_vec()),
            Data::I64(v) => Data::I64(v[from..to].to_vec()),
            Data::U64(v) => Data::U64(v[from..to].to_vec()),
        }
    }
    match value {
        Value::Dense(t) => {
            let mut shape = t.shape().to_vec();
            let width = t.numel() / shape[0].max(1);
            shape[0] = range.len();
            let data = cut(t.data(), range.start * width, range.end * width);
            Tensor::new(&shape, data).expect("as many values as the shape has").into()
        }
        Value::Ragged(r) => {
            let offsets = &r.offsets()[range.start..=range.end];
            let (from, to) = (offsets[0], offsets[offsets.len() - 1]);
            let values = cut(r.values(), from as usize, to as usize);
            let offsets = offsets.iter().map(|offset| offset - from).collect();
            Ragged::new(values, offsets).expect("offsets rise").into()
        }
    }
}
