//! `wide_deep`: a linear model over the dense features beside a deep one over everything.

use regatta_ir::{Act, Builder, Fc, Initializer, ParamAttr};

use super::layers::{
    CLICK_KEYS, click_inputs, click_net, click_schema, click_table, flat_embedding, join, key,
    relu_layers, scaled_fc,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 6] = join(
    CLICK_KEYS,
    [key("fc_sizes", HyperDefault::Ints(&[512, 256, 128, 32]), "widths of the deep part")],
);

pub(super) static MODEL: Model = Model {
    name: "wide_deep",
    group: "rank",
    summary: "a linear part over dense features beside a deep part over all features",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let std = 1.0 / (h.size("dense_input_dim")? as f64).sqrt();
    let weight = ParamAttr::with_init(Initializer::TruncatedNormal { mean: 0.0, std });
    let wide = b.fc_with(&inputs.dense, &Fc { weight, ..Fc::new(1) })?;

    let init = Initializer::Uniform { low: -1.0, high: 1.0 };
    let attr = ParamAttr::with_init(init).named("SparseFeatFactors");
    let table = click_table(h, h.size("sparse_feature_dim")?, attr)?;
    let flat = flat_embedding(b, &inputs.sparse, &table)?;
    let joined = b.concat(&[&flat, &inputs.dense], 1)?;
    let hidden = relu_layers(b, &joined, h.ints("fc_sizes"))?;
    let deep = scaled_fc(b, &hidden, 1, Act::None)?;

    let logit = b.elementwise_add(&wide, &deep)?;
    click_net(b, &logit, inputs.label)
}
