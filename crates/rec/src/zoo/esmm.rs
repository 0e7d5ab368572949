//! `esmm`: clicks and conversions over the space of all impressions: the probability of a
//! conversion is that of a click times that of a conversion after a click, and only the product is
//! compared with a label.

use regatta_data::{Schema, Slot};
use regatta_ir::{Act, Builder, Initializer, ParamAttr, Var};
use regatta_tensor::DType;

use super::fields::Fields;
use super::layers::{
    auc_head, click_table, count, key, mean_log_loss, multi_id_inputs, padded, relu_layers,
    scaled_fc, table_rows, two_classes,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 8] = [
    table_rows("sparse_feature_number", 737_946, "rows of the embedding table"),
    key("sparse_feature_dim", HyperDefault::Int(12), "floats per embedding"),
    count("num_field", 23, "slots, of any number of ids"),
    key("dense_input_dim", HyperDefault::Int(0), "dense features; 0 for none"),
    key("hash_ids", HyperDefault::Bool(false), "take ids modulo the number of rows"),
    count("max_len", 3, "ids of a field that PaddleRec's reader keeps, the first ones"),
    key("ctr_fc_sizes", HyperDefault::Ints(&[256, 64]), "widths of the click network"),
    key("cvr_fc_sizes", HyperDefault::Ints(&[256, 64]), "widths of the conversion network"),
];

pub(super) static MODEL: Model = Model {
    name: "esmm",
    group: "multitask",
    summary: "clicks, and conversions as click times conversion after a click",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.001),
    schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn schema(h: &Hyper) -> Result<Schema, Error> {
    let mut slots = vec![Slot::label("click"), Slot::label("conversion")];
    slots.extend((1..=h.size("num_field")?).map(|i| Slot::ids(i.to_string())));
    if h.int("dense_input_dim") > 0 {
        slots.push(Slot::dense("dense_input", h.int("dense_input_dim") as usize));
    }
    Ok(Schema::new(slots)?)
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let click = b.data("click", DType::I64, &[-1, 1])?;
    let conversion = b.data("conversion", DType::I64, &[-1, 1])?;
    let features = features(h, b)?;

    let p_click = tower(b, &features, h.ints("ctr_fc_sizes"))?;
    let p_after_click = tower(b, &features, h.ints("cvr_fc_sizes"))?;
    let p_conversion = b.elementwise_mul(&p_click, &p_after_click)?;
    let click_loss = mean_log_loss(b, &p_click, &click)?;
    let conversion_loss = mean_log_loss(b, &p_conversion, &conversion)?;
    let loss = b.sum(&[&click_loss, &conversion_loss])?;
    let heads =
        vec![auc_head("auc_ctr", p_click, click), auc_head("auc_ctcvr", p_conversion, conversion)];
    Ok(Net::new(loss, heads))
}

fn features(h: &Hyper, b: &mut Builder) -> Result<Var, Error> {
    let dim = h.size("sparse_feature_dim")?;
    let attr = ParamAttr::with_init(Initializer::Uniform { low: -1.0, high: 1.0 });
    let table = click_table(h, dim, attr.named("SparseFeatFactors"))?;
    let table = padded(table);
    if let Some(features) = h.features() {
        return Fields::declared(features, b, &[])?.flat_with_dense(b, &table);
    }
    let slots = multi_id_inputs(b, h.size("num_field")?)?;
    let width = h.int("dense_input_dim");
    let dense = (width > 0).then(|| b.data("dense_input", DType::F32, &[-1, width])).transpose()?;
    Fields::slots(slots, dense).flat_with_dense(b, &table)
}

/// The probability of the second of two classes.
fn tower(b: &mut Builder, x: &Var, sizes: &[i64]) -> Result<Var, Error> {
    let hidden = relu_layers(b, x, sizes)?;
    let logits = scaled_fc(b, &hidden, 2, Act::None)?;
    Ok(two_classes(b, &logits)?.1)
}
