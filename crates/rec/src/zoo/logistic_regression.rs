//! `logistic_regression`: one weight for every id and every dense feature.

use regatta_data::{Schema, Slot};
use regatta_ir::{Builder, Embedding, Fc, Initializer, ParamAttr, Regularizer, Var};
use regatta_tensor::DType;

use super::fields::LINEAR;
use super::layers::{
    auc_head, check_repeated, click_inputs, click_keys, click_schema, click_table, count, join,
    key, log_losses, padded,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const CLICK: [HyperKey; 5] = click_keys(1_086_460, 1);

const KEYS: [HyperKey; 7] = join(
    // Without `sparse_feature_dim`: it is 1.
    [CLICK[0], CLICK[1], CLICK[3], CLICK[4]],
    [
        count(
            "num_field",
            0,
            "features in all; follows from the other keys but with feature_values",
        ),
        key(
            "feature_values",
            HyperDefault::Bool(false),
            "inputs are num_field ids and their values",
        ),
        key("reg", HyperDefault::Float(0.001), "factor of the L1 regularization of the weights"),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "logistic_regression",
    group: "rank",
    summary: "one weight per feature",
    keys: &KEYS,
    ignored_keys: &["sparse_feature_dim"],
    optimizer: OptimizerDefault::adam(0.001),
    schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn schema(h: &Hyper) -> Result<Schema, Error> {
    if !h.bool("feature_values") {
        return click_schema(h);
    }
    let n = h.size("num_field")? as usize;
    let inputs = [Slot::fixed_ids("feat_idx", n), Slot::dense("feat_value", n)];
    Ok(Schema::new([&[Slot::label("label")], &inputs[..]].concat())?)
}

/// PaddleRec's form: every feature is an id with a value, the dense ones too.
fn build_with_values(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let n = h.size("num_field")?;
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let ids = b.data("feat_idx", DType::U64, &[-1, n])?;
    let values = b.data("feat_value", DType::F32, &[-1, n])?;
    // One row more than there are features: id 0 stands for none.
    let rows = h.size("sparse_feature_number")? + 1;
    let table = weights(h).named("SparseFeatWeights");
    let hash = h.bool("hash_ids");
    let table = padded(Embedding { table, hash, ..Embedding::new(rows, 1) });
    let weights = b.embedding(&[&ids], &table)?;
    let weights = b.reshape(&weights, &[-1, n])?;
    let products = b.elementwise_mul(&weights, &values)?;
    let sum = b.reduce_sum(&products, &[1], true)?;
    let bias = b.param("b_linear", &[1], &ParamAttr::bias())?;
    let logit = b.elementwise_add(&sum, &bias)?;
    summed(b, &logit, label)
}

/// The loss of a batch is the sum of its examples'.
fn summed(b: &mut Builder, logit: &Var, label: Var) -> Result<Net, Error> {
    let predict = b.sigmoid(logit)?;
    let cost = log_losses(b, &predict, &label)?;
    let loss = b.reduce_sum(&cost, &[0], false)?;
    Ok(Net::new(loss, vec![auc_head("auc", predict, label)]))
}

fn weights(h: &Hyper) -> ParamAttr {
    let init = Initializer::TruncatedNormal { mean: 0.0, std: 0.1 };
    let mut attr = ParamAttr::with_init(init);
    attr.info.regularizer = Some(h.float("reg")).filter(|c| *c != 0.0).map(Regularizer::L1);
    attr
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    if h.bool("feature_values") {
        return build_with_values(h, b);
    }
    let inputs = click_inputs(h, b)?;
    let dense = inputs.fields.dense.clone();
    let width = inputs.fields.dense_width(b)?;
    check_repeated(h, "num_field", inputs.fields.len() as i64 + width)?;
    let attr = weights(h);
    let table = padded(click_table(h, 1, attr.clone().named("SparseFeatWeights"))?);
    let weights = inputs.fields.stacked(b, &table, LINEAR)?;
    let sparse = b.reduce_sum(&weights, &[1], false)?;
    let logit = match &dense {
        Some(dense) => {
            let dense = b.fc_with(dense, &Fc { weight: attr, ..Fc::new(1) })?;
            b.elementwise_add(&sparse, &dense)?
        }
        None => {
            let bias = b.param("b_linear", &[1], &ParamAttr::bias())?;
            b.elementwise_add(&sparse, &bias)?
        }
    };
    summed(b, &logit, inputs.label)
}
