//! A batch: what a reader hands to training, and the buffers it takes back.

use std::path::PathBuf;
use std::sync::Arc;

use regatta_tensor::{Data, Ragged, Tensor, Value};

use crate::records::Column;
use crate::{Records, Schema};

/// How far one file had been read when a batch was complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRead {
    /// Index of the file in the source.
    pub file: usize,
    /// Records of the file that are in this batch or in earlier ones.
    pub records: u64,
    /// The last line that was read, from 1.
    pub line: u64,
    /// Whether that was the whole file.
    pub done: bool,
}

/// Examples of one step: a value for each slot, in the order of the schema.
#[derive(Debug, Clone)]
pub struct Batch {
    schema: Schema,
    values: Vec<Value>,
    examples: usize,
    reads: Vec<FileRead>,
    /// The files of its source, for messages; none if it was not read from files.
    files: Option<Arc<[PathBuf]>>,
}

impl PartialEq for Batch {
    /// The same examples at the same positions, whatever the files are called.
    fn eq(&self, other: &Batch) -> bool {
        let of = |b: &Batch| (b.schema.clone(), b.examples);
        of(self) == of(other) && self.values == other.values && self.reads == other.reads
    }
}

impl Batch {
    /// Makes a batch of all the records, by moving their vectors.
    pub fn assemble(records: Records, reads: Vec<FileRead>) -> Batch {
        let (schema, examples) = (records.schema().clone(), records.len());
        let values = records.into_columns().into_iter().map(|c| value(c, examples)).collect();
        Batch { schema, values, examples, reads, files: None }
    }

    /// The same, read from these files.
    pub(crate) fn of_files(self, files: Option<Arc<[PathBuf]>>) -> Batch {
        Batch { files, ..self }
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// The slots.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The values in the order of the schema.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Names and values in the order of the schema.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.schema.slots().iter().map(|s| s.name.as_str()).zip(&self.values)
    }

    /// The value of the slot with that name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.schema.index_of(name).map(|i| &self.values[i])
    }

    /// The text of an example in a slot of a feature of kind text.
    pub fn text(&self, name: &str, example: usize) -> Option<String> {
        let Value::Ragged(ragged) = self.get(name)? else { return None };
        let Data::U64(values) = ragged.values() else { return None };
        let offsets = ragged.offsets();
        let bytes = &values[offsets[example] as usize..offsets[example + 1] as usize];
        // What a reader gives to an example without ids.
        if bytes == [0] {
            return Some(String::new());
        }
        let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The files that the reader had touched since the previous batch, and how far.
    pub fn reads(&self) -> &[FileRead] {
        &self.reads
    }

    /// The file and the line up to which its examples had been read; none if they do not come
    /// straight from files.
    pub fn read_up_to(&self) -> Option<String> {
        let FileRead { file, line, .. } = self.reads.last()?;
        Some(format!("{}:{line}", self.files.as_ref()?.get(*file)?.display()))
    }

    /// Takes the batch apart into empty records that keep its memory.
    pub fn into_records(self) -> Records {
        let slots = self.schema.slots();
        let columns = slots.iter().zip(self.values).map(|(slot, v)| column(slot.kind, v)).collect();
        Records::from_columns(&self.schema, columns)
    }
}

fn value(column: Column, rows: usize) -> Value {
    const FITS: &str = "a record has the sizes of its schema";
    match column {
        Column::Labels(v) => Tensor::from_i64(&[rows, 1], v).expect(FITS).into(),
        Column::Floats { dim, values } => {
            Tensor::from_f32(&[rows, dim], values).expect(FITS).into()
        }
        Column::Ids { values, offsets } => {
            Ragged::new(Data::U64(values), offsets).expect(FITS).into()
        }
        Column::FixedIds { count, values } => {
            Tensor::from_u64(&[rows, count], values).expect(FITS).into()
        }
        Column::Ints { count, values } => {
            Tensor::from_i64(&[rows, count], values).expect(FITS).into()
        }
    }
}

fn column(kind: crate::SlotKind, value: Value) -> Column {
    use crate::SlotKind::{Dense, FixedIds, Ids, Ints, Label};
    let (data, offsets) = match value {
        Value::Dense(t) => (t.into_data(), vec![0]),
        Value::Ragged(r) => r.into_parts(),
    };
    match (kind, data) {
        (Label, Data::I64(v)) => Column::Labels(v),
        (Dense { dim }, Data::F32(values)) => Column::Floats { dim, values },
        (Ids, Data::U64(values)) => Column::Ids { values, offsets },
        (FixedIds { count }, Data::U64(values)) => Column::FixedIds { count, values },
        (Ints { count }, Data::I64(values)) => Column::Ints { count, values },
        _ => unreachable!("a batch is made of the columns of its schema"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    #[test]
    fn shapes_follow_the_schema_and_buffers_come_back() {
        let slots = vec![Slot::label("y"), Slot::dense("d", 2), Slot::ids("a")];
        let mut r = Records::new(&Schema::new(slots).unwrap());
        for i in 0..3 {
            r.push_label(0, i);
            r.push_float(1, 1.5);
            r.push_float(1, 2.5);
            (0..i).for_each(|j| r.push_id(2, j as u64));
            r.end_record().unwrap();
        }
        let empty = Records::new(r.schema());
        let batch = Batch::assemble(r, vec![]);
        assert_eq!(batch.examples(), 3);
        assert_eq!(batch.get("y").unwrap().as_dense().unwrap().i64(), &[0, 1, 2]);
        assert_eq!(batch.get("d").unwrap().as_dense().unwrap().shape(), &[3, 2]);
        let Some(Value::Ragged(ids)) = batch.get("a") else { panic!("ids are ragged") };
        assert_eq!((ids.offsets(), ids.u64()), (&[0, 0, 1, 3][..], &[0, 0, 1][..]));
        assert_eq!(batch.get("nope"), None);
        assert_eq!(batch.into_records(), empty);
    }
}
