//! Features, compiled: what to do with every value of a row.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;

use crate::list::dense_width;
use crate::{Bounds, Error, Feature, Features, Kind, Learned, Moments, Pooling, Value, Words};

/// The slot of all floats.
pub const DENSE: &str = "dense_input";

/// The label of a row that has none, where labels may be missing.
pub const NO_LABEL: i64 = i64::MIN;

/// What a row becomes: one entry of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// What it holds for each example.
    pub kind: SlotKind,
}

/// What a slot holds for each example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// A whole number.
    Label,
    /// That many floats.
    Floats(usize),
    /// Any number of ids.
    Ids,
    /// That many ids.
    FixedIds(usize),
}

/// Turns rows of raw values into slots. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transform {
    pub(crate) plans: Arc<[Plan]>,
    slots: Arc<[Slot]>,
    columns: Arc<[String]>,
    /// What it was made of.
    source: Arc<(Features, Learned)>,
}

/// What becomes of one feature.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) feature: String,
    pub(crate) slot: usize,
    /// The slot of weights.
    pub(crate) weights: Option<usize>,
    /// Indices of its columns.
    pub(crate) columns: Vec<usize>,
    pub(crate) rule: Rule,
    pub(crate) split: Option<u8>,
    pub(crate) weight: Option<u8>,
    pub(crate) length: Option<usize>,
    pub(crate) normalised: bool,
    /// Any number of ids, rather than one.
    pub(crate) multi: bool,
    pub(crate) default: Option<String>,
}

/// What becomes of one value.
#[derive(Debug, Clone)]
pub(crate) enum Rule {
    Label { threshold: Option<f64>, is_optional: bool },
    Id { buckets: u64 },
    Hash { buckets: u64 },
    Cross { buckets: u64 },
    Words(Arc<HashMap<Box<[u8]>, u64>>),
    Bounds(Arc<[f64]>),
    Float(Scale),
    Text,
}

/// What becomes of a float.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scale {
    Raw,
    Log,
    Standard { mean: f64, std: f64 },
}

impl Transform {
    /// Compiles features with what was learned about them.
    ///
    /// # Errors
    /// If something has not been learned, or a default is no value of its feature.
    pub fn new(features: &Features, learned: &Learned) -> Result<Transform, Error> {
        Transform::of_slots(features, learned, |_| true)
    }

    /// The same, where labels may be missing: rows then have the label [`NO_LABEL`].
    #[must_use]
    pub fn with_optional_labels(&self) -> Transform {
        let mut plans = self.plans.to_vec();
        for plan in &mut plans {
            if let Rule::Label { is_optional, .. } = &mut plan.rule {
                *is_optional = true;
            }
        }
        Transform { plans: plans.into(), ..self.clone() }
    }

    /// Whether rows need not have a column: only labels that may be missing are made of it.
    pub fn is_optional(&self, column: usize) -> bool {
        let mut users = self.plans.iter().filter(|plan| plan.columns.contains(&column));
        users.all(|plan| matches!(plan.rule, Rule::Label { is_optional: true, .. }))
    }

    /// The same for what a model is given to predict: without labels, and without columns that
    /// only they need.
    ///
    /// # Errors
    /// As [`Transform::new`].
    pub fn for_inputs(features: &Features, learned: &Learned) -> Result<Transform, Error> {
        Transform::of_slots(features, learned, |feature| !feature.kind.is_label())
    }

    fn of_slots(
        features: &Features,
        learned: &Learned,
        wanted: impl Fn(&Feature) -> bool,
    ) -> Result<Transform, Error> {
        let all: Vec<&Feature> = features.all().iter().filter(|f| wanted(f)).collect();
        let mut columns: Vec<String> = all.iter().flat_map(|f| f.sources().to_vec()).collect();
        columns.sort();
        columns.dedup();
        let slots = slots_of(&all);
        let mut plans = Vec::new();
        for feature in &all {
            plans.push(plan(features, learned, feature, &slots, &columns)?);
        }
        let source = Arc::new((features.clone(), learned.clone()));
        let transform =
            Transform { plans: plans.into(), slots: slots.into(), columns: columns.into(), source };
        transform.check_defaults()?;
        Ok(transform)
    }

    /// The columns that a row has values for, in this order.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// What a row becomes.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What it was made of.
    pub fn features(&self) -> &Features {
        &self.source.0
    }

    /// What was learned.
    pub fn learned(&self) -> &Learned {
        &self.source.1
    }

    /// As JSON, for files of models.
    pub fn to_json(&self) -> serde_json::Value {
        json!({"features": self.source.0, "learned": self.source.1})
    }

    /// What [`Transform::to_json`] gave, for a model that predicts.
    ///
    /// # Errors
    /// If it is something else.
    pub fn inputs_from_json(json: &serde_json::Value) -> Result<Transform, String> {
        let part = |name: &str| json.get(name).cloned().unwrap_or_default();
        let features: Features =
            serde_json::from_value(part("features")).map_err(|e| e.to_string())?;
        let learned: Learned =
            serde_json::from_value(part("learned")).map_err(|e| e.to_string())?;
        Transform::for_inputs(&features, &learned).map_err(|e| e.to_string())
    }

    /// Whether values of a column may be lists or texts of several values.
    pub fn takes_lists(&self, column: usize) -> bool {
        self.plans.iter().any(|plan| plan.columns.contains(&column) && plan.is_list())
    }

    fn check_defaults(&self) -> Result<(), Error> {
        for plan in self.plans.iter().filter(|plan| plan.default.is_some()) {
            let mut nowhere = crate::apply::Nowhere;
            plan.apply(&|_| Value::Missing, &self.columns, &mut nowhere).map_err(|e| match e {
                Error::Value { expected, found, .. } => Error::declaration(
                    &plan.feature,
                    format!("its default should be {expected}, but is {found}"),
                ),
                other => other,
            })?;
        }
        Ok(())
    }
}

impl PartialEq for Transform {
    fn eq(&self, other: &Transform) -> bool {
        self.source == other.source && self.slots == other.slots
    }
}

impl Plan {
    pub(crate) fn is_list(&self) -> bool {
        self.multi || self.weights.is_some() || self.split.is_some()
    }
}

/// Labels, ids with their weights, and all floats together, one after the other.
fn slots_of(features: &[&Feature]) -> Vec<Slot> {
    let slot = |name: &str, kind: SlotKind| Slot { name: name.to_string(), kind };
    let labels = features.iter().filter(|f| f.kind.is_label());
    let mut slots: Vec<Slot> = labels.map(|f| slot(&f.name, SlotKind::Label)).collect();
    for f in features.iter().filter(|f| f.kind.is_ids()) {
        match (f.weight, f.length) {
            (Some(_), Some(n)) => {
                slots.push(slot(&f.name, SlotKind::FixedIds(n)));
                slots.push(slot(&f.weights_slot(), SlotKind::Floats(n)));
            }
            _ if f.is_multi() => slots.push(slot(&f.name, SlotKind::Ids)),
            _ => slots.push(slot(&f.name, SlotKind::FixedIds(1))),
        }
    }
    let width: usize = features.iter().map(|f| dense_width(f)).sum();
    if width > 0 {
        slots.push(slot(DENSE, SlotKind::Floats(width)));
    }
    let texts = features.iter().filter(|f| f.kind == Kind::Text);
    slots.extend(texts.map(|f| slot(&f.name, SlotKind::Ids)));
    slots
}

impl Features {
    /// What a row becomes.
    pub fn slots(&self) -> Vec<Slot> {
        slots_of(&self.all().iter().collect::<Vec<_>>())
    }
}

fn plan(
    features: &Features,
    learned: &Learned,
    f: &Feature,
    slots: &[Slot],
    columns: &[String],
) -> Result<Plan, Error> {
    let slot = |name: &str| slots.iter().position(|slot| slot.name == name);
    let own = if f.kind.is_dense() { DENSE } else { &f.name };
    let column = |name: &String| columns.iter().position(|column| column == name);
    Ok(Plan {
        feature: f.name.clone(),
        slot: slot(own).unwrap_or_default(),
        weights: f.weight.and_then(|_| slot(&f.weights_slot())),
        columns: f.sources().iter().filter_map(column).collect(),
        rule: rule(features.owner(f), learned)?,
        split: f.split,
        weight: f.weight,
        length: f.length,
        normalised: f.pooling == Pooling::Mean,
        multi: f.kind.is_ids() && f.is_multi(),
        default: f.default.clone(),
    })
}

fn rule(f: &Feature, learned: &Learned) -> Result<Rule, Error> {
    Ok(match &f.kind {
        Kind::Label { threshold } => Rule::Label { threshold: *threshold, is_optional: false },
        Kind::Id { buckets } => Rule::Id { buckets: *buckets },
        Kind::Hash { buckets } => Rule::Hash { buckets: *buckets },
        Kind::Cross { buckets } => Rule::Cross { buckets: *buckets },
        Kind::Vocabulary(Words::Given(words)) => Rule::Words(index(words)),
        Kind::Vocabulary(Words::Learned { .. }) => Rule::Words(index(learned.words(&f.name)?)),
        Kind::Bucketize(Bounds::Given(bounds)) => Rule::Bounds(bounds.clone()),
        Kind::Bucketize(Bounds::Learned { .. }) => Rule::Bounds(learned.bounds(&f.name)?.into()),
        Kind::Text => Rule::Text,
        Kind::Raw => Rule::Float(Scale::Raw),
        Kind::Log => Rule::Float(Scale::Log),
        Kind::Standardize(moments) => {
            let (mean, std) = match moments {
                Moments::Given { mean, std } => (*mean, *std),
                Moments::Learned => learned.moments(&f.name)?,
            };
            Rule::Float(Scale::Standard { mean, std })
        }
        Kind::Sequence { of } => {
            return Err(Error::declaration(&f.name, format!("there is no feature '{of}'")));
        }
    })
}

/// 0 is for missing values, 1 for unknown ones.
fn index(words: &[String]) -> Arc<HashMap<Box<[u8]>, u64>> {
    let key = |word: &String| Value::Text(word.as_bytes()).key().into_owned().into_boxed_slice();
    Arc::new(words.iter().map(key).zip(2..).collect())
}
