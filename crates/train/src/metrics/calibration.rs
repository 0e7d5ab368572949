//! Whether predicted probabilities are as large as what they predict is frequent.

/// Intervals of probability that the expected calibration error is taken over.
const BINS: usize = 15;

/// How predictions compare to what was observed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Sum of the predictions over the number of positive examples; infinite without any.
    pub ratio: f64,
    /// Expected calibration error: over 15 intervals of equal width, the mean distance between
    /// mean prediction and share of positive examples, weighted by examples.
    pub error: f64,
}

/// Compares scores with their labels; none without examples.
pub fn calibration(scores: &[(f32, bool)]) -> Option<Calibration> {
    let mut bins = [(0.0_f64, 0.0_f64); BINS];
    for &(score, positive) in scores {
        // The cast takes what is below 0 to 0.
        let bin = ((score * BINS as f32) as usize).min(BINS - 1);
        bins[bin].0 += f64::from(score);
        bins[bin].1 += f64::from(u8::from(positive));
    }
    let predicted: f64 = bins.iter().map(|bin| bin.0).sum();
    let observed: f64 = bins.iter().map(|bin| bin.1).sum();
    let gaps: f64 = bins.iter().map(|(p, o)| (p - o).abs()).sum();
    let n = scores.len() as f64;
    (!scores.is_empty()).then(|| Calibration { ratio: predicted / observed, error: gaps / n })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_against_frequencies() {
        assert_eq!(calibration(&[]), None);
        // One of four at 0.25: as it should be.
        let fair = [(0.25, true), (0.25, false), (0.25, false), (0.25, false)];
        assert_eq!(calibration(&fair), Some(Calibration { ratio: 1.0, error: 0.0 }));
        // Half as much as predicted, all in one interval.
        let high = [(0.5, true), (0.5, false), (0.5, false), (0.5, false)];
        assert_eq!(calibration(&high), Some(Calibration { ratio: 2.0, error: 0.25 }));
        // Errors of two intervals do not cancel.
        let apart = [(0.25, true), (0.75, false)];
        assert_eq!(calibration(&apart), Some(Calibration { ratio: 1.0, error: 0.75 }));
        assert_eq!(calibration(&[(1.0, true), (0.0, false)]).unwrap().error, 0.0);
    }
}
