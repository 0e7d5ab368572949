//! The hidden model that labels are drawn from: weights that are looked up by hashing, so that a
//! vocabulary of any size needs no memory.

use crate::Rng;
use crate::math::sigmoid;

/// The features of one example.
#[derive(Debug, Default)]
pub(super) struct Example {
    /// Ids of all slots, end to end.
    ids: Vec<u64>,
    /// Where the ids of each slot end.
    ends: Vec<usize>,
    /// Floats in [0, 1).
    pub(super) dense: Vec<f32>,
}

impl Example {
    /// Adds an id to the slot being written.
    pub(super) fn push_id(&mut self, id: u64) {
        self.ids.push(id);
    }

    /// Completes the slot being written.
    pub(super) fn end_slot(&mut self) {
        self.ends.push(self.ids.len());
    }

    pub(super) fn n_slots(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn slot(&self, slot: usize) -> &[u64] {
        let start = if slot == 0 { 0 } else { self.ends[slot - 1] };
        &self.ids[start..self.ends[slot]]
    }
}

/// Latent factors of an id in pair terms.
const FACTORS: usize = 2;

/// A logistic model over ids and floats.
#[derive(Debug, Clone)]
pub(super) struct HiddenModel {
    /// Streams that weights are drawn from, by what they are the weights of.
    weights: [Rng; 4],
    bias: f64,
    /// How much the ids, the pairs of ids and the floats vary the logit (standard deviations).
    spread: [f64; 3],
}

/// Indices of `HiddenModel::weights`.
const ID: usize = 0;
const FLOAT: usize = 1;
const FACTOR: usize = 2;

impl HiddenModel {
    /// Models with the same seed are told apart by `model`.
    pub(super) fn new(seed: u64, model: u64, bias: f64, spread: [f64; 3]) -> HiddenModel {
        // Stream 0 is that of the examples.
        let weights = [1, 2, 3, 4].map(|kind| Rng::new(seed, &[kind, model]));
        HiddenModel { weights, bias, spread }
    }

    /// The logit of an example.
    pub(super) fn logit(&self, example: &Example) -> f64 {
        let [ids, pairs, floats] = self.spread;
        let (mut logit, n) = (self.bias, example.n_slots());
        let (id_scale, pair_scale) = (ids / root(n), pairs / root(n / 2 * FACTORS));
        for slot in 0..n {
            logit += id_scale * mean(example.slot(slot), |id| self.weight(ID, id));
        }
        // Slots in twos, each giving the product of their factors: what linear models cannot see.
        for pair in 0..n / 2 {
            for k in FACTOR..FACTOR + FACTORS {
                let factor = |slot| mean(example.slot(slot), |id| self.weight(k, id));
                logit += pair_scale * factor(2 * pair) * factor(2 * pair + 1);
            }
        }
        let scale = floats / root(example.dense.len());
        for (i, x) in example.dense.iter().enumerate() {
            // A uniform number in [0, 1) has a standard deviation of 0.289.
            let centred = (f64::from(*x) - 0.5) / 0.289;
            logit += scale * self.weight(FLOAT, i as u64) * centred;
        }
        logit
    }

    pub(super) fn probability(&self, example: &Example) -> f64 {
        sigmoid(self.logit(example))
    }

    fn weight(&self, kind: usize, id: u64) -> f64 {
        self.weights[kind].child(id).bell()
    }
}

/// Square root, which IEEE 754 defines to the last bit; of at least 1.
fn root(n: usize) -> f64 {
    (n.max(1) as f64).sqrt()
}

fn mean(ids: &[u64], weight: impl Fn(u64) -> f64) -> f64 {
    ids.iter().map(|&id| weight(id)).sum::<f64>() / ids.len() as f64
}
