//! Initial values of rows: a key goes in, the weights any server would give it come out.
//!
//! Values depend on the seed, the stream, the key and the column only, so the number of servers,
//! the order of arrival and restarts do not change them. Small keys use the numbers that the random
//! fill ops of a program would put into the same row of a dense variable of the same stream.

use regatta_tensor::Rng;
use serde::{Deserialize, Serialize};

use crate::TableId;

/// How weights of a new row are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Initializer {
    /// The same value everywhere.
    Constant(f32),
    /// Uniform in `low..high`.
    Uniform {
        /// Smallest value.
        low: f32,
        /// Bound above all values.
        high: f32,
    },
    /// Normally distributed.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
    /// Normally distributed, redrawn beyond two standard deviations.
    TruncatedNormal {
        /// Mean.
        mean: f32,
        /// Standard deviation before truncation.
        std: f32,
    },
}

impl Initializer {
    /// What is wrong with the numbers, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        let ok = match *self {
            Initializer::Constant(value) => value.is_finite(),
            Initializer::Uniform { low, high } => {
                low.is_finite() && high.is_finite() && low <= high
            }
            Initializer::Normal { mean, std } | Initializer::TruncatedNormal { mean, std } => {
                mean.is_finite() && std.is_finite() && std >= 0.0
            }
        };
        (!ok).then(|| format!("`initializer` cannot draw from {self:?}"))
    }
}

/// Which sequence of random numbers a table uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Its own, by the number of the table.
    Table,
    /// That of a program variable, so that rows equal those of an embedding trained locally.
    Variable(String),
}

/// Draws the weights of new rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowInit {
    rng: Rng,
    initializer: Initializer,
}

impl RowInit {
    pub(crate) fn new(
        seed: u64,
        table: TableId,
        stream: &Stream,
        initializer: Initializer,
    ) -> RowInit {
        let rng = match stream {
            Stream::Table => Rng::new(seed, u64::from(table.0)),
            Stream::Variable(name) => Rng::named(seed, name),
        };
        RowInit { rng, initializer }
    }

    /// Draws columns `first..` of row `key`, of a row of `width` columns in all.
    pub(crate) fn fill(&self, key: u64, width: usize, first: usize, weights: &mut [f32]) {
        if let Initializer::Constant(value) = self.initializer {
            return weights.fill(value);
        }
        // Positions in a variable of so many rows; beyond it each key has a sequence of its own.
        let position = key.checked_mul(width as u64).filter(|position| *position < 1 << 60);
        let (rng, start) = match position {
            Some(position) => (self.rng, position + first as u64),
            None => (Rng::new(self.rng.u64(key), !key), first as u64),
        };
        for (i, weight) in weights.iter_mut().enumerate() {
            *weight = self.draw(&rng, start + i as u64);
        }
    }

    fn draw(&self, rng: &Rng, i: u64) -> f32 {
        let value = match self.initializer {
            Initializer::Constant(value) => return value,
            Initializer::Uniform { low, high } => {
                let (low, high) = (f64::from(low), f64::from(high));
                low + (high - low) * f64::from(rng.unit_f32(i))
            }
            Initializer::Normal { mean, std } => f64::from(mean) + f64::from(std) * rng.normal(i),
            Initializer::TruncatedNormal { mean, std } => {
                f64::from(mean) + f64::from(std) * truncated_normal(rng, i)
            }
        };
        value as f32
    }
}

/// Each position has its own sequence of draws, of which the first within bounds counts.
fn truncated_normal(rng: &Rng, i: u64) -> f64 {
    let own = Rng::new(rng.u64(i), i);
    (0..64).map(|draw| own.normal(draw)).find(|x| x.abs() <= 2.0).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(initializer: Initializer, key: u64) -> [f32; 4] {
        let init = RowInit::new(7, TableId(3), &Stream::Table, initializer);
        let mut row = [0.0; 4];
        init.fill(key, 4, 0, &mut row);
        row
    }

    #[test]
    fn small_keys_draw_what_a_fill_op_would() {
        let stream = Stream::Variable("emb".into());
        let init =
            RowInit::new(5, TableId(0), &stream, Initializer::Uniform { low: -0.5, high: 1.5 });
        let rng = Rng::named(5, "emb");
        let mut row = [0.0; 3];
        init.fill(11, 3, 0, &mut row);
        let wanted =
            [33, 34, 35].map(|i| (-0.5 + (1.5 - -0.5) * f64::from(rng.unit_f32(i))) as f32);
        assert_eq!(row, wanted);
        let mut tail = [0.0; 2];
        init.fill(11, 3, 1, &mut tail);
        assert_eq!(tail, wanted[1..]);
    }

    #[test]
    fn moments_are_right_for_small_and_large_keys() {
        for high_bits in [0u64, 0xFFFF << 48] {
            let mean_and_std = |initializer| {
                let (mut sum, mut squares) = (0.0, 0.0);
                for key in 0..20_000u64 {
                    for x in row(initializer, high_bits | key) {
                        sum += f64::from(x);
                        squares += f64::from(x) * f64::from(x);
                    }
                }
                let mean = sum / 80_000.0;
                (mean, (squares / 80_000.0 - mean * mean).sqrt())
            };
            let near = |(mean, std): (f64, f64), m: f64, s: f64| {
                assert!((mean - m).abs() < 0.02 && (std - s).abs() < 0.02, "{mean} {std}");
            };
            near(mean_and_std(Initializer::Uniform { low: 1.0, high: 2.0 }), 1.5, 0.2887);
            near(mean_and_std(Initializer::Normal { mean: -1.0, std: 0.5 }), -1.0, 0.5);
            near(mean_and_std(Initializer::TruncatedNormal { mean: 1.0, std: 1.0 }), 1.0, 0.8796);
            near(mean_and_std(Initializer::Constant(0.25)), 0.25, 0.0);
        }
    }

    #[test]
    fn keys_seeds_tables_and_columns_differ() {
        let uniform = Initializer::Uniform { low: 0.0, high: 1.0 };
        let mut seen = std::collections::HashSet::new();
        for key in [0, 1, 2, 1 << 61, u64::MAX - 1, u64::MAX] {
            for x in row(uniform, key) {
                assert!(seen.insert(x.to_bits()), "{key}");
            }
        }
        let other = RowInit::new(7, TableId(4), &Stream::Table, uniform);
        let mut values = [0.0; 4];
        other.fill(0, 4, 0, &mut values);
        assert_ne!(values, row(uniform, 0));
    }

    #[test]
    fn impossible_ranges_are_named() {
        let problem = Initializer::Uniform { low: 1.0, high: 0.0 }.problem().unwrap();
        assert!(problem.contains("low: 1.0"), "{problem}");
        assert!(Initializer::Normal { mean: 0.0, std: -1.0 }.problem().is_some());
        assert!(Initializer::Constant(f32::NAN).problem().is_some());
        assert!(Initializer::Constant(0.0).problem().is_none());
    }
}
