//! What can be wrong with the variables of a process.

/// A variable that is missing, senseless, or contradicts another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable that others need is not there.
    #[error("{name} is not set: {why}")]
    Missing {
        /// The variable.
        name: String,
        /// What it is needed for.
        why: String,
    },
    /// A value that cannot be understood.
    #[error("{name} is '{value}': {reason}")]
    Invalid {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What it should be.
        reason: String,
    },
    /// A secret that protects nothing. It is not printed.
    #[error("{source_name}: {problem}")]
    Token {
        /// The variable or file that it came from.
        source_name: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Two variables that cannot both be right.
    #[error("{first} and {second} contradict each other: {reason}")]
    Contradiction {
        /// One variable.
        first: String,
        /// The other one.
        second: String,
        /// How.
        reason: String,
    },
}

impl Error {
    pub(crate) fn missing(name: &str, why: impl Into<String>) -> Error {
        Error::Missing { name: name.into(), why: why.into() }
    }

    pub(crate) fn invalid(name: &str, value: &str, reason: impl Into<String>) -> Error {
        Error::Invalid { name: name.into(), value: value.into(), reason: reason.into() }
    }

    pub(crate) fn contradiction(first: &str, second: &str, reason: impl Into<String>) -> Error {
        Error::Contradiction { first: first.into(), second: second.into(), reason: reason.into() }
    }
}
