//! Formats of data files: what their keys say, and which format a file has.

use std::path::PathBuf;

use regatta_data::{CriteoRaw, DenseTransform, PaddleRec, Tokens};
use regatta_features::{Feature, Features, Kind};

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
    Table {
        /// The byte between fields.
        delimiter: u8,
        /// Whether the first line names the columns.
        header: bool,
        /// What becomes of the columns; else the configuration says so.
        features: Option<Features>,
        /// For data to be scored: labels may be missing, and these columns go along.
        scored: Option<Vec<Feature>>,
    },
    /// Parquet.
    Parquet {
        /// As of tables.
        scored: Option<Vec<Feature>>,
    },
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

impl FormatSpec {
    /// The same, for data to be scored: labels may be missing, and more columns go along with
    /// examples as texts, each for a slot. Columns of files without names are numbers from 0.
    ///
    /// # Errors
    /// If the files have no columns, or no column of a name.
    pub fn to_score(&self, texts: &[(String, String)]) -> Result<FormatSpec, String> {
        let kept = || {
            let one = |(column, slot): &(String, String)| {
                Feature::new(slot, Kind::Text).of_columns([column.as_str()])
            };
            texts.iter().map(one).collect::<Vec<_>>()
        };
        match self {
            FormatSpec::Table { header: false, .. } => {
                let named = texts.iter().find(|(column, _)| column.parse::<usize>().is_err());
                if let Some((column, _)) = named {
                    return Err(format!(
                        "there is no column '{column}': the files have no line of names, and \
                         columns are numbers from 0"
                    ));
                }
            }
            FormatSpec::Table { .. } | FormatSpec::Parquet { .. } => {}
            other if texts.is_empty() => return Ok(other.clone()),
            _ => return Err("only csv, tsv and parquet files have columns".to_string()),
        }
        let mut spec = self.clone();
        if let FormatSpec::Table { scored, .. } | FormatSpec::Parquet { scored } = &mut spec {
            *scored = Some(kept());
        }
        Ok(spec)
    }
}

/// What the keys of formats say.
pub(super) struct Formats {
    pub(super) model: &'static str,
    pub(super) chosen: Option<String>,
    has_features: bool,
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
            // Features that are wrong have been reported.
            has_features: hyper.features().is_some() || r.has_problem("features"),
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
        if self.has_features && !["csv", "tsv", "parquet"].contains(&name) {
            let reason = format!("is {name}, but features need csv, tsv or parquet data");
            r.problem("runner.data_format", reason);
            return None;
        }
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
            "movielens" => Some(movielens()),
            "criteo_raw" => Some(FormatSpec::CriteoRaw(self.raw.clone())),
            "csv" | "tsv" | "parquet" if !self.has_features => {
                let key = "runner.data_format";
                r.problem(key, format!("{name} data need the section `features`"));
                None
            }
            "csv" | "tsv" => {
                let csv = name == "csv";
                let delimiter = self.delimiter.unwrap_or(if csv { b',' } else { b'\t' });
                let header = self.header.unwrap_or(csv);
                Some(FormatSpec::Table { delimiter, header, features: None, scored: None })
            }
            "parquet" => Some(FormatSpec::Parquet { scored: None }),
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
}

/// `user,item,label`.
fn movielens() -> FormatSpec {
    let id = |name: &str, column: &str| {
        let kind = Kind::Id { buckets: 1 << 48 };
        Feature::new(name, kind).of_columns([column])
    };
    let label = Feature::new("label", Kind::Label { threshold: None }).of_columns(["2"]);
    let features = vec![id("user_input", "0"), id("item_input", "1"), label];
    let features = Features::new(features).expect("they fit together");
    let features = Some(features);
    FormatSpec::Table { delimiter: b',', header: false, features, scored: None }
}
