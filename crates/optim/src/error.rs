//! What can be wrong with a configuration: in goes a field and its value, out comes an [`Error`].

/// A configuration that no training run can use.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number is outside of the range in which the formula means something.
    #[error("{of}: `{field}` is {value}, expected {expected}")]
    OutOfRange {
        /// The rule or schedule, by its configuration name.
        of: &'static str,
        /// The field, as it is written in a configuration file.
        field: &'static str,
        /// What was written.
        value: f64,
        /// What may be written.
        expected: &'static str,
    },
    /// Two bounds, or two entries of a list, are in the wrong order.
    #[error("{of}: `{field}` must rise, but {previous} is followed by {next}")]
    NotRising {
        /// The rule or schedule, by its configuration name.
        of: &'static str,
        /// The field, as it is written in a configuration file.
        field: &'static str,
        /// The entry before.
        previous: f64,
        /// The entry that should have been larger.
        next: f64,
    },
    /// A list has the wrong number of entries.
    #[error("{of}: `{field}` has {actual} entries, expected {expected}")]
    WrongCount {
        /// The rule or schedule, by its configuration name.
        of: &'static str,
        /// The field, as it is written in a configuration file.
        field: &'static str,
        /// How many there are.
        actual: usize,
        /// How many there must be.
        expected: usize,
    },
}

/// Checks the fields of one configuration; `of` is its name in messages.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) of: &'static str,
}

impl Check {
    fn require(self, ok: bool, field: &'static str, value: f64, expected: &'static str) -> Result {
        if ok { Ok(()) } else { Err(Error::OutOfRange { of: self.of, field, value, expected }) }
    }

    /// Finite and at least zero.
    pub(crate) fn non_negative(self, field: &'static str, value: impl Into<f64>) -> Result {
        let v = value.into();
        self.require(v.is_finite() && v >= 0.0, field, v, "a finite number >= 0")
    }

    /// Finite and greater than zero.
    pub(crate) fn positive(self, field: &'static str, value: impl Into<f64>) -> Result {
        let v = value.into();
        self.require(v.is_finite() && v > 0.0, field, v, "a finite number > 0")
    }

    /// Finite and not greater than zero.
    pub(crate) fn non_positive(self, field: &'static str, value: impl Into<f64>) -> Result {
        let v = value.into();
        self.require(v.is_finite() && v <= 0.0, field, v, "a finite number <= 0")
    }

    /// A decay rate: at least 0 and below 1.
    pub(crate) fn decay(self, field: &'static str, value: impl Into<f64>) -> Result {
        let v = value.into();
        self.require((0.0..1.0).contains(&v), field, v, "0 <= value < 1")
    }

    /// A decay rate that may also be 1, for sums that never forget.
    pub(crate) fn decay_or_one(self, field: &'static str, value: impl Into<f64>) -> Result {
        let v = value.into();
        self.require((0.0..=1.0).contains(&v), field, v, "0 <= value <= 1")
    }

    /// A count of at least one.
    pub(crate) fn at_least_one(self, field: &'static str, value: u64) -> Result {
        self.require(value > 0, field, value as f64, "at least 1")
    }

    /// `next` comes after `previous`.
    pub(crate) fn rising(self, field: &'static str, previous: f64, next: f64) -> Result {
        if previous < next {
            Ok(())
        } else {
            Err(Error::NotRising { of: self.of, field, previous, next })
        }
    }
}

type Result = std::result::Result<(), Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_rule_the_field_and_the_value() {
        let check = Check { of: "adam" };
        let error = check.decay("beta1", 1.5).unwrap_err();
        assert_eq!(error.to_string(), "adam: `beta1` is 1.5, expected 0 <= value < 1");
        let error = check.rising("boundaries", 20.0, 10.0).unwrap_err();
        assert_eq!(error.to_string(), "adam: `boundaries` must rise, but 20 is followed by 10");
    }

    #[test]
    fn nan_passes_no_check() {
        let check = Check { of: "x" };
        assert!(check.non_negative("f", f64::NAN).is_err());
        assert!(check.positive("f", f64::NAN).is_err());
        assert!(check.non_positive("f", f64::NAN).is_err());
        assert!(check.decay("f", f64::NAN).is_err());
        assert!(check.decay_or_one("f", f64::NAN).is_err());
        assert!(check.rising("f", f64::NAN, 1.0).is_err());
    }
}
