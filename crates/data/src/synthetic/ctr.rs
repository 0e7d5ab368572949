//! `synthetic://ctr`: click logs as Criteo's, with the slots of PaddleRec's Criteo models.
//!
//! Ids of slot `s` (from 0) are `s * vocab + 1 + rank`, so id 0 stays free for padding and the
//! largest is `slots * vocab`; ranks follow Zipf's law. With `vocab_ratio` the slots differ in size
//! and keep that total: each owns a range that begins where that of the slot before ends. Floats
//! are uniform in [0, 1).

use std::sync::Arc;

use super::Generator;
use super::hidden::{Example, HiddenModel};
use super::url::{EXAMPLES, FIRST, Parameter, SEED, Url};
use crate::format::PartKey;
use crate::math;
use crate::rng::{Rng, Zipf};
use crate::{Error, Records, Schema, Slot};

pub(super) const PARAMETERS: &[Parameter] = &[
    EXAMPLES,
    FIRST,
    SEED,
    Parameter::size("slots", 26, 1, "number of id slots"),
    Parameter::integer("vocab", 10_000, 1, "different ids in each slot"),
    VOCAB_RATIO,
    Parameter::size("dense", 13, 0, "number of floats; 0 leaves the slot out"),
    Parameter::size(
        "ids_per_slot",
        1,
        1,
        "most ids of a slot; above 1 each example has 1 to that many",
    ),
    ZIPF,
    Parameter {
        name: "signal",
        default: 1.0,
        min: 0.0,
        max: 10.0,
        integer: false,
        what: "how much labels follow from the features: a factor of the spread of the logit",
    },
];

pub(super) const ZIPF: Parameter = Parameter {
    name: "zipf",
    default: 1.1,
    min: 0.0,
    max: 5.0,
    integer: false,
    what: "how uneven ids are: the frequency of rank r falls as 1 / r^zipf",
};

pub(super) const VOCAB_RATIO: Parameter = Parameter {
    name: "vocab_ratio",
    default: 1.0,
    min: 1.0,
    max: 1e9,
    integer: false,
    what: "ids of the last slot / ids of the first; vocab is then the mean, and slots between grow \
           evenly",
};

/// Features of a click log, shared with `multitask`.
#[derive(Debug, Clone)]
pub(super) struct Features {
    pub(super) seed: u64,
    slots: Vec<IdRange>,
    dense: usize,
    ids_per_slot: u64,
}

/// The ids of one slot.
#[derive(Debug, Clone)]
struct IdRange {
    first: u64,
    ranks: Zipf,
}

/// How many ids each slot has: a geometric row whose last member is `ratio` times the first, and
/// whose mean is `vocab`.
fn vocabularies(slots: u64, vocab: u64, ratio: f64) -> Vec<u64> {
    let exponent = |slot: u64| slot as f64 / (slots - 1).max(1) as f64;
    let shares: Vec<f64> = (0..slots).map(|slot| math::pow(ratio, exponent(slot))).collect();
    let scale = (slots * vocab) as f64 / shares.iter().sum::<f64>();
    let mut sizes: Vec<u64> = shares.iter().map(|share| ((share * scale) as u64).max(1)).collect();
    // The last slot takes what rounding has left over, so that the largest id is as without ratio.
    let before: u64 = sizes.iter().rev().skip(1).sum();
    if let Some(last) = sizes.last_mut() {
        *last = (slots * vocab).saturating_sub(before).max(1);
    }
    sizes
}

impl Features {
    pub(super) fn new(url: &Url) -> Features {
        let (vocab, ratio) = (url.integer("vocab"), url.number("vocab_ratio"));
        let mut first = 1;
        let mut range = |vocab: u64| {
            let range = IdRange { first, ranks: Zipf::new(vocab, url.number("zipf")) };
            first += vocab;
            range
        };
        let vocabularies = vocabularies(url.integer("slots"), vocab, ratio);
        Features {
            seed: url.integer("seed"),
            slots: vocabularies.into_iter().map(&mut range).collect(),
            dense: url.integer("dense") as usize,
            ids_per_slot: url.integer("ids_per_slot"),
        }
    }

    /// The slots behind the labels: `1`, `2`, ..., `dense_input`.
    pub(super) fn slots(&self) -> Vec<Slot> {
        let slot = |i: u64| match self.ids_per_slot {
            1 => Slot::fixed_ids(i.to_string(), 1),
            _ => Slot::ids(i.to_string()),
        };
        let dense = (self.dense > 0).then(|| Slot::dense("dense_input", self.dense));
        (1..=self.slots.len() as u64).map(slot).chain(dense).collect()
    }

    /// The features of an example, and the stream to draw its labels from.
    pub(super) fn example(&self, index: u64) -> (Example, Rng) {
        let mut rng = Rng::new(self.seed, &[0, index]);
        let mut example = Example::default();
        for slot in &self.slots {
            let n = 1 + if self.ids_per_slot > 1 { rng.below(self.ids_per_slot) } else { 0 };
            (0..n).for_each(|_| {
                example.push_id(slot.first + slot.ranks.sample(&mut rng));
            });
            example.end_slot();
        }
        // 24 bits: exact in f32, so that the text of a float is short and the value the same.
        let float = |_| (rng.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
        example.dense = (0..self.dense).map(float).collect();
        (example, rng)
    }

    /// Appends the features to the record being written, from slot `at` on.
    pub(super) fn push(&self, example: &Example, at: usize, out: &mut Records) {
        let n = example.n_slots();
        for slot in 0..n {
            example.slot(slot).iter().for_each(|&id| out.push_id(at + slot, id));
        }
        example.dense.iter().for_each(|&x| out.push_float(at + n, x));
    }
}

#[derive(Debug)]
struct Ctr {
    features: Features,
    hidden: HiddenModel,
}

pub(super) fn build(url: &Url) -> Result<Arc<dyn Generator>, Error> {
    let features = Features::new(url);
    let spread = [2.2, 0.6, 0.9].map(|s| s * url.number("signal"));
    let hidden = HiddenModel::new(features.seed, 0, -1.5, spread);
    Ok(Arc::new(Ctr { features, hidden }))
}

impl Generator for Ctr {
    fn schema(&self) -> Schema {
        let slots = [vec![Slot::label("label")], self.features.slots()].concat();
        Schema::new(slots).expect("slots are numbered")
    }

    fn generate(&self, example: u64, _key: PartKey, out: &mut Records) {
        let (example, mut rng) = self.features.example(example);
        let p = self.hidden.probability(&example);
        out.push_label(0, i64::from(rng.unit() < p));
        self.features.push(&example, 1, out);
        out.end_checked_record();
    }

    fn probability(&self, example: u64) -> Option<f64> {
        Some(self.hidden.probability(&self.features.example(example).0))
    }
}

#[cfg(test)]
mod tests {
    use super::vocabularies;

    #[test]
    fn slots_of_equal_size_have_exactly_the_vocabulary() {
        assert_eq!(vocabularies(3, 38_461, 1.0), [38_461; 3]);
        assert_eq!(vocabularies(1, 7, 50.0), [7]);
    }

    #[test]
    fn uneven_slots_keep_total_and_ratio() {
        let sizes = vocabularies(26, 38_461, 20_000.0);
        assert_eq!(sizes.iter().sum::<u64>(), 26 * 38_461);
        let ratio = sizes[25] as f64 / sizes[0] as f64;
        assert!((ratio / 20_000.0 - 1.0).abs() < 0.05, "{sizes:?}");
        assert!(sizes.is_sorted());
        assert_eq!(vocabularies(4, 1, 1e6), [1; 4]);
    }
}
