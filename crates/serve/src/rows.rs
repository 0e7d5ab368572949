//! Rows that wait to be scored, one column per feature: parsed requests come in, batches of a few
//! fixed sizes go out. All memory is kept for the next ones.

use std::collections::HashMap;
use std::sync::Arc;

use regatta_tensor::{Data, Ragged, Tensor, Value};

use crate::raw::RawRow;
use crate::{About, Feature, Kind};

/// Rows that are scored at once. Requests of more rows are scored in parts, so that other
/// connections of the thread have their turn in between.
pub(crate) const LARGEST_BATCH: usize = 64;

/// Rows of complete examples.
pub(crate) struct Rows {
    pub(crate) about: Arc<About>,
    by_name: HashMap<String, usize>,
    pub(crate) columns: Vec<Column>,
    /// The row that is being parsed, where requests hold raw values.
    pub(crate) raw: RawRow,
    n_rows: usize,
}

/// The values of one feature.
pub(crate) struct Column {
    pub(crate) values: Data,
    /// Where each row ends, if rows are of different lengths.
    ends: Vec<u32>,
    width: Option<usize>,
    /// Rows that are complete in this column.
    n_rows: usize,
}

impl Rows {
    pub(crate) fn new(about: Arc<About>) -> Rows {
        let names = about.features.iter().enumerate();
        let by_name = names.map(|(i, feature)| (feature.name.clone(), i)).collect();
        let columns = about.features.iter().map(Column::new).collect();
        let raw = RawRow::new(&about);
        Rows { about, by_name, columns, raw, n_rows: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.n_rows
    }

    /// The column of a name; `guess` is tried first, because clients keep to an order.
    pub(crate) fn find(&self, name: &str, guess: usize) -> Option<usize> {
        match self.about.features.get(guess) {
            Some(feature) if feature.name == name => Some(guess),
            _ => self.by_name.get(name).copied(),
        }
    }

    /// Whether the row that is being parsed has this feature already.
    pub(crate) fn has(&self, column: usize) -> bool {
        self.columns[column].n_rows > self.n_rows
    }

    /// Ends a row.
    ///
    /// # Errors
    /// The feature that it lacks.
    pub(crate) fn end_row(&mut self) -> Result<(), &Feature> {
        let lacking = self.columns.iter().position(|column| column.n_rows <= self.n_rows);
        match lacking {
            Some(at) => Err(&self.about.features[at]),
            None => {
                self.n_rows += 1;
                Ok(())
            }
        }
    }

    /// Forgets everything after the first `n_rows` rows, unfinished ones included.
    pub(crate) fn truncate(&mut self, n_rows: usize) {
        self.n_rows = n_rows;
        for column in &mut self.columns {
            column.truncate(n_rows);
        }
    }

    /// Puts the rows `from..to` into `batch`, with the last one repeated up to `size`: the program
    /// is planned for every size of batches, so there should be few.
    pub(crate) fn fill(&self, from: usize, to: usize, size: usize, batch: &mut Vec<Value>) {
        debug_assert!(from < to && to <= self.n_rows && to - from <= size);
        batch.truncate(self.columns.len());
        for (i, column) in self.columns.iter().enumerate() {
            let data = batch.get_mut(i).map(take_data);
            let value = column.batch(from, to, size, data);
            match batch.get_mut(i) {
                Some(old) => *old = value,
                None => batch.push(value),
            }
        }
    }

    /// As many rows of zeros, without ids where any number will do: something to try a model with.
    pub(crate) fn push_blank(&mut self, n_rows: usize) {
        for column in &mut self.columns {
            for _ in 0..n_rows {
                for _ in 0..column.width.unwrap_or(1) {
                    match &mut column.values {
                        Data::U64(v) => v.push(0),
                        Data::I64(v) => v.push(0),
                        Data::F32(v) => v.push(0.0),
                        Data::F16(_) | Data::BF16(_) => unreachable!("no feature has this type"),
                    }
                }
                column.end_row();
            }
        }
        self.n_rows += n_rows;
    }
}

/// The size of the batch that `n_rows` rows are padded to.
pub(crate) fn batch_size(n_rows: usize) -> usize {
    n_rows.next_power_of_two().min(LARGEST_BATCH)
}

impl Column {
    fn new(feature: &Feature) -> Column {
        let values = match feature.kind {
            Kind::Ids(_) | Kind::RaggedIds => Data::U64(Vec::new()),
            Kind::Floats(_) => Data::F32(Vec::new()),
            Kind::Ints(_) => Data::I64(Vec::new()),
        };
        Column { values, ends: Vec::new(), width: feature.kind.width(), n_rows: 0 }
    }

    pub(crate) fn end_row(&mut self) {
        self.n_rows += 1;
        if self.width.is_none() {
            self.ends.push(self.values.len() as u32);
        }
    }

    /// Where a row begins.
    fn start(&self, row: usize) -> usize {
        match (self.width, row) {
            (Some(width), _) => row * width,
            (None, 0) => 0,
            (None, _) => self.ends[row - 1] as usize,
        }
    }

    fn truncate(&mut self, n_rows: usize) {
        let len = self.start(n_rows.min(self.n_rows));
        self.n_rows = n_rows.min(self.n_rows);
        self.ends.truncate(n_rows);
        match &mut self.values {
            Data::U64(v) => v.truncate(len),
            Data::I64(v) => v.truncate(len),
            Data::F32(v) => v.truncate(len),
            Data::F16(v) | Data::BF16(v) => v.truncate(len),
        }
    }

    fn batch(&self, from: usize, to: usize, size: usize, old: Option<Data>) -> Value {
        let range = self.start(from)..self.start(to);
        let last = self.start(to - 1)..self.start(to);
        let times = size - (to - from);
        let data = match &self.values {
            Data::U64(v) => {
                let memory = if let Some(Data::U64(old)) = old { old } else { Vec::new() };
                Data::U64(padded(memory, &v[range], &v[last], times))
            }
            Data::I64(v) => {
                let memory = if let Some(Data::I64(old)) = old { old } else { Vec::new() };
                Data::I64(padded(memory, &v[range], &v[last], times))
            }
            Data::F32(v) => {
                let memory = if let Some(Data::F32(old)) = old { old } else { Vec::new() };
                Data::F32(padded(memory, &v[range], &v[last], times))
            }
            Data::F16(_) | Data::BF16(_) => unreachable!("no feature has this type"),
        };
        match self.width {
            Some(width) => Tensor::new(&[size, width], data).expect("rows of one width").into(),
            None => {
                let offsets = self.offsets(from, to, size);
                Ragged::new(data, offsets).expect("offsets of rows, one after the other").into()
            }
        }
    }

    fn offsets(&self, from: usize, to: usize, size: usize) -> Vec<u32> {
        let first = self.start(from);
        let mut offsets = Vec::with_capacity(size + 1);
        offsets.extend((from..=to).map(|row| (self.start(row) - first) as u32));
        let (end, last) = (offsets[to - from], (self.start(to) - self.start(to - 1)) as u32);
        offsets.extend((1..=(size - (to - from)) as u32).map(|i| end + i * last));
        offsets
    }
}

fn padded<T: Copy>(mut memory: Vec<T>, rows: &[T], last: &[T], times: usize) -> Vec<T> {
    memory.clear();
    memory.extend_from_slice(rows);
    for _ in 0..times {
        memory.extend_from_slice(last);
    }
    memory
}

/// The memory of a value of an earlier batch.
fn take_data(value: &mut Value) -> Data {
    let nothing = Tensor::zeros(regatta_tensor::DType::F32, &[0]);
    match std::mem::replace(value, nothing.into()) {
        Value::Dense(tensor) => tensor.into_data(),
        Value::Ragged(ragged) => ragged.into_parts().0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_few_sizes() {
        let sizes: Vec<usize> = [1, 2, 3, 5, 33, 64].map(batch_size).to_vec();
        assert_eq!(sizes, [1, 2, 4, 8, 64, 64]);
    }

    #[test]
    fn the_last_row_is_repeated() {
        let features = vec![
            Feature { name: "a".into(), kind: Kind::Floats(2) },
            Feature { name: "s".into(), kind: Kind::RaggedIds },
        ];
        let mut rows = Rows::new(Arc::new(crate::worker::tests::about(features)));
        let body =
            br#"{"instances":[{"a":[1,2],"s":[]},{"a":[3,4],"s":[7,8]},{"a":[5,6],"s":[9]}]}"#;
        crate::request::parse(body, &mut rows).unwrap();
        let mut batch = Vec::new();
        rows.fill(0, 2, 2, &mut batch);
        rows.fill(0, 3, 4, &mut batch);
        let a = Tensor::from_f32(&[4, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 5.0, 6.0]).unwrap();
        let s = Ragged::new(Data::U64(vec![7, 8, 9, 9]), vec![0, 0, 2, 3, 4]).unwrap();
        assert_eq!(batch, [a.into(), s.into()]);
        rows.fill(1, 3, 2, &mut batch);
        let s = Ragged::new(Data::U64(vec![7, 8, 9]), vec![0, 2, 3]).unwrap();
        assert_eq!(batch[1], s.into());
    }
}
