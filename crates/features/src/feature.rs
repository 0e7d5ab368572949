//! One declared feature.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A feature: where its values are, what becomes of them, and how ids become vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// Its name, which its slot and its table have too.
    pub name: String,
    /// The columns that it is made of; the one of its name if there are none here.
    pub columns: Vec<String>,
    /// What its values are.
    pub kind: Kind,
    /// A text is divided into several values at this byte.
    pub split: Option<u8>,
    /// Every value is followed by this byte and a weight.
    pub weight: Option<u8>,
    /// Most values that are kept, the last ones.
    pub length: Option<usize>,
    /// The raw value that counts where there is none.
    pub default: Option<String>,
    /// The table of its vectors; features that name the same one share their ids.
    pub table: Option<String>,
    /// Floats of its vectors; else as many as the model says.
    pub dim: Option<u64>,
    /// How the vectors of several values become one.
    pub pooling: Pooling,
}

/// What the values of a feature are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// What is to be predicted: a whole number, or with a threshold whether it is at least that.
    Label {
        /// The least value of the positive class.
        threshold: Option<f64>,
    },
    /// Numbers from 1 to below `buckets`; 0 stands for a missing value.
    Id {
        /// Rows of the table.
        buckets: u64,
    },
    /// Any text, by its hash.
    Hash {
        /// How many ids there are.
        buckets: u64,
    },
    /// Any text of a list.
    Vocabulary(Words),
    /// A number, by the interval that it is in.
    Bucketize(Bounds),
    /// The values of several columns together, by their hash.
    Cross {
        /// How many ids there are.
        buckets: u64,
    },
    /// Values of another feature, one after the other, with its ids and its table.
    Sequence {
        /// The name of the other feature.
        of: String,
    },
    /// Floats as they are.
    Raw,
    /// `ln(1 + x)`, with 0 for negative numbers.
    Log,
    /// The text itself, a byte to each id: what goes along with an example unread.
    Text,
    /// Floats minus their mean, divided by their standard deviation.
    Standardize(Moments),
}

/// The list of a vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Words {
    /// These texts.
    Given(Arc<[String]>),
    /// Those of the training data, the most frequent ones.
    Learned {
        /// How often a text must be there.
        min_count: u64,
        /// How many there are at most.
        max_size: u64,
    },
}

/// The intervals of numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bounds {
    /// Between these numbers, in ascending order; a number that is one of them is in the upper one.
    Given(Arc<[f64]>),
    /// As many intervals, each with as many values of the training data.
    Learned {
        /// Number of intervals.
        quantiles: u64,
    },
}

/// Mean and standard deviation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moments {
    /// These.
    Given {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Those of the training data.
    Learned,
}

/// How the vectors of several values become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Sum.
    #[default]
    Sum,
    /// Mean.
    Mean,
    /// Sum divided by the square root of the count.
    Sqrtn,
    /// Largest in each dimension.
    Max,
}

impl Pooling {
    /// All of them, by name.
    pub const ALL: [(&'static str, Pooling); 4] = [
        ("sum", Pooling::Sum),
        ("mean", Pooling::Mean),
        ("sqrtn", Pooling::Sqrtn),
        ("max", Pooling::Max),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = Pooling::ALL.iter().find(|(_, pooling)| *pooling == self);
        found.map_or("sum", |(name, _)| name)
    }
}

impl Kind {
    /// Whether values become floats rather than ids.
    pub fn is_dense(&self) -> bool {
        matches!(self, Kind::Raw | Kind::Log | Kind::Standardize(_))
    }

    /// Whether it is what is to be predicted.
    pub fn is_label(&self) -> bool {
        matches!(self, Kind::Label { .. })
    }

    /// Whether values become ids.
    pub fn is_ids(&self) -> bool {
        !self.is_dense() && !self.is_label() && *self != Kind::Text
    }

    /// Rows of its table, missing values included; none for a sequence, which has that of another.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Kind::Id { buckets } => Some(*buckets),
            Kind::Hash { buckets } | Kind::Cross { buckets } => Some(buckets + 1),
            // Missing and unknown values come first.
            Kind::Vocabulary(Words::Given(words)) => Some(words.len() as u64 + 2),
            Kind::Vocabulary(Words::Learned { max_size, .. }) => Some(max_size + 2),
            Kind::Bucketize(Bounds::Given(bounds)) => Some(bounds.len() as u64 + 2),
            Kind::Bucketize(Bounds::Learned { quantiles }) => Some(quantiles + 1),
            Kind::Label { .. } | Kind::Sequence { .. } | Kind::Text => None,
            Kind::Raw | Kind::Log | Kind::Standardize(_) => None,
        }
    }

    /// Whether training data say something about it.
    pub fn is_learned(&self) -> bool {
        matches!(
            self,
            Kind::Vocabulary(Words::Learned { .. })
                | Kind::Bucketize(Bounds::Learned { .. })
                | Kind::Standardize(Moments::Learned)
        )
    }

    /// Its name in configurations.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Label { .. } => "label",
            Kind::Id { .. } => "id",
            Kind::Hash { .. } => "hash",
            Kind::Vocabulary(_) => "vocabulary",
            Kind::Bucketize(_) => "bucketize",
            Kind::Cross { .. } => "cross",
            Kind::Sequence { .. } => "sequence",
            Kind::Raw => "raw",
            Kind::Text => "text",
            Kind::Log => "log",
            Kind::Standardize(_) => "standardize",
        }
    }
}

impl Feature {
    /// A feature of the column with its name.
    pub fn new(name: impl Into<String>, kind: Kind) -> Feature {
        Feature {
            name: name.into(),
            columns: Vec::new(),
            kind,
            split: None,
            weight: None,
            length: None,
            default: None,
            table: None,
            dim: None,
            pooling: Pooling::default(),
        }
    }

    /// The same of other columns.
    #[must_use]
    pub fn of_columns<S: Into<String>>(self, columns: impl IntoIterator<Item = S>) -> Feature {
        Feature { columns: columns.into_iter().map(Into::into).collect(), ..self }
    }

    /// The same with several values in a text.
    #[must_use]
    pub fn split_at(self, separator: u8) -> Feature {
        Feature { split: Some(separator), ..self }
    }

    /// The same with a weight behind every value.
    #[must_use]
    pub fn weighted_by(self, separator: u8) -> Feature {
        Feature { weight: Some(separator), ..self }
    }

    /// The same with at most that many values, the last ones.
    #[must_use]
    pub fn last(self, length: usize) -> Feature {
        Feature { length: Some(length), ..self }
    }

    /// The same with vectors of another table.
    #[must_use]
    pub fn in_table(self, table: impl Into<String>) -> Feature {
        Feature { table: Some(table.into()), ..self }
    }

    /// The names of its columns.
    pub fn sources(&self) -> &[String] {
        match self.columns.is_empty() {
            true => std::slice::from_ref(&self.name),
            false => &self.columns,
        }
    }

    /// The slot of its weights, if it has any.
    pub fn weights_slot(&self) -> String {
        format!("{}.weights", self.name)
    }

    /// Whether an example may have several values.
    pub fn is_multi(&self) -> bool {
        self.split.is_some() || self.length.is_some() || matches!(self.kind, Kind::Sequence { .. })
    }
}
