//! Batches that several devices share: divided into parts, with the distinct keys of the whole.

use regatta_tensor::{Data, Ragged, Tensor, Value};

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
    pub(super) keys: Vec<Vec<u64>>,
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
    pub fn keys(&self, table: usize) -> &[u64] {
        &self.keys[table]
    }

    /// Bytes of the uploads of its parts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.batch.bytes()).sum()
    }
}

impl DeviceGroup {
    /// Divides a batch and finds its distinct keys.
    ///
    /// # Errors
    /// If it lacks an input or has no examples.
    pub fn prepare(
        &mut self,
        feeds: &[(&str, &Value)],
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
        self.look_up(batch)
    }

    fn look_up(&mut self, batch: &mut GroupBatch) -> Result<(), Error> {
        let tables = &self.split.exchange.tables;
        batch.keys.resize_with(tables.len(), Vec::new);
        for part in &mut batch.parts {
            part.lookups.resize_with(tables.len(), Lookup::default);
            part.rows.resize_with(tables.len(), Vec::new);
            let values = &part.values;
            let value = |name: &str| values.iter().find(|(n, _)| n == name).map(|(_, v)| v);
            for (lookup, table) in part.lookups.iter_mut().zip(tables) {
                lookup.prepare(table, false, &mut self.index, value)?;
            }
        }
        for at in 0..tables.len() {
            let all: usize = batch.parts.iter().map(|part| part.lookups[at].keys().len()).sum();
            self.index.clear(all);
            for part in &mut batch.parts {
                let keys = part.lookups[at].keys().iter();
                let rows = keys.map(|&key| self.index.insert(key).0 as u32);
                part.rows[at] = rows.collect();
            }
            batch.keys[at].clear();
            batch.keys[at].extend_from_slice(self.index.ids());
        }
        Ok(())
    }

    /// A batch without examples, for a step in which only other processes have some.
    pub fn prepare_none(&self, batch: &mut GroupBatch) {
        batch.examples = 0;
        batch.parts.clear();
        batch.keys.resize_with(self.split.exchange.tables.len(), Vec::new);
        batch.keys.iter_mut().for_each(Vec::clear);
    }

    /// Makes a prepared batch part of a larger one: `all` has by process and table the distinct
    /// keys, those of this batch among them. All processes get the same list of keys.
    pub fn join(&mut self, batch: &mut GroupBatch, all: &[Vec<Vec<u64>>]) {
        for (at, own) in batch.keys.iter_mut().enumerate() {
            self.index.clear(all.iter().map(|keys| keys[at].len()).sum());
            for key in all.iter().flat_map(|keys| &keys[at]) {
                self.index.insert(*key);
            }
            let rows: Vec<u32> = own.iter().map(|key| self.index.insert(*key).0 as u32).collect();
            for part in &mut batch.parts {
                part.rows[at].iter_mut().for_each(|row| *row = rows[*row as usize]);
            }
            own.clear();
            own.extend_from_slice(self.index.ids());
        }
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
