//! What a step is fed: a batch of a reader, or values by name.

use regatta_data::Batch;
use regatta_tensor::Value;

/// The inputs of one step.
#[derive(Debug)]
pub enum Input {
    /// From a reader, which gets it back.
    Batch(Batch),
    /// From a program that trains step by step.
    Feeds(Vec<(String, Value)>),
}

/// What there is to read.
#[derive(Debug)]
pub enum Next {
    /// The inputs of a step.
    Input(Input),
    /// Nothing now; the data pass continues later.
    Later,
    /// The data pass has no more batches.
    End,
}

impl From<Option<Batch>> for Next {
    fn from(batch: Option<Batch>) -> Next {
        batch.map_or(Next::End, |batch| Next::Input(Input::Batch(batch)))
    }
}

impl Input {
    /// Number of examples: the rows of the first value.
    pub fn examples(&self) -> usize {
        match self {
            Input::Batch(batch) => batch.examples(),
            Input::Feeds(feeds) => feeds.first().map_or(0, |(_, value)| match value {
                Value::Dense(t) => t.shape().first().copied().unwrap_or(1),
                Value::Ragged(r) => r.rows(),
            }),
        }
    }

    /// The file and the line up to which it was read, if it comes from files.
    pub fn read_up_to(&self) -> Option<String> {
        match self {
            Input::Batch(batch) => batch.read_up_to(),
            Input::Feeds(_) => None,
        }
    }

    /// Names and values.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (&str, &Value)> + '_> {
        match self {
            Input::Batch(batch) => Box::new(batch.iter()),
            Input::Feeds(feeds) => Box::new(feeds.iter().map(|(name, v)| (name.as_str(), v))),
        }
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Input::Batch(batch) => batch.get(name),
            Input::Feeds(feeds) => feeds.iter().find(|(n, _)| n == name).map(|(_, value)| value),
        }
    }
}
