//! Statistics of features for people: coverage, distinct and frequent values, collisions.

use std::collections::{HashMap, HashSet};

use crate::apply::parts;
use crate::{Kind, Transform, Value};

/// Counts the values of rows.
#[derive(Debug)]
pub struct Profile {
    transform: Transform,
    rows: u64,
    features: Vec<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    present: u64,
    values: u64,
    counts: HashMap<Box<[u8]>, u64>,
    /// There are more values than are counted.
    is_full: bool,
    unknown: u64,
    low: f64,
    high: f64,
    sum: f64,
    numbers: u64,
}

/// What a feature looks like.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureProfile {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// The part of the rows that have a value.
    pub coverage: f64,
    /// Values of a row that has any.
    pub values_per_row: f64,
    /// Different values; at least so many if `is_lower_bound`.
    pub distinct: u64,
    /// There are more different values than were counted.
    pub is_lower_bound: bool,
    /// The most frequent values with their counts.
    pub top: Vec<(String, u64)>,
    /// The part of the different values that share their id with another one.
    pub collisions: Option<f64>,
    /// The part of the values that are not in the vocabulary.
    pub unknown: Option<f64>,
    /// Smallest, mean and largest number.
    pub range: Option<(f64, f64, f64)>,
}

/// Different values that are counted for a feature.
const MOST_DISTINCT: usize = 1 << 20;

impl Profile {
    /// For the features of a transform.
    pub fn new(transform: &Transform) -> Profile {
        let features = transform.plans.iter().map(|_| Counts::default()).collect();
        Profile { transform: transform.clone(), rows: 0, features }
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Counts a row with values for the columns of the transform.
    pub fn add(&mut self, row: &[Value<'_>]) {
        self.rows += 1;
        for (plan, counts) in self.transform.plans.iter().zip(&mut self.features) {
            let mut any = false;
            for &column in &plan.columns {
                let value = &row[column];
                for part in parts(value, plan.split).filter(|part| !part.is_missing()) {
                    any = true;
                    counts.add(part, plan.is_known(part));
                }
            }
            counts.present += u64::from(any);
        }
    }

    /// What has been counted, in order of name.
    pub fn finish(self, top: usize) -> Vec<FeatureProfile> {
        let Profile { transform, rows, features } = self;
        let plans = transform.plans.iter().zip(features);
        plans
            .map(|(plan, counts)| {
                let kind = transform.features().find(&plan.feature).map(|f| &f.kind);
                let ids: Option<HashSet<u64>> = matches!(kind, Some(Kind::Hash { .. }))
                    .then(|| counts.counts.keys().filter_map(|key| plan.id_of(key)).collect());
                counts.conclude(&plan.feature, kind, rows, ids.map(|ids| ids.len()), top)
            })
            .collect()
    }
}

impl Counts {
    fn add(&mut self, value: Value<'_>, is_known: bool) {
        self.values += 1;
        self.unknown += u64::from(!is_known);
        if let Some(x) = value.number().filter(|x| x.is_finite()) {
            self.low = if self.numbers == 0 { x } else { self.low.min(x) };
            self.high = if self.numbers == 0 { x } else { self.high.max(x) };
            self.sum += x;
            self.numbers += 1;
        }
        let key = value.key();
        let has_room = self.counts.len() < MOST_DISTINCT;
        match self.counts.get_mut(&*key) {
            Some(count) => *count += 1,
            None if has_room => drop(self.counts.insert(key.into_owned().into_boxed_slice(), 1)),
            None => self.is_full = true,
        }
    }

    fn conclude(
        self,
        name: &str,
        kind: Option<&Kind>,
        rows: u64,
        distinct_ids: Option<usize>,
        top: usize,
    ) -> FeatureProfile {
        let distinct = self.counts.len();
        let part = |n: u64, of: u64| if of == 0 { 0.0 } else { n as f64 / of as f64 };
        let mut all: Vec<(&[u8], u64)> = self.counts.iter().map(|(k, n)| (&**k, *n)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        let is_number = self.values > 0 && self.numbers == self.values;
        FeatureProfile {
            name: name.to_string(),
            kind: kind.map_or("", Kind::name),
            coverage: part(self.present, rows),
            values_per_row: part(self.values, self.present),
            distinct: distinct as u64,
            is_lower_bound: self.is_full,
            top: all.into_iter().take(top).map(|(key, n)| (text(key), n)).collect(),
            collisions: distinct_ids.map(|ids| part((distinct - ids) as u64, distinct as u64)),
            unknown: matches!(kind, Some(Kind::Vocabulary(_)))
                .then(|| part(self.unknown, self.values)),
            range: is_number.then(|| (self.low, self.sum / self.numbers as f64, self.high)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Feature, Features, Learned};

    #[test]
    fn counts_of_a_few_rows() {
        let features = Features::new(vec![
            Feature::new("h", Kind::Hash { buckets: 1 }).split_at(b'|'),
            Feature::new("x", Kind::Raw),
        ]);
        let transform = Transform::new(&features.unwrap(), &Learned::default()).unwrap();
        let mut profile = Profile::new(&transform);
        for (h, x) in [("a|b", "1"), ("a", ""), ("", "4"), ("c|a", "")] {
            profile.add(&[Value::Text(h.as_bytes()), Value::Text(x.as_bytes())]);
        }
        assert_eq!(profile.rows(), 4);
        let found = profile.finish(1);
        assert_eq!((found[0].coverage, found[0].distinct), (0.75, 3));
        assert_eq!(found[0].top, [("a".to_string(), 3)]);
        // All three have the only id there is.
        assert_eq!(found[0].collisions, Some(2.0 / 3.0));
        assert_eq!((found[1].coverage, found[1].range), (0.5, Some((1.0, 2.5, 4.0))));
    }
}
