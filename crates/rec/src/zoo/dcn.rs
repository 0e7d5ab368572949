//! `dcn`: layers that multiply the features with themselves ("cross"), beside a deep network.

use regatta_ir::{Act, Builder, Fc, Initializer, ParamAttr, Var};

use super::layers::{
    CLICK_KEYS, click_inputs, click_net, click_schema, click_table, count, join, key,
    normalised_relu_layers, padded, relu_layers, small,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 8] = join(
    CLICK_KEYS,
    [
        key("fc_sizes", HyperDefault::Ints(&[512, 256, 128]), "widths of the deep part"),
        count("cross_num", 2, "cross layers"),
        key("dnn_use_bn", HyperDefault::Bool(false), "normalise the deep part over the batch"),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "dcn",
    group: "rank",
    summary: "cross layers (products of features) beside a deep network",
    keys: &KEYS,
    // PaddleRec's network reads neither: its regularization has the factor 1, nothing is clipped.
    ignored_keys: &["l2_reg_cross", "clip_by_norm"],
    optimizer: OptimizerDefault::adam(0.0001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let dim = h.size("sparse_feature_dim")?;
    let table = padded(click_table(h, dim, small(dim).named("SparseFeatFactors"))?);
    let features = inputs.fields.flat_with_dense(b, &table)?;

    let (cross, penalties) = cross_layers(b, &features, h.int("cross_num"), dim)?;
    let deep = deep_part(h, b, &features)?;
    let joined = b.concat(&[&deep, &cross], 1)?;
    // PaddleRec counts a slot as one input here, not as the floats of its embedding.
    let counted = h.ints("fc_sizes").last().copied().unwrap_or(0) + inputs.fields.len() as i64;
    let counted = counted + inputs.fields.dense_width(b)?;
    let std = 1.0 / (counted as f64).sqrt();
    let weight = ParamAttr::with_init(Initializer::Normal { mean: 0.0, std });
    let logit = b.fc_with(&joined, &Fc { act: Act::None, weight, ..Fc::new(1) })?;
    let net = click_net(b, &logit, inputs.label)?;
    let parts: Vec<&Var> = std::iter::once(&net.loss).chain(&penalties).collect();
    Ok(Net { loss: b.sum(&parts)?, ..net })
}

/// `x0 * (x . w) + b + x` so many times, all with the same `w` and `b`; and of each layer the sum
/// of the squares of `x * w`, over all examples of a batch.
fn cross_layers(b: &mut Builder, x0: &Var, n: i64, dim: i64) -> Result<(Var, Vec<Var>), Error> {
    let width = b.ty(x0)?.shape[1];
    let weight = b.param("cross.w_0", &[width], &small(dim))?;
    let bias = b.param("cross.b_0", &[width], &small(dim))?;
    let (mut x, mut penalties) = (x0.clone(), Vec::new());
    for _ in 0..n {
        let weighed = b.elementwise_mul(&x, &weight)?;
        let product = b.reduce_sum(&weighed, &[1], true)?;
        let crossed = b.elementwise_mul(x0, &product)?;
        let crossed = b.elementwise_add(&crossed, &bias)?;
        x = b.elementwise_add(&crossed, &x)?;
        let squares = b.square(&weighed)?;
        let of_examples = b.reduce_sum(&squares, &[1], true)?;
        penalties.push(b.reduce_sum(&of_examples, &[0], false)?);
    }
    Ok((x, penalties))
}

fn deep_part(h: &Hyper, b: &mut Builder, x: &Var) -> Result<Var, Error> {
    let sizes = h.ints("fc_sizes");
    if h.bool("dnn_use_bn") {
        normalised_relu_layers(b, x, sizes)
    } else {
        relu_layers(b, x, sizes)
    }
}
