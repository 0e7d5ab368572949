//! What training data say about features: vocabularies, boundaries, mean and standard deviation.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::apply::parts;
use crate::{Bounds, Error, Feature, Features, Kind, Moments, Value, Words};

/// What was learned, by feature.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Learned {
    /// By name of the feature.
    pub features: BTreeMap<String, LearnedFeature>,
}

/// What was learned about one feature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LearnedFeature {
    /// The texts of a vocabulary, the most frequent first.
    Words(Vec<String>),
    /// Boundaries of intervals.
    Bounds(Vec<f64>),
    /// Mean and standard deviation.
    Moments {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
}

impl Learned {
    /// Whether there is something for every feature that needs it.
    ///
    /// # Errors
    /// Names the first feature that lacks it.
    pub fn check(&self, features: &Features) -> Result<(), Error> {
        for feature in features.all() {
            match &feature.kind {
                Kind::Vocabulary(Words::Learned { .. }) => drop(self.words(&feature.name)?),
                Kind::Bucketize(Bounds::Learned { .. }) => drop(self.bounds(&feature.name)?),
                Kind::Standardize(Moments::Learned) => drop(self.moments(&feature.name)?),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn words(&self, feature: &str) -> Result<&[String], Error> {
        match self.features.get(feature) {
            Some(LearnedFeature::Words(words)) => Ok(words),
            _ => Err(not_learned(feature, "its vocabulary")),
        }
    }

    pub(crate) fn bounds(&self, feature: &str) -> Result<&[f64], Error> {
        match self.features.get(feature) {
            Some(LearnedFeature::Bounds(bounds)) => Ok(bounds),
            _ => Err(not_learned(feature, "its boundaries")),
        }
    }

    pub(crate) fn moments(&self, feature: &str) -> Result<(f64, f64), Error> {
        match self.features.get(feature) {
            Some(LearnedFeature::Moments { mean, std }) => Ok((*mean, *std)),
            _ => Err(not_learned(feature, "its mean and standard deviation")),
        }
    }
}

fn not_learned(feature: &str, what: &str) -> Error {
    let reason = format!("{what} must be learned from training data first");
    Error::NotLearned { feature: feature.to_string(), reason }
}

/// Learns from rows, in one pass over them.
#[derive(Debug)]
pub struct Learner {
    columns: Vec<String>,
    studies: Vec<Study>,
}

/// What is being learned for one feature.
#[derive(Debug)]
struct Study {
    feature: Feature,
    /// Where its values are: its own column, and those of its sequences with their separators.
    sources: Vec<(usize, Option<u8>, Option<u8>)>,
    found: Found,
}

#[derive(Debug)]
enum Found {
    Words(HashMap<Box<[u8]>, u64>),
    Values(Sample),
    Moments { n: f64, mean: f64, squares: f64 },
}

impl Learner {
    /// For the features of a list that are learned.
    pub fn new(features: &Features) -> Learner {
        let learned = || features.all().iter().filter(|f| f.kind.is_learned());
        let users = |f: &Feature| -> Vec<Feature> {
            let shares = |other: &&Feature| features.owner(other).name == f.name;
            features.all().iter().filter(shares).cloned().collect()
        };
        let mut columns: Vec<String> =
            learned().flat_map(users).flat_map(|f| f.sources().to_vec()).collect();
        columns.sort();
        columns.dedup();
        let study = |f: &Feature| {
            let at = |name: &String| columns.iter().position(|c| c == name).unwrap_or_default();
            let place = |u: &Feature| {
                let all = u.sources().iter().map(at);
                all.map(|column| (column, u.split, u.weight)).collect::<Vec<_>>()
            };
            let found = match &f.kind {
                Kind::Vocabulary(_) => Found::Words(HashMap::new()),
                Kind::Standardize(_) => Found::Moments { n: 0.0, mean: 0.0, squares: 0.0 },
                _ => Found::Values(Sample::default()),
            };
            Study { sources: users(f).iter().flat_map(place).collect(), feature: f.clone(), found }
        };
        let studies = learned().map(study).collect();
        Learner { columns, studies }
    }

    /// The columns that a row has values for, in this order.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Learns from a row.
    pub fn observe(&mut self, row: &[Value<'_>]) {
        for study in &mut self.studies {
            for &(column, split, weight) in &study.sources {
                for part in parts(&row[column], split) {
                    if !part.is_missing() {
                        study.found.add(unweighted(part, weight));
                    }
                }
            }
        }
    }

    /// What has been learned.
    ///
    /// # Errors
    /// If there was no value of a feature.
    pub fn finish(self) -> Result<Learned, Error> {
        let mut features = BTreeMap::new();
        for Study { feature, found, .. } in self.studies {
            let nothing = || Error::NotLearned {
                feature: feature.name.clone(),
                reason: "the training data hold no value of it".into(),
            };
            let learned = found.conclude(&feature.kind).ok_or_else(nothing)?;
            features.insert(feature.name, learned);
        }
        Ok(Learned { features })
    }
}

/// A value without the weight behind it.
fn unweighted<'a>(part: Value<'a>, weight: Option<u8>) -> Value<'a> {
    match (part, weight) {
        (Value::List([value, _]), Some(_)) => *value,
        (Value::Text(text), Some(separator)) => match text.iter().rposition(|b| *b == separator) {
            Some(at) => Value::Text(&text[..at]),
            None => part,
        },
        _ => part,
    }
}

impl Found {
    fn add(&mut self, value: Value<'_>) {
        match self {
            Found::Words(counts) => {
                let key = value.key();
                match counts.get_mut(&*key) {
                    Some(count) => *count += 1,
                    None => drop(counts.insert(key.into_owned().into_boxed_slice(), 1)),
                }
            }
            Found::Values(sample) => {
                if let Some(x) = value.number().filter(|x| x.is_finite()) {
                    sample.add(x);
                }
            }
            // Welford's way, which does not lose digits.
            Found::Moments { n, mean, squares } => {
                if let Some(x) = value.number().filter(|x| x.is_finite()) {
                    *n += 1.0;
                    let difference = x - *mean;
                    *mean += difference / *n;
                    *squares += difference * (x - *mean);
                }
            }
        }
    }

    fn conclude(self, kind: &Kind) -> Option<LearnedFeature> {
        match (self, kind) {
            (Found::Words(counts), Kind::Vocabulary(Words::Learned { min_count, max_size })) => {
                let mut words: Vec<(u64, String)> = counts
                    .into_iter()
                    .filter(|(_, count)| count >= min_count)
                    .map(|(text, count)| (count, String::from_utf8_lossy(&text).into_owned()))
                    .collect();
                // The same list whatever the order of the data.
                words.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
                words.truncate(usize::try_from(*max_size).unwrap_or(usize::MAX));
                let words: Vec<String> = words.into_iter().map(|(_, text)| text).collect();
                (!words.is_empty()).then_some(LearnedFeature::Words(words))
            }
            (Found::Values(sample), Kind::Bucketize(Bounds::Learned { quantiles })) => {
                sample.quantiles(*quantiles).map(LearnedFeature::Bounds)
            }
            (Found::Moments { n, mean, squares }, _) if n > 0.0 => {
                let std = (squares / n).sqrt();
                // A constant is 0 after all, not a division by 0.
                let std = if std > 0.0 { std } else { 1.0 };
                Some(LearnedFeature::Moments { mean, std })
            }
            _ => None,
        }
    }
}

/// Values of a stream, each with the same chance to be kept when there are too many.
#[derive(Debug, Default)]
struct Sample {
    values: Vec<f64>,
    seen: u64,
}

/// Quantiles of that many values are right to about a thousandth.
const SAMPLE: usize = 1 << 20;

impl Sample {
    fn add(&mut self, x: f64) {
        self.seen += 1;
        if self.values.len() < SAMPLE {
            self.values.push(x);
            return;
        }
        // A position that follows from the number alone: the same data give the same boundaries.
        let mut z = self.seen.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let at = (z ^ (z >> 31)) % self.seen;
        if let Some(old) = usize::try_from(at).ok().and_then(|at| self.values.get_mut(at)) {
            *old = x;
        }
    }

    fn quantiles(mut self, n: u64) -> Option<Vec<f64>> {
        self.values.sort_by(f64::total_cmp);
        let last = self.values.len().checked_sub(1)?;
        let cut = |i: u64| self.values[((self.values.len() as u64 * i / n) as usize).min(last)];
        let mut bounds: Vec<f64> = (1..n).map(cut).collect();
        bounds.dedup();
        Some(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transform;

    fn learn(features: &Features, rows: &[&[&str]]) -> Learned {
        let mut learner = Learner::new(features);
        for row in rows {
            let row: Vec<Value<'_>> = row.iter().map(|t| Value::Text(t.as_bytes())).collect();
            learner.observe(&row);
        }
        learner.finish().unwrap()
    }

    #[test]
    fn vocabularies_count_what_sequences_hold() {
        let words = Words::Learned { min_count: 2, max_size: 2 };
        let features = Features::new(vec![
            Feature::new("item", Kind::Vocabulary(words)),
            Feature::new("past", Kind::Sequence { of: "item".into() }).split_at(b'|'),
        ]);
        let features = features.unwrap();
        let rows: &[&[&str]] = &[&["a", "b|c|b"], &["b", ""], &["c", "d|e|e"], &["", "NULL"]];
        let learned = learn(&features, rows);
        let words = LearnedFeature::Words(vec!["b".into(), "c".into()]);
        assert_eq!(learned.features["item"], words);
        let transform = Transform::new(&features, &learned).unwrap();
        let row = transform.row(&[Value::Text(b"c"), Value::Text(b"b|a")]).unwrap();
        assert_eq!((row[0].ids(), row[1].ids()), (&[3][..], &[2, 1][..]));
        let json = serde_json::to_value(&learned).unwrap();
        assert_eq!(serde_json::from_value::<Learned>(json).unwrap(), learned);
    }

    #[test]
    fn boundaries_and_moments() {
        let quantiles = Bounds::Learned { quantiles: 4 };
        let features = Features::new(vec![
            Feature::new("a", Kind::Bucketize(quantiles)),
            Feature::new("b", Kind::Standardize(Moments::Learned)),
        ]);
        let features = features.unwrap();
        let texts: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        let rows: Vec<[&str; 2]> = texts.iter().map(|t| [t.as_str(), t.as_str()]).collect();
        let rows: Vec<&[&str]> = rows.iter().map(|row| &row[..]).collect();
        let learned = learn(&features, &rows);
        assert_eq!(learned.features["a"], LearnedFeature::Bounds(vec![25.0, 50.0, 75.0]));
        let LearnedFeature::Moments { mean, std } = learned.features["b"] else { panic!() };
        assert!((mean - 49.5).abs() < 1e-9 && (std - 833.25_f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_learned_is_named() {
        let features = Features::new(vec![Feature::new("b", Kind::Standardize(Moments::Learned))]);
        let features = features.unwrap();
        let e = Learned::default().check(&features).unwrap_err().to_string();
        assert!(e.starts_with("feature 'b': its mean and standard deviation must"), "{e}");
        let e = Learner::new(&features).finish().unwrap_err().to_string();
        assert_eq!(e, "feature 'b': the training data hold no value of it");
    }

    #[test]
    fn samples_of_long_streams_are_fair() {
        let mut sample = Sample::default();
        (0..3 * SAMPLE).for_each(|i| sample.add(i as f64));
        let bounds = sample.quantiles(2).unwrap();
        let middle = bounds[0] / (3 * SAMPLE) as f64;
        assert!((middle - 0.5).abs() < 0.01, "{middle}");
    }
}
