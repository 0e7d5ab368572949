//! `dcn_v2`: cross layers with a full matrix, or with a mixture of experts of low rank.

use regatta_ir::{Act, Builder, Fc, Initializer, ParamAttr, Var};

use super::fields::row;
use super::layers::{
    Weights, click_inputs, click_keys, click_net, click_schema, click_table, count, join, key,
    normalised_relu_layers, padded, small,
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
        key("dropout_rate", HyperDefault::Float(0.5), "share of the deep part that is dropped"),
        key("dnn_use_bn", HyperDefault::Bool(false), "normalise the deep part over the batch"),
        key(
            "clip_by_norm",
            HyperDefault::Float(10.0),
            "largest norm of all gradients together; 0 for any",
        ),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "dcn_v2",
    group: "rank",
    summary: "cross layers with a matrix or a mixture of low-rank experts, and a deep network",
    keys: &KEYS,
    // PaddleRec's network does not read it.
    ignored_keys: &["l2_reg_cross"],
    optimizer: OptimizerDefault::adam(0.001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

/// Of the deep part.
const DEEP: Weights = Weights { l2: 1e-7, ..Weights::SCALED };

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let dim = h.size("sparse_feature_dim")?;
    let table = padded(click_table(h, dim, small(dim).named("SparseFeatFactors"))?);
    let flat = inputs.fields.flat(b, &table)?;
    // As many floats for each dense feature as for each slot.
    let width = inputs.fields.dense_width(b)?;
    let dense = inputs.fields.dense.as_ref();
    let vectors = dense.map(|dense| b.fc(dense, width * dim, Act::None)).transpose()?;
    let features = row(b, flat, vectors)?;

    let cross = match h.bool("use_low_rank_mixture") {
        true => mixture_layers(h, b, &features)?,
        false => full_layers(h, b, &features)?,
    };
    let (top, counted) = if h.bool("is_Stacked") {
        (deep_part(h, b, &cross)?, 0)
    } else {
        let deep = deep_part(h, b, &features)?;
        (b.concat(&[&deep, &cross], 1)?, width * inputs.fields.len() as i64)
    };
    // PaddleRec's number of inputs is another one beside cross layers.
    let deep = h.ints("fc_sizes").last().copied().unwrap_or(0);
    let std = 1.0 / ((deep + counted).max(1) as f64).sqrt();
    let weight = ParamAttr::with_init(Initializer::Normal { mean: 0.0, std });
    let logit = b.fc_with(&top, &Fc { weight, ..Fc::new(1) })?;
    let clip_norm = Some(h.float("clip_by_norm")).filter(|norm| *norm > 0.0);
    Ok(Net { clip_norm, ..click_net(b, &logit, inputs.label)? })
}

/// `x0 * (W x + b) + x` in each layer.
fn full_layers(h: &Hyper, b: &mut Builder, x0: &Var) -> Result<Var, Error> {
    let width = b.ty(x0)?.shape[1];
    let mut x = x0.clone();
    for _ in 0..h.int("cross_num") {
        let linear = b.fc(&x, width, Act::None)?;
        let crossed = b.elementwise_mul(x0, &linear)?;
        x = b.elementwise_add(&crossed, &x)?;
    }
    Ok(x)
}

/// `sum_i gate_i(x) * x0 * (U_i tanh(C_i tanh(V_i x)) + b) + x` in each layer. All layers have the
/// same gates, all experts of a layer the same `b`.
fn mixture_layers(h: &Hyper, b: &mut Builder, x0: &Var) -> Result<Var, Error> {
    let (rank, n) = (h.size("low_rank")?, h.size("num_experts")?);
    let width = b.ty(x0)?.shape[1];
    // Each gate is a layer of one output.
    let limit = (6.0 / (width + 1) as f64).sqrt();
    let gate = Initializer::Uniform { low: -limit, high: limit };
    let gate = ParamAttr::with_init(gate).named("gating.w_0");
    let gates =
        Fc { weight: gate, bias: Some(ParamAttr::bias().named("gating.b_0")), ..Fc::new(n) };
    // Glorot's for a tensor of all experts, as PaddleRec draws it.
    let normal = |inner: i64| {
        let std = (2.0 / ((inner + n) * rank) as f64).sqrt();
        ParamAttr::with_init(Initializer::Normal { mean: 0.0, std })
    };
    let linear = |b: &mut Builder, x: &Var, size: i64, weight: ParamAttr, act: Act| {
        b.fc_with(x, &Fc { act, weight, bias: None, ..Fc::new(size) })
    };
    let mut x = x0.clone();
    for layer in 0..h.int("cross_num") {
        let bias = b.param(&format!("cross_{layer}.b_0"), &[width], &ParamAttr::bias())?;
        let scores = b.fc_with(&x, &gates)?;
        let scores = b.softmax(&scores)?;
        let mut parts = vec![x.clone()];
        for i in 0..n {
            let inner = linear(b, &x, rank, normal(width), Act::Tanh)?;
            let inner = linear(b, &inner, rank, normal(rank), Act::Tanh)?;
            let outer = linear(b, &inner, width, normal(width), Act::None)?;
            let outer = b.elementwise_add(&outer, &bias)?;
            let expert = b.elementwise_mul(x0, &outer)?;
            let gate = b.slice(&scores, 1, i, i + 1)?;
            parts.push(b.elementwise_mul(&expert, &gate)?);
        }
        x = b.sum(&parts.iter().collect::<Vec<_>>())?;
    }
    Ok(x)
}

/// Layers with relu; elements are dropped before and after it.
fn deep_part(h: &Hyper, b: &mut Builder, x: &Var) -> Result<Var, Error> {
    let (sizes, rate) = (h.ints("fc_sizes"), h.float("dropout_rate"));
    if h.bool("dnn_use_bn") {
        return normalised_relu_layers(b, x, sizes);
    }
    if rate == 0.0 {
        return DEEP.relu_layers(b, x, sizes);
    }
    let mut hidden = x.clone();
    for (i, &size) in sizes.iter().enumerate() {
        let linear = DEEP.fc(b, &hidden, size, Act::None)?;
        let dropped = b.dropout(&linear, rate, 2 * i as i64 + 1)?;
        let positive = b.relu(&dropped)?;
        hidden = b.dropout(&positive, rate, 2 * i as i64 + 2)?;
    }
    Ok(hidden)
}
