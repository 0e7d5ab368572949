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
    /// If the batch lacks one of the table's inputs, or one holds no ids or a negative one.
    pub fn prepare<'a>(
        &mut self,
        table: &TableExchange,
        count: bool,
        index: &mut RowIndex,
        value: impl Fn(&str) -> Option<&'a Value>,
    ) -> Result<(), Error> {
        let input = |(name, _): &(String, String)| {
            let missing = || Error::MissingFeed { name: name.clone(), ty: "ids".into() };
            let value = value(name).ok_or_else(missing)?;
            Ok((value, ids_of(name, value)?))
        };
        let inputs = table.inputs.iter().map(input);
        let inputs = inputs.collect::<Result<Vec<(&Value, &[u64])>, Error>>()?;
        let total: usize = inputs.iter().map(|(_, ids)| ids.len()).sum();
        self.dim = table.dim;
        self.offset = usize::from(table.padding.is_some());
        index.clear(total);
        self.local.resize_with(inputs.len(), || Tensor::zeros(DType::U64, &[0]).into());
        let mut local = std::mem::take(&mut self.local);
        for ((input, ids), local) in inputs.iter().zip(&mut local) {
            reshape_like(local, input);
            for (&id, to) in ids.iter().zip(local_ids(local)) {
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
        self.make_room(total, inputs.iter().any(|(v, _)| matches!(v, Value::Ragged(_))));
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
        for &row in self.local.iter().filter_map(Value::ids).flatten() {
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

/// The ids of an input, which is named in errors.
fn ids_of<'a>(name: &str, value: &'a Value) -> Result<&'a [u64], Error> {
    let ids = value.ids().ok_or_else(|| Error::FeedType {
        name: name.to_string(),
        expected: "ids (u64 or i64)".into(),
        actual: value.dtype().to_string(),
    })?;
    if value.dtype() == DType::I64
        && let Some(id) = ids.iter().map(|&id| id as i64).find(|id| *id < 0)
    {
        return Err(Error::NegativeId { name: name.to_string(), id });
    }
    Ok(ids)
}

/// Gives `local` the shape and type of `like`, keeping its memory where these are the same.
fn reshape_like(local: &mut Value, like: &Value) {
    match like {
        Value::Dense(t) => {
            let same = |l: &Tensor| l.shape() == t.shape() && l.dtype() == t.dtype();
            if !local.as_dense().is_some_and(same) {
                *local = Tensor::zeros(t.dtype(), t.shape()).into();
            }
        }
        Value::Ragged(r) => {
            let values = Data::zeros(r.values().dtype(), r.values().len());
            let same = Ragged::new(values, r.offsets().to_vec());
            *local = same.expect("offsets of a ragged value fit its values").into();
        }
    }
}

fn local_ids(local: &mut Value) -> &mut [u64] {
    match local {
        Value::Dense(t) => match t.data_mut() {
            Data::U64(v) => v,
            Data::I64(v) => bytemuck::cast_slice_mut(v),
            _ => unreachable!("local ids have the type of ids"),
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
    #[test]
    fn signed_ids_keep_their_shape_and_type() {
        let a: Value = Tensor::from_i64(&[2, 1, 2], vec![7, 3, 9, 7]).unwrap().into();
        let b: Value = Tensor::from_u64(&[2], vec![9, 1 << 63]).unwrap().into();
        let value = |name: &str| Some(if name == "a" { &a } else { &b });
        let (mut lookup, mut index) = (Lookup::default(), RowIndex::default());
        let t = table(Some(3), None);
        lookup.prepare(&t, true, &mut index, value).unwrap();
        assert_eq!((lookup.keys(), lookup.counts()), (&[7, 9, 1 << 63][..], &[2, 2, 1][..]));
        let local: Vec<_> = lookup.feeds(&t).skip(1).map(|(_, v)| v.clone()).collect();
        assert_eq!(local[0], Tensor::from_i64(&[2, 1, 2], vec![1, 0, 2, 1]).unwrap().into());
        assert_eq!(local[1], Tensor::from_u64(&[2], vec![2, 3]).unwrap().into());
    }

    #[test]
    fn what_is_no_id_is_named() {
        let prepare = |a: Tensor| {
            let a: Value = a.into();
            let (mut lookup, mut index) = (Lookup::default(), RowIndex::default());
            let done = lookup.prepare(&table(None, Some(5)), false, &mut index, |_| Some(&a));
            done.unwrap_err().to_string()
        };
        assert_eq!(
            prepare(Tensor::from_i64(&[2], vec![4, -6]).unwrap()),
            "id -6 of 'a' is negative; ids count from 0"
        );
        assert_eq!(
            prepare(Tensor::from_f32(&[1], vec![4.0]).unwrap()),
            "feed 'a' should be ids (u64 or i64), but is f32"
        );
    }
}
