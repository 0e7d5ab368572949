//! `dlrm`: dense features through a bottom network into a vector, inner products of that vector and
//! all embeddings in pairs, and a top network. Every layer of both is normalised over the batch,
//! after its relu; the last one too, which gives the scores of the classes.

use regatta_ir::{Act, Builder, Initializer, Op, ParamAttr, Var};

use super::fields::VECTORS;
use super::layers::{
    Weights, auc_head, check_repeated, class_loss, click_inputs, click_keys, click_schema,
    click_table, count, join, key,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 9] = join(
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
        key("batch_norm", HyperDefault::Bool(true), "normalise every layer over the batch"),
    ],
);

pub(super) static MODEL: Model = Model {
    name: "dlrm",
    group: "rank",
    summary: "products of embeddings in pairs between a bottom and a top network",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.1),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

const TRUNCATED: Weights = Weights { truncated: true, ..Weights::SCALED };

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
    let top_sizes = h.ints("top_layer_sizes");
    if top_sizes.last() != Some(&2) {
        let reason = "does not end in 2, the number of classes";
        return Err(Error::key("hyper_parameters.top_layer_sizes", reason));
    }
    let dense = inputs.fields.needed_dense("dlrm")?.clone();
    let bottom = match h.bool("batch_norm") {
        true => normalised_layers(b, &dense, bottom_sizes)?,
        false => TRUNCATED.relu_layers(b, &dense, bottom_sizes)?,
    };
    let attr = ParamAttr::with_init(Initializer::TruncatedNormal { mean: 0.0, std: 1.0 });
    let table = click_table(h, dim, attr.named("SparseFeatFactors"))?;
    let embedded = inputs.fields.stacked(b, &table, VECTORS)?;

    let last = b.reshape(&bottom, &[-1, 1, dim])?;
    let vectors = b.concat(&[&embedded, &last], 1)?;
    let products = b.matmul(&vectors, &vectors, false, true)?;
    // Every pair once: what lies below the diagonal.
    let pairs = b.emit_one(Op::new("lower_triangle").input("X", products.name()))?;
    let joined = b.concat(&[&bottom, &pairs], 1)?;
    let scores = match h.bool("batch_norm") {
        true => normalised_layers(b, &joined, top_sizes)?,
        false => {
            let hidden = TRUNCATED.relu_layers(b, &joined, &top_sizes[..top_sizes.len() - 1])?;
            TRUNCATED.fc(b, &hidden, 2, Act::None)?
        }
    };
    let (loss, predict) = class_loss(b, &scores, &inputs.label)?;
    Ok(Net::new(loss, vec![auc_head("auc", predict, inputs.label)]))
}

fn normalised_layers(b: &mut Builder, x: &Var, sizes: &[i64]) -> Result<Var, Error> {
    let mut hidden = x.clone();
    for &size in sizes {
        let positive = TRUNCATED.fc(b, &hidden, size, Act::Relu)?;
        hidden = b.batch_norm(&positive, 0.9, 1e-5)?;
    }
    Ok(hidden)
}
