//! `synthetic://multitask`: features as of `ctr` and two related labels, `click` and `conversion`.
//!
//! The logit of a conversion shares part of its weights with that of a click. There is no
//! conversion without a click, as in the data that ESMM is made for.

use std::sync::Arc;

use super::Generator;
use super::ctr::{Features, VOCAB_RATIO, ZIPF};
use super::hidden::{Example, HiddenModel};
use super::url::{EXAMPLES, FIRST, Parameter, SEED, Url};
use crate::format::PartKey;
use crate::math::sigmoid;
use crate::{Error, Records, Schema, Slot};

pub(super) const PARAMETERS: &[Parameter] = &[
    EXAMPLES,
    FIRST,
    SEED,
    Parameter::size("slots", 8, 1, "number of id slots"),
    Parameter::integer("vocab", 1000, 1, "different ids in each slot"),
    VOCAB_RATIO,
    Parameter::size("dense", 4, 0, "number of floats; 0 leaves the slot out"),
    Parameter::size(
        "ids_per_slot",
        1,
        1,
        "most ids of a slot; above 1 each example has 1 to that many",
    ),
    ZIPF,
];

#[derive(Debug)]
struct Multitask {
    features: Features,
    click: HiddenModel,
    /// What only conversions depend on.
    own: HiddenModel,
}

pub(super) fn build(url: &Url) -> Result<Arc<dyn Generator>, Error> {
    let features = Features::new(url);
    let seed = features.seed;
    let click = HiddenModel::new(seed, 0, -0.5, [1.7, 0.5, 0.7]);
    let own = HiddenModel::new(seed, 1, 0.0, [1.3, 0.5, 0.7]);
    Ok(Arc::new(Multitask { features, click, own }))
}

impl Multitask {
    /// Probabilities of a click, and of a conversion after one.
    fn probabilities(&self, example: &Example) -> (f64, f64) {
        let click = self.click.logit(example);
        let own = self.own.logit(example);
        (sigmoid(click), sigmoid(0.5 * click + own))
    }
}

impl Generator for Multitask {
    fn schema(&self) -> Schema {
        let labels = vec![Slot::label("click"), Slot::label("conversion")];
        Schema::new([labels, self.features.slots()].concat()).expect("slots are numbered")
    }

    fn generate(&self, example: u64, _key: PartKey, out: &mut Records) {
        let (example, mut rng) = self.features.example(example);
        let (click, conversion) = self.probabilities(&example);
        let clicked = rng.unit() < click;
        let converted = rng.unit() < conversion && clicked;
        out.push_label(0, i64::from(clicked));
        out.push_label(1, i64::from(converted));
        self.features.push(&example, 2, out);
        out.end_checked_record();
    }

    fn probability(&self, example: u64) -> Option<f64> {
        Some(self.probabilities(&self.features.example(example).0).0)
    }
}
