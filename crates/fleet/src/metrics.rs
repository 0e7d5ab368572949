//! Measures over the examples of all workers: each adds up its own counters, and the formula is
//! applied to their sums. Every worker makes the same calls in the same order.

use crate::{Error, Fleet, ReduceOp};

/// Sums over all workers, element by element.
///
/// # Errors
/// If a worker is lost or has another number of values, or this process is no worker.
pub fn sum(fleet: &Fleet, values: &[f64]) -> Result<Vec<f64>, Error> {
    fleet.util().all_reduce(values, ReduceOp::Sum)
}

/// The largest value of any worker, element by element.
///
/// # Errors
/// As [`sum`].
pub fn max(fleet: &Fleet, values: &[f64]) -> Result<Vec<f64>, Error> {
    fleet.util().all_reduce(values, ReduceOp::Max)
}

/// The smallest value of any worker, element by element.
///
/// # Errors
/// As [`sum`].
pub fn min(fleet: &Fleet, values: &[f64]) -> Result<Vec<f64>, Error> {
    fleet.util().all_reduce(values, ReduceOp::Min)
}

/// Area under the curve of all workers, from the numbers of positive and negative examples per
/// bucket of scores, lowest scores first. 0.5 if there are only positive or only negative ones.
///
/// # Errors
/// As [`sum`], or if there are not as many buckets of one kind as of the other.
pub fn auc(fleet: &Fleet, stat_pos: &[f64], stat_neg: &[f64]) -> Result<f64, Error> {
    if stat_pos.len() != stat_neg.len() {
        return Err(Error::Config(format!(
            "auc: {} buckets of positive and {} of negative examples",
            stat_pos.len(),
            stat_neg.len()
        )));
    }
    let all = sum(fleet, &[stat_pos, stat_neg].concat())?;
    let (positive, negative) = all.split_at(stat_pos.len());
    Ok(auc_of(positive, negative))
}

/// The mean of absolute errors, from their sum and the number of examples.
///
/// # Errors
/// As [`sum`], or if no worker has an example.
pub fn mae(fleet: &Fleet, abs_error: f64, examples: f64) -> Result<f64, Error> {
    mean(fleet, "mae", abs_error, examples)
}

/// The mean of squared errors, from their sum and the number of examples.
///
/// # Errors
/// As [`mae`].
pub fn mse(fleet: &Fleet, squared_error: f64, examples: f64) -> Result<f64, Error> {
    mean(fleet, "mse", squared_error, examples)
}

/// The root of the mean of squared errors, from their sum and the number of examples.
///
/// # Errors
/// As [`mae`].
pub fn rmse(fleet: &Fleet, squared_error: f64, examples: f64) -> Result<f64, Error> {
    Ok(mean(fleet, "rmse", squared_error, examples)?.sqrt())
}

/// The share of right answers, from their number and the number of examples.
///
/// # Errors
/// As [`mae`].
pub fn acc(fleet: &Fleet, right: f64, examples: f64) -> Result<f64, Error> {
    mean(fleet, "acc", right, examples)
}

fn mean(fleet: &Fleet, what: &str, total: f64, examples: f64) -> Result<f64, Error> {
    let sums = sum(fleet, &[total, examples])?;
    if sums[1] > 0.0 {
        return Ok(sums[0] / sums[1]);
    }
    Err(Error::Config(format!("{what}: no worker has an example")))
}

/// From the highest scores down: every negative example counts the positive ones above it, and half
/// of those in its bucket.
fn auc_of(positive: &[f64], negative: &[f64]) -> f64 {
    let (mut above, mut below, mut area) = (0.0, 0.0, 0.0);
    for (p, n) in positive.iter().zip(negative).rev() {
        area += n * (above + p / 2.0);
        above += p;
        below += n;
    }
    if above > 0.0 && below > 0.0 { area / (above * below) } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::auc_of;

    #[test]
    fn areas_of_small_histograms() {
        assert_eq!(auc_of(&[0.0, 1.0], &[1.0, 0.0]), 1.0);
        assert_eq!(auc_of(&[1.0, 0.0], &[0.0, 1.0]), 0.0);
        assert_eq!(auc_of(&[3.0], &[5.0]), 0.5);
        assert_eq!(auc_of(&[0.0, 0.0], &[1.0, 2.0]), 0.5);
        // Pairs: (+1, -0), (+1, -1) right; (+0, -0) half; (+0, -1) wrong.
        assert_eq!(auc_of(&[1.0, 0.0, 1.0], &[1.0, 1.0, 0.0]), 2.5 / 4.0);
    }
}
