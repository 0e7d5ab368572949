//! Layers that several models share.

use regatta_data::{Schema, Slot};
use regatta_ir::{Act, Builder, Embedding, Fc, Initializer, ParamAttr, Var};
use regatta_tensor::DType;

use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

/// The keys of models over Criteo-like click logs.
pub const CLICK_KEYS: [HyperKey; 5] = [
    key("sparse_inputs_slots", HyperDefault::Int(27), "sparse slots plus one for the label"),
    key("sparse_feature_number", HyperDefault::Int(1_000_001), "rows of the embedding table"),
    key("sparse_feature_dim", HyperDefault::Int(9), "floats per embedding"),
    key("dense_input_dim", HyperDefault::Int(13), "dense features"),
    key("hash_ids", HyperDefault::Bool(false), "take ids modulo the number of rows"),
];

/// A hyper-parameter.
pub const fn key(name: &'static str, default: HyperDefault, doc: &'static str) -> HyperKey {
    HyperKey { name, default, doc }
}

/// The inputs of a click model.
pub struct ClickInputs {
    /// `i64[batch, 1]`.
    pub label: Var,
    /// One id per example and slot.
    pub sparse: Vec<Var>,
    /// `f32[batch, dense_input_dim]`.
    pub dense: Var,
}

/// Label, slots `1..`, and `dense_input`, as PaddleRec's Criteo readers yield them.
pub fn click_schema(h: &Hyper) -> Result<Schema, Error> {
    let mut slots = vec![Slot::label("label")];
    slots.extend((1..h.size("sparse_inputs_slots")?).map(|i| Slot::fixed_ids(i.to_string(), 1)));
    slots.push(Slot::dense("dense_input", h.size("dense_input_dim")? as usize));
    Ok(Schema::new(slots)?)
}

/// Declares the inputs of [`click_schema`].
pub fn click_inputs(h: &Hyper, b: &mut Builder) -> Result<ClickInputs, Error> {
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let sparse = (1..h.size("sparse_inputs_slots")?)
        .map(|i| b.data(&i.to_string(), DType::U64, &[-1, 1]))
        .collect::<Result<Vec<_>, _>>()?;
    let dense = b.data("dense_input", DType::F32, &[-1, h.size("dense_input_dim")?])?;
    Ok(ClickInputs { label, sparse, dense })
}

/// One table for all slots: `[batch, slots, dim]`.
pub fn click_embedding(
    h: &Hyper,
    b: &mut Builder,
    slots: &[Var],
    dim: i64,
    table: ParamAttr,
) -> Result<Var, Error> {
    let slots: Vec<&Var> = slots.iter().collect();
    let rows = h.size("sparse_feature_number")?;
    let spec = Embedding { table, hash: h.bool("hash_ids"), ..Embedding::new(rows, dim) };
    Ok(b.embedding(&slots, &spec)?)
}

/// Fully connected layers with relu, weights drawn with a standard deviation of `1 / sqrt(fan_in)`.
pub fn relu_layers(b: &mut Builder, x: &Var, sizes: &[i64]) -> Result<Var, Error> {
    let mut h = x.clone();
    for &size in sizes {
        h = scaled_fc(b, &h, size, Act::Relu)?;
    }
    Ok(h)
}

/// A fully connected layer, weights drawn with a standard deviation of `1 / sqrt(fan_in)`.
pub fn scaled_fc(b: &mut Builder, x: &Var, size: i64, act: Act) -> Result<Var, Error> {
    let fan_in = b.ty(x)?.shape.last().copied().unwrap_or(1).max(1);
    let std = 1.0 / (fan_in as f64).sqrt();
    let weight = ParamAttr::with_init(Initializer::Normal { mean: 0.0, std });
    Ok(b.fc_with(x, &Fc { act, weight, ..Fc::new(size) })?)
}
