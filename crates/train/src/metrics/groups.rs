//! Examples by what their columns hold: AUC within groups, and measures of slices.

use std::collections::BTreeMap;

use regatta_tensor::{Data, Value};
use serde::{Deserialize, Serialize};

use super::auc::exact_auc;
use super::ranking::{rank_lists, ranks_of};
use super::{Measure, Meter, Metric, log_loss};

/// Slices of a column that are measured by themselves: the largest.
const SLICES: usize = 10;

/// How an evaluation divides its examples.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grouping {
    /// Groups within which the area under the curve, and ranks, are measured.
    pub groups: Option<KeyColumn>,
    /// Columns whose values are measured by themselves.
    pub slices: Vec<KeyColumn>,
    /// Lengths of ranked lists.
    pub ranking: Vec<usize>,
}

/// A column of the data that tells examples apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyColumn {
    /// The slot.
    pub slot: String,
    /// Which of its values, from 0.
    pub part: usize,
    /// What it holds.
    pub kind: KeyKind,
}

/// What a key stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// An id; the first one of a slot with several.
    Id,
    /// A whole number.
    Int,
    /// A number, from a power of two to the next.
    Float,
}

/// Measures of the examples with one value of a column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The head.
    pub head: String,
    /// The column.
    pub column: String,
    /// The value; `other` for all that are too small to be measured by themselves.
    pub value: String,
    /// How many.
    pub examples: u64,
    /// Area under the curve, if there are examples of both classes.
    pub auc: Option<f64>,
    /// Mean log loss.
    pub log_loss: f64,
}

/// The area under the curve within groups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupAuc {
    /// Mean over the groups, weighted by their examples.
    pub value: f64,
    /// Groups that count.
    pub groups: usize,
    /// Groups that do not, as all of their examples are of one class.
    pub left_out: usize,
}

impl KeyColumn {
    /// The column as the user names it.
    pub fn name(&self) -> String {
        match (self.kind, self.part) {
            (KeyKind::Id, 0) => self.slot.clone(),
            (_, part) => format!("{}[{part}]", self.slot),
        }
    }

    /// The keys of a batch.
    fn keys(&self, value: &Value, examples: usize) -> Vec<u64> {
        let of = |data: &Data, at: usize| match data {
            Data::U64(values) => values[at],
            Data::I64(values) => values[at] as u64,
            Data::F32(values) => bucket(values[at]),
            Data::F16(_) | Data::BF16(_) => unreachable!("data are fed as f32 or integers"),
        };
        match value {
            Value::Dense(tensor) => {
                let width = tensor.numel() / examples.max(1);
                (0..examples).map(|row| of(tensor.data(), row * width + self.part)).collect()
            }
            Value::Ragged(ragged) => {
                let bounds = ragged.offsets().windows(2);
                let first = |pair: &[u32]| match pair[0] + (self.part as u32) < pair[1] {
                    true => of(ragged.values(), pair[0] as usize + self.part),
                    false => 0,
                };
                bounds.map(first).collect()
            }
        }
    }

    fn text(&self, key: u64) -> String {
        match self.kind {
            KeyKind::Id => key.to_string(),
            KeyKind::Int => (key as i64).to_string(),
            KeyKind::Float => bucket_text(key),
        }
    }
}

/// Bits of the sign and the exponent: numbers from a power of two to the next have the same.
fn bucket(x: f32) -> u64 {
    u64::from(if x == 0.0 { 0 } else { x.to_bits() >> 23 })
}

fn bucket_text(key: u64) -> String {
    let exponent = (key & 0xff) as i32;
    let power = |n: i32| 2f64.powi(n - 127);
    match (key >> 8, exponent) {
        // Zero, and what is as small as that.
        (_, 0) => "0".to_string(),
        (_, 255) => "no number".to_string(),
        (0, e) => format!("{}..{}", power(e), power(e + 1)),
        (_, e) => format!("-{}..-{}", power(e + 1), power(e)),
    }
}

/// The keys of the examples of a data pass, beside their scores in the meters.
#[derive(Debug, Clone, Default)]
pub struct ExampleKeys {
    grouping: Grouping,
    /// One list for each column: that of groups, then those of slices.
    keys: Vec<Vec<u64>>,
}

impl ExampleKeys {
    /// For a data pass that begins.
    pub fn new(grouping: &Grouping) -> ExampleKeys {
        let columns = usize::from(grouping.groups.is_some()) + grouping.slices.len();
        ExampleKeys { grouping: grouping.clone(), keys: vec![vec![]; columns] }
    }

    /// Notes a batch; `get` gives the values of slots.
    ///
    /// # Errors
    /// Names a slot that the data do not have.
    pub fn add<'v>(
        &mut self,
        examples: usize,
        get: impl Fn(&str) -> Option<&'v Value>,
    ) -> Result<(), String> {
        let columns = self.grouping.groups.iter().chain(&self.grouping.slices);
        for (column, keys) in columns.zip(&mut self.keys) {
            let value = get(&column.slot);
            let value = value.ok_or_else(|| format!("the data have no '{}'", column.slot))?;
            keys.extend(column.keys(value, examples));
        }
        Ok(())
    }

    /// The lists of keys.
    pub(crate) fn lists(&mut self) -> &mut [Vec<u64>] {
        &mut self.keys
    }

    /// Measures within groups, by name: of heads that keep their scores.
    pub fn measures(&self, meters: &[Meter]) -> Vec<Measure> {
        let (Some(_), Some(keys)) = (&self.grouping.groups, self.keys.first()) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for meter in probabilities(meters, keys.len()) {
            let named = |what: &str| match meters.len() {
                1 => what.to_string(),
                _ => format!("{}.{what}", meter.name()),
            };
            let groups = grouped(meter.scores(), keys);
            if let Some(found) = group_auc(&groups) {
                all.push((named("gauc"), found.value));
                all.push((named("gauc_groups"), found.groups as f64));
                all.push((named("gauc_left_out"), found.left_out as f64));
            }
            for &k in &self.grouping.ranking {
                let ranking = rank_lists(groups.values().map(|list| ranks_of(list)), k);
                all.push((named(&format!("hr@{k}")), ranking.hit_rate));
                all.push((named(&format!("recall@{k}")), ranking.recall));
                all.push((named(&format!("ndcg@{k}")), ranking.ndcg));
            }
        }
        all
    }

    /// Measures of the largest slices of each column, and of all others together.
    pub fn slices(&self, meters: &[Meter]) -> Vec<Slice> {
        let first = usize::from(self.grouping.groups.is_some());
        let mut all = Vec::new();
        for (column, keys) in self.grouping.slices.iter().zip(&self.keys[first..]) {
            for meter in probabilities(meters, keys.len()) {
                let mut groups: Vec<_> = grouped(meter.scores(), keys).into_iter().collect();
                groups.sort_by_key(|(key, list)| (std::cmp::Reverse(list.len()), *key));
                let others = groups.split_off(groups.len().min(SLICES));
                let slice = |value: String, list: &[(f32, bool)]| Slice {
                    head: meter.name().to_string(),
                    column: column.name(),
                    value,
                    examples: list.len() as u64,
                    auc: exact_auc(list),
                    log_loss: list.iter().map(|(p, y)| log_loss(*p, *y)).sum::<f64>()
                        / list.len().max(1) as f64,
                };
                all.extend(groups.iter().map(|(key, list)| slice(column.text(*key), list)));
                let rest: Vec<(f32, bool)> = others.into_iter().flat_map(|(_, l)| l).collect();
                all.extend((!rest.is_empty()).then(|| slice("other".to_string(), &rest)));
            }
        }
        all
    }
}

/// Meters of probabilities that have a score for each key.
fn probabilities(meters: &[Meter], keys: usize) -> impl Iterator<Item = &Meter> {
    meters.iter().filter(move |m| m.kind() == Metric::Auc && m.scores().len() == keys && keys > 0)
}

/// Scores by key, each list in the order of the examples.
fn grouped(scores: &[(f32, bool)], keys: &[u64]) -> BTreeMap<u64, Vec<(f32, bool)>> {
    let mut groups: BTreeMap<u64, Vec<(f32, bool)>> = BTreeMap::new();
    for (score, key) in scores.iter().zip(keys) {
        groups.entry(*key).or_default().push(*score);
    }
    groups
}

/// The area under the curve within groups; none if no group has examples of both classes.
fn group_auc(groups: &BTreeMap<u64, Vec<(f32, bool)>>) -> Option<GroupAuc> {
    let (mut sum, mut examples, mut counted) = (0.0, 0.0, 0);
    for list in groups.values() {
        let Some(auc) = exact_auc(list) else { continue };
        sum += auc * list.len() as f64;
        examples += list.len() as f64;
        counted += 1;
    }
    let left_out = groups.len() - counted;
    (counted > 0).then(|| GroupAuc { value: sum / examples, groups: counted, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_within_groups_are_weighted_by_examples() {
        // Group 1: all pairs right; group 2: one of two; group 3: one class only.
        let scores =
            [(0.9, true), (0.1, false), (0.2, true), (0.8, false), (0.1, false), (0.7, true)];
        let found = group_auc(&grouped(&scores, &[1, 1, 2, 2, 2, 3])).unwrap();
        assert_eq!((found.groups, found.left_out), (2, 1));
        assert!((found.value - (2.0 * 1.0 + 3.0 * 0.5) / 5.0).abs() < 1e-12);
        assert_eq!(group_auc(&grouped(&scores[..1], &[1])), None);
    }

    #[test]
    fn floats_are_bucketed_by_powers_of_two() {
        let texts =
            [0.0, -0.0, 0.5, 0.99, 1.0, 3.5, -0.3, f32::NAN].map(|x| bucket_text(bucket(x)));
        let expected = ["0", "0", "0.5..1", "0.5..1", "1..2", "2..4", "-0.5..-0.25", "no number"];
        assert_eq!(texts, expected);
    }
}
