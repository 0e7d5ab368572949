//! `deepfm`: a factorization machine and a deep network over the same embeddings.

use regatta_ir::{Act, Builder};

use super::fm::{Start, field_vectors, first_order, pairwise};
use super::layers::{
    CLICK_KEYS, click_inputs, click_net, click_schema, join, key, relu_layers, scaled_fc,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 6] = join(
    CLICK_KEYS,
    [key("fc_sizes", HyperDefault::Ints(&[512, 256, 128, 32]), "widths of the deep part")],
);

pub(super) static MODEL: Model = Model {
    name: "deepfm",
    group: "rank",
    summary: "a factorization machine and a deep network over the same embeddings",
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
    let linear = first_order(h, b, &inputs, Start::Small)?;
    let vectors = field_vectors(h, b, &inputs, Start::Small)?;
    let pairs = pairwise(b, &vectors)?;
    let width: i64 = b.ty(&vectors)?.shape[1..].iter().product();
    let flat = b.reshape(&vectors, &[-1, width])?;
    let hidden = relu_layers(b, &flat, h.ints("fc_sizes"))?;
    let deep = scaled_fc(b, &hidden, 1, Act::None)?;
    let logit = b.sum(&[&linear, &pairs, &deep])?;
    click_net(b, &logit, inputs.label)
}
