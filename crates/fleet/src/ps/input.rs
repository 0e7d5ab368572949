//! What a step is fed: a batch of a reader, or values by name.

use regatta_data::Batch;
use regatta_tensor::Value;

/// The inputs of one step.
pub(super) enum Input {
    /// From a reader, which gets it back.
    Batch(Batch),
    /// From the program that trains.
    Feeds(Vec<(String, Value)>),
}

impl Input {
    /// Number of examples: the rows of the first value.
    pub(super) fn examples(&self) -> usize {
        match self {
            Input::Batch(batch) => batch.examples(),
            Input::Feeds(feeds) => feeds.first().map_or(0, |(_, value)| match value {
                Value::Dense(t) => t.shape().first().copied().unwrap_or(1),
                Value::Ragged(r) => r.rows(),
            }),
        }
    }

    /// Names and values.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = (&str, &Value)> + '_> {
        match self {
            Input::Batch(batch) => Box::new(batch.iter()),
            Input::Feeds(feeds) => Box::new(feeds.iter().map(|(name, v)| (name.as_str(), v))),
        }
    }

    /// The value of that name.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Input::Batch(batch) => batch.get(name),
            Input::Feeds(feeds) => feeds.iter().find(|(n, _)| n == name).map(|(_, value)| value),
        }
    }
}
