//! How good predictions are.

mod analogy;
mod auc;
mod calibration;
mod groups;
mod ranking;

use regatta_tensor::{Data, Tensor};

pub use analogy::{Analogies, analogy_accuracy};
pub use auc::{BucketAuc, exact_auc};
pub use calibration::{Calibration, calibration};
pub use groups::{ExampleKeys, GroupAuc, Grouping, KeyColumn, KeyKind, Slice};
pub use ranking::{Ranking, rank_groups, rank_lists, ranks_of};

/// A measure of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Area under the ROC curve.
    Auc,
    /// Share of right classes.
    Accuracy,
    /// Root of the mean squared error.
    Rmse,
    /// Mean of the predictions, whatever the labels.
    Mean,
}

/// A measure with its name.
pub type Measure = (String, f64);

/// Measures one head over many batches.
#[derive(Debug, Clone)]
pub struct Meter {
    name: &'static str,
    kind: Metric,
    examples: u64,
    auc: BucketAuc,
    /// Scores with labels, where evaluation needs them all; of classes the rank of the right one.
    scores: Option<Vec<(f32, bool)>>,
    log_loss: f64,
    right: u64,
    squared: f64,
    absolute: f64,
}

impl Meter {
    /// For training: constant memory.
    pub fn new(name: &'static str, kind: Metric) -> Meter {
        Meter {
            name,
            kind,
            examples: 0,
            auc: BucketAuc::default(),
            scores: None,
            log_loss: 0.0,
            right: 0,
            squared: 0.0,
            absolute: 0.0,
        }
    }

    /// For evaluation: keeps all scores, so that the area is exact.
    pub fn exact(name: &'static str, kind: Metric) -> Meter {
        Meter { scores: Some(Vec::new()), ..Meter::new(name, kind) }
    }

    /// Forgets all examples.
    pub fn reset(&mut self) {
        let scores = self.scores.is_some().then(Vec::new);
        *self = Meter { scores, ..Meter::new(self.name, self.kind) };
    }

    /// Everything counted so far, as numbers that can be added to those of other workers.
    pub fn counters(&self) -> Vec<f64> {
        let sums =
            [self.examples as f64, self.log_loss, self.right as f64, self.squared, self.absolute];
        sums.into_iter().chain(self.auc.counters()).collect()
    }

    /// Replaces everything counted so far by sums of [`Meter::counters`].
    ///
    /// # Panics
    /// If there are not as many numbers as `counters` gives.
    pub fn set_counters(&mut self, counters: &[f64]) {
        let [examples, log_loss, right, squared, absolute] = counters[..5] else { unreachable!() };
        (self.examples, self.right) = (examples as u64, right as u64);
        (self.log_loss, self.squared, self.absolute) = (log_loss, squared, absolute);
        self.auc.set_counters(&counters[5..]);
    }

    /// Counts a batch: predictions `[batch, columns]` and labels `[batch, 1]`.
    pub fn add(&mut self, predict: &Tensor, label: &Tensor) {
        let rows = label.numel();
        if rows == 0 {
            return;
        }
        let predict = predict.f32().chunks_exact(predict.numel() / rows);
        self.examples += rows as u64;
        for (row, scores) in predict.enumerate() {
            let label = number(label, row);
            match self.kind {
                Metric::Auc => self.add_probability(scores[scores.len() - 1], label > 0.5),
                Metric::Accuracy => {
                    self.right += u64::from(class(scores) as f64 == label);
                    self.add_rank(scores, label);
                }
                Metric::Mean => self.absolute += f64::from(scores[0]),
                Metric::Rmse => {
                    let error = f64::from(scores[0]) - label;
                    self.squared += error * error;
                    self.absolute += error.abs();
                }
            }
        }
    }

    fn add_rank(&mut self, scores: &[f32], label: f64) {
        let (Some(ranks), true) = (&mut self.scores, scores.len() > 1) else { return };
        if (label as usize) < scores.len() {
            let list: Vec<(f32, bool)> =
                scores.iter().enumerate().map(|(i, s)| (*s, i == label as usize)).collect();
            ranks.extend(ranks_of(&list).into_iter().map(|rank| (rank as f32, true)));
        }
    }

    fn add_probability(&mut self, p: f32, positive: bool) {
        self.auc.add(p, positive);
        self.right += u64::from((p >= 0.5) == positive);
        self.log_loss += log_loss(p, positive);
        if let Some(scores) = &mut self.scores {
            scores.push((p, positive));
        }
    }

    /// The measure that the head is named after.
    pub fn main(&self) -> Option<f64> {
        let n = self.examples as f64;
        match self.kind {
            _ if self.examples == 0 => None,
            Metric::Auc => self.scores.as_deref().map_or_else(|| self.auc.value(), exact_auc),
            Metric::Accuracy => Some(self.right as f64 / n),
            Metric::Rmse => Some((self.squared / n).sqrt()),
            Metric::Mean => Some(self.absolute / n),
        }
    }

    /// The name of [`Meter::main`].
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What the head is judged by.
    pub fn kind(&self) -> Metric {
        self.kind
    }

    /// Replaces the scores, where they are kept, by those of all workers.
    pub(crate) fn set_scores(&mut self, all: Vec<(f32, bool)>) {
        if let Some(scores) = &mut self.scores {
            *scores = all;
        }
    }

    /// Whether all scores are kept.
    pub(crate) fn keeps_scores(&self) -> bool {
        self.scores.is_some()
    }

    /// The scores with their labels, if they are kept.
    pub fn scores(&self) -> &[(f32, bool)] {
        self.scores.as_deref().unwrap_or_default()
    }

    /// Names of all measures that [`Meter::all`] can give.
    pub fn names(&self, alone: bool) -> Vec<String> {
        let others: &[&str] = match self.kind {
            Metric::Auc => &["auc_bucketed", "log_loss", "accuracy", "calibration", "ece"],
            Metric::Rmse => &["mae"],
            Metric::Accuracy | Metric::Mean => &[],
        };
        let named = |what: &&str| match alone {
            true => what.to_string(),
            false => format!("{}.{what}", self.name),
        };
        std::iter::once(self.name.to_string()).chain(others.iter().map(named)).collect()
    }

    /// The rank of the right class of each example, from 0, if they are kept.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        let kept = self.scores().iter().filter(|_| self.kind == Metric::Accuracy);
        kept.map(|(rank, _)| *rank as usize)
    }

    /// All measures; `alone` if the model has no other head, so that names need no prefix.
    pub fn all(&self, alone: bool) -> Vec<Measure> {
        let Some(main) = self.main() else { return Vec::new() };
        let n = self.examples as f64;
        let named = |what: &str| match alone {
            true => what.to_string(),
            false => format!("{}.{what}", self.name),
        };
        let mut all = vec![(self.name.to_string(), main)];
        match self.kind {
            Metric::Auc => {
                all.extend(self.auc.value().map(|auc| (named("auc_bucketed"), auc)));
                all.push((named("log_loss"), self.log_loss / n));
                all.push((named("accuracy"), self.right as f64 / n));
                let found = self.scores.as_deref().and_then(calibration);
                let found =
                    found.map(|c| [(named("calibration"), c.ratio), (named("ece"), c.error)]);
                all.extend(found.into_iter().flatten().filter(|(_, value)| value.is_finite()));
            }
            Metric::Rmse => all.push((named("mae"), self.absolute / n)),
            Metric::Accuracy | Metric::Mean => {}
        }
        all
    }
}

/// What a probability costs. Those of 0 and 1 in f32 would cost infinitely much when wrong.
fn log_loss(p: f32, positive: bool) -> f64 {
    let p = f64::from(p).clamp(1e-7, 1.0 - 1e-7);
    if positive { -p.ln() } else { -(1.0 - p).ln() }
}

/// The class with the highest score; a single column is the probability of class 1.
fn class(scores: &[f32]) -> usize {
    match scores {
        [p] => usize::from(*p >= 0.5),
        _ => (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0),
    }
}

fn number(label: &Tensor, row: usize) -> f64 {
    match label.data() {
        Data::F32(v) => f64::from(v[row]),
        Data::F16(_) | Data::BF16(_) => unreachable!("labels are fed, and fed as f32 or integers"),
        Data::I64(v) => v[row] as f64,
        Data::U64(v) => v[row] as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(kind: Metric, columns: usize, predict: &[f32], label: &[i64]) -> Vec<Measure> {
        let mut meter = Meter::exact("m", kind);
        let rows = label.len();
        let predict = Tensor::from_f32(&[rows, columns], predict.to_vec()).unwrap();
        let label = Tensor::from_i64(&[rows, 1], label.to_vec()).unwrap();
        meter.add(&predict, &label);
        meter.all(true)
    }

    #[test]
    fn names_are_known_before_anything_is_measured() {
        for kind in [Metric::Auc, Metric::Accuracy, Metric::Rmse, Metric::Mean] {
            let names = Meter::exact("m", kind).names(true);
            let found = measured(kind, 1, &[0.2, 0.7, 0.4], &[0, 1, 1]);
            let mut found: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
            found.sort_unstable();
            let mut sorted = names.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, found, "{kind:?}");
        }
    }

    fn get(measures: &[Measure], name: &str) -> f64 {
        measures.iter().find(|(n, _)| n == name).unwrap().1
    }

    #[test]
    fn probabilities() {
        let m = measured(Metric::Auc, 2, &[0.2, 0.8, 0.6, 0.4, 0.3, 0.7], &[1, 0, 0]);
        assert_eq!(get(&m, "m"), 1.0);
        assert_eq!(get(&m, "auc_bucketed"), 1.0);
        assert!((get(&m, "accuracy") - 2.0 / 3.0).abs() < 1e-12);
        let expected = -(0.8_f64.ln() + 0.6_f64.ln() + 0.3_f64.ln()) / 3.0;
        assert!((get(&m, "log_loss") - expected).abs() < 1e-6);
    }

    #[test]
    fn values_and_classes() {
        let m = measured(Metric::Rmse, 1, &[1.0, 4.0], &[0, 2]);
        assert!((get(&m, "m") - 2.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(get(&m, "mae"), 1.5);
        let m = measured(Metric::Accuracy, 3, &[0.1, 0.2, 0.7, 0.5, 0.4, 0.1], &[2, 1]);
        assert_eq!(get(&m, "m"), 0.5);
        assert!(measured(Metric::Auc, 1, &[], &[]).is_empty());
    }
}
