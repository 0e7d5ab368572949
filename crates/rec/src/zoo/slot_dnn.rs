//! `slot_dnn`: hundreds of slots of any number of ids, summed up per slot, through fully connected
//! layers.

use regatta_data::{Schema, Slot};
use regatta_ir::{Act, Builder, Embedding, Initializer, ParamAttr};
use regatta_tensor::DType;

use super::fields::Fields;
use super::layers::{
    Weights, check_repeated, click_net, count, key, multi_id_inputs, padded, table_rows,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 6] = [
    table_rows("dict_dim", 1_000_000, "rows of the embedding table"),
    key("emb_dim", HyperDefault::Int(9), "floats per embedding"),
    count("slot_num", 300, "slots, of any number of ids"),
    key("layer_sizes", HyperDefault::Ints(&[512, 256, 128, 128, 128]), "widths of the layers"),
    key("sparse_feature_dim", HyperDefault::Int(0), "the same as emb_dim"),
    key("hash_ids", HyperDefault::Bool(false), "take ids modulo the number of rows"),
];

pub(super) static MODEL: Model = Model {
    name: "slot_dnn",
    group: "rank",
    summary: "many multi-valued slots, summed per slot, through fully connected layers",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.001),
    schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn schema(h: &Hyper) -> Result<Schema, Error> {
    let mut slots = vec![Slot::label("label")];
    slots.extend((1..=h.size("slot_num")?).map(|i| Slot::ids(i.to_string())));
    Ok(Schema::new(slots)?)
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let fields = match h.features() {
        Some(features) => Fields::declared(features, b, &[])?,
        None => Fields::slots(multi_id_inputs(b, h.size("slot_num")?)?, None),
    };
    let (rows, dim) = (h.size("dict_dim")?, h.size("emb_dim")?);
    check_repeated(h, "sparse_feature_dim", dim)?;
    // `initial_range` of the table in PaddleRec's file.
    let attr = ParamAttr::with_init(Initializer::Uniform { low: -1e-4, high: 1e-4 });
    let table = attr.named("SparseFeatFactors");
    let table = Embedding { table, hash: h.bool("hash_ids"), ..Embedding::new(rows, dim) };
    let flat = fields.flat_with_dense(b, &padded(table))?;
    let weights = Weights { scale: 0.2, ..Weights::SCALED };
    let hidden = weights.relu_layers(b, &flat, h.ints("layer_sizes"))?;
    let logit = weights.fc(b, &hidden, 1, Act::None)?;
    let logit = b.clip(&logit, -15.0, 15.0)?;
    click_net(b, &logit, label)
}
