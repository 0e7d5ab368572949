//! What is served: a source of models, a model, and one thread's use of it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use regatta_features::Transform;
use regatta_tensor::{Tensor, Value};

/// Where models come from.
pub trait Source: Send + Sync {
    /// Opens the model that is there now.
    ///
    /// # Errors
    /// If there is none, or it cannot be used; the message names the file.
    fn open(&self) -> Result<Arc<dyn Model>, String>;

    /// Something that differs when there is another model; nothing while one is being replaced.
    fn stamp(&self) -> Option<Vec<u8>>;
}

/// A model, shared by all threads.
pub trait Model: Send + Sync {
    /// What there is to say about it.
    fn about(&self) -> Arc<About>;

    /// A scorer for one thread.
    ///
    /// # Errors
    /// If the model cannot be run.
    fn scorer(&self) -> Result<Box<dyn Scorer>, String>;
}

/// One thread's use of a model.
pub trait Scorer: Send {
    /// One tensor per output, each with as many rows as the values of `batch`.
    ///
    /// # Errors
    /// If this batch cannot be scored. The scorer can be used on.
    fn score(&mut self, batch: &[(&str, &Value)]) -> Result<&[Tensor], ScoreError>;

    /// How many ids had no row so far.
    fn missing_ids(&self) -> u64;
}

/// Why a batch was not scored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScoreError {
    /// The batch is wrong.
    #[error("{0}")]
    Input(String),
    /// The model is.
    #[error("{0}")]
    Internal(String),
}

/// What there is to say about a model.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Number of the checkpoint that it was made of.
    pub serial: Option<u64>,
    /// Steps of training.
    pub step: Option<u64>,
    /// What it takes.
    pub features: Vec<Feature>,
    /// What makes that of the raw values of a request, if its features were declared.
    pub transform: Option<Arc<Transform>>,
    /// Names of what it gives.
    pub outputs: Vec<String>,
}

/// An input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// What it takes.
    pub kind: Kind,
}

/// What a feature takes for each example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// N ids.
    Ids(usize),
    /// Any number of ids.
    RaggedIds,
    /// N floats.
    Floats(usize),
    /// N whole numbers.
    Ints(usize),
}

impl Kind {
    /// Values per example, if that is fixed.
    pub fn width(self) -> Option<usize> {
        match self {
            Kind::RaggedIds => None,
            Kind::Ids(n) | Kind::Floats(n) | Kind::Ints(n) => Some(n),
        }
    }

    /// The word for what it takes, as `/model` says it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Ids(_) | Kind::RaggedIds => "ids",
            Kind::Floats(_) => "floats",
            Kind::Ints(_) => "integers",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = match self {
            Kind::RaggedIds => return f.write_str("any number of ids"),
            Kind::Ids(_) => "id",
            Kind::Floats(_) => "float",
            Kind::Ints(_) => "integer",
        };
        let n = self.width().unwrap_or(0);
        write!(f, "{n} {noun}{}", if n == 1 { "" } else { "s" })
    }
}

impl About {
    /// Which of several it is, in words to be put behind the name.
    pub(crate) fn age(&self) -> String {
        let serial = self.serial.map(|serial| format!(", checkpoint {serial}"));
        let step = self.step.map(|step| format!(", step {step}"));
        serial.unwrap_or_default() + &step.unwrap_or_default()
    }
}
