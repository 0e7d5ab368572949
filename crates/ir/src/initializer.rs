//! Initial values of parameters, as ops of the startup program.

use crate::Op;

/// How a parameter gets its first value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initializer {
    /// One value everywhere.
    Constant(f64),
    /// Uniform in `[low, high)`.
    Uniform {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// Gaussian.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Gaussian, redrawn beyond two standard deviations.
    TruncatedNormal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Glorot: keeps the variance of activations and gradients across a layer.
    Xavier {
        /// Uniform (default of `fc`) or Gaussian.
        uniform: bool,
    },
    /// He: for layers followed by a rectifier.
    Msra {
        /// Uniform or Gaussian.
        uniform: bool,
    },
}

impl Initializer {
    /// The startup op that writes `var` of the given shape.
    pub(crate) fn op(self, var: &str, shape: &[i64], seed: i64) -> Op {
        let (fan_in, fan_out) = fans(shape);
        let (kind, a, b) = match self {
            Initializer::Constant(value) => {
                return Op::new("fill_constant")
                    .attr("shape", shape.to_vec())
                    .attr("value", value)
                    .output("Out", var);
            }
            Initializer::Uniform { low, high } => ("uniform_random", low, high),
            Initializer::Normal { mean, std } => ("gaussian_random", mean, std),
            Initializer::TruncatedNormal { mean, std } => ("truncated_gaussian_random", mean, std),
            Initializer::Xavier { uniform: true } => {
                let limit = (6.0 / (fan_in + fan_out)).sqrt();
                ("uniform_random", -limit, limit)
            }
            Initializer::Xavier { uniform: false } => {
                ("gaussian_random", 0.0, (2.0 / (fan_in + fan_out)).sqrt())
            }
            Initializer::Msra { uniform: true } => {
                let limit = (6.0 / fan_in).sqrt();
                ("uniform_random", -limit, limit)
            }
            Initializer::Msra { uniform: false } => ("gaussian_random", 0.0, (2.0 / fan_in).sqrt()),
        };
        let (first, second) =
            if kind == "uniform_random" { ("low", "high") } else { ("mean", "std") };
        Op::new(kind)
            .attr("shape", shape.to_vec())
            .attr(first, a)
            .attr(second, b)
            .attr("seed", seed)
            .output("Out", var)
    }
}

fn fans(shape: &[i64]) -> (f64, f64) {
    match shape {
        [] => (1.0, 1.0),
        [n] => (*n as f64, *n as f64),
        [fan_in, rest @ ..] => (*fan_in as f64, rest.iter().product::<i64>() as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xavier_and_msra_bounds() {
        let op = Initializer::Xavier { uniform: true }.op("w", &[2, 4], 7);
        assert_eq!(op.float("high").unwrap(), 1.0);
        let op = Initializer::Msra { uniform: false }.op("w", &[8, 4], 7);
        assert_eq!(op.float("std").unwrap(), 0.5);
    }
}
