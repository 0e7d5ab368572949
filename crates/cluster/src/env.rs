//! Where variables are looked up: the real environment, or one that a test or a launcher made.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::Error;

/// A set of environment variables. A variable that is empty or blank counts as not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// The environment of this process, as it is now. Variables that are not Unicode are left out.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn process() -> Env {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Env(std::env::vars_os().filter_map(text).collect())
    }

    /// The same with another value of a variable, as flags of a program may say it.
    pub fn with(mut self, name: &str, value: impl ToString) -> Env {
        self.0.insert(name.to_string(), value.to_string());
        self
    }

    /// The value of a variable without blanks around it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A value as a number or another type that is made from text.
    ///
    /// # Errors
    /// If the variable is set to something else; `what` says what it must be.
    pub fn parse<T: FromStr>(&self, name: &str, what: &str) -> Result<Option<T>, Error> {
        self.get(name)
            .map(|value| {
                value.parse().map_err(|_| Error::invalid(name, value, format!("it must be {what}")))
            })
            .transpose()
    }

    /// The first of these variables that is set.
    pub(crate) fn first_set<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        names.iter().find(|name| self.get(name).is_some()).copied()
    }

    pub(crate) fn required(&self, name: &str, why: &str) -> Result<&str, Error> {
        self.get(name).ok_or_else(|| Error::missing(name, why))
    }

    pub(crate) fn count(&self, name: &str) -> Result<Option<usize>, Error> {
        match self.parse::<usize>(name, "a whole number")? {
            Some(0) => Err(Error::invalid(name, "0", "it must be at least 1")),
            found => Ok(found),
        }
    }

    pub(crate) fn index(&self, name: &str) -> Result<Option<usize>, Error> {
        self.parse(name, "a whole number from 0")
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Env {
        Env(pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

impl<K: Into<String>, V: Into<String>, const N: usize> From<[(K, V); N]> for Env {
    fn from(pairs: [(K, V); N]) -> Env {
        pairs.into_iter().collect()
    }
}
