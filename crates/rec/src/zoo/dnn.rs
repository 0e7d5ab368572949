//! `dnn`: embeddings of all slots beside the dense features, through fully connected layers.

use regatta_ir::{Act, Builder, Initializer, ParamAttr};

use super::layers::{
    CLICK_KEYS, auc_head, class_loss, click_inputs, click_schema, click_table, join, key,
    relu_layers, scaled_fc,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 6] = join(
    CLICK_KEYS,
    [key("fc_sizes", HyperDefault::Ints(&[512, 256, 128, 32]), "widths of the hidden layers")],
);

pub(super) static MODEL: Model = Model {
    name: "dnn",
    group: "rank",
    summary: "embeddings and dense features through fully connected layers",
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
    let init = Initializer::Uniform { low: -1.0, high: 1.0 };
    let attr = ParamAttr::with_init(init).named("SparseFeatFactors");
    let table = click_table(h, h.size("sparse_feature_dim")?, attr)?;
    let joined = inputs.fields.flat_with_dense(b, &table)?;
    let hidden = relu_layers(b, &joined, h.ints("fc_sizes"))?;
    let logits = scaled_fc(b, &hidden, 2, Act::None)?;
    let (loss, predict) = class_loss(b, &logits, &inputs.label)?;
    Ok(Net::new(loss, vec![auc_head("auc", predict, inputs.label)]))
}
