//! `dlrm`: dense features through a bottom network into a vector, inner products of that vector and
//! all embeddings in pairs, and a top network.

use regatta_ir::{Act, Builder, Initializer, Op, ParamAttr};

use super::fields::VECTORS;
use super::layers::{
    auc_head, check_repeated, class_loss, click_inputs, click_keys, click_schema, click_table,
    count, join, key, relu_layers, scaled_fc,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 8] = join(
    click_keys(1_000_001, 16),
    [
        key(
            "bot_layer_sizes",
            HyperDefault::Ints(&[512, 256, 64, 16]),
            "widths of the bottom network; the last is the floats per embedding",
        ),
        key(
            "top_layer_sizes",
            HyperDefault::Ints(&[512, 256, 2]),
            "widths of the top network; the last is 2, the classes",
        ),
        count("num_field", 0, "sparse slots; follows from sparse_inputs_slots"),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "dlrm",
    group: "rank",
    summary: "products of embeddings in pairs between a bottom and a top network",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::sgd(0.1),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let dim = h.size("sparse_feature_dim")?;
    let n = inputs.fields.len() as i64;
    check_repeated(h, "num_field", n)?;
    let bottom_sizes = h.ints("bot_layer_sizes");
    if bottom_sizes.last() != Some(&dim) {
        let reason = format!("{bottom_sizes:?} does not end in {dim}, the floats per embedding");
        return Err(Error::key("hyper_parameters.bot_layer_sizes", reason));
    }
    let Some((&2, top_sizes)) = h.ints("top_layer_sizes").split_last() else {
        let reason = "does not end in 2, the number of classes";
        return Err(Error::key("hyper_parameters.top_layer_sizes", reason));
    };
    let dense = inputs.fields.needed_dense("dlrm")?.clone();
    let bottom = relu_layers(b, &dense, bottom_sizes)?;
    // Products of two such vectors stay below one.
    let limit = 1.0 / (dim as f64).sqrt();
    let attr = ParamAttr::with_init(Initializer::Uniform { low: -limit, high: limit });
    let table = click_table(h, dim, attr.named("SparseFeatFactors"))?;
    let embedded = inputs.fields.stacked(b, &table, VECTORS)?;

    let first = b.reshape(&bottom, &[-1, 1, dim])?;
    let vectors = b.concat(&[&first, &embedded], 1)?;
    let products = b.matmul(&vectors, &vectors, false, true)?;
    // Every pair once: what lies below the diagonal.
    let pairs = b.emit_one(Op::new("lower_triangle").input("X", products.name()))?;
    let joined = b.concat(&[&bottom, &pairs], 1)?;
    let hidden = relu_layers(b, &joined, top_sizes)?;
    let logits = scaled_fc(b, &hidden, 2, Act::None)?;
    let (loss, predict) = class_loss(b, &logits, &inputs.label)?;
    Ok(Net::new(loss, vec![auc_head("auc", predict, inputs.label)]))
}
