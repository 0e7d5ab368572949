//! The models, one file each: hyper-parameters by PaddleRec's names, inputs, and the network as
//! layers of the program builder.

mod dnn;
pub mod layers;

use regatta_data::Schema;
use regatta_ir::{Builder, Var};

use crate::{Error, Hyper, HyperKey};

/// A model of the zoo.
pub struct Model {
    /// Its name, which is also the name of its folder in PaddleRec.
    pub name: &'static str,
    /// `rank`, `recall`, `match` or `multitask`.
    pub group: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// The hyper-parameters that it reads.
    pub keys: &'static [HyperKey],
    /// What an example looks like.
    pub schema: fn(&Hyper) -> Result<Schema, Error>,
    /// The network.
    pub build: fn(&Hyper, &mut Builder) -> Result<Net, Error>,
    /// How a trained model is judged on test data.
    pub evaluation: Evaluation,
}

/// What a network offers to training and evaluation.
pub struct Net {
    /// The number to make small.
    pub loss: Var,
    /// Predictions with the labels they are judged by.
    pub heads: Vec<Head>,
}

/// One prediction.
pub struct Head {
    /// Name of its metric in reports: `auc`, `auc_ctr`, `rmse`, ...
    pub metric: &'static str,
    /// How it is judged.
    pub kind: Metric,
    /// Probabilities `[batch, 1]` (or `[batch, 2]`, the last column being the positive class), or
    /// values for regression.
    pub predict: Var,
    /// What it should have been: `i64[batch, 1]`, or `f32[batch, 1]` for regression.
    pub label: Var,
}

/// A measure of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Area under the ROC curve.
    Auc,
    /// Share of right classes.
    Accuracy,
    /// Root of the mean squared error.
    Rmse,
}

/// How a trained model is judged on test data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evaluation {
    /// The metrics of its heads.
    Heads,
    /// Groups of one positive example and its negatives: hit rate and NDCG among the first `k`.
    Ranking {
        /// Length of the list.
        k: usize,
    },
    /// Word analogies `a : b = c : d` answered by the embeddings.
    Analogy,
}

static ALL: [&Model; 1] = [&dnn::MODEL];

/// All models in order of name.
pub fn all() -> &'static [&'static Model] {
    &ALL
}

/// The model of that name.
pub fn find(name: &str) -> Option<&'static Model> {
    all().iter().copied().find(|m| m.name == name)
}
