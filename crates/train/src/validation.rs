//! Which epoch is the best on validation data, and when training stops early.

use crate::Error;
use crate::report::EpochReport;

/// How epochs are judged by data that are not trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// The measure that counts; none for `auc` where the model has one, else `loss`.
    pub metric: Option<String>,
    /// Stop after this many epochs without a better one.
    pub patience: Option<u64>,
}

/// What the epochs so far come to.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The measure.
    pub metric: String,
    /// The best epoch, and its value.
    pub best: (u64, f64),
    /// There were as many epochs without a better one as there may be.
    pub stops: bool,
}

/// Measures of which less is better.
const LESS_IS_BETTER: [&str; 5] = ["loss", "log_loss", "rmse", "mae", "ece"];

impl Validation {
    /// Judges the epochs that were validated; none before the first of them.
    ///
    /// # Errors
    /// If an epoch does not have the measure.
    pub fn judge(&self, epochs: &[EpochReport]) -> Result<Option<Judgement>, Error> {
        let mut judged: Option<Judgement> = None;
        let mut since = 0;
        for report in epochs.iter().filter_map(|epoch| epoch.validation.as_deref()) {
            let metric = self.metric_of(report);
            let value = report.measure(metric).ok_or_else(|| unknown(metric, report))?;
            let better = judged.as_ref().is_none_or(|j| is_better(metric, value, j.best.1));
            since = if better { 0 } else { since + 1 };
            let stops = self.patience.is_some_and(|most| since >= most);
            let earlier = judged.map(|j| j.best).filter(|_| !better);
            let best = earlier.unwrap_or((report.epoch, value));
            judged = Some(Judgement { metric: metric.to_string(), best, stops });
        }
        Ok(judged)
    }

    fn metric_of<'a>(&'a self, report: &EpochReport) -> &'a str {
        let usual = if report.auc.is_some() { "auc" } else { "loss" };
        self.metric.as_deref().unwrap_or(usual)
    }
}

/// A value that is no number is never better.
fn is_better(metric: &str, value: f64, best: f64) -> bool {
    let name = metric.rsplit('.').next().unwrap_or(metric);
    match LESS_IS_BETTER.contains(&name) {
        true => value < best || best.is_nan() && !value.is_nan(),
        false => value > best || best.is_nan() && !value.is_nan(),
    }
}

fn unknown(metric: &str, report: &EpochReport) -> Error {
    let own = [("loss", report.loss.is_some()), ("auc", report.auc.is_some())];
    let own = own.into_iter().filter(|(_, has)| *has).map(|(name, _)| name);
    let known: Vec<&str> = own.chain(report.metrics.keys().map(String::as_str)).collect();
    let known = known.join(", ");
    Error::Config(format!("validation: there is no measure '{metric}' (known: {known})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::{PassTotals, epoch_report};

    fn validated(losses: &[f64]) -> Vec<EpochReport> {
        let report = |epoch: u64, loss: f64| {
            let counted = PassTotals { epoch, examples: 1, loss: Some(loss), seconds: 1.0 };
            epoch_report(counted, Default::default(), &[], vec![])
        };
        let epochs = losses.iter().enumerate();
        let epochs = epochs.map(|(n, loss)| {
            let validation = Some(Box::new(report(n as u64, *loss)));
            EpochReport { validation, ..report(n as u64, 0.0) }
        });
        epochs.collect()
    }

    #[test]
    fn the_best_epoch_and_the_end() {
        let validation = Validation { metric: None, patience: Some(2) };
        assert_eq!(validation.judge(&[]).unwrap(), None);
        let judge = |losses: &[f64]| {
            let judged = validation.judge(&validated(losses)).unwrap().unwrap();
            (judged.best, judged.stops)
        };
        assert_eq!(judge(&[0.5]), ((0, 0.5), false));
        assert_eq!(judge(&[0.5, 0.4, 0.45]), ((1, 0.4), false));
        assert_eq!(judge(&[0.5, 0.4, 0.45, 0.4]), ((1, 0.4), true));
        assert_eq!(judge(&[0.5, 0.6, 0.4]), ((2, 0.4), false));
        assert_eq!(judge(&[f64::NAN, 0.6]), ((1, 0.6), false));
        assert_eq!(judge(&[0.6, f64::NAN]), ((0, 0.6), false));
        let unknown = Validation { metric: Some("auc".into()), patience: None };
        let error = unknown.judge(&validated(&[0.5])).unwrap_err().to_string();
        assert_eq!(error, "validation: there is no measure 'auc' (known: loss)");
    }
}
