//! Formats of data files: what their keys say, and which format a file has.

use std::path::PathBuf;

use regatta_data::{
    Column, ColumnFrom, ColumnRead, CriteoRaw, DenseTransform, PaddleRec, Table, Tokens,
};

use super::keys;
use super::paddle_readers::format_of_reader;
use super::resolver::Resolver;
use crate::Hyper;

/// A format with what its keys say.
#[derive(Debug, Clone, PartialEq)]
pub enum FormatSpec {
    /// PaddleRec's `click:0 dense_feature:0.1 1:737395 ...`.
    Criteo,
    /// The same with logarithms of the dense values.
    CriteoLog,
    /// A count and that many values for each slot.
    MultiSlot,
    /// Lines of one of PaddleRec's readers.
    PaddleRec(PaddleRec),
    /// Query and document as dense vectors, to say how like they are.
    VectorPairs,
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

/// What the keys of formats say.
pub(super) struct Formats {
    pub(super) model: &'static str,
    pub(super) chosen: Option<String>,
    columns: Option<Vec<String>>,
    header: Option<bool>,
    delimiter: Option<u8>,
    raw: CriteoRaw,
    dictionary: Option<(PathBuf, PathBuf)>,
    tokens: Tokens,
    window_size: usize,
    negatives: usize,
    max_len: usize,
}

impl Formats {
    pub(super) fn take(r: &mut Resolver, model: &'static str, hyper: &Hyper) -> Formats {
        let delimiter = r.text("runner.data_delimiter").and_then(|text| {
            let byte = match text.as_str() {
                "\\t" | "tab" => Some(b'\t'),
                text if text.len() == 1 => Some(text.as_bytes()[0]),
                _ => None,
            };
            if byte.is_none() {
                let reason = format!("should be one byte or \\t, but is {text:?}");
                r.problem("runner.data_delimiter", reason);
            }
            byte
        });
        let dense = match r.text("runner.dense_transform").as_deref() {
            Some("log") => DenseTransform::Log,
            Some("plain") => DenseTransform::Plain,
            _ => DenseTransform::PaddleRange,
        };
        let rows = hyper.find_int("sparse_feature_number").filter(|n| *n > 0).map(|n| n as u64);
        let hash_dim = r.int("runner.hash_dim").or(rows);
        let counts = r.path("runner.word_count_dict_path");
        let ids = r.path("runner.word_id_dict_path");
        let words = r.text("runner.tokens").as_deref() == Some("words");
        let size = |name: &str| hyper.find_int(name).unwrap_or(5).max(1) as usize;
        Formats {
            model,
            chosen: r.text("runner.data_format"),
            columns: r.texts("runner.data_columns"),
            header: r.bool("runner.data_header"),
            delimiter,
            raw: CriteoRaw { hash_dim, dense },
            dictionary: counts.zip(ids),
            tokens: if words { Tokens::Words } else { Tokens::Ids },
            window_size: size("window_size"),
            negatives: size("neg_num"),
            max_len: hyper.find_int("max_len").unwrap_or(3).max(1) as usize,
        }
    }

    /// The format of files whose reader is the module of a key.
    pub(super) fn of(
        &self,
        r: &mut Resolver,
        reader_key: &str,
        analogy: bool,
    ) -> Option<FormatSpec> {
        let module = r.text(reader_key);
        let name = match (&self.chosen, &module) {
            (Some(name), module) => {
                if module.is_some() {
                    r.unused(reader_key, "runner.data_format says what the files are");
                }
                name.clone()
            }
            (None, Some(module)) => match format_of_reader(self.model, module) {
                Some(name) => name.to_string(),
                None => {
                    let formats = keys::DATA_FORMATS.join(", ");
                    r.problem(
                        reader_key,
                        format!(
                            "the files of reader module '{module}' are not known here; name their \
                             format with runner.data_format ({formats})"
                        ),
                    );
                    return None;
                }
            },
            (None, None) => "multislot".to_string(),
        };
        self.spec(r, &name, analogy)
    }

    pub(super) fn spec(&self, r: &mut Resolver, name: &str, analogy: bool) -> Option<FormatSpec> {
        match name {
            "criteo" => Some(FormatSpec::Criteo),
            "criteo_log" => Some(FormatSpec::CriteoLog),
            "multislot" => Some(FormatSpec::MultiSlot),
            "esmm" => Some(FormatSpec::PaddleRec(PaddleRec::Esmm { max_len: self.max_len })),
            "census" => Some(FormatSpec::PaddleRec(PaddleRec::Census)),
            "din" => Some(FormatSpec::PaddleRec(PaddleRec::Din)),
            "ids_values" => Some(FormatSpec::PaddleRec(PaddleRec::IdsAndValues)),
            "vectors" => Some(FormatSpec::PaddleRec(PaddleRec::Vectors)),
            "slot_ids" => Some(FormatSpec::PaddleRec(PaddleRec::IdsWithSlots)),
            "vector_pairs" => Some(FormatSpec::VectorPairs),
            "movielens" => Some(FormatSpec::Table(movielens())),
            "criteo_raw" => Some(FormatSpec::CriteoRaw(self.raw.clone())),
            "csv" | "tsv" => {
                let csv = name == "csv";
                let header = self.header.unwrap_or(csv);
                let columns = self.columns(r, header)?;
                let base = if csv { Table::csv(columns) } else { Table::tsv(columns) };
                let delimiter = self.delimiter.unwrap_or(base.delimiter);
                Some(FormatSpec::Table(Table { header, delimiter, ..base }))
            }
            "parquet" => Some(FormatSpec::Parquet(self.columns(r, true)?)),
            "word2vec" => {
                let Some((counts, ids)) = self.dictionary.clone() else {
                    for key in ["runner.word_count_dict_path", "runner.word_id_dict_path"] {
                        if !r.settings.iter().any(|s| s.key == key) {
                            r.problem(key, "must be set for word2vec data".to_string());
                        }
                    }
                    return None;
                };
                if analogy {
                    return Some(FormatSpec::Analogy { counts, ids });
                }
                let Formats { tokens, window_size, negatives, .. } = *self;
                Some(FormatSpec::Word2vec { counts, ids, tokens, window_size, negatives })
            }
            other => unreachable!("'{other}' is not in the list of formats"),
        }
    }

    fn columns(&self, r: &mut Resolver, header: bool) -> Option<Vec<Column>> {
        let key = "runner.data_columns";
        let Some(columns) = &self.columns else {
            r.problem(key, "must be set for csv, tsv and parquet data".to_string());
            return None;
        };
        let parsed: Result<Vec<_>, String> =
            columns.iter().map(|text| parse_column(text, header)).collect();
        parsed.map_err(|reason| r.problem(key, reason)).ok()
    }
}

/// `user,item,label`.
fn movielens() -> Table {
    let slots = [("user_input", ColumnRead::Id), ("item_input", ColumnRead::Id)];
    let columns = slots.into_iter().chain([("label", ColumnRead::Label)]).enumerate();
    let columns = columns.map(|(i, (slot, read))| Column::new(ColumnFrom::Index(i), slot, read));
    Table { header: false, ..Table::csv(columns.collect()) }
}

/// Reads `column -> slot: kind`, where kind is `label`, `dense`, `id`, `hash` or `hash(N)`, and
/// `split X` may follow. A column is a number (from 0) or, with a header line, a name.
fn parse_column(text: &str, header: bool) -> Result<Column, String> {
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
}
