//! The hidden model that labels are drawn from: weights that are looked up by hashing, so that a
//! vocabulary of any size needs no memory.

use crate::Rng;
use crate::math::sigmoid;

/// Latent factors of an id in pair terms.
const FACTORS: u64 = 2;

/// A logistic model over ids and floats.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hidden {
    seed: u64,
    /// Tells several models with the same seed apart.
    model: u64,
    bias: f64,
    /// How much the ids, the pairs of ids and the floats vary the logit (standard deviations).
    spread: [f64; 3],
}

/// Streams of random numbers that belong to the model, not to examples.
const WEIGHT: u64 = 1 << 40;
const FACTOR: u64 = 2 << 40;
const DENSE: u64 = 3 << 40;

impl Hidden {
    pub(super) fn new(seed: u64, model: u64, bias: f64, spread: [f64; 3]) -> Hidden {
        Hidden { seed, model, bias, spread }
    }

    /// The logit of an example with the given ids per slot and floats in [0, 1).
    pub(super) fn logit(&self, slots: &[Vec<u64>], dense: &[f32]) -> f64 {
        let [ids, pairs, floats] = self.spread;
        let mut logit = self.bias;
        let n = slots.len() as f64;
        for slot in slots {
            logit += ids / n.sqrt() * mean(slot, |id| self.weight(WEIGHT, id));
        }
        // Slots in twos, each giving the product of their factors: what linear models cannot see.
        for pair in slots.chunks_exact(2) {
            let product: f64 = (0..FACTORS)
                .map(|k| {
                    let factor = |ids: &[u64]| mean(ids, |id| self.weight(FACTOR + k, id));
                    factor(&pair[0]) * factor(&pair[1])
                })
                .sum();
            logit += pairs / (n / 2.0 * FACTORS as f64).sqrt() * product;
        }
        for (i, x) in dense.iter().enumerate() {
            // A uniform number in [0, 1) has a standard deviation of 0.289.
            let centred = (f64::from(*x) - 0.5) / 0.289;
            let scale = floats / (dense.len() as f64).sqrt();
            logit += scale * self.weight(DENSE, i as u64) * centred;
        }
        logit
    }

    pub(super) fn probability(&self, slots: &[Vec<u64>], dense: &[f32]) -> f64 {
        sigmoid(self.logit(slots, dense))
    }

    fn weight(&self, kind: u64, id: u64) -> f64 {
        Rng::new(self.seed, &[kind, self.model, id]).bell()
    }
}

fn mean(ids: &[u64], weight: impl Fn(u64) -> f64) -> f64 {
    ids.iter().map(|&id| weight(id)).sum::<f64>() / ids.len() as f64
}
