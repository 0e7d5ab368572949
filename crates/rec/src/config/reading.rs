//! How data are read: which files, which format, which kind of dataset.

use std::path::PathBuf;

use regatta_data::{Column, ColumnFrom, ColumnRead, CriteoRaw, Table, Tokens};

/// How training or test data are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The key of the directory, for messages.
    pub data_key: &'static str,
    /// A directory, or the URL of a synthetic source.
    pub data: Option<String>,
    /// Format of the files; a synthetic source needs none.
    pub format: Option<FormatSpec>,
    /// The kind of dataset.
    pub reader: Reader,
    /// Shell command that files go through.
    pub pipe_command: Option<String>,
    /// The key of the batch size, for messages.
    pub batch_key: &'static str,
    /// Examples per batch.
    pub batch_size: Option<usize>,
    /// Leave out an incomplete last batch.
    pub drop_last: bool,
    /// Malformed lines that may be skipped per pass.
    pub max_bad_lines: u64,
    /// What shuffles and samples follow from.
    pub seed: u64,
}

impl Reading {
    /// The same data, all of them and in their order, however they are read otherwise.
    pub fn in_order(&self) -> Reading {
        Reading { reader: Reader::Loader { shuffle_buffer: 0 }, drop_last: false, ..self.clone() }
    }
}

/// Kinds of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// One thread, in file order, with a shuffle buffer of that many records.
    Loader {
        /// Records in the buffer; 0 keeps the order.
        shuffle_buffer: usize,
    },
    /// Several threads, as batches get ready.
    Queue {
        /// Threads that read files.
        threads: usize,
    },
    /// All records in memory.
    Memory {
        /// Threads that load files.
        threads: usize,
        /// A new order in every epoch.
        shuffle: bool,
    },
}

/// A format with what its keys say.
#[derive(Debug, Clone, PartialEq)]
pub enum FormatSpec {
    /// PaddleRec's `click:0 dense_feature:0.1 1:737395 ...`.
    Criteo,
    /// A count and that many values for each slot.
    MultiSlot,
    /// The 40 columns of the original logs.
    CriteoRaw(CriteoRaw),
    /// CSV or TSV.
    Table(Table),
    /// Parquet.
    Parquet(Vec<Column>),
    /// Lines of words.
    Word2vec {
        /// Words with their frequencies.
        counts: PathBuf,
        /// Words with their ids.
        ids: PathBuf,
        /// What the corpus holds.
        tokens: Tokens,
        /// Largest distance of two words of a sample.
        window_size: usize,
        /// Random words of a sample.
        negatives: usize,
    },
    /// Four words per line, to judge word vectors by.
    Analogy {
        /// Words with their frequencies.
        counts: PathBuf,
        /// Words with their ids.
        ids: PathBuf,
    },
}

/// The format behind a reader module of PaddleRec.
pub(super) fn format_of_reader(module: &str) -> Option<&'static str> {
    // `models.rank.dnn.criteo_reader` and `models/rank/dnn/criteo_reader` are the same module.
    let name = module.rsplit(['.', '/']).next().unwrap_or(module);
    match name {
        "criteo_reader" => Some("criteo"),
        "queuedataset_reader" => Some("multislot"),
        "word2vec_reader" | "word2vec_infer_reader" => Some("word2vec"),
        _ => None,
    }
}

/// Reads `column -> slot: kind`, where kind is `label`, `dense`, `id`, `hash` or `hash(N)`, and
/// `split X` may follow. A column is a number (from 0) or, with a header line, a name.
pub(super) fn parse_column(text: &str, header: bool) -> Result<Column, String> {
    let form = || format!("expected 'column -> slot: kind', found '{text}'");
    let (column, rest) = text.split_once("->").ok_or_else(form)?;
    let (slot, kind) = rest.rsplit_once(':').ok_or_else(form)?;
    let column = column.trim();
    let from = match column.parse::<usize>() {
        Ok(index) if !header => ColumnFrom::Index(index),
        _ => ColumnFrom::Name(column.to_string()),
    };
    let mut words = kind.split_whitespace();
    let read = match words.next() {
        Some("label") => ColumnRead::Label,
        Some("dense") => ColumnRead::Dense,
        Some("id") => ColumnRead::Id,
        Some("hash") => ColumnRead::Hash { dim: None },
        Some(word) => {
            let dim = word.strip_prefix("hash(").and_then(|w| w.strip_suffix(')'));
            let dim = dim.and_then(|d| d.parse().ok()).filter(|d: &u64| *d > 0);
            let kinds = || format!("'{word}' in '{text}' is not label, dense, id, hash or hash(N)");
            ColumnRead::Hash { dim: Some(dim.ok_or_else(kinds)?) }
        }
        None => return Err(form()),
    };
    let entry = Column::new(from, slot.trim(), read);
    match (words.next(), words.next(), words.next()) {
        (None, ..) => Ok(entry),
        (Some("split"), Some(separator), None) if separator.len() == 1 => {
            Ok(entry.split_at(separator.as_bytes()[0]))
        }
        _ => Err(format!("after the kind only 'split X' may follow, found '{text}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_maps() {
        let column = parse_column("C1 -> 1: hash(1000) split |", true).unwrap();
        let read = ColumnRead::Hash { dim: Some(1000) };
        let expected = Column::new(ColumnFrom::Name("C1".into()), "1", read).split_at(b'|');
        assert_eq!(column, expected);
        let column = parse_column("0->label: label", false).unwrap();
        assert_eq!(column, Column::new(ColumnFrom::Index(0), "label", ColumnRead::Label));
        for bad in ["C1", "C1 -> 1", "C1 -> 1: float", "C1 -> 1: hash(0)", "C1 -> 1: id splat x"] {
            assert!(parse_column(bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn reader_modules() {
        assert_eq!(format_of_reader("criteo_reader"), Some("criteo"));
        assert_eq!(format_of_reader("models.rank.dnn.criteo_reader"), Some("criteo"));
        assert_eq!(format_of_reader("dinReader"), None);
    }
}
