//! `dnn`: embeddings of all slots beside the dense features, through fully connected layers.

use regatta_ir::{Act, Builder, Initializer, ParamAttr};

use super::layers::{CLICK_KEYS, click_embedding, click_inputs, click_schema, key, relu_layers, scaled_fc};
use super::{Evaluation, Head, Metric, Model, Net};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: &[HyperKey] = &[
    CLICK_KEYS[0],
    CLICK_KEYS[1],
    CLICK_KEYS[2],
    CLICK_KEYS[3],
    CLICK_KEYS[4],
    key("fc_sizes", HyperDefault::Ints(&[512, 256, 128, 32]), "widths of the hidden layers"),
];

pub(super) static MODEL: Model = Model {
    name: "dnn",
    group: "rank",
    summary: "embeddings and dense features through fully connected layers",
    keys: KEYS,
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let dim = h.size("sparse_feature_dim")?;
    let table = ParamAttr::with_init(Initializer::Uniform { low: -1.0, high: 1.0 })
        .named("SparseFeatFactors");
    let embedded = click_embedding(h, b, &inputs.sparse, dim, table)?;
    let flat = b.reshape(&embedded, &[-1, inputs.sparse.len() as i64 * dim])?;
    let joined = b.concat(&[&flat, &inputs.dense], 1)?;
    let hidden = relu_layers(b, &joined, h.ints("fc_sizes"))?;
    let logits = scaled_fc(b, &hidden, 2, Act::None)?;
    let (cost, predict) = b.softmax_with_cross_entropy(&logits, &inputs.label)?;
    let loss = b.mean(&cost)?;
    let head = Head { metric: "auc", kind: Metric::Auc, predict, label: inputs.label };
    Ok(Net { loss, heads: vec![head] })
}
