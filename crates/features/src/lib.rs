//! Declared features: the raw values of a row become ids and floats, the same wherever a model is
//! trained, evaluated or served.
//!
//! A [`Features`] list says what every feature is made of. Together with what was learned from the
//! training data ([`Learned`]) it is compiled into a [`Transform`], which turns rows of raw
//! [`Value`]s, whether they were text, columns of a table or JSON, into slots. This crate knows
//! neither files nor programs.
//!
//! ```
//! use regatta_features::{Feature, Features, Kind, Learned, Transform, Value};
//!
//! let features = Features::new(vec![
//!     Feature::new("clicked", Kind::Label { threshold: None }),
//!     Feature::new("item", Kind::Hash { buckets: 1000 }),
//!     Feature::new("history", Kind::Sequence { of: "item".into() }).split_at(b'|').last(3),
//!     Feature::new("price", Kind::Log),
//! ])?;
//! let transform = Transform::new(&features, &Learned::default())?;
//! assert_eq!(transform.columns(), ["clicked", "history", "item", "price"]);
//!
//! let row = [Value::Text(b"1"), Value::Text(b"a|b|c|d"), Value::Text(b"d"), Value::Missing];
//! let values = transform.row(&row)?;
//! let item = values[2].ids()[0];
//! // The same item has the same id, as a target and in a history.
//! assert_eq!(values[1].ids().last(), Some(&item));
//! assert_eq!(values[3].floats(), [0.0]);
//! # Ok::<(), regatta_features::Error>(())
//! ```
//!
//! In reading order: `feature` (what is declared), `list` (all of them, checked together), `value`
//! (what a row holds), `hash` (which id a value has), `transform` and `apply` (values to slots),
//! `learn` (vocabularies, boundaries and moments from data), `profile` (statistics for people).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod apply;
mod feature;
mod hash;
mod learn;
mod list;
mod profile;
mod transform;
mod value;

pub use apply::{Row, RowValues, Sink};
pub use feature::{Bounds, Feature, Kind, Moments, Pooling, Words};
pub use hash::{CROSS_SEPARATOR, hash_id};
pub use learn::{Learned, LearnedFeature, Learner};
pub use list::{Features, Table};
pub use profile::{FeatureProfile, Profile};
pub use transform::{DENSE, NO_LABEL, Slot, SlotKind, Transform};
pub use value::Value;

/// What is wrong with features or with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Features that do not fit together.
    #[error("feature '{feature}': {reason}")]
    Declaration {
        /// Its name.
        feature: String,
        /// What is wrong.
        reason: String,
    },
    /// There is nothing to learn from.
    #[error("feature '{feature}': {reason}")]
    NotLearned {
        /// Its name.
        feature: String,
        /// What is missing.
        reason: String,
    },
    /// A value that a feature cannot take.
    #[error("column '{column}': expected {expected}, found {found}")]
    Value {
        /// The column of the row, by its number in [`Transform::columns`].
        index: usize,
        /// Its name.
        column: String,
        /// What the feature takes.
        expected: String,
        /// What was there.
        found: String,
    },
}

impl Error {
    pub(crate) fn declaration(feature: &str, reason: impl Into<String>) -> Error {
        Error::Declaration { feature: feature.to_string(), reason: reason.into() }
    }
}
