//! The models, one file each: hyper-parameters by PaddleRec's names, inputs, and the network as
//! layers of the program builder.

mod dcn;
mod dcn_v2;
mod deepfm;
mod din;
mod dlrm;
mod dnn;
mod dssm;
mod esmm;
pub(crate) mod fields;
mod fm;
pub mod layers;
mod logistic_regression;
mod mmoe;
mod ncf;
mod slot_dnn;
mod wide_deep;
mod word2vec;
mod xdeepfm;

use regatta_data::Schema;
use regatta_ir::{Builder, Var};

pub use regatta_train::metrics::Metric;

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
    /// Hyper-parameters that PaddleRec's files of this model hold and that mean nothing here.
    pub ignored_keys: &'static [&'static str],
    /// What updates its parameters if the file does not say.
    pub optimizer: OptimizerDefault,
    /// What an example looks like.
    pub schema: fn(&Hyper) -> Result<Schema, Error>,
    /// The network.
    pub build: fn(&Hyper, &mut Builder) -> Result<Net, Error>,
    /// How a trained model is judged on test data.
    pub evaluation: Evaluation,
    /// Whether its inputs can be declared features.
    pub takes_features: bool,
}

/// The optimizer of PaddleRec's file of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerDefault {
    /// `optimizer.class`.
    pub class: &'static str,
    /// `optimizer.learning_rate`.
    pub learning_rate: f64,
}

impl OptimizerDefault {
    const fn adam(learning_rate: f64) -> OptimizerDefault {
        OptimizerDefault { class: "Adam", learning_rate }
    }

    const fn sgd(learning_rate: f64) -> OptimizerDefault {
        OptimizerDefault { class: "SGD", learning_rate }
    }
}

/// What a network offers to training and evaluation.
pub struct Net {
    /// The number to make small.
    pub loss: Var,
    /// Predictions with the labels they are judged by.
    pub heads: Vec<Head>,
    /// What a model that predicts nothing is exported for, such as vectors of words.
    pub vectors: Vec<Var>,
    /// Largest Euclidean norm of all gradients together, if the model sets one.
    pub clip_norm: Option<f64>,
}

impl Net {
    fn new(loss: Var, heads: Vec<Head>) -> Net {
        Net { loss, heads, vectors: vec![], clip_norm: None }
    }
}

/// One prediction.
pub struct Head {
    /// Name of its metric in reports: `auc`, `auc_ctr`, `rmse`, ...
    pub metric: &'static str,
    /// How it is judged.
    pub kind: Metric,
    /// Probabilities `[batch, 1]` (or `[batch, 2]`, the last column being the positive class), or
    /// values for regression; for accuracy, one score per class.
    pub predict: Var,
    /// What it should have been: `i64[batch, 1]`, or `f32[batch, 1]` for regression.
    pub label: Var,
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

static ALL: [&Model; 16] = [
    &dcn::MODEL,
    &dcn_v2::MODEL,
    &deepfm::MODEL,
    &din::MODEL,
    &dlrm::MODEL,
    &dnn::MODEL,
    &dssm::MODEL,
    &esmm::MODEL,
    &fm::MODEL,
    &logistic_regression::MODEL,
    &mmoe::MODEL,
    &ncf::MODEL,
    &slot_dnn::MODEL,
    &wide_deep::MODEL,
    &word2vec::MODEL,
    &xdeepfm::MODEL,
];

/// All models in order of name.
pub fn all() -> &'static [&'static Model] {
    &ALL
}

/// The model of that name.
pub fn find(name: &str) -> Option<&'static Model> {
    all().iter().copied().find(|m| m.name == name)
}
