//! `dcn`: layers that multiply the features with themselves ("cross"), beside a deep network.

use regatta_ir::{Act, Builder, Fc, Initializer, ParamAttr, Regularizer, Var};

use super::layers::{
    CLICK_KEYS, click_inputs, click_net, click_schema, click_table, count, join, key,
    normalised_relu_layers, relu_layers, scaled_fc,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 10] = join(
    CLICK_KEYS,
    [
        key("fc_sizes", HyperDefault::Ints(&[512, 256, 128]), "widths of the deep part"),
        count("cross_num", 2, "cross layers"),
        key(
            "l2_reg_cross",
            HyperDefault::Float(5e-5),
            "L2 regularization of the weights of cross layers",
        ),
        key("dnn_use_bn", HyperDefault::Bool(false), "normalise the deep part over the batch"),
        key("clip_by_norm", HyperDefault::Float(100.0), "largest norm of a gradient; 0 for any"),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "dcn",
    group: "rank",
    summary: "cross layers (products of features) beside a deep network",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.0001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let init = Initializer::Uniform { low: -1.0, high: 1.0 };
    let attr = ParamAttr::with_init(init).named("SparseFeatFactors");
    let table = click_table(h, h.size("sparse_feature_dim")?, attr)?;
    let features = inputs.fields.flat_with_dense(b, &table)?;

    let mut cross = features.clone();
    for _ in 0..h.int("cross_num") {
        cross = cross_layer(b, &features, &cross, h.float("l2_reg_cross"))?;
    }
    let deep = deep_part(h, b, &features)?;
    let joined = b.concat(&[&cross, &deep], 1)?;
    let logit = scaled_fc(b, &joined, 1, Act::None)?;
    Ok(Net { clip_norm: clip_norm(h), ..click_net(b, &logit, inputs.label)? })
}

/// `x0 * (x . w) + b + x`.
fn cross_layer(b: &mut Builder, x0: &Var, x: &Var, l2: f64) -> Result<Var, Error> {
    let width = b.ty(x0)?.shape[1];
    let std = 1.0 / (width as f64).sqrt();
    let mut weight = ParamAttr::with_init(Initializer::Normal { mean: 0.0, std });
    weight.info.regularizer = Some(Regularizer::L2(l2));
    let product = b.fc_with(x, &Fc { weight, bias: None, ..Fc::new(1) })?;
    let crossed = b.elementwise_mul(x0, &product)?;
    let name = b.unique("cross");
    let bias = b.param(&format!("{name}.b_0"), &[width], &ParamAttr::bias())?;
    let crossed = b.elementwise_add(&crossed, &bias)?;
    Ok(b.elementwise_add(&crossed, x)?)
}

/// The deep part of `dcn` and `dcn_v2`.
pub(super) fn deep_part(h: &Hyper, b: &mut Builder, x: &Var) -> Result<Var, Error> {
    let sizes = h.ints("fc_sizes");
    if h.bool("dnn_use_bn") {
        normalised_relu_layers(b, x, sizes)
    } else {
        relu_layers(b, x, sizes)
    }
}

pub(super) fn clip_norm(h: &Hyper) -> Option<f64> {
    Some(h.float("clip_by_norm")).filter(|norm| *norm > 0.0)
}
