//! `dcn_v2`: cross layers with a full matrix, or with a mixture of experts of low rank.

use regatta_ir::{Act, Builder, Fc, Initializer, ParamAttr, Regularizer, Var};

use super::dcn::{clip_norm, deep_part};
use super::layers::{
    click_inputs, click_keys, click_net, click_schema, click_table, count, join, key, scaled_fc,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 14] = join(
    click_keys(1_100_001, 40),
    [
        key("fc_sizes", HyperDefault::Ints(&[768, 768]), "widths of the deep part"),
        count("cross_num", 2, "cross layers"),
        key("is_Stacked", HyperDefault::Bool(true), "the deep part on top, not beside"),
        key("use_low_rank_mixture", HyperDefault::Bool(true), "experts instead of a full matrix"),
        key("low_rank", HyperDefault::Int(256), "rank of an expert"),
        count("num_experts", 4, "experts of a cross layer"),
        key(
            "l2_reg_cross",
            HyperDefault::Float(3e-5),
            "L2 regularization of the weights of cross layers",
        ),
        key("dnn_use_bn", HyperDefault::Bool(false), "normalise the deep part over the batch"),
        key("clip_by_norm", HyperDefault::Float(10.0), "largest norm of a gradient; 0 for any"),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "dcn_v2",
    group: "rank",
    summary: "cross layers with a matrix or a mixture of low-rank experts, and a deep network",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let dim = h.size("sparse_feature_dim")?;
    let std = 0.1 / (dim as f64).sqrt();
    let attr = ParamAttr::with_init(Initializer::TruncatedNormal { mean: 0.0, std });
    let table = click_table(h, dim, attr.named("SparseFeatFactors"))?;
    let features = inputs.fields.flat_with_dense(b, &table)?;

    let mut cross = features.clone();
    for _ in 0..h.int("cross_num") {
        cross = if h.bool("use_low_rank_mixture") {
            mixture_layer(h, b, &features, &cross)?
        } else {
            full_layer(h, b, &features, &cross)?
        };
    }
    let top = if h.bool("is_Stacked") {
        deep_part(h, b, &cross)?
    } else {
        let deep = deep_part(h, b, &features)?;
        b.concat(&[&cross, &deep], 1)?
    };
    let logit = scaled_fc(b, &top, 1, Act::None)?;
    Ok(Net { clip_norm: clip_norm(h), ..click_net(b, &logit, inputs.label)? })
}

/// `x0 * (W x + b) + x`.
fn full_layer(h: &Hyper, b: &mut Builder, x0: &Var, x: &Var) -> Result<Var, Error> {
    let width = b.ty(x0)?.shape[1];
    let linear = cross_fc(h, b, x, width, Act::None)?;
    let crossed = b.elementwise_mul(x0, &linear)?;
    Ok(b.elementwise_add(&crossed, x)?)
}

/// `sum_i gate_i(x) * x0 * (U_i tanh(C_i tanh(V_i x)) + b_i) + x`.
fn mixture_layer(h: &Hyper, b: &mut Builder, x0: &Var, x: &Var) -> Result<Var, Error> {
    let (rank, n) = (h.size("low_rank")?, h.size("num_experts")?);
    let width = b.ty(x0)?.shape[1];
    let scores = b.fc(x, n, Act::None)?;
    let gates = b.softmax(&scores)?;
    let mut parts = vec![x.clone()];
    for i in 0..n {
        let inner = cross_fc(h, b, x, rank, Act::Tanh)?;
        let inner = cross_fc(h, b, &inner, rank, Act::Tanh)?;
        let outer = cross_fc(h, b, &inner, width, Act::None)?;
        let expert = b.elementwise_mul(x0, &outer)?;
        let gate = b.slice(&gates, 1, i, i + 1)?;
        parts.push(b.elementwise_mul(&expert, &gate)?);
    }
    Ok(b.sum(&parts.iter().collect::<Vec<_>>())?)
}

fn cross_fc(h: &Hyper, b: &mut Builder, x: &Var, size: i64, act: Act) -> Result<Var, Error> {
    let mut weight = ParamAttr::weight();
    weight.info.regularizer = Some(Regularizer::L2(h.float("l2_reg_cross")));
    Ok(b.fc_with(x, &Fc { act, weight, ..Fc::new(size) })?)
}
