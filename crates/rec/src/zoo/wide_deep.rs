//! `wide_deep`: a linear model over the dense features beside a deep one over everything.

use regatta_ir::{Act, Builder, Initializer, ParamAttr};

use super::layers::{
    CLICK_KEYS, Weights, click_inputs, click_net, click_schema, click_table, join, key,
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
    takes_features: true,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let dense = inputs.fields.needed_dense("wide_deep")?.clone();
    let truncated = Weights { truncated: true, ..Weights::SCALED };
    let wide = truncated.fc(b, &dense, 1, Act::None)?;

    let init = Initializer::Uniform { low: -1.0, high: 1.0 };
    let attr = ParamAttr::with_init(init).named("SparseFeatFactors");
    let table = click_table(h, h.size("sparse_feature_dim")?, attr)?;
    let joined = inputs.fields.flat_with_dense(b, &table)?;
    let hidden = relu_layers(b, &joined, h.ints("fc_sizes"))?;
    let deep = scaled_fc(b, &hidden, 1, Act::None)?;

    let logit = b.elementwise_add(&wide, &deep)?;
    click_net(b, &logit, inputs.label)
}
