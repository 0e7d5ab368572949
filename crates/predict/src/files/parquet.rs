//! Parquet files: named columns; and one for each parameter, with the columns `id` and `values`, a
//! row for each row of a table or for each position of the first dimension of another parameter.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, FloatType, Int64Type};
use parquet::errors::Result as Outcome;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use regatta_checkpoint::OpenModel;
use regatta_tensor::Data;

use super::{read_rows, write_error};
use crate::Error;

/// Every value is there, so lists have no levels for what is missing.
const SCHEMA: &str = "message weights {
    required int64 id (INTEGER(64,false));
    required group values (LIST) { repeated group list { required float element; } }
}";

/// Rows of a group: what a reader takes into memory at a time.
const GROUP_ROWS: usize = 1 << 16;

/// Writes a model.
pub(super) fn write(
    model: &Path,
    opened: &OpenModel,
    to: &Path,
) -> Result<Vec<(String, String)>, Error> {
    let mut written = Vec::new();
    let about = &opened.manifest.about.name;
    let mut put = |name: &str, ids: &[u64], values: &[f32], dim: usize| -> Result<(), Error> {
        let file = format!("{}.parquet", name.replace(['/', '\\'], "_"));
        let path = to.join(&file);
        write_file(&path, [("model", about), ("parameter", name)], ids, values, dim)
            .map_err(|e| write_error(&path)(std::io::Error::other(e)))?;
        written.push((file, format!("{} rows of {dim} floats", ids.len())));
        Ok(())
    };
    for table in &opened.manifest.tables {
        let rows = read_rows(model, &opened.manifest, table)?;
        put(&table.name, &rows.ids, &rows.values, table.dim)?;
    }
    for (name, tensor) in &opened.params {
        let Data::F32(values) = tensor.data() else {
            let reason = format!("'{name}' is {}, but f32 is written", tensor.dtype());
            return Err(Error::Input(reason));
        };
        let n = tensor.shape().first().copied().unwrap_or(1);
        let ids: Vec<u64> = (0..n as u64).collect();
        put(name, &ids, values, values.len() / n.max(1))?;
    }
    Ok(written)
}

fn write_file(
    path: &Path,
    facts: [(&str, &str); 2],
    ids: &[u64],
    values: &[f32],
    dim: usize,
) -> Outcome<()> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let facts = facts.map(|(key, value)| KeyValue::new(key.to_string(), value.to_string()));
    let properties = WriterProperties::builder()
        // Weights hardly ever repeat.
        .set_dictionary_enabled(false)
        .set_key_value_metadata(Some(facts.to_vec()))
        .build();
    let file = File::create_new(path)?;
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
    let groups = ids.chunks(GROUP_ROWS).zip(values.chunks(GROUP_ROWS * dim.max(1)));
    for (ids, values) in groups {
        write_group(writer.next_row_group()?, ids, values, dim)?;
    }
    writer.finish()?;
    writer.inner().sync_all()?;
    Ok(())
}

fn write_group(
    mut group: SerializedRowGroupWriter<'_, File>,
    ids: &[u64],
    values: &[f32],
    dim: usize,
) -> Outcome<()> {
    let bits: Vec<i64> = ids.iter().map(|id| *id as i64).collect();
    if let Some(mut column) = group.next_column()? {
        column.typed::<Int64Type>().write_batch(&bits, None, None)?;
        column.close()?;
    }
    // A list begins where the second level is 0.
    let there = vec![1; values.len()];
    let begins: Vec<i16> = (0..values.len()).map(|i| i16::from(i % dim != 0)).collect();
    if let Some(mut column) = group.next_column()? {
        column.typed::<FloatType>().write_batch(values, Some(&there), Some(&begins))?;
        column.close()?;
    }
    group.close()?;
    Ok(())
}

/// A file of columns by name: texts, then floats.
pub(super) struct Columns {
    /// None once there is a writer.
    file: Option<File>,
    writer: Option<SerializedFileWriter<File>>,
    texts: Vec<Vec<ByteArray>>,
    floats: Vec<Vec<f32>>,
}

impl Columns {
    pub(super) fn new(file: File) -> Columns {
        Columns { file: Some(file), writer: None, texts: vec![], floats: vec![] }
    }

    pub(super) fn append(
        &mut self,
        texts: &[(&str, Vec<String>)],
        floats: &[(String, Vec<f32>)],
    ) -> Outcome<()> {
        if let Some(file) = self.file.take() {
            let texts = texts.iter().map(|(name, _)| {
                let column = Type::primitive_type_builder(name, Physical::BYTE_ARRAY);
                column.with_logical_type(Some(LogicalType::String))
            });
            let floats = floats.iter();
            let floats =
                floats.map(|(name, _)| Type::primitive_type_builder(name, Physical::FLOAT));
            let all = texts.chain(floats);
            let fields: Outcome<Vec<_>> = all
                .map(|column| column.with_repetition(Repetition::REQUIRED).build().map(Arc::new))
                .collect();
            let schema = Type::group_type_builder("scores").with_fields(fields?).build()?;
            let properties = Arc::new(WriterProperties::builder().build());
            self.writer = Some(SerializedFileWriter::new(file, Arc::new(schema), properties)?);
        }
        self.texts.resize(texts.len(), vec![]);
        self.floats.resize(floats.len(), vec![]);
        for (column, (_, values)) in self.texts.iter_mut().zip(texts) {
            column.extend(values.iter().map(|value| ByteArray::from(value.as_str())));
        }
        for (column, (_, values)) in self.floats.iter_mut().zip(floats) {
            column.extend(values);
        }
        match self.floats.first().is_some_and(|column| column.len() >= GROUP_ROWS) {
            true => self.write_group(),
            false => Ok(()),
        }
    }

    fn write_group(&mut self) -> Outcome<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut group = writer.next_row_group()?;
        for values in &mut self.texts {
            if let Some(mut column) = group.next_column()? {
                column.typed::<ByteArrayType>().write_batch(values, None, None)?;
                column.close()?;
            }
            values.clear();
        }
        for values in &mut self.floats {
            if let Some(mut column) = group.next_column()? {
                column.typed::<FloatType>().write_batch(values, None, None)?;
                column.close()?;
            }
            values.clear();
        }
        group.close()?;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Outcome<()> {
        if self.floats.first().is_some_and(|column| !column.is_empty()) {
            self.write_group()?;
        }
        self.writer.map_or(Ok(()), |writer| writer.close().map(drop))
    }
}
