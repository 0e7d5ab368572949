//! The update rules that only rows of click-through-rate tables use, by the names of Paddle's
//! sparse SGD rules. They know about impressions (`scale`) and keep weights within bounds.

mod adagrad;
mod adam;
mod naive;

use serde::{Deserialize, Serialize};

pub use adagrad::{Adagrad, AdagradConfig, AdagradV2, StdAdagrad};
pub use adam::{Adam, AdamConfig, SharedAdam};
pub use naive::Naive;

use crate::Error;
use crate::error::Check;
use crate::rows::impl_row_rule;

/// An update rule for one part of a table row, with its configuration.
///
/// In configuration files a map with the name under `rule`, for instance
/// `{rule: adagrad, learning_rate: 0.1}`; Paddle's class names are understood too. The scale passed
/// to [`update_row_scaled`](crate::RowRule::update_row_scaled) is the number of impressions behind
/// a gradient; the adagrad rules divide by it, the others ignore it.
///
/// A learning rate and an initial range belong to the configuration, as in Paddle, but are used by
/// the caller: the table passes [`learning_rate`](TableRule::learning_rate), perhaps scheduled, and
/// draws first weights within [`initial_range`](TableRule::initial_range).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TableRule {
    /// Plain gradient descent.
    #[serde(alias = "SparseNaiveSGDRule")]
    Naive(Naive),
    /// Adagrad with one sum for the whole vector, read before it grows.
    #[serde(alias = "SparseAdaGradSGDRule")]
    Adagrad(Adagrad),
    /// Adagrad with one sum per element, read before it grows.
    #[serde(alias = "StdAdaGradSGDRule")]
    StdAdagrad(StdAdagrad),
    /// Adagrad with one sum for the whole vector, read after it has grown.
    #[serde(alias = "SparseAdaGradV2SGDRule")]
    AdagradV2(AdagradV2),
    /// Adam with its own step count per row.
    #[serde(alias = "SparseAdamSGDRule")]
    Adam(Adam),
    /// Adam with one pair of moments for the whole vector.
    #[serde(alias = "SparseSharedAdamSGDRule")]
    SharedAdam(SharedAdam),
}

impl_row_rule!(TableRule { Naive, Adagrad, StdAdagrad, AdagradV2, Adam, SharedAdam });

/// What all configurations have in common.
struct Shared {
    of: &'static str,
    learning_rate: f32,
    initial_range: f32,
    weight_bounds: Option<[f32; 2]>,
}

impl TableRule {
    fn shared(&self) -> Shared {
        let (of, (learning_rate, initial_range, weight_bounds)) = match self {
            TableRule::Naive(r) => ("naive", (r.learning_rate, r.initial_range, r.weight_bounds)),
            TableRule::Adagrad(r) => ("adagrad", r.0.shared()),
            TableRule::StdAdagrad(r) => ("std_adagrad", r.0.shared()),
            TableRule::AdagradV2(r) => ("adagrad_v2", r.0.shared()),
            TableRule::Adam(r) => ("adam", r.0.shared()),
            TableRule::SharedAdam(r) => ("shared_adam", r.0.shared()),
        };
        Shared { of, learning_rate, initial_range, weight_bounds }
    }

    /// The name in configuration files.
    pub fn name(&self) -> &'static str {
        self.shared().of
    }

    /// The configured learning rate.
    pub fn learning_rate(&self) -> f32 {
        self.shared().learning_rate
    }

    /// First weights are drawn uniformly from `-range..=range`; 0 means zeros.
    pub fn initial_range(&self) -> f32 {
        self.shared().initial_range
    }

    /// Checks that the formula means something for every field.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] or [`Error::NotRising`] (bounds) names the rule and the field.
    pub fn validate(&self) -> Result<(), Error> {
        let Shared { of, learning_rate, initial_range, weight_bounds } = self.shared();
        let check = Check { of };
        check.non_negative("learning_rate", learning_rate)?;
        check.non_negative("initial_range", initial_range)?;
        if let Some([low, high]) = weight_bounds {
            check.rising("weight_bounds", low.into(), high.into())?;
        }
        match self {
            TableRule::Naive(_) => Ok(()),
            TableRule::Adagrad(Adagrad(config))
            | TableRule::StdAdagrad(StdAdagrad(config))
            | TableRule::AdagradV2(AdagradV2(config)) => config.validate(check),
            TableRule::Adam(Adam(config)) | TableRule::SharedAdam(SharedAdam(config)) => {
                config.validate(check)
            }
        }
    }
}

/// Keeps weights within bounds. A weight that is not a number stays so, to be seen.
#[derive(Clone, Copy)]
struct Bounds {
    low: f32,
    high: f32,
}

impl Bounds {
    #[inline(always)]
    fn new(bounds: Option<[f32; 2]>) -> Self {
        let [low, high] = bounds.unwrap_or([f32::MIN, f32::MAX]);
        Bounds { low, high }
    }

    #[inline(always)]
    fn apply(self, w: f32) -> f32 {
        let w = if w < self.low { self.low } else { w };
        if w > self.high { self.high } else { w }
    }
}

/// `1 / n`, for means; a compiler can take it out of a loop over rows of one width.
#[inline(always)]
fn inverse_count(n: usize) -> f64 {
    1.0 / n.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paddle_names_are_understood() {
        let text = r#"{"rule": "SparseAdaGradSGDRule", "initial_g2sum": 1.0}"#;
        let rule: TableRule = serde_json::from_str(text).unwrap();
        let config = AdagradConfig { initial_g2sum: 1.0, ..AdagradConfig::default() };
        assert_eq!(rule, TableRule::Adagrad(Adagrad(config)));
        assert_eq!(rule.learning_rate(), 0.05);
        assert_eq!(rule.initial_range(), 1e-4);
        let text = serde_json::to_string(&rule).unwrap();
        assert!(text.starts_with(r#"{"rule":"adagrad","learning_rate":0.05"#), "{text}");
        assert_eq!(serde_json::from_str::<TableRule>(&text).unwrap(), rule);
    }

    #[test]
    fn unknown_fields_are_errors() {
        let text = r#"{"rule": "adagrad", "g2sum": 1.0}"#;
        let error = serde_json::from_str::<TableRule>(text).unwrap_err();
        assert!(error.to_string().contains("unknown field `g2sum`"), "{error}");
    }

    #[test]
    fn impossible_values_are_refused() {
        let naive = Naive { learning_rate: -1.0, ..Naive::default() };
        let error = TableRule::Naive(naive).validate().unwrap_err();
        assert!(error.to_string().starts_with("naive: `learning_rate` is -1"), "{error}");

        let config =
            AdagradConfig { weight_bounds: Some([10.0, -10.0]), ..AdagradConfig::default() };
        let error = TableRule::AdagradV2(AdagradV2(config)).validate().unwrap_err();
        let expected = "adagrad_v2: `weight_bounds` must rise, but 10 is followed by -10";
        assert_eq!(error.to_string(), expected);

        let config = AdamConfig { beta1: 1.0, ..AdamConfig::default() };
        let error = TableRule::SharedAdam(SharedAdam(config)).validate().unwrap_err();
        assert!(error.to_string().starts_with("shared_adam: `beta1` is 1"), "{error}");
    }

    #[test]
    fn bounds_hide_no_nan() {
        let bounds = Bounds::new(Some([-1.0, 1.0]));
        assert_eq!([-2.0, 0.5, 2.0].map(|w| bounds.apply(w)), [-1.0, 0.5, 1.0]);
        assert!(bounds.apply(f32::NAN).is_nan());
    }
}
