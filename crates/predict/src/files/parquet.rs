//! Parquet files: one for each parameter, with the columns `id` and `values`, a row for each row of
//! a table or for each position of the first dimension of another parameter.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{FloatType, Int64Type};
use parquet::errors::Result as Outcome;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
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
