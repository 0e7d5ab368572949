//! A row of raw values goes in, values of slots come out.

use crate::transform::{Plan, Rule, Scale};
use crate::{CROSS_SEPARATOR, Error, NO_LABEL, SlotKind, Transform, Value, hash_id};

/// Takes the values of a row, slot by slot; those of one slot come in their order.
pub trait Sink {
    /// A label.
    fn label(&mut self, slot: usize, value: i64);
    /// An id.
    fn id(&mut self, slot: usize, id: u64);
    /// A float.
    fn float(&mut self, slot: usize, value: f32);
}

/// The values of a row, by slot.
pub type Row = Vec<RowValues>;

/// The values of one slot.
#[derive(Debug, Clone, PartialEq)]
pub enum RowValues {
    /// Labels.
    Label(Vec<i64>),
    /// Ids.
    Ids(Vec<u64>),
    /// Floats.
    Floats(Vec<f32>),
}

impl RowValues {
    /// The ids; none if it is something else.
    pub fn ids(&self) -> &[u64] {
        match self {
            RowValues::Ids(ids) => ids,
            _ => &[],
        }
    }

    /// The floats; none if it is something else.
    pub fn floats(&self) -> &[f32] {
        match self {
            RowValues::Floats(floats) => floats,
            _ => &[],
        }
    }
}

impl Sink for Row {
    fn label(&mut self, slot: usize, value: i64) {
        if let RowValues::Label(values) = &mut self[slot] {
            values.push(value);
        }
    }

    fn id(&mut self, slot: usize, id: u64) {
        if let RowValues::Ids(ids) = &mut self[slot] {
            ids.push(id);
        }
    }

    fn float(&mut self, slot: usize, value: f32) {
        if let RowValues::Floats(values) = &mut self[slot] {
            values.push(value);
        }
    }
}

/// For values that are only checked.
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn label(&mut self, _: usize, _: i64) {}
    fn id(&mut self, _: usize, _: u64) {}
    fn float(&mut self, _: usize, _: f32) {}
}

impl Transform {
    /// Turns a row into values of slots. `row` has a value for each of [`Transform::columns`].
    ///
    /// # Errors
    /// The first value that its feature cannot take. What has been written then is incomplete.
    pub fn apply<S: Sink>(&self, row: &[Value<'_>], sink: &mut S) -> Result<(), Error> {
        self.apply_with(|column| row[column], sink)
    }

    /// As [`Transform::apply`], with a function that gives the value of a column by its number.
    ///
    /// # Errors
    /// As [`Transform::apply`].
    pub fn apply_with<'a, S: Sink>(
        &self,
        row: impl Fn(usize) -> Value<'a>,
        sink: &mut S,
    ) -> Result<(), Error> {
        self.plans.iter().try_for_each(|plan| plan.apply(&row, self.columns(), sink))
    }

    /// The values of one row, for people and tests.
    ///
    /// # Errors
    /// As [`Transform::apply`].
    pub fn row(&self, row: &[Value<'_>]) -> Result<Row, Error> {
        let empty = |kind: SlotKind| match kind {
            SlotKind::Label => RowValues::Label(Vec::new()),
            SlotKind::Floats(_) => RowValues::Floats(Vec::new()),
            SlotKind::Ids | SlotKind::FixedIds(_) => RowValues::Ids(Vec::new()),
        };
        let mut values: Row = self.slots().iter().map(|slot| empty(slot.kind)).collect();
        self.apply(row, &mut values)?;
        Ok(values)
    }
}

/// What a value should have been.
struct Wrong {
    expected: String,
    found: String,
}

impl Plan {
    #[inline]
    pub(crate) fn apply<'a, S: Sink>(
        &self,
        row: &impl Fn(usize) -> Value<'a>,
        columns: &[String],
        sink: &mut S,
    ) -> Result<(), Error> {
        let applied = match &self.rule {
            Rule::Float(scale) => {
                return self.columns.iter().try_for_each(|&column| {
                    let wrong = |wrong| value_error(wrong, column, columns);
                    self.floats(*scale, row(column), sink).map_err(wrong)
                });
            }
            Rule::Cross { buckets } => {
                return self
                    .cross(*buckets, row, sink)
                    .map_err(|(wrong, column)| value_error(wrong, column, columns));
            }
            Rule::Label { is_optional: true, .. }
                if self.given(row(self.columns[0])).is_missing() =>
            {
                sink.label(self.slot, NO_LABEL);
                Ok(())
            }
            Rule::Label { threshold, .. } => self.label(*threshold, row(self.columns[0]), sink),
            Rule::Text => {
                self.text(row(self.columns[0]), sink);
                Ok(())
            }
            _ => self.ids(row(self.columns[0]), sink),
        };
        applied.map_err(|wrong| value_error(wrong, self.columns[0], columns))
    }

    /// The value, or what counts where there is none.
    fn given<'a>(&'a self, value: Value<'a>) -> Value<'a> {
        match (&self.default, value.is_missing()) {
            (Some(default), true) => Value::Text(default.as_bytes()),
            (None, true) => Value::Missing,
            (_, false) => value,
        }
    }

    fn label<S: Sink>(
        &self,
        threshold: Option<f64>,
        value: Value<'_>,
        sink: &mut S,
    ) -> Result<(), Wrong> {
        let value = self.given(value);
        let number = value.number().filter(|x| x.is_finite());
        let label = match (threshold, number) {
            (Some(threshold), Some(x)) => i64::from(x >= threshold),
            (None, Some(x)) if x.fract() == 0.0 && x.abs() < 9e15 => x as i64,
            (Some(_), _) => return Err(wrong("a number for a label", value)),
            (None, _) => return Err(wrong("a label (a whole number)", value)),
        };
        sink.label(self.slot, label);
        Ok(())
    }

    /// The bytes of a text, or of the texts of a list with commas between them.
    fn text<S: Sink>(&self, value: Value<'_>, sink: &mut S) {
        let mut bytes = |text: &[u8]| text.iter().for_each(|b| sink.id(self.slot, (*b).into()));
        match value {
            Value::Text(text) => bytes(text.trim_ascii()),
            Value::List(values) => {
                for (i, value) in values.iter().enumerate() {
                    if i > 0 {
                        bytes(b",");
                    }
                    bytes(&value.key());
                }
            }
            other => bytes(&other.key()),
        }
    }

    fn floats<S: Sink>(&self, scale: Scale, value: Value<'_>, sink: &mut S) -> Result<(), Wrong> {
        let value = self.given(value);
        let (Some(length), Some(_)) = (self.length, self.split) else {
            sink.float(self.slot, scale.of(value)?);
            return Ok(());
        };
        if value.is_missing() {
            (0..length).for_each(|_| sink.float(self.slot, 0.0));
            return Ok(());
        }
        let mut n = 0;
        for part in parts(&value, self.split) {
            n += 1;
            if n <= length {
                sink.float(self.slot, scale.of(part)?);
            }
        }
        match n == length {
            true => Ok(()),
            false => Err(Wrong { expected: format!("{length} floats"), found: n.to_string() }),
        }
    }

    fn cross<'a, S: Sink>(
        &self,
        buckets: u64,
        row: &impl Fn(usize) -> Value<'a>,
        sink: &mut S,
    ) -> Result<(), (Wrong, usize)> {
        let mut text = Vec::with_capacity(64);
        for (i, &column) in self.columns.iter().enumerate() {
            let value = self.given(row(column));
            if value.is_missing() {
                sink.id(self.slot, 0);
                return Ok(());
            }
            if let Value::List(_) = value {
                return Err((wrong("one value", value), column));
            }
            if i > 0 {
                text.push(CROSS_SEPARATOR);
            }
            text.extend_from_slice(&value.key());
        }
        sink.id(self.slot, hash_id(&text, buckets));
        Ok(())
    }

    fn ids<S: Sink>(&self, value: Value<'_>, sink: &mut S) -> Result<(), Wrong> {
        let value = self.given(value);
        if self.weights.is_some() {
            return self.weighted(value, sink);
        }
        if !self.multi {
            if let Value::List([one]) = value {
                return self.one(*one, sink);
            }
            return self.one(value, sink);
        }
        let present = || parts(&value, self.split).filter(|part| !part.is_missing());
        let skip = self.length.map_or(0, |length| present().count().saturating_sub(length));
        let mut any = false;
        for part in present().skip(skip) {
            sink.id(self.slot, self.id(part)?);
            any = true;
        }
        if !any {
            sink.id(self.slot, 0);
        }
        Ok(())
    }

    fn one<S: Sink>(&self, value: Value<'_>, sink: &mut S) -> Result<(), Wrong> {
        let id = if value.is_missing() { 0 } else { self.id(value)? };
        sink.id(self.slot, id);
        Ok(())
    }

    /// Ids with their weights, filled up with id 0 and weight 0. With pooling mean the weights are
    /// divided by their sum.
    fn weighted<S: Sink>(&self, value: Value<'_>, sink: &mut S) -> Result<(), Wrong> {
        let (length, weights) = (self.length.unwrap_or(1), self.weights.unwrap_or_default());
        let mut pairs = Vec::with_capacity(length);
        for part in parts(&value, self.split).filter(|part| !part.is_missing()) {
            let (value, weight) = self.pair(part)?;
            pairs.push((self.id(value)?, weight));
        }
        let kept = &pairs[pairs.len().saturating_sub(length)..];
        let sum: f64 = kept.iter().map(|(_, weight)| weight.abs()).sum();
        let scale = if self.normalised && sum > 0.0 { 1.0 / sum } else { 1.0 };
        for i in 0..length {
            let (id, weight) = kept.get(i).copied().unwrap_or_default();
            sink.id(self.slot, id);
            sink.float(weights, (weight * scale) as f32);
        }
        Ok(())
    }

    /// A value and its weight: `value:weight`, or a list of both. Without a weight it is 1.
    fn pair<'a>(&self, part: Value<'a>) -> Result<(Value<'a>, f64), Wrong> {
        let (value, weight) = match part {
            Value::List([value, weight]) => (*value, *weight),
            Value::Text(text) => match text.iter().rposition(|b| Some(*b) == self.weight) {
                Some(at) => (Value::Text(&text[..at]), Value::Text(&text[at + 1..])),
                None => (part, Value::Int(1)),
            },
            _ => (part, Value::Int(1)),
        };
        match weight.number().filter(|w| w.is_finite()) {
            Some(weight) => Ok((value, weight)),
            None => Err(wrong("a weight", weight)),
        }
    }

    /// Whether a value that is there has an id of its own.
    pub(crate) fn is_known(&self, value: Value<'_>) -> bool {
        !matches!(&self.rule, Rule::Words(_)) || self.id(value).is_ok_and(|id| id > 1)
    }

    /// The id of a text that is there.
    pub(crate) fn id_of(&self, text: &[u8]) -> Option<u64> {
        self.id(Value::Text(text)).ok()
    }

    /// The id of one value that is there.
    #[inline]
    fn id(&self, value: Value<'_>) -> Result<u64, Wrong> {
        if let Value::List(_) = value {
            return Err(wrong("one value", value));
        }
        match &self.rule {
            Rule::Hash { buckets } => Ok(hash_id(&value.key(), *buckets)),
            Rule::Words(index) => Ok(index.get(&*value.key()).copied().unwrap_or(1)),
            Rule::Id { buckets } => match value.id().filter(|id| id < buckets) {
                Some(id) => Ok(id),
                None => Err(wrong(&format!("an id from 0 to {}", buckets - 1), value)),
            },
            Rule::Bounds(bounds) => match value.number().filter(|x| !x.is_nan()) {
                Some(x) => Ok(1 + bounds.partition_point(|bound| *bound <= x) as u64),
                None => Err(wrong("a number", value)),
            },
            Rule::Label { .. } | Rule::Cross { .. } | Rule::Float(_) | Rule::Text => {
                unreachable!("these have no ids of single values")
            }
        }
    }
}

impl Scale {
    fn of(self, value: Value<'_>) -> Result<f32, Wrong> {
        if value.is_missing() {
            return Ok(0.0);
        }
        let Some(x) = value.number() else { return Err(wrong("a number", value)) };
        let scaled = match self {
            Scale::Raw => x,
            Scale::Log => x.max(0.0).ln_1p(),
            Scale::Standard { mean, std } => (x - mean) / std,
        };
        match (scaled as f32).is_finite() {
            true => Ok(scaled as f32),
            false => Err(wrong("a finite number", value)),
        }
    }
}

/// The values of a list, or of a text that is divided at a byte.
pub(crate) fn parts<'a>(
    value: &'a Value<'a>,
    split: Option<u8>,
) -> impl Iterator<Item = Value<'a>> {
    let (list, text, one): (&[Value<'a>], _, _) = match (value, split) {
        (Value::List(values), _) => (values, None, None),
        (Value::Text(text), Some(separator)) => {
            (&[], Some(text.split(move |b| *b == separator)), None)
        }
        (Value::Missing, _) => (&[], None, None),
        (other, _) => (&[], None, Some(*other)),
    };
    list.iter().copied().chain(text.into_iter().flatten().map(Value::Text)).chain(one)
}

fn wrong(expected: &str, value: Value<'_>) -> Wrong {
    Wrong { expected: expected.to_string(), found: value.text() }
}

fn value_error(Wrong { expected, found }: Wrong, index: usize, columns: &[String]) -> Error {
    Error::Value { index, column: columns[index].clone(), expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bounds, Feature, Features, Kind, Learned, Moments, Pooling, Words};

    fn transform(features: Vec<Feature>) -> Transform {
        Transform::new(&Features::new(features).unwrap(), &Learned::default()).unwrap()
    }

    fn one(feature: Feature, text: &str) -> Result<Row, String> {
        transform(vec![feature]).row(&[Value::Text(text.as_bytes())]).map_err(|e| e.to_string())
    }

    fn ids(feature: &Feature, text: &str) -> Vec<u64> {
        one(feature.clone(), text).unwrap()[0].ids().to_vec()
    }

    #[test]
    fn values_become_ids() {
        let words: Vec<String> = ["red", "blue"].map(String::from).to_vec();
        let colour = Feature::new("c", Kind::Vocabulary(Words::Given(words.into())));
        assert_eq!(["red", "blue", "green", ""].map(|t| ids(&colour, t)[0]), [2, 3, 1, 0]);
        let age = Feature::new("a", Kind::Bucketize(Bounds::Given([18.0, 65.0].into())));
        assert_eq!(["17.9", "18", "65", "NULL"].map(|t| ids(&age, t)[0]), [1, 2, 3, 0]);
        let id = Feature::new("i", Kind::Id { buckets: 10 });
        assert_eq!(["9", "3.0", ""].map(|t| ids(&id, t)[0]), [9, 3, 0]);
        assert_eq!(
            one(id, "10").unwrap_err(),
            "column 'i': expected an id from 0 to 9, found '10'"
        );
    }

    #[test]
    fn lists_keep_their_last_values() {
        let tags = Feature::new("t", Kind::Id { buckets: 100 }).split_at(b'|').last(2);
        assert_eq!(ids(&tags, "1|2||3"), [2, 3]);
        assert_eq!(ids(&tags, ""), [0]);
        let default = Feature { default: Some("7|8".into()), ..tags.clone() };
        assert_eq!(ids(&default, ""), [7, 8]);
        let list = [Value::Int(4), Value::Missing, Value::Float(5.0)];
        assert_eq!(transform(vec![tags]).row(&[Value::List(&list)]).unwrap()[0].ids(), [4, 5]);
    }

    #[test]
    fn weights_stand_beside_ids() {
        let feature = Feature::new("w", Kind::Id { buckets: 100 });
        let feature = feature.split_at(b'|').weighted_by(b':').last(3);
        let row = one(feature.clone(), "5:0.5|6").unwrap();
        assert_eq!((row[0].ids(), row[1].floats()), (&[5, 6, 0][..], &[0.5, 1.0, 0.0][..]));
        let mean = Feature { pooling: Pooling::Mean, ..feature.clone() };
        assert_eq!(one(mean, "5:1|6:3").unwrap()[1].floats(), [0.25, 0.75, 0.0]);
        assert_eq!(one(feature, "5:x").unwrap_err(), "column 'w': expected a weight, found 'x'");
    }

    #[test]
    fn floats_are_scaled() {
        let row = |kind: Kind, text: &str| one(Feature::new("x", kind), text);
        let standard = Kind::Standardize(Moments::Given { mean: 10.0, std: 2.0 });
        assert_eq!(row(standard.clone(), "13").unwrap()[0].floats(), [1.5]);
        assert_eq!(row(standard, "").unwrap()[0].floats(), [0.0]);
        assert_eq!(row(Kind::Log, "-5").unwrap()[0].floats(), [0.0]);
        assert_eq!(row(Kind::Log, "1").unwrap()[0].floats(), [2.0_f32.ln()]);
        assert!(row(Kind::Raw, "1e300").is_err() && row(Kind::Raw, "x").is_err());
        let vector = Feature::new("v", Kind::Raw).split_at(b' ').last(2);
        assert_eq!(one(vector.clone(), "1 2.5").unwrap()[0].floats(), [1.0, 2.5]);
        assert_eq!(one(vector, "1 2 3").unwrap_err(), "column 'v': expected 2 floats, found 3");
    }

    #[test]
    fn labels_are_whole_numbers_or_over_a_threshold() {
        let label = |threshold| Feature::new("y", Kind::Label { threshold });
        assert_eq!(one(label(None), "1.0").unwrap()[0], RowValues::Label(vec![1]));
        assert_eq!(one(label(Some(4.0)), "3.5").unwrap()[0], RowValues::Label(vec![0]));
        assert_eq!(one(label(Some(4.0)), "4").unwrap()[0], RowValues::Label(vec![1]));
        assert!(one(label(None), "0.5").is_err() && one(label(None), "").is_err());
    }

    #[test]
    fn crosses_have_all_their_values_or_none() {
        let cross = Feature::new("ab", Kind::Cross { buckets: 1000 }).of_columns(["a", "b"]);
        let t = transform(vec![cross]);
        let id = |a: Value<'_>, b: Value<'_>| t.row(&[a, b]).unwrap()[0].ids()[0];
        let expected = hash_id(b"x\x1f5", 1000);
        assert_eq!(id(Value::Text(b"x"), Value::Int(5)), expected);
        assert_eq!(id(Value::Text(b"x"), Value::Text(b"5.0")), expected);
        assert_eq!(id(Value::Missing, Value::Int(5)), 0);
        let two = [Value::Int(1), Value::Int(2)];
        let e = t.row(&[Value::Int(1), Value::List(&two)]).unwrap_err().to_string();
        assert_eq!(e, "column 'b': expected one value, found a list of 2");
        let single = transform(vec![Feature::new("i", Kind::Hash { buckets: 10 })]);
        assert!(single.row(&[Value::List(&two)]).is_err());
        assert_eq!(single.row(&[Value::List(&two[..1])]), single.row(&[Value::Int(1)]));
    }

    #[test]
    fn a_default_that_is_no_value_is_refused() {
        let feature = Feature::new("i", Kind::Id { buckets: 10 });
        let features = Features::new(vec![Feature { default: Some("x".into()), ..feature }]);
        let e = Transform::new(&features.unwrap(), &Learned::default()).unwrap_err();
        let text = "feature 'i': its default should be an id from 0 to 9, but is 'x'";
        assert_eq!(e.to_string(), text);
    }

    #[test]
    fn what_predicts_needs_no_labels() {
        let features = vec![
            Feature::new("y", Kind::Label { threshold: None }).of_columns(["clicked"]),
            Feature::new("i", Kind::Hash { buckets: 10 }),
        ];
        let all = transform(features);
        let again = Transform::inputs_from_json(&all.to_json()).unwrap();
        assert_eq!(again.columns(), ["i"]);
        let row = again.row(&[Value::Text(b"a")]).unwrap();
        assert_eq!(row[0], all.row(&[Value::Text(b"0"), Value::Text(b"a")]).unwrap()[1]);
    }
}
