//! The ids of a batch become distinct keys to pull and row numbers of a small local table.

use regatta_passes::TableExchange;
use regatta_tensor::{DType, Data, Ragged, RowIndex, Tensor, Value};

use crate::Error;

/// One table's view of one batch. Its buffers are reused from batch to batch.
#[derive(Debug)]
pub struct Lookup {
    keys: Vec<u64>,
    /// How often each key appears, if it is counted.
    counts: Vec<u32>,
    /// Ids of each input as row numbers of `table`.
    local: Vec<Value>,
    /// The pulled rows; the first is zero where there is a padding id.
    table: Value,
    /// Rows before the first pulled one.
    offset: usize,
    dim: usize,
}

impl Default for Lookup {
    fn default() -> Self {
        Lookup {
            keys: Vec::new(),
            counts: Vec::new(),
            local: Vec::new(),
            table: Tensor::zeros(DType::F32, &[0, 0]).into(),
            offset: 0,
            dim: 0,
        }
    }
}

impl Lookup {
    /// Finds the distinct ids of a batch with the help of an `index`, numbers them, and counts how
    /// often each appears if `count` says so.
    ///
    /// # Errors
    /// If the batch lacks one of the table's inputs.
    pub fn prepare<'a>(
        &mut self,
        table: &TableExchange,
        count: bool,
        index: &mut RowIndex,
        value: impl Fn(&str) -> Option<&'a Value>,
    ) -> Result<(), Error> {
        let input = |(name, _): &(String, String)| {
            value(name).ok_or_else(|| Error::MissingFeed { name: name.clone(), ty: "ids".into() })
        };
        let inputs = table.inputs.iter().map(input).collect::<Result<Vec<&Value>, Error>>()?;
        let total: usize = inputs.iter().map(|v| ids_of(v).len()).sum();
        self.dim = table.dim;
        self.offset = usize::from(table.padding.is_some());
        index.clear(total);
        self.local.resize_with(inputs.len(), || Tensor::zeros(DType::U64, &[0]).into());
        let mut local = std::mem::take(&mut self.local);
        for (input, local) in inputs.iter().zip(&mut local) {
            reshape_like(local, input);
            let to = local_ids(local);
            for (&id, to) in ids_of(input).iter().zip(to) {
                *to = self.row(id, table, index);
            }
        }
        self.local = local;
        self.keys.clear();
        self.keys.extend_from_slice(index.ids());
        self.counts.clear();
        if count {
            self.count();
        }
        self.make_room(total, inputs.iter().any(|v| matches!(v, Value::Ragged(_))));
        Ok(())
    }

    #[inline]
    fn row(&self, id: u64, table: &TableExchange, index: &mut RowIndex) -> u64 {
        if table.padding == Some(id) {
            return 0;
        }
        let key = table.modulo.map_or(id, |m| id % m);
        (index.insert(key).0 + self.offset) as u64
    }

    fn count(&mut self) {
        self.counts.resize(self.keys.len(), 0);
        for &row in self.local.iter().flat_map(ids_of) {
            // The padding row is no key.
            if let Some(at) = (row as usize).checked_sub(self.offset) {
                self.counts[at] += 1;
            }
        }
    }

    /// The local table has room for as many rows as there are ids, so that its shape (and the plan
    /// made for it) is the same for every batch of a size; where the number of ids varies, for the
    /// next power of two.
    fn make_room(&mut self, total: usize, varies: bool) {
        let rows = if varies { total.max(64).next_power_of_two() } else { total } + self.offset;
        let shape = [rows, self.dim];
        if self.table.as_dense().is_none_or(|t| t.shape() != shape) {
            self.table = Tensor::zeros(DType::F32, &shape).into();
        }
    }

    /// The distinct ids, in order of first appearance.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// How often each key appears in the batch; empty if nobody counts.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Where the pulled rows go: one per key, in order.
    ///
    /// # Panics
    /// Never: the local table is dense.
    pub fn rows_mut(&mut self) -> &mut [f32] {
        let (from, len) = (self.offset * self.dim, self.keys.len() * self.dim);
        match &mut self.table {
            Value::Dense(t) => {
                let rows = t.f32_mut();
                // The padding row may have been written by nobody, but rows move when shapes
                // change.
                rows[..from].fill(0.0);
                &mut rows[from..from + len]
            }
            Value::Ragged(_) => unreachable!("the local table is dense"),
        }
    }

    /// The key of a row of the local table.
    ///
    /// # Panics
    /// If it is the padding row or beyond the keys.
    pub fn key_of_row(&self, row: u64) -> u64 {
        self.keys[row as usize - self.offset]
    }

    /// Names and values to feed to the program.
    pub fn feeds<'a>(
        &'a self,
        table: &'a TableExchange,
    ) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let local = table.inputs.iter().map(|(_, name)| name.as_str()).zip(&self.local);
        std::iter::once((table.pulled.as_str(), &self.table)).chain(local)
    }
}

fn ids_of(value: &Value) -> &[u64] {
    match value {
        Value::Dense(t) => t.u64(),
        Value::Ragged(r) => r.u64(),
    }
}

/// Gives `local` the shape of `like`, keeping its memory where the shape is the same.
fn reshape_like(local: &mut Value, like: &Value) {
    match like {
        Value::Dense(t) => {
            if local.as_dense().is_none_or(|l| l.shape() != t.shape()) {
                *local = Tensor::zeros(DType::U64, t.shape()).into();
            }
        }
        Value::Ragged(r) => {
            let values = Data::zeros(DType::U64, r.u64().len());
            let same = Ragged::new(values, r.offsets().to_vec());
            *local = same.expect("offsets of a ragged value fit its values").into();
        }
    }
}

fn local_ids(local: &mut Value) -> &mut [u64] {
    match local {
        Value::Dense(t) => match t.data_mut() {
            Data::U64(v) => v,
            _ => unreachable!("local ids are u64"),
        },
        Value::Ragged(r) => r.u64_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(padding: Option<u64>, modulo: Option<u64>) -> TableExchange {
        TableExchange {
            name: "t".into(),
            dim: 2,
            inputs: vec![("a".into(), "a@LOCAL".into()), ("b".into(), "b@LOCAL".into())],
            padding,
            modulo,
            pulled: "t@PULLED".into(),
            grad: None,
        }
    }

    #[test]
    fn ids_become_keys_and_rows() {
        let a: Value = Tensor::from_u64(&[2, 2], vec![7, 0, 9, 7]).unwrap().into();
        let b: Value = Ragged::new(Data::U64(vec![9, 0, 17]), vec![0, 1, 3]).unwrap().into();
        let value = |name: &str| Some(if name == "a" { &a } else { &b });
        let mut lookup = Lookup::default();
        let mut index = RowIndex::default();
        lookup.prepare(&table(Some(0), Some(10)), true, &mut index, value).unwrap();
        assert_eq!((lookup.keys(), lookup.counts()), (&[7, 9][..], &[3, 2][..]));
        lookup.rows_mut().copy_from_slice(&[1., 2., 3., 4.]);
        let t = table(Some(0), Some(10));
        let feeds: Vec<_> = lookup.feeds(&t).collect();
        let pulled = feeds[0].1.as_dense().unwrap();
        assert_eq!(pulled.f32()[..6], [0., 0., 1., 2., 3., 4.]);
        assert_eq!(feeds[1].1.as_dense().unwrap().u64(), [1, 0, 2, 1]);
        let Value::Ragged(r) = feeds[2].1 else { panic!("ragged") };
        assert_eq!((r.u64(), r.offsets()), (&[2, 0, 1][..], &[0, 1, 3][..]));
        assert_eq!(lookup.key_of_row(2), 9);

        lookup.prepare(&table(None, None), false, &mut index, value).unwrap();
        assert_eq!(lookup.keys(), [7, 0, 9, 17]);
        assert!(lookup.counts().is_empty());
        assert_eq!(lookup.key_of_row(0), 7);
    }
}
