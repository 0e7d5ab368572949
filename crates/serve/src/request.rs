//! The JSON of a request becomes rows, without a tree in between: numbers go straight to the
//! columns of their features. What does not fit is said with the feature, what it takes and what it
//! was given.

use std::borrow::Cow;
use std::fmt;

use regatta_tensor::Data;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::raw::RawExample;
use crate::rows::{Column, Rows};
use crate::{Feature, Kind};

/// The size of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestSize {
    /// Whether it is one example on its own.
    pub(crate) single: bool,
    pub(crate) n_rows: usize,
}

/// Appends the rows of a request to `rows`.
///
/// # Errors
/// If it is no JSON or does not fit the features; `rows` are then as before.
pub(crate) fn parse(body: &[u8], rows: &mut Rows) -> Result<RequestSize, String> {
    let before = rows.len();
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = Body { rows }.deserialize(&mut json).and_then(|asked| json.end().map(|()| asked));
    parsed.map_err(|error| {
        rows.truncate(before);
        error.to_string()
    })
}

struct Body<'r> {
    rows: &'r mut Rows,
}

impl<'de> DeserializeSeed<'de> for Body<'_> {
    type Value = RequestSize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<RequestSize, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = RequestSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"features\" (one example) or \"instances\" (several)")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RequestSize, M::Error> {
        let before = self.rows.len();
        let mut single = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let is_single = match &*key {
                "features" => true,
                "instances" => false,
                other => {
                    let what = format!("unknown key '{other}': \"features\" or \"instances\"");
                    return Err(M::Error::custom(what + " was expected"));
                }
            };
            if single.replace(is_single).is_some() {
                let what = "one of \"features\" and \"instances\" is expected, once";
                return Err(M::Error::custom(what));
            }
            match is_single {
                true => map.next_value_seed(Row { rows: self.rows })?,
                false => map.next_value_seed(Instances { rows: self.rows })?,
            }
        }
        let Some(single) = single else {
            return Err(M::Error::custom("\"features\" or \"instances\" is missing"));
        };
        Ok(RequestSize { single, n_rows: self.rows.len() - before })
    }
}

struct Instances<'r> {
    rows: &'r mut Rows,
}

impl<'de> DeserializeSeed<'de> for Instances<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Instances<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"instances\" to be an array of objects, each with the features of an example")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut instances: S) -> Result<(), S::Error> {
        let before = self.rows.len();
        while instances.next_element_seed(Row { rows: self.rows })?.is_some() {}
        if self.rows.len() == before {
            return Err(S::Error::custom("\"instances\" is empty"));
        }
        Ok(())
    }
}

/// The features of one example.
struct Row<'r> {
    rows: &'r mut Rows,
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        match self.rows.about.transform.clone() {
            Some(transform) => json.deserialize_map(RawExample { rows: self.rows, transform }),
            None => json.deserialize_map(self),
        }
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the features of an example")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let about = self.rows.about.clone();
        let mut guess = 0;
        while let Some(at) = map.next_key_seed(Name { rows: self.rows, guess })? {
            guess = at + 1;
            let feature = &about.features[at];
            if self.rows.has(at) {
                let what = format!("feature '{}' is given twice", feature.name);
                return Err(M::Error::custom(what));
            }
            let column = &mut self.rows.columns[at];
            map.next_value_seed(Values { feature, column })?;
        }
        self.rows.end_row().map_err(|Feature { name, kind }| {
            M::Error::custom(format!("feature '{name}' ({kind}) is missing"))
        })
    }
}

/// A name becomes the number of a column.
struct Name<'r> {
    rows: &'r Rows,
    guess: usize,
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<usize, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a feature")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<usize, E> {
        self.rows.find(name, self.guess).ok_or_else(|| E::custom(unknown(name, self.rows)))
    }
}

fn unknown(name: &str, rows: &Rows) -> String {
    let names = || rows.about.features.iter().map(|feature| feature.name.as_str());
    match regatta_ir::nearest(name, names()) {
        Some(near) => format!("the model has no feature '{name}'; did you mean '{near}'?"),
        None => {
            let known: Vec<&str> = names().collect();
            format!("the model has no feature '{name}'; its features are {}", known.join(", "))
        }
    }
}

/// The values of one feature of one example: an array, or a number on its own.
struct Values<'r> {
    feature: &'r Feature,
    column: &'r mut Column,
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl Values<'_> {
    fn wrong_count<E: serde::de::Error>(&self, found: usize) -> E {
        let Feature { name, kind } = self.feature;
        let verb = if found == 1 { "was" } else { "were" };
        E::custom(format!("feature '{name}' takes {kind}, but {found} {verb} given"))
    }

    fn one<E: serde::de::Error>(
        self,
        push: impl FnOnce(Number<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.feature.kind.width().is_some_and(|width| width != 1) {
            return Err(self.wrong_count(1));
        }
        push(Number { feature: self.feature, values: &mut self.column.values })?;
        self.column.end_row();
        Ok(())
    }
}

impl<'de> Visitor<'de> for Values<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for feature '{}'", self.feature.kind, self.feature.name)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut values: S) -> Result<(), S::Error> {
        let limit = self.feature.kind.width().unwrap_or(usize::MAX);
        let mut found = 0;
        while found < limit {
            let number = Number { feature: self.feature, values: &mut self.column.values };
            if values.next_element_seed(number)?.is_none() {
                break;
            }
            found += 1;
        }
        while values.next_element::<IgnoredAny>()?.is_some() {
            found += 1;
        }
        if self.feature.kind.width().is_some_and(|width| width != found) {
            return Err(self.wrong_count(found));
        }
        self.column.end_row();
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, x: u64) -> Result<(), E> {
        self.one(|number| number.visit_u64(x))
    }

    fn visit_i64<E: serde::de::Error>(self, x: i64) -> Result<(), E> {
        self.one(|number| number.visit_i64(x))
    }

    fn visit_f64<E: serde::de::Error>(self, x: f64) -> Result<(), E> {
        self.one(|number| number.visit_f64(x))
    }
}

/// One number of a feature.
struct Number<'r> {
    feature: &'r Feature,
    values: &'r mut Data,
}

impl Number<'_> {
    fn wrong<E: serde::de::Error>(&self, found: impl fmt::Display) -> E {
        let what = match self.feature.kind {
            Kind::Ids(_) | Kind::RaggedIds => "ids are whole numbers from 0 to 2^64-1",
            Kind::Ints(_) => "integers are whole numbers of 64 bits",
            Kind::Floats(_) => "floats are numbers of single precision",
        };
        E::custom(format!("feature '{}': {what}, but {found} was given", self.feature.name))
    }
}

impl<'de> DeserializeSeed<'de> for Number<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl Visitor<'_> for Number<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number, because feature '{}' takes {}", self.feature.name, self.feature.kind)
    }

    fn visit_u64<E: serde::de::Error>(self, x: u64) -> Result<(), E> {
        match self.values {
            Data::U64(v) => v.push(x),
            Data::F32(v) => v.push(x as f32),
            Data::I64(v) => match i64::try_from(x) {
                Ok(x) => v.push(x),
                Err(_) => return Err(self.wrong(x)),
            },
            Data::F16(_) | Data::BF16(_) => unreachable!("no feature has this type"),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, x: i64) -> Result<(), E> {
        match self.values {
            Data::I64(v) => v.push(x),
            Data::F32(v) => v.push(x as f32),
            _ => return Err(self.wrong(x)),
        }
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, x: f64) -> Result<(), E> {
        match self.values {
            Data::F32(v) if (x as f32).is_finite() => v.push(x as f32),
            _ => return Err(self.wrong(x)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn rows() -> Rows {
        let features = vec![
            Feature { name: "C1".into(), kind: Kind::Ids(1) },
            Feature { name: "dense_input".into(), kind: Kind::Floats(3) },
            Feature { name: "tags".into(), kind: Kind::RaggedIds },
        ];
        Rows::new(Arc::new(crate::worker::tests::about(features)))
    }

    #[test]
    fn features_may_come_in_any_order() {
        let mut rows = rows();
        let body = br#"{"features": {"tags": [], "dense_input": [1, -2, 0.5], "C1": 7}}"#;
        assert_eq!(parse(body, &mut rows), Ok(RequestSize { single: true, n_rows: 1 }));
        assert_eq!(rows.columns[0].values, Data::U64(vec![7]));
        assert_eq!(rows.columns[1].values, Data::F32(vec![1.0, -2.0, 0.5]));
    }

    #[test]
    fn the_largest_id_is_not_rounded() {
        let mut rows = rows();
        let body = br#"{"features":{"C1":[18446744073709551615],"dense_input":[0,0,0],"tags":3}}"#;
        parse(body, &mut rows).unwrap();
        assert_eq!(rows.columns[0].values, Data::U64(vec![u64::MAX]));
    }

    #[test]
    fn mistakes_are_named_and_leave_no_rows() {
        let good = r#"{"C1":[1],"dense_input":[1,2,3],"tags":[4]}"#;
        let cases = [
            (r#"{"features":{"C2":[1]}}"#, "the model has no feature 'C2'; did you mean 'C1'?"),
            (
                r#"{"features":{"something":[1]}}"#,
                "no feature 'something'; its features are C1, dense_input, tags",
            ),
            (
                r#"{"features":{"C1":[1],"dense_input":[1,2],"tags":[]}}"#,
                "feature 'dense_input' takes 3 floats, but 2 were given",
            ),
            (r#"{"features":{"C1":[1,2,3]}}"#, "feature 'C1' takes 1 id, but 3 were given"),
            (r#"{"features":{"dense_input":1}}"#, "takes 3 floats, but 1 was given"),
            (r#"{"features":{"C1":[-1]}}"#, "whole numbers from 0 to 2^64-1, but -1 was given"),
            (r#"{"features":{"C1":[1.5]}}"#, "but 1.5 was given"),
            (r#"{"features":{"C1":["a"]}}"#, "expected a number, because feature 'C1' takes 1 id"),
            (r#"{"features":{"C1":"a"}}"#, "expected 1 id for feature 'C1'"),
            (r#"{"features":{"dense_input":[1,2,1e39]}}"#, "single precision"),
            (r#"{"features":{"C1":[1],"C1":[1]}}"#, "feature 'C1' is given twice"),
            (r#"{"features":{"C1":[1],"tags":[]}}"#, "'dense_input' (3 floats) is missing"),
            (r#"{"feature":{}}"#, "unknown key 'feature'"),
            (r#"{}"#, "is missing"),
            (r#"{"instances":[]}"#, "\"instances\" is empty"),
            (r#"{"instances":{}}"#, "\"instances\" to be an array"),
            (r#"[1]"#, "an object with \"features\""),
            (r#"{"features":{"C1":[1"#, "EOF"),
            ("", "EOF"),
        ];
        let mut rows = rows();
        parse(format!(r#"{{"features":{good}}}"#).as_bytes(), &mut rows).unwrap();
        for (body, expected) in cases {
            let error = parse(body.as_bytes(), &mut rows).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
            assert_eq!(rows.len(), 1);
        }
        let second = format!(r#"{{"instances":[{good},{good},{{"C1":1}}]}}"#);
        assert!(parse(second.as_bytes(), &mut rows).unwrap_err().contains("is missing"));
        let trailing = format!(r#"{{"features":{good}}} x"#);
        assert!(parse(trailing.as_bytes(), &mut rows).unwrap_err().contains("trailing"));
        assert_eq!(rows.columns[1].values.len(), 3);
        assert_eq!(rows.columns[2].values.len(), 1);
        let third = format!(r#"{{"instances":[{good},{good}]}}"#);
        assert_eq!(
            parse(third.as_bytes(), &mut rows),
            Ok(RequestSize { single: false, n_rows: 2 })
        );
        assert_eq!(rows.columns[2].values, Data::U64(vec![4, 4, 4]));
    }
}
