//! The hyper-parameters of a model: which there are, and what the user wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use regatta_features::Features;

use crate::Error;
use crate::config::FeatureSet;

/// A hyper-parameter that a model reads, with its default.
#[derive(Debug, Clone, Copy)]
pub struct HyperKey {
    /// Name under `hyper_parameters`.
    pub name: &'static str,
    /// Value when the file does not say, and the type of any value.
    pub default: HyperDefault,
    /// The largest integer that it takes; it counts for every integer of a list.
    pub max: i64,
    /// What it means, in a line.
    pub doc: &'static str,
}

/// The default of a hyper-parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HyperDefault {
    /// Integer.
    Int(i64),
    /// Float.
    Float(f64),
    /// Truth value; YAML's 0 and 1 count too.
    Bool(bool),
    /// Text.
    Str(&'static str),
    /// Integers.
    Ints(&'static [i64]),
    /// Texts.
    Strs(&'static [&'static str]),
}

/// The value of a hyper-parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum HyperValue {
    /// Integer.
    Int(i64),
    /// Float.
    Float(f64),
    /// Truth value.
    Bool(bool),
    /// Text.
    Str(String),
    /// Integers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Texts.
    Strs(Vec<String>),
}

impl From<HyperDefault> for HyperValue {
    fn from(default: HyperDefault) -> HyperValue {
        match default {
            HyperDefault::Int(x) => HyperValue::Int(x),
            HyperDefault::Float(x) => HyperValue::Float(x),
            HyperDefault::Bool(x) => HyperValue::Bool(x),
            HyperDefault::Str(x) => HyperValue::Str(x.to_string()),
            HyperDefault::Ints(x) => HyperValue::Ints(x.to_vec()),
            HyperDefault::Strs(x) => HyperValue::Strs(x.iter().map(|x| x.to_string()).collect()),
        }
    }
}

/// The resolved hyper-parameters of a model: every key it knows has a value of the right type. Its
/// inputs are among them: those that follow from these values, or declared features.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Hyper {
    values: BTreeMap<String, HyperValue>,
    features: Option<Arc<FeatureSet>>,
}

impl Hyper {
    /// The defaults of the given keys.
    pub fn defaults(keys: &[HyperKey]) -> Hyper {
        let values = keys.iter().map(|k| (k.name.to_string(), k.default.into())).collect();
        Hyper { values, features: None }
    }

    /// Sets a value; integers are taken for floats and 0/1 for truth values.
    ///
    /// # Errors
    /// If the key is not known or the value is of another type.
    pub fn set(&mut self, name: &str, value: HyperValue) -> Result<(), Error> {
        let key = || format!("hyper_parameters.{name}");
        let Some(old) = self.values.get_mut(name) else {
            return Err(Error::key(key(), "this model has no such hyper-parameter"));
        };
        *old = match (&*old, value) {
            (HyperValue::Float(_), HyperValue::Int(x)) => HyperValue::Float(x as f64),
            (HyperValue::Bool(_), HyperValue::Int(x @ (0 | 1))) => HyperValue::Bool(x == 1),
            (HyperValue::Ints(_), HyperValue::Int(x)) => HyperValue::Ints(vec![x]),
            (HyperValue::Strs(_), HyperValue::Str(x)) => HyperValue::Strs(vec![x]),
            (old, value) if std::mem::discriminant(old) == std::mem::discriminant(&value) => value,
            (old, value) => {
                return Err(Error::key(key(), format!("should be like {old:?}, but is {value:?}")));
            }
        };
        Ok(())
    }

    /// The same with declared features as inputs.
    #[must_use]
    pub fn with_features(self, features: Option<Arc<FeatureSet>>) -> Hyper {
        Hyper { features, ..self }
    }

    /// The declared features, if there are any.
    pub fn features(&self) -> Option<&Features> {
        self.features.as_ref().map(|set| &set.features)
    }

    /// Names and values in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HyperValue)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// An integer, if the model has such a key.
    pub fn find_int(&self, name: &str) -> Option<i64> {
        match self.values.get(name)? {
            HyperValue::Int(x) => Some(*x),
            _ => None,
        }
    }

    fn get(&self, name: &str) -> &HyperValue {
        let found = self.values.get(name);
        found.unwrap_or_else(|| panic!("the model reads '{name}' but does not list it as a key"))
    }

    /// An integer.
    ///
    /// # Panics
    /// If the model does not list the key as an integer; so for all the getters.
    pub fn int(&self, name: &str) -> i64 {
        match self.get(name) {
            HyperValue::Int(x) => *x,
            other => panic!("'{name}' is {other:?}, not an integer"),
        }
    }

    /// A size that must be at least 1.
    ///
    /// # Errors
    /// If it is not.
    pub fn size(&self, name: &str) -> Result<i64, Error> {
        let value = self.int(name);
        if value >= 1 {
            return Ok(value);
        }
        Err(Error::key(format!("hyper_parameters.{name}"), format!("is {value}, not at least 1")))
    }

    /// A float.
    pub fn float(&self, name: &str) -> f64 {
        match self.get(name) {
            HyperValue::Float(x) => *x,
            other => panic!("'{name}' is {other:?}, not a float"),
        }
    }

    /// A truth value.
    pub fn bool(&self, name: &str) -> bool {
        match self.get(name) {
            HyperValue::Bool(x) => *x,
            other => panic!("'{name}' is {other:?}, not a truth value"),
        }
    }

    /// A text.
    pub fn str(&self, name: &str) -> &str {
        match self.get(name) {
            HyperValue::Str(x) => x,
            other => panic!("'{name}' is {other:?}, not a text"),
        }
    }

    /// Texts.
    pub fn strs(&self, name: &str) -> &[String] {
        match self.get(name) {
            HyperValue::Strs(x) => x,
            other => panic!("'{name}' is {other:?}, not a list of texts"),
        }
    }

    /// Integers.
    pub fn ints(&self, name: &str) -> &[i64] {
        match self.get(name) {
            HyperValue::Ints(x) => x,
            other => panic!("'{name}' is {other:?}, not a list of integers"),
        }
    }
}
