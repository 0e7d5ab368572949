//! Metrics as plain functions: predictions and labels in, one number out.

/// Area under the ROC curve from counts per bucket of prediction, the lowest bucket first, as the
/// `auc` op keeps them. Examples in one bucket count as ties. 0.5 without positives or negatives.
///
/// # Panics
/// If there are not as many counts of negatives as of positives.
pub fn auc_from_buckets(positives: &[i64], negatives: &[i64]) -> f64 {
    assert_eq!(positives.len(), negatives.len(), "buckets of positives and of negatives");
    let (mut pos, mut neg, mut area) = (0.0, 0.0, 0.0);
    for (&p, &n) in positives.iter().zip(negatives).rev() {
        area += n as f64 * (pos + pos + p as f64) / 2.0;
        pos += p as f64;
        neg += n as f64;
    }
    share_of_pairs(area, pos, neg)
}

/// Exact area under the ROC curve: the share of pairs of a positive (label above 0) and a negative
/// in which the positive has the higher score, equal scores counting half. 0.5 without such pairs,
/// NaN if a score is.
///
/// # Panics
/// If there are not as many labels as scores.
pub fn exact_auc(scores: &[f32], labels: &[i64]) -> f64 {
    assert_eq!(scores.len(), labels.len(), "scores and labels");
    if scores.iter().any(|s| s.is_nan()) {
        return f64::NAN;
    }
    let mut order: Vec<(f32, bool)> =
        scores.iter().zip(labels).map(|(&score, &label)| (score, label > 0)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut pos, mut neg, mut area) = (0.0, 0.0, 0.0);
    for ties in order.chunk_by(|a, b| a.0 == b.0) {
        let p = ties.iter().filter(|(_, positive)| *positive).count() as f64;
        let n = ties.len() as f64 - p;
        area += n * (pos + pos + p) / 2.0;
        pos += p;
        neg += n;
    }
    share_of_pairs(area, pos, neg)
}

fn share_of_pairs(area: f64, pos: f64, neg: f64) -> f64 {
    if pos == 0.0 || neg == 0.0 { 0.5 } else { area / (pos * neg) }
}

/// Mean negative log likelihood of the probabilities of label 1. Probabilities are kept `epsilon`
/// away from 0 and 1; labels are positive above 0. NaN without examples.
///
/// # Panics
/// If there are not as many labels as probabilities.
pub fn log_loss(probabilities: &[f32], labels: &[i64], epsilon: f64) -> f64 {
    assert_eq!(probabilities.len(), labels.len(), "probabilities and labels");
    let losses = probabilities.iter().zip(labels).map(|(&p, &label)| {
        let p = f64::from(p).clamp(epsilon, 1.0 - epsilon);
        if label > 0 { -p.ln() } else { -(1.0 - p).ln() }
    });
    losses.sum::<f64>() / labels.len() as f64
}

/// Share of rows of `classes` scores whose (first) largest score is at the label. NaN without
/// examples.
///
/// # Panics
/// If there are not as many rows as labels.
pub fn accuracy(scores: &[f32], classes: usize, labels: &[i64]) -> f64 {
    assert_eq!(scores.len(), classes * labels.len(), "scores and labels");
    let rows = scores.chunks_exact(classes.max(1)).zip(labels);
    let right = rows
        .filter(|(scores, label)| first_largest(scores).is_some_and(|at| at as i64 == **label))
        .count();
    right as f64 / labels.len() as f64
}

/// Position of the largest score, the first of equal ones. NaNs are passed over.
pub(crate) fn first_largest(scores: &[f32]) -> Option<usize> {
    let mut best = None;
    for (i, &score) in scores.iter().enumerate() {
        let beaten = best.is_none_or(|at: usize| score > scores[at]);
        if beaten && !score.is_nan() {
            best = Some(i);
        }
    }
    best
}

/// Root of the mean squared difference. NaN without examples.
///
/// # Panics
/// If the lengths differ.
pub fn rmse(predictions: &[f32], labels: &[f32]) -> f64 {
    mean_of(predictions, labels, |difference| difference * difference).sqrt()
}

/// Mean absolute difference. NaN without examples.
///
/// # Panics
/// If the lengths differ.
pub fn mae(predictions: &[f32], labels: &[f32]) -> f64 {
    mean_of(predictions, labels, f64::abs)
}

fn mean_of(predictions: &[f32], labels: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    assert_eq!(predictions.len(), labels.len(), "predictions and labels");
    let terms = predictions.iter().zip(labels).map(|(&p, &l)| f(f64::from(p) - f64::from(l)));
    terms.sum::<f64>() / labels.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_tensor::Rng;

    fn by_pairs(scores: &[f32], labels: &[i64]) -> f64 {
        let (mut won, mut pairs) = (0.0, 0.0);
        for (a, _) in scores.iter().zip(labels).filter(|(_, l)| **l > 0) {
            for (b, _) in scores.iter().zip(labels).filter(|(_, l)| **l == 0) {
                pairs += 1.0;
                won += if a > b {
                    1.0
                } else if a == b {
                    0.5
                } else {
                    0.0
                };
            }
        }
        if pairs == 0.0 { 0.5 } else { won / pairs }
    }

    #[test]
    fn exact_auc_counts_pairs() {
        for n in [0, 1, 2, 3, 10, 57, 200] {
            for levels in [2, 7, 1000] {
                let rng = Rng::new(n, levels);
                let score = |i| (rng.u64(2 * i) % levels) as f32 / levels as f32 - 0.5;
                let scores: Vec<f32> = (0..n).map(score).collect();
                let labels: Vec<i64> = (0..n).map(|i| (rng.u64(2 * i + 1) % 2) as i64).collect();
                let (got, want) = (exact_auc(&scores, &labels), by_pairs(&scores, &labels));
                assert!((got - want).abs() < 1e-12, "{n} {levels}: {got} {want}");
            }
        }
        assert_eq!(exact_auc(&[0.0, -0.0], &[1, 0]), 0.5, "zeros of both signs are equal");
        assert!(exact_auc(&[f32::NAN, 0.0], &[1, 0]).is_nan());
    }

    #[test]
    fn auc_from_buckets_counts_pairs_of_buckets() {
        // Positives 0.9, 0.5; negatives 0.5, 0.1: three pairs won, one tie.
        assert_eq!(auc_from_buckets(&[0, 1, 1], &[1, 1, 0]), 3.5 / 4.0);
        assert_eq!(auc_from_buckets(&[0, 0], &[3, 4]), 0.5);
        assert_eq!(auc_from_buckets(&[1, 0], &[0, 1]), 0.0);
    }

    #[test]
    fn means_over_examples() {
        let loss = log_loss(&[0.8, 0.4], &[1, 0], 1e-7);
        assert!((loss + (0.8f64.ln() + 0.6f64.ln()) / 2.0).abs() < 1e-7);
        assert!(log_loss(&[0.0], &[1], 1e-7).is_finite());
        assert_eq!(accuracy(&[0.1, 0.9, 0.5, 0.5, 0.2, 0.1], 2, &[1, 1, 0]), 2.0 / 3.0);
        assert_eq!(accuracy(&[f32::NAN, f32::NAN], 2, &[0]), 0.0);
        assert_eq!(rmse(&[1.0, 2.0], &[4.0, -2.0]), 12.5f64.sqrt());
        assert_eq!(mae(&[1.0, 2.0], &[4.0, -2.0]), 3.5);
    }
}
