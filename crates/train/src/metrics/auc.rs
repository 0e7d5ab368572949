//! Area under the ROC curve: by counting in buckets while training, exactly in evaluation.

/// Counts of positive and negative examples by predicted probability, as Paddle's `auc` op keeps
/// them: 2^12 buckets.
#[derive(Debug, Clone)]
pub struct BucketAuc {
    positive: Vec<u64>,
    negative: Vec<u64>,
}

const BUCKETS: usize = 1 << 12;

impl Default for BucketAuc {
    fn default() -> BucketAuc {
        BucketAuc { positive: vec![0; BUCKETS + 1], negative: vec![0; BUCKETS + 1] }
    }
}

impl BucketAuc {
    /// Counts one example.
    pub fn add(&mut self, probability: f32, positive: bool) {
        // The cast takes NaN to 0.
        let bucket = ((probability * BUCKETS as f32) as usize).min(BUCKETS);
        let counts = if positive { &mut self.positive } else { &mut self.negative };
        counts[bucket] += 1;
    }

    /// The counts of all buckets: positive ones, then negative ones.
    pub fn counters(&self) -> impl Iterator<Item = f64> {
        self.positive.iter().chain(&self.negative).map(|&n| n as f64)
    }

    /// Replaces the counts of all buckets.
    pub fn set_counters(&mut self, counters: &[f64]) {
        let all = self.positive.iter_mut().chain(&mut self.negative);
        all.zip(counters).for_each(|(n, c)| *n = *c as u64);
    }

    /// Forgets all examples.
    pub fn reset(&mut self) {
        self.positive.fill(0);
        self.negative.fill(0);
    }

    /// The area; `None` unless there are examples of both kinds.
    pub fn value(&self) -> Option<f64> {
        let buckets = self.positive.iter().zip(&self.negative).map(|(&p, &n)| (p, n));
        area(buckets)
    }
}

/// The area over all pairs of a positive and a negative example: 1 if the positive one has the
/// higher score, 1/2 if the scores are the same. `None` unless there are examples of both kinds.
pub fn exact_auc(scores: &[(f32, bool)]) -> Option<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    // -0.0 and 0.0 are the same score.
    let groups = sorted.chunk_by(|a, b| a.0 == b.0).map(|group| {
        let positive = group.iter().filter(|(_, positive)| *positive).count() as u64;
        (positive, group.len() as u64 - positive)
    });
    area(groups)
}

/// The share of pairs in the right order, over groups of the same score from low to high.
fn area(groups: impl Iterator<Item = (u64, u64)>) -> Option<f64> {
    // Twice the number of right pairs: whole numbers, exact for 2^60 examples and more.
    let (mut right, mut positives, mut negatives) = (0_u128, 0_u64, 0_u64);
    for (p, n) in groups {
        right += u128::from(p) * (2 * u128::from(negatives) + u128::from(n));
        positives += p;
        negatives += n;
    }
    let pairs = u128::from(positives) * u128::from(negatives);
    (pairs > 0).then(|| right as f64 / (2.0 * pairs as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brute_force(scores: &[(f32, bool)]) -> f64 {
        let (mut right, mut pairs) = (0.0, 0.0);
        for (a, _) in scores.iter().filter(|s| s.1) {
            for (b, _) in scores.iter().filter(|s| !s.1) {
                pairs += 1.0;
                right += if a > b {
                    1.0
                } else if a == b {
                    0.5
                } else {
                    0.0
                };
            }
        }
        right / pairs
    }

    fn sample(n: usize, grid: u64) -> Vec<(f32, bool)> {
        let mut rng = regatta_data::Rng::new(7, &[n as u64]);
        let mut one = || {
            let score = rng.below(grid) as f32 / grid as f32;
            (score, rng.unit() < 0.3 + 0.4 * f64::from(score))
        };
        (0..n).map(|_| one()).collect()
    }

    #[test]
    fn exact_is_the_count_of_pairs() {
        for (n, grid) in [(50, 4), (300, 16), (800, 1 << 20)] {
            let scores = sample(n, grid);
            assert_eq!(exact_auc(&scores).unwrap(), brute_force(&scores));
        }
        assert_eq!(exact_auc(&[(0.5, true), (0.1, true)]), None);
        assert_eq!(exact_auc(&[(0.9, true), (0.1, false)]), Some(1.0));
        assert_eq!(exact_auc(&[(0.1, true), (0.9, false)]), Some(0.0));
    }

    #[test]
    fn buckets_are_near_the_exact_value_and_equal_on_their_grid() {
        let count = |scores: &[(f32, bool)]| {
            let mut auc = BucketAuc::default();
            scores.iter().for_each(|&(p, y)| auc.add(p, y));
            auc.value().unwrap()
        };
        let coarse = sample(500, 64);
        assert_eq!(count(&coarse), exact_auc(&coarse).unwrap());
        let fine = sample(2000, 1 << 20);
        assert!((count(&fine) - exact_auc(&fine).unwrap()).abs() < 1e-4);
    }

    #[test]
    fn odd_probabilities_do_no_harm() {
        let mut auc = BucketAuc::default();
        for p in [f32::NAN, -1.0, 2.0, f32::INFINITY] {
            auc.add(p, p > 1.0);
        }
        assert_eq!(auc.value(), Some(1.0));
        auc.reset();
        assert_eq!(auc.value(), None);
    }
}
