//! Parquet by declared features.
//!
//! Columns may be booleans, integers, floats or strings, optional or lists of these. A null or an
//! empty list is a missing value.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parquet::basic::{ConvertedType, LogicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use regatta_features::Value;
use regatta_store::{Stores, is_remote};

use super::features::{RowUse, RowWriter};
use crate::limits::Limits;
use crate::read::{PartReader, ReadContext};
use crate::stages::Stage;
use crate::{Error, LineError, Malformed, Records, Schema, open};

/// Rows that are decoded at a time.
const BLOCK_ROWS: usize = 4096;

/// How older writers mark unsigned integers.
const UNSIGNED: [ConvertedType; 4] =
    [ConvertedType::UINT_8, ConvertedType::UINT_16, ConvertedType::UINT_32, ConvertedType::UINT_64];

/// Reads one Parquet file.
pub(crate) struct ParquetReader {
    file: PathBuf,
    reader: SerializedFileReader<File>,
    writer: RowWriter,
    /// The leaf of each column that is read.
    leaves: Vec<Option<usize>>,
    row_group: usize,
    /// Whether a row may have several values of a column.
    is_list: Vec<bool>,
    /// Where the values of each column end, of the row that is being read.
    ends: Vec<usize>,
    /// The decoders of the current row group, one for each column that is there.
    decoders: Vec<Option<Decoder>>,
    /// Rows of the row group that are not decoded yet.
    undecoded: usize,
    /// The next row of the decoded block, and their number.
    row: usize,
    rows: usize,
    /// Rows read of the whole file.
    total: u64,
    limits: Limits,
    context: Arc<ReadContext>,
}

/// The file itself, or a copy of a remote one or of standard input that goes away when it is closed.
fn fetched(file: &Path, stores: &Stores) -> Result<File, Error> {
    if !is_remote(file) && !open::is_stdin(file) {
        return open::open_local(file);
    }
    let mut copy = tempfile::tempfile().map_err(|e| Error::io(file, e))?;
    std::io::copy(&mut open::open(file, stores)?, &mut copy).map_err(|e| Error::io(file, e))?;
    Ok(copy)
}

impl ParquetReader {
    pub(crate) fn open(
        file: &Path,
        rows: &RowUse,
        schema: &Schema,
        context: &Arc<ReadContext>,
    ) -> Result<ParquetReader, Error> {
        let reader =
            SerializedFileReader::new(fetched(file, &context.stores)?).map_err(|e| io(file, e))?;
        let descriptor = reader.metadata().file_metadata().schema_descr_ptr();
        let leaf = |(column, name): (usize, &String)| {
            // A list's values are a leaf below the column itself.
            let found = descriptor.columns().iter().position(|c| c.path().parts()[0] == *name);
            if found.is_none() && !rows.is_optional(column) {
                let what = format!("{}: there is no column '{name}'", file.display());
                return Err(Error::config(what));
            }
            Ok(found)
        };
        Ok(ParquetReader {
            file: file.to_path_buf(),
            leaves: rows.columns().iter().enumerate().map(leaf).collect::<Result<_, _>>()?,
            writer: rows.writer(schema),
            reader,
            row_group: 0,
            is_list: Vec::new(),
            ends: Vec::new(),
            decoders: Vec::new(),
            undecoded: 0,
            row: 0,
            rows: 0,
            total: 0,
            limits: Limits::of(schema),
            context: context.clone(),
        })
    }

    /// Decodes the next block of rows. Returns false at the end of the file.
    fn decode(&mut self) -> Result<bool, Error> {
        let fail = |e| io(&self.file, e);
        while self.undecoded == 0 {
            if self.row_group == self.reader.num_row_groups() {
                return Ok(false);
            }
            let group = self.reader.get_row_group(self.row_group).map_err(fail)?;
            self.row_group += 1;
            self.undecoded = group.metadata().num_rows() as usize;
            self.decoders.clear();
            self.is_list.clear();
            for (&leaf, name) in self.leaves.iter().zip(self.writer.columns()) {
                let Some(leaf) = leaf else {
                    self.is_list.push(false);
                    self.decoders.push(None);
                    continue;
                };
                let column = group.metadata().column(leaf).column_descr();
                let unsigned = match column.logical_type_ref() {
                    Some(LogicalType::Integer(integer)) => !integer.is_signed,
                    _ => UNSIGNED.contains(&column.converted_type()),
                };
                let levels = Levels::new(column.max_def_level(), column.max_rep_level());
                self.is_list.push(column.max_rep_level() > 0);
                let reader = group.get_column_reader(leaf).map_err(fail)?;
                let decoder = Decoder::new(reader, unsigned, levels).ok_or_else(|| {
                    let what = format!("column '{name}' has a type that is not read");
                    Error::config(format!("{}: {what}", self.file.display()))
                })?;
                self.decoders.push(Some(decoder));
            }
        }
        self.rows = self.undecoded.min(BLOCK_ROWS);
        self.row = 0;
        self.undecoded -= self.rows;
        for decoder in self.decoders.iter_mut().flatten() {
            decoder.decode(self.rows).map_err(fail)?;
        }
        Ok(true)
    }

    fn read_rows(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        while out.len() < target {
            if self.row == self.rows && !self.decode()? {
                return Ok(false);
            }
            self.row += 1;
            self.total += 1;
            let complete = out.len();
            match self.push_row(out) {
                Ok(()) => self.limits.note(out, self.total),
                Err(error) => {
                    out.truncate(complete);
                    self.bad_row(self.total, *error)?;
                }
            }
        }
        Ok(true)
    }

    /// Appends the next row. All decoders move on, also past one that is malformed.
    fn push_row(&mut self, out: &mut Records) -> Result<(), Box<LineError>> {
        self.ends.clear();
        let mut values: Vec<Value<'_>> = Vec::with_capacity(2 * self.decoders.len());
        for decoder in &mut self.decoders {
            if let Some(Decoder { levels, unsigned, typed }) = decoder {
                values.extend(levels.next_row().map(|i| typed.value(i, *unsigned)));
            }
            self.ends.push(values.len());
        }
        let (ends, leaves) = (&self.ends, &self.is_list);
        let value = |column: usize| {
            let from = if column == 0 { 0 } else { ends[column - 1] };
            match &values[from..ends[column]] {
                [] => Value::Missing,
                [one] if !leaves[column] => *one,
                values => Value::List(values),
            }
        };
        self.writer.write(value, |_| 0, out)
    }

    fn bad_row(&self, line: u64, error: LineError) -> Result<(), Error> {
        let file = self.file.clone();
        self.context.bad_line(Malformed { file, line, error, command: None })
    }

    /// Reads rows, and takes out those with values that are out of range.
    fn read_checked(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        self.limits.begin(out);
        let more = self.read_rows(target, out)?;
        for (line, error) in self.limits.take_bad(out) {
            self.bad_row(line, error)?;
        }
        Ok(more)
    }
}

impl PartReader for ParquetReader {
    fn read(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        let begin = Instant::now();
        let result = self.read_checked(target, out);
        self.context.timers.add(Stage::Parse, begin.elapsed());
        result
    }

    fn line(&self) -> u64 {
        self.total
    }
}

fn io(file: &Path, error: ParquetError) -> Error {
    Error::io(file, std::io::Error::other(error))
}

/// Which values belong to which row: Dremel's definition and repetition levels.
struct Levels {
    max_definition: i16,
    /// 0 for a column that is not a list.
    max_repetition: i16,
    definition: Vec<i16>,
    repetition: Vec<i16>,
    /// The next level entry and the next value.
    at: usize,
    value: usize,
}

impl Levels {
    fn new(max_definition: i16, max_repetition: i16) -> Levels {
        let (definition, repetition) = (Vec::new(), Vec::new());
        Levels { max_definition, max_repetition, definition, repetition, at: 0, value: 0 }
    }

    /// The values of the next row, as a range of indices.
    fn next_row(&mut self) -> std::ops::Range<usize> {
        let start = self.value;
        loop {
            let present =
                self.max_definition == 0 || self.definition[self.at] == self.max_definition;
            self.value += usize::from(present);
            self.at += 1;
            let same_row = self.max_repetition > 0
                && self.repetition.get(self.at).is_some_and(|level| *level > 0);
            if !same_row {
                return start..self.value;
            }
        }
    }
}

/// Decodes one column of one row group.
struct Decoder {
    levels: Levels,
    unsigned: bool,
    typed: TypedColumn,
}

enum TypedColumn {
    Bool(ColumnReaderImpl<BoolType>, Vec<bool>),
    Int32(ColumnReaderImpl<Int32Type>, Vec<i32>),
    Int64(ColumnReaderImpl<Int64Type>, Vec<i64>),
    Float(ColumnReaderImpl<FloatType>, Vec<f32>),
    Double(ColumnReaderImpl<DoubleType>, Vec<f64>),
    Text(ColumnReaderImpl<ByteArrayType>, Vec<ByteArray>),
}

impl Decoder {
    /// `None` for types that no slot can take.
    fn new(reader: ColumnReader, unsigned: bool, levels: Levels) -> Option<Decoder> {
        let typed = match reader {
            ColumnReader::BoolColumnReader(r) => TypedColumn::Bool(r, Vec::new()),
            ColumnReader::Int32ColumnReader(r) => TypedColumn::Int32(r, Vec::new()),
            ColumnReader::Int64ColumnReader(r) => TypedColumn::Int64(r, Vec::new()),
            ColumnReader::FloatColumnReader(r) => TypedColumn::Float(r, Vec::new()),
            ColumnReader::DoubleColumnReader(r) => TypedColumn::Double(r, Vec::new()),
            ColumnReader::ByteArrayColumnReader(r) => TypedColumn::Text(r, Vec::new()),
            _ => return None,
        };
        Some(Decoder { levels, unsigned, typed })
    }

    fn decode(&mut self, rows: usize) -> Result<(), ParquetError> {
        let levels = &mut self.levels;
        match &mut self.typed {
            TypedColumn::Bool(reader, values) => fill(reader, rows, levels, values),
            TypedColumn::Int32(reader, values) => fill(reader, rows, levels, values),
            TypedColumn::Int64(reader, values) => fill(reader, rows, levels, values),
            TypedColumn::Float(reader, values) => fill(reader, rows, levels, values),
            TypedColumn::Double(reader, values) => fill(reader, rows, levels, values),
            TypedColumn::Text(reader, values) => fill(reader, rows, levels, values),
        }
    }
}

impl TypedColumn {
    /// A value of the decoded block.
    fn value(&self, i: usize, unsigned: bool) -> Value<'_> {
        match self {
            TypedColumn::Bool(_, v) => Value::Int(v[i].into()),
            TypedColumn::Int32(_, v) if unsigned => Value::Int((v[i] as u32).into()),
            TypedColumn::Int32(_, v) => Value::Int(v[i].into()),
            TypedColumn::Int64(_, v) if unsigned => Value::Int((v[i] as u64).into()),
            TypedColumn::Int64(_, v) => Value::Int(v[i].into()),
            TypedColumn::Float(_, v) => Value::Single(v[i]),
            TypedColumn::Double(_, v) => Value::Float(v[i]),
            TypedColumn::Text(_, v) => Value::Text(v[i].data()),
        }
    }
}

fn fill<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    levels: &mut Levels,
    values: &mut Vec<T::T>,
) -> Result<(), ParquetError> {
    values.clear();
    levels.definition.clear();
    levels.repetition.clear();
    (levels.at, levels.value) = (0, 0);
    let mut read = 0;
    while read < rows {
        let (definition, repetition) = (&mut levels.definition, &mut levels.repetition);
        let (n, _, _) =
            reader.read_records(rows - read, Some(definition), Some(repetition), values)?;
        if n == 0 {
            return Err(ParquetError::EOF(format!("{read} rows instead of {rows}")));
        }
        read += n;
    }
    Ok(())
}
