//! All features of a model, checked together.

use serde::{Deserialize, Serialize};

use crate::{Error, Feature, Kind, Pooling, Value};

/// The features of a model in order of name, so that it does not matter in which order they were
/// written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Feature>", into = "Vec<Feature>")]
pub struct Features {
    all: Vec<Feature>,
}

/// The table of a feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Rows, that of missing values included.
    pub rows: u64,
    /// Floats of a row, if a feature says so.
    pub dim: Option<u64>,
}

/// The most ids of a feature: what is larger is a mistake.
const MOST_IDS: u64 = 1 << 48;

impl Features {
    /// Checks that they fit together.
    ///
    /// # Errors
    /// Names the first feature that does not.
    pub fn new(mut all: Vec<Feature>) -> Result<Features, Error> {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = all.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Error::declaration(&pair[0].name, "is there twice"));
        }
        let features = Features { all };
        for feature in &features.all {
            check_alone(feature).map_err(|reason| Error::declaration(&feature.name, reason))?;
            features.check_sequence(feature)?;
        }
        features.check_tables()?;
        Ok(features)
    }

    /// All of them, in order of name.
    pub fn all(&self) -> &[Feature] {
        &self.all
    }

    /// The feature of that name.
    pub fn find(&self, name: &str) -> Option<&Feature> {
        self.all.iter().find(|feature| feature.name == name)
    }

    /// Those that become ids.
    pub fn ids(&self) -> impl Iterator<Item = &Feature> {
        self.all.iter().filter(|feature| feature.kind.is_ids())
    }

    /// Names of the labels.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let labels = self.all.iter().filter(|feature| feature.kind.is_label());
        labels.map(|feature| feature.name.as_str())
    }

    /// Floats of an example.
    pub fn dense_width(&self) -> usize {
        self.all.iter().map(dense_width).sum()
    }

    /// The feature whose ids another one has: its own, but for sequences.
    pub fn owner<'a>(&'a self, feature: &'a Feature) -> &'a Feature {
        match &feature.kind {
            Kind::Sequence { of } => self.find(of).unwrap_or(feature),
            _ => feature,
        }
    }

    /// The table of a feature of ids.
    pub fn table(&self, feature: &Feature) -> Option<Table> {
        let name = self.table_name(feature);
        let rows = self.owner(feature).kind.rows()?;
        let dim = self.ids().filter(|f| self.table_name(f) == name).find_map(|f| f.dim);
        Some(Table { name: name.to_string(), rows, dim })
    }

    fn table_name<'a>(&'a self, feature: &'a Feature) -> &'a str {
        let owner = self.owner(feature);
        owner.table.as_ref().unwrap_or(&owner.name)
    }

    /// The columns that are read, in order of name.
    pub fn columns(&self) -> Vec<String> {
        let mut columns: Vec<String> =
            self.all.iter().flat_map(|f| f.sources().iter().cloned()).collect();
        columns.sort();
        columns.dedup();
        columns
    }

    /// Whether training data say something about any of them.
    pub fn are_learned(&self) -> bool {
        self.all.iter().any(|feature| feature.kind.is_learned())
    }

    fn check_sequence(&self, feature: &Feature) -> Result<(), Error> {
        let Kind::Sequence { of } = &feature.kind else { return Ok(()) };
        let wrong = |reason: String| Err(Error::declaration(&feature.name, reason));
        let Some(owner) = self.find(of) else {
            return wrong(format!("is a sequence of '{of}', but there is no such feature"));
        };
        match &owner.kind {
            kind if !kind.is_ids() => wrong(format!("'{of}' has no ids: it is {}", kind.name())),
            Kind::Sequence { .. } | Kind::Cross { .. } => {
                wrong(format!("is a sequence of '{of}', which is one of {}", owner.kind.name()))
            }
            _ if feature.table.is_some() => wrong(format!("has the table of '{of}': leave it out")),
            _ => Ok(()),
        }
    }

    /// Features that share a table have the same ids.
    fn check_tables(&self) -> Result<(), Error> {
        let owners: Vec<&Feature> =
            self.ids().filter(|f| !matches!(f.kind, Kind::Sequence { .. })).collect();
        for (i, feature) in owners.iter().enumerate() {
            let name = self.table_name(feature);
            let Some(other) = owners[..i].iter().find(|o| self.table_name(o) == name) else {
                continue;
            };
            let same = match (&feature.kind, &other.kind) {
                (Kind::Hash { buckets: a }, Kind::Hash { buckets: b })
                | (Kind::Id { buckets: a }, Kind::Id { buckets: b }) => a == b,
                _ => false,
            };
            if !same {
                let reason = format!(
                    "shares table '{name}' with '{}', so both must be hash, or both id, with the \
                     same buckets (or one a sequence of the other)",
                    other.name
                );
                return Err(Error::declaration(&feature.name, reason));
            }
        }
        for feature in self.ids() {
            let name = self.table_name(feature);
            let mates = self.ids().filter(|f| self.table_name(f) == name);
            let mut dims = mates.filter_map(|f| f.dim);
            if let Some(first) = dims.next()
                && let Some(other) = dims.find(|dim| *dim != first)
            {
                let reason = format!("vectors of one table cannot have dim {first} and {other}");
                return Err(Error::declaration(&feature.name, reason));
            }
        }
        Ok(())
    }
}

impl TryFrom<Vec<Feature>> for Features {
    type Error = Error;

    fn try_from(all: Vec<Feature>) -> Result<Features, Error> {
        Features::new(all)
    }
}

impl From<Features> for Vec<Feature> {
    fn from(features: Features) -> Vec<Feature> {
        features.all
    }
}

/// Floats of an example that a feature gives.
pub(crate) fn dense_width(feature: &Feature) -> usize {
    match (feature.kind.is_dense(), feature.length) {
        (false, _) => 0,
        (true, Some(length)) => length,
        (true, None) => feature.sources().len(),
    }
}

/// Checks a feature by itself.
fn check_alone(f: &Feature) -> Result<(), String> {
    let kind = f.kind.name();
    if f.kind != Kind::Text && (f.name.is_empty() || f.name.contains(['.', '/', ' '])) {
        return Err("a name has no dots, slashes or blanks".into());
    }
    if f.name == crate::transform::DENSE {
        return Err("is the name of all floats together: give it another one".into());
    }
    let n = f.sources().len();
    match &f.kind {
        Kind::Cross { .. } if n < 2 => return Err("crosses two columns or more".into()),
        Kind::Cross { .. } => {}
        kind if kind.is_dense() && f.split.is_none() => {}
        _ if n != 1 => return Err(format!("is made of one column, not of {n}")),
        _ => {}
    }
    if f.kind.rows().is_some_and(|rows| !(2..=MOST_IDS).contains(&rows)) {
        return Err(format!("needs ids: from 1 to {MOST_IDS}"));
    }
    if f.length == Some(0) || f.dim == Some(0) {
        return Err("length and dim are at least 1".into());
    }
    let single = f.kind.is_label() || matches!(f.kind, Kind::Cross { .. } | Kind::Text);
    if single && (f.split.is_some() || f.length.is_some()) {
        return Err(format!("{kind} has one value: leave out split and length"));
    }
    if f.kind.is_dense() && f.split.is_some() != f.length.is_some() {
        return Err("several floats in a text need split and length, both".into());
    }
    if !f.kind.is_ids() && (f.table.is_some() || f.dim.is_some() || f.pooling != Pooling::Sum) {
        return Err(format!("{kind} has no vectors: leave out table, dim and pooling"));
    }
    check_weights(f)?;
    check_kind(f)
}

fn check_weights(f: &Feature) -> Result<(), String> {
    if f.weight.is_none() {
        return Ok(());
    }
    if !f.kind.is_ids() || matches!(f.kind, Kind::Cross { .. }) {
        return Err(format!("{} takes no weights", f.kind.name()));
    }
    if f.length.is_none() || f.weight == f.split {
        return Err("weights need a length, and a separator that is not that of the values".into());
    }
    match f.pooling {
        Pooling::Sum | Pooling::Mean => Ok(()),
        other => Err(format!("weights are for pooling sum and mean, not {}", other.name())),
    }
}

fn check_kind(f: &Feature) -> Result<(), String> {
    use crate::{Bounds, Moments, Words};
    if let Some(default) = &f.default
        && Value::Text(default.as_bytes()).is_missing()
    {
        return Err("its default is a missing value: leave it out".into());
    }
    match &f.kind {
        Kind::Bucketize(Bounds::Given(bounds)) => {
            let ascend = bounds.windows(2).all(|pair| pair[0] < pair[1]);
            if bounds.is_empty() || !ascend || bounds.iter().any(|b| !b.is_finite()) {
                return Err("boundaries are finite numbers in ascending order".into());
            }
        }
        Kind::Standardize(Moments::Given { mean, std })
            if !mean.is_finite() || !std.is_finite() || *std <= 0.0 =>
        {
            return Err("mean and std are finite, and std is above 0".into());
        }
        Kind::Vocabulary(Words::Given(words)) => {
            let mut seen = std::collections::HashSet::new();
            for word in words.iter() {
                if !seen.insert(Value::Text(word.as_bytes()).key()) {
                    return Err(format!("'{word}' is in the vocabulary twice"));
                }
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: &str, buckets: u64) -> Feature {
        Feature::new(name, Kind::Hash { buckets })
    }

    fn problem(features: Vec<Feature>) -> String {
        Features::new(features).unwrap_err().to_string()
    }

    #[test]
    fn the_order_does_not_matter() {
        let one = Features::new(vec![hash("b", 9), hash("a", 9)]).unwrap();
        assert_eq!(one, Features::new(vec![hash("a", 9), hash("b", 9)]).unwrap());
        let json = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Features>(&json).unwrap(), one);
    }

    #[test]
    fn tables_are_shared_by_name_and_by_sequences() {
        let sequence = Feature::new("h", Kind::Sequence { of: "a".into() });
        let all = vec![hash("a", 9).in_table("t"), hash("b", 9).in_table("t"), sequence];
        let features = Features::new(all.clone()).unwrap();
        for name in ["a", "b", "h"] {
            let table = features.table(features.find(name).unwrap()).unwrap();
            assert_eq!(table, Table { name: "t".into(), rows: 10, dim: None });
        }
        let other = hash("c", 8).in_table("t");
        let problem = problem([all, vec![other]].concat());
        assert!(problem.starts_with("feature 'c': shares table 't' with 'a'"), "{problem}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let sequence = Feature::new("h", Kind::Sequence { of: "x".into() });
        assert_eq!(
            problem(vec![sequence]),
            "feature 'h': is a sequence of 'x', but there is no such feature"
        );
        let cross = Feature::new("c", Kind::Cross { buckets: 4 });
        assert_eq!(problem(vec![cross]), "feature 'c': crosses two columns or more");
        assert_eq!(problem(vec![hash("a", 4), hash("a", 4)]), "feature 'a': is there twice");
        let weighted = hash("w", 4).split_at(b'|').weighted_by(b':');
        assert!(problem(vec![weighted]).contains("weights need a length"));
        let bounds = crate::Bounds::Given([2.0, 1.0].into());
        let buckets = Feature::new("a", Kind::Bucketize(bounds));
        assert!(problem(vec![buckets]).contains("ascending"));
    }
}
