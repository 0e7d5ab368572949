//! `xdeepfm`: a linear part, a compressed interaction network (products of whole vectors, layer
//! upon layer) and a deep network.

use regatta_ir::{Act, Builder, Fc, ParamAttr, Var};

use super::fm::{Start, field_vectors, first_order};
use super::layers::{CLICK_KEYS, Weights, click_inputs, click_net, click_schema, join, key};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 7] = join(
    CLICK_KEYS,
    [
        key("layer_sizes_dnn", HyperDefault::Ints(&[512, 256, 128]), "widths of the deep part"),
        key("layer_sizes_cin", HyperDefault::Ints(&[128, 32]), "vectors per interaction layer"),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "xdeepfm",
    group: "rank",
    summary: "linear part, compressed interaction network and deep network",
    keys: &KEYS,
    ignored_keys: &["fc_sizes"],
    optimizer: OptimizerDefault::adam(0.001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

/// Of the interaction network.
const MIXING: Weights = Weights { scale: 1.0, truncated: false, l2: 1e-4 };

/// Of the deep network, and of what leaves the interaction network.
const DEEP: Weights = Weights { scale: 0.1, ..MIXING };

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let linear = first_order(h, b, &inputs, Start::of(h))?;
    let vectors = field_vectors(h, b, &inputs, Start::of(h))?;
    let interactions = interaction_network(b, &vectors, h.ints("layer_sizes_cin"))?;
    let interactions = DEEP.fc(b, &interactions, 1, Act::None)?;
    let width: i64 = b.ty(&vectors)?.shape[1..].iter().product();
    let flat = b.reshape(&vectors, &[-1, width])?;
    let hidden = DEEP.relu_layers(b, &flat, h.ints("layer_sizes_dnn"))?;
    let deep = DEEP.fc(b, &hidden, 1, Act::None)?;
    let logit = b.sum(&[&linear, &interactions, &deep])?;
    let bias = b.param("xdeepfm.b_0", &[1], &ParamAttr::bias())?;
    let logit = b.elementwise_add(&logit, &bias)?;
    click_net(b, &logit, inputs.label)
}

/// Vectors `[batch, fields, dim]` to `[batch, sum of sizes]`.
///
/// Each layer multiplies every vector of the layer before with every field, element by element, and
/// mixes the products into `size` new vectors; what leaves is the sum of each vector's elements.
/// Dimensions come before vectors here, so that mixing is a fully connected layer.
fn interaction_network(b: &mut Builder, vectors: &Var, sizes: &[i64]) -> Result<Var, Error> {
    let (fields, dim) = (b.ty(vectors)?.shape[1], b.ty(vectors)?.shape[2]);
    let fields_last = b.transpose(vectors, &[0, 2, 1])?;
    let left = b.reshape(&fields_last, &[-1, dim, fields, 1])?;
    let (mut layer, mut n) = (fields_last, fields);
    let mut pooled = Vec::new();
    for &size in sizes {
        let right = b.reshape(&layer, &[-1, dim, 1, n])?;
        let products = b.elementwise_mul(&left, &right)?;
        let products = b.reshape(&products, &[-1, dim, fields * n])?;
        let weight = MIXING.attr(fields * n);
        layer = b.fc_with(&products, &Fc { bias: None, weight, ..Fc::new(size) })?;
        n = size;
        pooled.push(b.reduce_sum(&layer, &[1], false)?);
    }
    Ok(b.concat(&pooled.iter().collect::<Vec<_>>(), 1)?)
}
