//! `mmoe`: experts that all tasks share, mixed by a gate of each task.
//!
//! PaddleRec's model takes `feature_size` floats. Here slots of ids can stand beside them.

use regatta_data::{Schema, Slot};
use regatta_ir::{Act, Builder, Fc, Initializer, ParamAttr, Var};
use regatta_tensor::DType;

use super::fields::Fields;
use super::layers::{
    CLICK_KEYS, auc_head, click_table, count, id_inputs, key, mean_log_loss, two_classes,
};
use super::{Evaluation, Head, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

/// Labels, which are the tasks, and the metric of each.
const TASKS: [(&str, &str); 2] = [("click", "auc_click"), ("conversion", "auc_conversion")];

const KEYS: [HyperKey; 9] = [
    key("feature_size", HyperDefault::Int(499), "dense features"),
    count("sparse_inputs_slots", 1, "sparse slots plus one for the label"),
    CLICK_KEYS[1],
    CLICK_KEYS[2],
    CLICK_KEYS[4],
    count("expert_num", 8, "experts"),
    count("gate_num", 2, "tasks; there are two labels"),
    key("expert_size", HyperDefault::Int(16), "width of an expert"),
    key("tower_size", HyperDefault::Int(8), "width of the hidden layer of a task"),
];

pub(super) static MODEL: Model = Model {
    name: "mmoe",
    group: "multitask",
    summary: "two tasks over shared experts, mixed by a gate of each task",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.001),
    schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn schema(h: &Hyper) -> Result<Schema, Error> {
    let mut slots: Vec<Slot> = TASKS.iter().map(|(label, _)| Slot::label(*label)).collect();
    slots.extend((1..h.size("sparse_inputs_slots")?).map(|i| Slot::fixed_ids(i.to_string(), 1)));
    slots.push(Slot::dense("dense_input", h.size("feature_size")? as usize));
    Ok(Schema::new(slots)?)
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    if h.int("gate_num") != TASKS.len() as i64 {
        let reason = format!("is {}, but there are two labels", h.int("gate_num"));
        return Err(Error::key("hyper_parameters.gate_num", reason));
    }
    let mut labels = Vec::new();
    for (label, _) in TASKS {
        labels.push(b.data(label, DType::I64, &[-1, 1])?);
    }
    let features = features(h, b)?;
    let (n, size) = (h.size("expert_num")?, h.size("expert_size")?);
    let mut experts = Vec::new();
    for i in 0..n {
        experts.push(constant_fc(b, &features, size, i, Act::Relu)?);
    }
    let experts = b.concat(&experts.iter().collect::<Vec<_>>(), 1)?;
    let experts = b.reshape(&experts, &[-1, n, size])?;
    let (mut losses, mut heads): (Vec<Var>, Vec<Head>) = (Vec::new(), Vec::new());
    for (i, (label, (_, metric))) in (0..).zip(labels.into_iter().zip(TASKS)) {
        let scores = constant_fc(b, &features, n, i, Act::None)?;
        let gate = b.softmax(&scores)?;
        let gate = b.reshape(&gate, &[-1, n, 1])?;
        let weighted = b.elementwise_mul(&experts, &gate)?;
        let mixed = b.reduce_sum(&weighted, &[1], false)?;
        let tower = constant_fc(b, &mixed, h.size("tower_size")?, i, Act::Relu)?;
        let logits = constant_fc(b, &tower, 2, i, Act::None)?;
        let (predict, positive) = two_classes(b, &logits)?;
        losses.push(mean_log_loss(b, &positive, &label)?);
        heads.push(auc_head(metric, predict, label));
    }
    let loss = b.sum(&losses.iter().collect::<Vec<_>>())?;
    Ok(Net::new(loss, heads))
}

/// A layer whose weights are all `10^-(i + 1)` at first, as PaddleRec's experts, gates and towers:
/// what tells the units of an expert apart is the task that comes after, not chance.
fn constant_fc(b: &mut Builder, x: &Var, size: i64, i: i64, act: Act) -> Result<Var, Error> {
    let constant = |value: f64| ParamAttr::with_init(Initializer::Constant(value));
    let weight = constant(0.1f64.powi(i as i32 + 1));
    Ok(b.fc_with(x, &Fc { size, act, weight, bias: Some(constant(0.1)) })?)
}

fn features(h: &Hyper, b: &mut Builder) -> Result<Var, Error> {
    let attr = ParamAttr::with_init(Initializer::Uniform { low: -1.0, high: 1.0 });
    let table = click_table(h, h.size("sparse_feature_dim")?, attr.named("SparseFeatFactors"))?;
    if let Some(features) = h.features() {
        return Fields::declared(features, b, &[])?.flat_with_dense(b, &table);
    }
    let slots = id_inputs(b, h.size("sparse_inputs_slots")? - 1)?;
    let dense = b.data("dense_input", DType::F32, &[-1, h.size("feature_size")?])?;
    Fields::slots(slots, Some(dense)).flat_with_dense(b, &table)
}
