//! `synthetic://din`: what a user did before, and whether one more item fits to it.
//!
//! A user is interested in a few categories; most of the history is of these. The label depends on
//! whether the target's category is one of them, so a model must compare the target with the
//! history. Items are `1..=items`, categories `1..=categories`; id 0 stays free for padding.

use std::sync::Arc;

use super::Generator;
use super::url::{EXAMPLES, FIRST, Parameter, SEED, Url};
use crate::format::PartKey;
use crate::rng::{Rng, Zipf};
use crate::{Error, Records, Schema, Slot};

pub(super) const PARAMETERS: &[Parameter] = &[
    EXAMPLES,
    FIRST,
    SEED,
    Parameter::integer("items", 1000, 2, "different items"),
    Parameter::integer("categories", 20, 2, "different categories"),
    Parameter::size("history", 20, 1, "most items of a history"),
    Parameter::size("interests", 2, 1, "categories that a user is interested in"),
];

#[derive(Debug)]
struct Din {
    seed: u64,
    categories: u64,
    history: u64,
    interests: u64,
    /// Rank of an item within its category.
    rank: Zipf,
}

pub(super) fn build(url: &Url) -> Result<Arc<dyn Generator>, Error> {
    let (items, categories) = (url.integer("items"), url.integer("categories"));
    if items < categories {
        return Err(Error::config(format!("{url}: there are fewer items than categories")));
    }
    Ok(Arc::new(Din {
        seed: url.integer("seed"),
        categories,
        history: url.integer("history"),
        interests: url.integer("interests").min(categories),
        rank: Zipf::new(items / categories, 0.8),
    }))
}

impl Din {
    /// A category, from the user's with probability `own`.
    fn category(&self, interests: &[u64], own: f64, rng: &mut Rng) -> u64 {
        if rng.unit() < own {
            interests[rng.below(interests.len() as u64) as usize]
        } else {
            rng.below(self.categories)
        }
    }

    fn item(&self, category: u64, rng: &mut Rng) -> u64 {
        1 + category + self.categories * self.rank.sample(rng)
    }
}

impl Generator for Din {
    fn schema(&self) -> Schema {
        let history =
            vec![Slot::label("label"), Slot::ids("hist_item_seq"), Slot::ids("hist_cat_seq")];
        let target = vec![Slot::fixed_ids("target_item", 1), Slot::fixed_ids("target_cat", 1)];
        Schema::new([history, target].concat()).expect("five slots with different names")
    }

    fn generate(&self, example: u64, _key: PartKey, out: &mut Records) {
        let mut rng = Rng::new(self.seed, &[0, example]);
        let interests: Vec<u64> = (0..self.interests).map(|_| rng.below(self.categories)).collect();
        for _ in 0..1 + rng.below(self.history) {
            let category = self.category(&interests, 0.85, &mut rng);
            out.push_id(1, self.item(category, &mut rng));
            out.push_id(2, 1 + category);
        }
        let category = self.category(&interests, 0.4, &mut rng);
        out.push_id(3, self.item(category, &mut rng));
        out.push_id(4, 1 + category);
        let p = if interests.contains(&category) { 0.85 } else { 0.12 };
        out.push_label(0, i64::from(rng.unit() < p));
        out.end_checked_record();
    }
}
