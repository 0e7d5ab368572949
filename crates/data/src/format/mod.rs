//! Formats: from the bytes of a line to a record. One format per file.

mod analogy;
mod criteo;
mod criteo_raw;
mod dictionary;
mod features;
mod multislot;
mod paddlerec;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
mod skip_gram;
mod table;
mod write;

use std::fmt;
use std::sync::Arc;

pub use criteo::Criteo;
pub use criteo_raw::{CriteoRaw, DenseTransform, feature_hash};
pub use dictionary::Dictionary;
pub use features::{RowUse, Visitor};
pub use paddlerec::PaddleRec;
pub use skip_gram::{SkipGram, Tokens};
pub use table::Table;
pub use write::{TextFormat, write_records};

pub(crate) use skip_gram::Expander;

use crate::records::Column;
use crate::{Error, LineError, Records, Schema};

/// Turns lines into records. One parser reads one file from its beginning to its end.
pub trait LineParser: Send {
    /// Appends the records of a line, of which there may be none or several. `number` counts lines
    /// from 1; blank lines are counted but never passed.
    ///
    /// # Errors
    /// If the line does not follow the format. What was written of its record is dropped by the
    /// caller.
    fn parse_line(
        &mut self,
        number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>>;

    /// The byte between fields, if quoted fields may go over several lines. They are passed with
    /// their line ends.
    fn quotes(&self) -> Option<u8> {
        None
    }
}

/// Names what is being read, for formats that draw random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartKey {
    /// The data pass (the epoch).
    pub pass: u64,
    /// Index of the file in the whole file list, before any split between workers.
    pub file: u64,
}

/// Makes a parser for each file.
pub type MakeParser = Arc<dyn Fn(&Schema, PartKey) -> Box<dyn LineParser> + Send + Sync>;

/// How the bytes of a file stand for records.
///
/// In all text formats, blank lines are skipped and lines may end in `\r\n`.
#[derive(Clone)]
#[non_exhaustive]
pub enum Format {
    /// For each slot in the order of the schema: a count, then that many values.
    MultiSlot,
    /// PaddleRec's `click:0 dense_feature:0.5 1:737395 ...`.
    Criteo(Criteo),
    /// The 40 tab-separated columns of the original Criteo logs.
    CriteoRaw(CriteoRaw),
    /// The lines of one of PaddleRec's readers.
    PaddleRec(PaddleRec),
    /// CSV or TSV by declared features.
    Table(Table),
    /// Lines of words for skip-gram with negative sampling.
    SkipGram(SkipGram),
    /// Four words per line, for word2vec's analogy test.
    Analogy(Arc<Dictionary>),
    /// Parquet by declared features.
    #[cfg(feature = "parquet")]
    Parquet(RowUse),
    /// A parser of the caller.
    Custom(MakeParser),
}

impl Format {
    /// Checks that the format can fill the slots.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        match self {
            Format::MultiSlot | Format::Custom(_) => Ok(()),
            Format::Criteo(format) => format.check(schema),
            Format::CriteoRaw(format) => format.check(schema),
            Format::PaddleRec(format) => format.check(schema),
            Format::Table(format) => format.check(schema),
            Format::SkipGram(format) => format.check(schema),
            Format::Analogy(_) => analogy::check(schema),
            #[cfg(feature = "parquet")]
            Format::Parquet(rows) => rows.check(schema),
        }
    }

    /// A parser for one file; `None` for formats that are not made of lines.
    pub fn parser(&self, schema: &Schema, key: PartKey) -> Option<Box<dyn LineParser>> {
        Some(match self {
            Format::MultiSlot => Box::new(multislot::MultiSlotParser::new(schema)),
            Format::Criteo(format) => Box::new(format.parser(schema)),
            Format::CriteoRaw(format) => Box::new(format.parser(schema)),
            Format::PaddleRec(format) => Box::new(format.parser(schema)),
            Format::Table(format) => Box::new(format.parser(schema)),
            Format::SkipGram(format) => Box::new(format.parser(key)),
            Format::Analogy(dictionary) => Box::new(analogy::AnalogyParser::new(dictionary)),
            #[cfg(feature = "parquet")]
            Format::Parquet(_) => return None,
            Format::Custom(make) => make(schema, key),
        })
    }
}

/// Completes a record: ragged slots without ids get id 0.
pub(crate) fn end_padded(out: &mut Records) -> Result<(), Box<LineError>> {
    for slot in 0..out.columns().len() {
        if out.pending(slot) == 0 && matches!(out.columns()[slot], Column::Ids { .. }) {
            out.push_id(slot, 0);
        }
    }
    out.end_record()
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::MultiSlot => "MultiSlot",
            Format::Criteo(_) => "Criteo",
            Format::CriteoRaw(_) => "CriteoRaw",
            Format::PaddleRec(_) => "PaddleRec",
            Format::Table(_) => "Table",
            Format::SkipGram(_) => "SkipGram",
            Format::Analogy(_) => "Analogy",
            #[cfg(feature = "parquet")]
            Format::Parquet(_) => "Parquet",
            Format::Custom(_) => "Custom",
        })
    }
}
