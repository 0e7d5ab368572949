//! `word2vec`: skip-gram with negative sampling: the vector of a word tells its neighbours from
//! random words. The vectors are the parameter `emb`.

use regatta_data::{Schema, Slot};
use regatta_ir::{Builder, Embedding, Initializer, ParamAttr, Var};
use regatta_tensor::DType;

use super::layers::{count, key, table_rows};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 5] = [
    table_rows("sparse_feature_number", 1000, "words"),
    key("sparse_feature_dim", HyperDefault::Int(300), "floats per word"),
    count("neg_num", 5, "random words of a sample"),
    count("window_size", 5, "largest distance of a neighbour; for the reader"),
    key("with_shuffle_batch", HyperDefault::Bool(false), "must be false"),
];

pub(super) static MODEL: Model = Model {
    name: "word2vec",
    group: "recall",
    summary: "skip-gram word vectors with negative sampling",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::sgd(1.0),
    schema,
    build,
    evaluation: Evaluation::Analogy,
    takes_features: false,
};

fn schema(h: &Hyper) -> Result<Schema, Error> {
    let slots = vec![
        Slot::fixed_ids("input_word", 1),
        Slot::fixed_ids("true_label", 1),
        Slot::fixed_ids("neg_label", h.size("neg_num")? as usize),
    ];
    Ok(Schema::new(slots)?)
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    if h.bool("with_shuffle_batch") {
        let reason = "negatives from other samples of the batch are not offered; set it to false";
        return Err(Error::key("hyper_parameters.with_shuffle_batch", reason));
    }
    let n = h.size("neg_num")?;
    let input = b.data("input_word", DType::U64, &[-1, 1])?;
    let truth = b.data("true_label", DType::U64, &[-1, 1])?;
    let others = b.data("neg_label", DType::U64, &[-1, n])?;

    let (rows, dim) = (h.size("sparse_feature_number")?, h.size("sparse_feature_dim")?);
    let half = 0.5 / dim as f64;
    let table = |dim: i64, name: &str, init: Initializer| Embedding {
        table: ParamAttr::with_init(init).named(name),
        ..Embedding::new(rows, dim)
    };
    let words = table(dim, "emb", Initializer::Uniform { low: -half, high: half });
    let weights = table(dim, "emb_w", Initializer::Constant(0.0));
    let biases = table(1, "emb_b", Initializer::Constant(0.0));
    let word = b.embedding(&[&input], &words)?;
    // The true word first, then the others.
    let weights = b.embedding(&[&truth, &others], &weights)?;
    let biases = b.embedding(&[&truth, &others], &biases)?;
    let products = b.matmul(&weights, &word, false, true)?;
    let logits = b.elementwise_add(&products, &biases)?;
    let logits = b.reshape(&logits, &[-1, 1 + n])?;

    let (ones, zeros) = (constant(b, &truth, 1.0)?, constant(b, &others, 0.0)?);
    let target = b.concat(&[&ones, &zeros], 1)?;
    let cost = b.sigmoid_cross_entropy(&logits, &target)?;
    let (of_truth, of_others) = (b.slice(&cost, 1, 0, 1)?, b.slice(&cost, 1, 1, 1 + n)?);
    let (of_truth, of_others) = (b.mean(&of_truth)?, b.mean(&of_others)?);
    let loss = b.sum(&[&of_truth, &of_others])?;
    Ok(Net { vectors: vec![word], ..Net::new(loss, vec![]) })
}

/// Floats of the shape of some ids, all the same.
fn constant(b: &mut Builder, ids: &Var, value: f64) -> Result<Var, Error> {
    let floats = b.cast(ids, DType::F32)?;
    Ok(b.scale(&floats, 0.0, value)?)
}
