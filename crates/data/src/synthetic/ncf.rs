//! `synthetic://ncf`: pairs of a user and an item, one that the user liked and `negatives` others.
//!
//! Users and items belong to hidden groups; a user mostly likes items of the own group. Examples
//! come in blocks of `1 + negatives`, the liked item first, all of the same user, so that a source
//! with `negatives=99` is the usual test of HR@k and NDCG. Users and items are numbered from 0.

use std::sync::Arc;

use super::Generator;
use super::url::{EXAMPLES, FIRST, Parameter, SEED, Url};
use crate::format::PartKey;
use crate::rng::Rng;
use crate::{Error, Records, Schema, Slot};

pub(super) const PARAMETERS: &[Parameter] = &[
    EXAMPLES,
    FIRST,
    SEED,
    Parameter::integer("users", 1000, 1, "different users"),
    Parameter::integer("items", 500, 2, "different items"),
    Parameter::integer("groups", 10, 1, "hidden groups of users and items"),
    Parameter::integer(
        "negatives",
        4,
        0,
        "items that the user did not choose, for each one chosen",
    ),
];

#[derive(Debug)]
struct Ncf {
    seed: u64,
    users: u64,
    items: u64,
    groups: u64,
    negatives: u64,
}

pub(super) fn build(url: &Url) -> Result<Arc<dyn Generator>, Error> {
    let ncf = Ncf {
        seed: url.integer("seed"),
        users: url.integer("users"),
        items: url.integer("items"),
        groups: url.integer("groups"),
        negatives: url.integer("negatives"),
    };
    if ncf.items < ncf.groups {
        return Err(Error::config(format!("{url}: there are fewer items than groups")));
    }
    Ok(Arc::new(ncf))
}

/// Marks the stream that gives users their groups.
const USER_GROUP: u64 = 1;

impl Ncf {
    /// The item that a user likes: item `i` is of group `i % groups`.
    fn liked(&self, user: u64, rng: &mut Rng) -> u64 {
        if rng.unit() >= 0.9 {
            return rng.below(self.items);
        }
        let group = Rng::new(self.seed, &[USER_GROUP, user]).below(self.groups);
        let of_group = (self.items - group).div_ceil(self.groups);
        group + self.groups * rng.below(of_group)
    }
}

impl Generator for Ncf {
    fn schema(&self) -> Schema {
        let ids = vec![Slot::fixed_ids("user_input", 1), Slot::fixed_ids("item_input", 1)];
        Schema::new([ids, vec![Slot::label("label")]].concat()).expect("three slots")
    }

    fn generate(&self, example: u64, _key: PartKey, out: &mut Records) {
        let (block, place) = (example / (1 + self.negatives), example % (1 + self.negatives));
        let mut rng = Rng::new(self.seed, &[0, block]);
        let user = rng.below(self.users);
        let liked = self.liked(user, &mut rng);
        let item = if place == 0 {
            liked
        } else {
            // Any other item: it may well be of the user's group, as in real data.
            let other = Rng::new(self.seed, &[0, block, place]).below(self.items - 1);
            other + u64::from(other >= liked)
        };
        out.push_id(0, user);
        out.push_id(1, item);
        out.push_label(2, i64::from(place == 0));
        out.end_checked_record();
    }
}
