//! All update rules behind one enum: what an optimizer op or a table holds.

use serde::{Deserialize, Serialize};

use crate::rows::{impl_row_rule, run_dense};
use crate::{
    Adadelta, Adagrad, Adam, AdamD2Sum, AdamW, Error, Ftrl, Kernel, Lamb, LarsMomentum, Momentum,
    RmsProp, Sgd, StateMut, Sum, Summary,
};

/// An update rule with its configuration.
///
/// In configuration files a map with the name under `rule` and the fields beside it, for instance
/// `{rule: adam, beta1: 0.8}`; what is left out takes Paddle's default, an unknown field is an
/// error.
///
/// All rules work on dense parameters ([`Rule::update`]) and lazily on rows of a table
/// ([`RowRule`](crate::RowRule)), where states of untouched rows rest. [`Rule::Sgd`],
/// [`Rule::Adagrad`] and [`Rule::Sum`] give the same weights both ways; the others do not, because
/// their means decay only when a row is touched, and [`Rule::Lamb`] and [`Rule::LarsMomentum`] take
/// their norms over one row instead of the whole parameter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// Plain gradient descent.
    Sgd(Sgd),
    /// Gradient descent with momentum.
    Momentum(Momentum),
    /// Steps shrink with the sum of squared gradients.
    Adagrad(Adagrad),
    /// Adaptive moments.
    Adam(Adam),
    /// Adam with decoupled weight decay.
    #[serde(rename = "adamw")]
    AdamW(AdamW),
    /// Steps are divided by a running root mean square.
    #[serde(rename = "rmsprop")]
    RmsProp(RmsProp),
    /// Steps in the units of the weights.
    Adadelta(Adadelta),
    /// Follow the regularised leader.
    Ftrl(Ftrl),
    /// Adam with a trust ratio per parameter.
    Lamb(Lamb),
    /// Momentum with a learning rate per parameter.
    LarsMomentum(LarsMomentum),
    /// Paddle's dense rule for click-through-rate models.
    #[serde(rename = "adam_d2sum")]
    AdamD2Sum(AdamD2Sum),
    /// Adds deltas.
    Sum(Sum),
    /// Adds statistics and forgets slowly.
    Summary(Summary),
}

impl_row_rule!(Rule {
    Sgd,
    Momentum,
    Adagrad,
    Adam,
    AdamW,
    RmsProp,
    Adadelta,
    Ftrl,
    Lamb,
    LarsMomentum,
    AdamD2Sum,
    Sum,
    Summary,
});

impl Rule {
    /// One step of a dense parameter: `state` holds one slice per state, in the order of
    /// [`states`](crate::RowRule::states), of `w.len()` numbers or of one.
    ///
    /// # Panics
    /// If the gradient or a state does not fit `w`.
    pub fn update(&self, lr: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
        match self {
            Rule::Sgd(rule) => step(rule, lr, w, g, state),
            Rule::Momentum(rule) => step(rule, lr, w, g, state),
            Rule::Adagrad(rule) => step(rule, lr, w, g, state),
            Rule::Adam(rule) => step(rule, lr, w, g, state),
            Rule::AdamW(rule) => step(rule, lr, w, g, state),
            Rule::RmsProp(rule) => step(rule, lr, w, g, state),
            Rule::Adadelta(rule) => step(rule, lr, w, g, state),
            Rule::Ftrl(rule) => step(rule, lr, w, g, state),
            Rule::Lamb(rule) => step(rule, lr, w, g, state),
            Rule::LarsMomentum(rule) => step(rule, lr, w, g, state),
            Rule::AdamD2Sum(rule) => step(rule, lr, w, g, state),
            Rule::Sum(rule) => step(rule, lr, w, g, state),
            Rule::Summary(rule) => step(rule, lr, w, g, state),
        }
    }

    /// Whether steps follow a mean of past gradients, so that the next one is much like the last.
    pub fn has_momentum(&self) -> bool {
        match self {
            Rule::Momentum(_)
            | Rule::Adam(_)
            | Rule::AdamW(_)
            | Rule::Lamb(_)
            | Rule::LarsMomentum(_)
            | Rule::AdamD2Sum(_) => true,
            Rule::Sgd(_)
            | Rule::Adagrad(_)
            | Rule::RmsProp(_)
            | Rule::Adadelta(_)
            | Rule::Ftrl(_)
            | Rule::Sum(_)
            | Rule::Summary(_) => false,
        }
    }

    /// Whether a weight whose gradient and states are 0 moves: by decay or by a formula of its own.
    pub fn moves_without_gradient(&self) -> bool {
        matches!(self, Rule::AdamW(_) | Rule::Lamb(_) | Rule::LarsMomentum(_) | Rule::Ftrl(_))
    }

    /// Whether a weight rests in a step whose gradient is 0, whatever its states are: then rows of
    /// a table that no gradient names need no update.
    pub fn rests_without_gradient(&self) -> bool {
        matches!(self, Rule::Sgd(_) | Rule::Adagrad(_) | Rule::Sum(_))
    }

    /// The name in configuration files.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::Sgd(_) => "sgd",
            Rule::Momentum(_) => "momentum",
            Rule::Adagrad(_) => "adagrad",
            Rule::Adam(_) => "adam",
            Rule::AdamW(_) => "adamw",
            Rule::RmsProp(_) => "rmsprop",
            Rule::Adadelta(_) => "adadelta",
            Rule::Ftrl(_) => "ftrl",
            Rule::Lamb(_) => "lamb",
            Rule::LarsMomentum(_) => "lars_momentum",
            Rule::AdamD2Sum(_) => "adam_d2sum",
            Rule::Sum(_) => "sum",
            Rule::Summary(_) => "summary",
        }
    }

    /// Checks that the formula means something for every field.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the rule and the field.
    pub fn validate(&self) -> Result<(), Error> {
        match self {
            Rule::Sgd(rule) => rule.validate(),
            Rule::Momentum(rule) => rule.validate(),
            Rule::Adagrad(rule) => rule.validate(),
            Rule::Adam(rule) => rule.validate(),
            Rule::AdamW(rule) => rule.validate(),
            Rule::RmsProp(rule) => rule.validate(),
            Rule::Adadelta(rule) => rule.validate(),
            Rule::Ftrl(rule) => rule.validate(),
            Rule::Lamb(rule) => rule.validate(),
            Rule::LarsMomentum(rule) => rule.validate(),
            Rule::AdamD2Sum(rule) => rule.validate(),
            Rule::Sum(rule) => rule.validate(),
            Rule::Summary(rule) => rule.validate(),
        }
    }
}

fn step<K: Kernel>(rule: &K, lr: f32, w: &mut [f32], g: &[f32], state: StateMut<'_>) {
    state.expect(K::STATES, w.len());
    run_dense(rule, lr, w, g, state);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_files_name_the_rule_and_what_differs() {
        let rule: Rule = serde_json::from_str(r#"{"rule": "adam", "beta1": 0.8}"#).unwrap();
        assert_eq!(rule, Rule::Adam(Adam { beta1: 0.8, ..Adam::default() }));
        let text = serde_json::to_string(&rule).unwrap();
        assert_eq!(text, r#"{"rule":"adam","beta1":0.8,"beta2":0.999,"epsilon":1e-8}"#);
    }

    #[test]
    fn unknown_fields_and_rules_are_errors() {
        let error = serde_json::from_str::<Rule>(r#"{"rule": "adam", "beta": 0.8}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `beta`"), "{error}");
        let error = serde_json::from_str::<Rule>(r#"{"rule": "sgd", "mu": 0.8}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `mu`"), "{error}");
        assert!(serde_json::from_str::<Rule>(r#"{"rule": "adamm"}"#).is_err());
    }

    #[test]
    #[should_panic(expected = "number of optimizer states")]
    fn a_missing_state_is_refused() {
        let rule = Rule::Adagrad(Adagrad::default());
        rule.update(0.1, &mut [0.0], &[0.0], StateMut::default());
    }

    #[test]
    #[should_panic(expected = "one gradient per weight")]
    fn a_short_gradient_is_refused() {
        Rule::Sgd(Sgd {}).update(0.1, &mut [0.0; 9], &[0.0; 8], StateMut::default());
    }
}
