//! `logistic_regression`: one weight for every id and every dense feature.

use regatta_ir::{Builder, Embedding, Fc, Initializer, ParamAttr};

use super::layers::{
    check_repeated, click_inputs, click_keys, click_net, click_schema, click_table, count, join,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::{Error, Hyper, HyperKey};

const CLICK: [HyperKey; 5] = click_keys(1_086_460, 1);

const KEYS: [HyperKey; 5] = join(
    // Without `sparse_feature_dim`: it is 1.
    [CLICK[0], CLICK[1], CLICK[3], CLICK[4]],
    [count("num_field", 0, "features in all; follows from the other keys")],
);

pub(super) static MODEL: Model = Model {
    name: "logistic_regression",
    group: "rank",
    summary: "one weight per feature",
    keys: &KEYS,
    ignored_keys: &["sparse_feature_dim"],
    optimizer: OptimizerDefault::adam(0.001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let width = h.size("dense_input_dim")?;
    check_repeated(h, "num_field", inputs.sparse.len() as i64 + width)?;
    let attr = ParamAttr::with_init(Initializer::TruncatedNormal { mean: 0.0, std: 0.1 });

    let table = click_table(h, 1, attr.clone().named("SparseFeatWeights"))?;
    let table = Embedding { padding_idx: Some(0), ..table };
    let weights = b.embedding(&inputs.sparse.iter().collect::<Vec<_>>(), &table)?;
    let sparse = b.reduce_sum(&weights, &[1], false)?;
    let dense = b.fc_with(&inputs.dense, &Fc { weight: attr, ..Fc::new(1) })?;
    let logit = b.elementwise_add(&sparse, &dense)?;
    click_net(b, &logit, inputs.label)
}
