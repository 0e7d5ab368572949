//! `synthetic://FAMILY?parameter=value&...`: parameters with defaults, ranges and spelling help.

use std::fmt;

use crate::Error;

pub(super) const SCHEME: &str = "synthetic://";

/// A parameter of a synthetic source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// Its name in the URL.
    pub name: &'static str,
    /// Its value if the URL does not set it.
    pub default: f64,
    /// The least value allowed.
    pub min: f64,
    /// The largest value allowed.
    pub max: f64,
    /// Whether it must be an integer.
    pub integer: bool,
    /// What it is.
    pub what: &'static str,
}

impl Parameter {
    /// An integer from `min` up to 10^15, which `f64` holds exactly.
    pub(super) const fn integer(
        name: &'static str,
        default: u64,
        min: u64,
        what: &'static str,
    ) -> Parameter {
        Parameter { name, default: default as f64, min: min as f64, max: 1e15, integer: true, what }
    }

    /// An integer that sizes something in memory, so a million is the most.
    pub(super) const fn size(
        name: &'static str,
        default: u64,
        min: u64,
        what: &'static str,
    ) -> Parameter {
        Parameter { max: 1e6, ..Parameter::integer(name, default, min, what) }
    }
}

pub(super) const EXAMPLES: Parameter =
    Parameter::integer("examples", 100_000, 1, "number of examples");
pub(super) const FIRST: Parameter = Parameter::integer(
    "first",
    0,
    0,
    "index of the first example; test data begin after the training data",
);
pub(super) const SEED: Parameter =
    Parameter::integer("seed", 1, 0, "the hidden model and all random numbers follow from it");

/// A URL with a value for each parameter of its family.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Url {
    family: &'static str,
    values: Vec<(Parameter, f64)>,
}

impl Url {
    /// The family that a URL names.
    pub(super) fn family(text: &str) -> Result<&str, Error> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| {
            Error::config(format!("{text}: a synthetic source begins with {SCHEME}"))
        })?;
        Ok(rest.split('?').next().unwrap_or(rest))
    }

    pub(super) fn parse(
        text: &str,
        family: &'static str,
        parameters: &[Parameter],
    ) -> Result<Url, Error> {
        let mut values: Vec<(Parameter, f64)> =
            parameters.iter().map(|p| (*p, p.default)).collect();
        let query = text.split_once('?').map_or("", |(_, query)| query);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let bad = |what: String| Error::config(format!("{text}: {what}"));
            let Some((name, value)) = pair.split_once('=') else {
                return Err(bad(format!("expected parameter=value, found '{pair}'")));
            };
            let Some((parameter, place)) = values.iter_mut().find(|(p, _)| p.name == name) else {
                let names: Vec<&str> = parameters.iter().map(|p| p.name).collect();
                let nearest = nearest(name, &names);
                let what = format!("unknown parameter '{name}' (did you mean '{nearest}'?)");
                return Err(bad(format!("{what}; known are {}", names.join(", "))));
            };
            *place = value
                .parse()
                .ok()
                .filter(|v: &f64| (parameter.min..=parameter.max).contains(v))
                .filter(|v| !parameter.integer || v.fract() == 0.0)
                .ok_or_else(|| {
                    let kind = if parameter.integer { "an integer" } else { "a number" };
                    let (min, max) = (parameter.min, parameter.max);
                    bad(format!("{name} must be {kind} from {min} to {max}, found '{value}'"))
                })?;
        }
        Ok(Url { family, values })
    }

    /// The value of a parameter.
    pub(super) fn number(&self, name: &str) -> f64 {
        let found = self.values.iter().find(|(p, _)| p.name == name);
        found.unwrap_or_else(|| panic!("{} has no parameter '{name}'", self.family)).1
    }

    /// The value of an integer parameter.
    pub(super) fn integer(&self, name: &str) -> u64 {
        self.number(name) as u64
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.family)?;
        for (i, (parameter, value)) in self.values.iter().enumerate() {
            write!(f, "{}{}={value}", if i == 0 { '?' } else { '&' }, parameter.name)?;
        }
        Ok(())
    }
}

/// The known name that takes the fewest edits to get to from `name`.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> &'a str {
    known.iter().min_by_key(|k| edits(name, k)).copied().unwrap_or("")
}

/// Letters to insert, delete or change (Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use crate::Synthetic;

    fn error(url: &str) -> String {
        Synthetic::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_are_explained() {
        assert!(error("synthetic://crt").ends_with("'crt' (did you mean 'ctr'?)"));
        let unknown = error("synthetic://ctr?vocap=3");
        assert!(unknown.contains("unknown parameter 'vocap' (did you mean 'vocab'?)"), "{unknown}");
        assert!(unknown.contains("known are examples, first, "), "{unknown}");
        assert!(
            error("synthetic://ctr?slots").ends_with("expected parameter=value, found 'slots'")
        );
        let range = error("synthetic://ctr?slots=0");
        assert!(
            range.ends_with("slots must be an integer from 1 to 1000000, found '0'"),
            "{range}"
        );
        assert!(error("synthetic://ctr?slots=1.5").contains("must be an integer"));
        assert!(error("synthetic://ctr?zipf=x").contains("must be a number"));
        assert!(error("data/train").ends_with("begins with synthetic://"));
    }

    #[test]
    fn every_family_has_defaults_and_prints_as_a_url() {
        for family in Synthetic::families() {
            let source = Synthetic::parse(&format!("synthetic://{family}")).unwrap();
            let again = Synthetic::parse(&source.to_string()).unwrap();
            assert_eq!(source.url, again.url);
            assert!(Synthetic::parameters(family).is_some());
        }
    }
}
