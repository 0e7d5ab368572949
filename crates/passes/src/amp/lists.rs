//! Which kinds of ops compute in 16 bits.

use regatta_ir::{Error, OpSet};
use regatta_ops::OPS;

use super::AmpConfig;
use crate::refused;

/// Where an op kind stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Computes in 16 bits.
    White,
    /// Computes in f32.
    Black,
    /// Computes in the precision of its inputs.
    Follows,
}

/// Products: what takes the time, and what loses least, since sums are kept in f32.
const WHITE: &[&str] = &["conv2d", "conv2d_transpose", "fc", "matmul"];

/// Losses, normalisations, exponentials and sums over many elements, which lose digits or overflow.
const BLACK: &[&str] = &[
    "cos_sim",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "elementwise_pow",
    "exp",
    "expm1",
    "group_norm",
    "hinge_loss",
    "huber_loss",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_loss",
    "log_softmax",
    "logsumexp",
    "mean",
    "p_norm",
    "pow",
    "reciprocal",
    "reduce_mean",
    "reduce_prod",
    "reduce_sum",
    "rsqrt",
    "sigmoid_cross_entropy",
    "softmax",
    "softmax_with_cross_entropy",
    "softplus",
    "sqrt",
    "square",
    "square_error_cost",
    "sum",
];

/// Kinds that cannot compute in 16 bits, each with the reason.
const NEVER: &[(&str, &str)] = &[
    ("accuracy", "it counts"),
    ("auc", "it counts"),
    ("batch_norm", "it keeps statistics in f32"),
    ("cast", "it converts between types"),
    (
        "embedding",
        "its table would be converted whole at every step; what it looks up is converted",
    ),
];

/// The lists of a configuration.
pub(super) struct Lists {
    white: Vec<String>,
    black: Vec<String>,
}

impl Lists {
    pub(super) fn new(config: &AmpConfig) -> Result<Lists, Error> {
        let AmpConfig { custom_white_list: white, custom_black_list: black, .. } = config;
        for (list, name) in [("custom_white_list", white), ("custom_black_list", black)] {
            for kind in name {
                check_kind(list, kind)?;
            }
        }
        if let Some(kind) = white.iter().find(|kind| black.contains(kind)) {
            return refused("amp", format!("op {kind} is on both custom lists"));
        }
        for kind in white {
            if let Some((_, reason)) = NEVER.iter().find(|(never, _)| never == kind) {
                let reason = format!("custom_white_list: op {kind} cannot be in 16 bits: {reason}");
                return refused("amp", reason);
            }
        }
        Ok(Lists { white: white.clone(), black: black.clone() })
    }

    pub(super) fn place(&self, kind: &str) -> Place {
        let on = |list: &[String]| list.iter().any(|k| k == kind);
        if on(&self.black) || NEVER.iter().any(|(never, _)| *never == kind) {
            Place::Black
        } else if on(&self.white) || WHITE.contains(&kind) {
            Place::White
        } else if BLACK.contains(&kind) {
            Place::Black
        } else {
            Place::Follows
        }
    }
}

/// Refuses what is no op that a model is made of.
fn check_kind(list: &str, kind: &str) -> Result<(), Error> {
    if OPS.schema(kind).is_some() {
        return Ok(());
    }
    let near = regatta_ir::nearest(kind, OPS.kinds());
    let hint = near.map(|n| format!("; did you mean '{n}'?")).unwrap_or_default();
    refused("amp", format!("{list}: there is no op '{kind}'{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_name_ops_that_exist() {
        let never = NEVER.iter().map(|(kind, _)| kind);
        for kind in WHITE.iter().chain(BLACK).chain(never) {
            assert!(OPS.schema(kind).is_some(), "{kind}");
        }
    }
}
