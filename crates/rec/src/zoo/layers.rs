//! Inputs and layers that several models share.

use regatta_data::{Schema, Slot};
use regatta_ir::{Act, Builder, Embedding, Fc, Initializer, ParamAttr, Regularizer, Var};
use regatta_tensor::DType;

use super::fields::Fields;
use super::{Head, Metric, Net};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

/// The keys of models over Criteo-like click logs.
pub const CLICK_KEYS: [HyperKey; 5] = click_keys(1_000_001, 9);

/// [`CLICK_KEYS`] with another size of the table.
pub const fn click_keys(rows: i64, dim: i64) -> [HyperKey; 5] {
    [
        count("sparse_inputs_slots", 27, "sparse slots plus one for the label"),
        table_rows("sparse_feature_number", rows, "rows of the embedding table"),
        key("sparse_feature_dim", HyperDefault::Int(dim), "floats per embedding"),
        key("dense_input_dim", HyperDefault::Int(13), "dense features"),
        key("hash_ids", HyperDefault::Bool(false), "take ids modulo the number of rows"),
    ]
}

/// A hyper-parameter; integers are widths.
pub const fn key(name: &'static str, default: HyperDefault, doc: &'static str) -> HyperKey {
    HyperKey { name, default, max: 1 << 20, doc }
}

/// How often something is in the network: each slot, layer or expert is an op of its own.
pub const fn count(name: &'static str, default: i64, doc: &'static str) -> HyperKey {
    HyperKey { max: 10_000, ..key(name, HyperDefault::Int(default), doc) }
}

/// The height of a table. What is too large for the machine is noticed before it is made.
pub const fn table_rows(name: &'static str, default: i64, doc: &'static str) -> HyperKey {
    HyperKey { max: 1 << 40, ..key(name, HyperDefault::Int(default), doc) }
}

/// Both lists of keys, `N` in all.
pub const fn join<const A: usize, const B: usize, const N: usize>(
    a: [HyperKey; A],
    b: [HyperKey; B],
) -> [HyperKey; N] {
    assert!(A + B == N, "the length of the whole is the sum of the parts");
    let mut all = [key("", HyperDefault::Int(0), ""); N];
    let mut i = 0;
    while i < N {
        all[i] = if i < A { a[i] } else { b[i - A] };
        i += 1;
    }
    all
}

/// Checks a key that repeats what follows from others; 0 stands for "not said".
///
/// # Errors
/// If it says something else.
pub fn check_repeated(h: &Hyper, name: &str, follows: i64) -> Result<(), Error> {
    match h.int(name) {
        0 => Ok(()),
        n if n == follows => Ok(()),
        n => {
            let reason = format!("is {n}, but {follows} follows from the other hyper-parameters");
            Err(Error::key(format!("hyper_parameters.{name}"), reason))
        }
    }
}

/// An activation by the name that YAML files use.
///
/// # Errors
/// If there is none of that name.
pub fn act(key: &str, name: &str) -> Result<Act, Error> {
    match name.trim() {
        "" | "linear" | "none" => Ok(Act::None),
        "relu" => Ok(Act::Relu),
        "tanh" => Ok(Act::Tanh),
        "sigmoid" => Ok(Act::Sigmoid),
        "gelu" => Ok(Act::Gelu),
        other => {
            let known = "relu, tanh, sigmoid, gelu or linear";
            Err(Error::key(format!("hyper_parameters.{key}"), format!("is '{other}', not {known}")))
        }
    }
}

/// The inputs of a click model.
pub struct ClickInputs {
    /// `i64[batch, 1]`.
    pub label: Var,
    /// What it looks at.
    pub fields: Fields,
}

/// Label, slots `1..`, and `dense_input`, as PaddleRec's Criteo readers yield them.
pub fn click_schema(h: &Hyper) -> Result<Schema, Error> {
    let mut slots = vec![Slot::label("label")];
    slots.extend((1..h.size("sparse_inputs_slots")?).map(|i| Slot::fixed_ids(i.to_string(), 1)));
    slots.push(Slot::dense("dense_input", h.size("dense_input_dim")? as usize));
    Ok(Schema::new(slots)?)
}

/// Declares the inputs of [`click_schema`], or those of declared features.
pub fn click_inputs(h: &Hyper, b: &mut Builder) -> Result<ClickInputs, Error> {
    let label = b.data("label", DType::I64, &[-1, 1])?;
    if let Some(features) = h.features() {
        return Ok(ClickInputs { label, fields: Fields::declared(features, b, &[])? });
    }
    let sparse = id_inputs(b, h.size("sparse_inputs_slots")? - 1)?;
    let dense = b.data("dense_input", DType::F32, &[-1, h.size("dense_input_dim")?])?;
    Ok(ClickInputs { label, fields: Fields::slots(sparse, Some(dense)) })
}

/// Slots `1..=n` of one id per example.
pub fn id_inputs(b: &mut Builder, n: i64) -> Result<Vec<Var>, Error> {
    let slots = (1..=n).map(|i| b.data(&i.to_string(), DType::U64, &[-1, 1]));
    Ok(slots.collect::<Result<Vec<_>, _>>()?)
}

/// Slots `1..=n` of any number of ids per example.
pub fn multi_id_inputs(b: &mut Builder, n: i64) -> Result<Vec<Var>, Error> {
    let slots = (1..=n).map(|i| b.sparse_data(&i.to_string()));
    Ok(slots.collect::<Result<Vec<_>, _>>()?)
}

/// The table of a click model, `dim` floats for each id.
pub fn click_table(h: &Hyper, dim: i64, table: ParamAttr) -> Result<Embedding, Error> {
    let rows = h.size("sparse_feature_number")?;
    Ok(Embedding { table, hash: h.bool("hash_ids"), ..Embedding::new(rows, dim) })
}

/// How the weights of fully connected layers begin, and what keeps them small.
#[derive(Clone, Copy)]
pub struct Weights {
    /// Standard deviation times the square root of a layer's inputs.
    pub scale: f64,
    /// Redrawn beyond two standard deviations.
    pub truncated: bool,
    /// Factor of the L2 regularization.
    pub l2: f64,
}

impl Weights {
    /// A standard deviation of `1 / sqrt(fan_in)`.
    pub const SCALED: Weights = Weights { scale: 1.0, truncated: false, l2: 0.0 };

    /// For a layer of so many inputs.
    pub fn attr(self, fan_in: i64) -> ParamAttr {
        let std = self.scale / (fan_in.max(1) as f64).sqrt();
        let mut attr = ParamAttr::with_init(match self.truncated {
            true => Initializer::TruncatedNormal { mean: 0.0, std },
            false => Initializer::Normal { mean: 0.0, std },
        });
        attr.info.regularizer = Some(self.l2).filter(|c| *c != 0.0).map(Regularizer::L2);
        attr
    }

    /// A fully connected layer.
    pub fn fc(self, b: &mut Builder, x: &Var, size: i64, act: Act) -> Result<Var, Error> {
        let weight = self.attr(b.ty(x)?.shape.last().copied().unwrap_or(1));
        Ok(b.fc_with(x, &Fc { act, weight, ..Fc::new(size) })?)
    }

    /// Fully connected layers with relu.
    pub fn relu_layers(self, b: &mut Builder, x: &Var, sizes: &[i64]) -> Result<Var, Error> {
        sizes.iter().try_fold(x.clone(), |h, &size| self.fc(b, &h, size, Act::Relu))
    }
}

/// [`Weights::relu_layers`] of scaled weights.
pub fn relu_layers(b: &mut Builder, x: &Var, sizes: &[i64]) -> Result<Var, Error> {
    Weights::SCALED.relu_layers(b, x, sizes)
}

/// As [`relu_layers`], each normalised over the batch before the relu.
pub fn normalised_relu_layers(b: &mut Builder, x: &Var, sizes: &[i64]) -> Result<Var, Error> {
    let mut h = x.clone();
    for &size in sizes {
        let linear = scaled_fc(b, &h, size, Act::None)?;
        let normal = b.batch_norm(&linear, 0.9, 1e-5)?;
        h = b.relu(&normal)?;
    }
    Ok(h)
}

/// [`Weights::fc`] of scaled weights.
pub fn scaled_fc(b: &mut Builder, x: &Var, size: i64, act: Act) -> Result<Var, Error> {
    Weights::SCALED.fc(b, x, size, act)
}

/// The initial values of PaddleRec's tables of factors, `0.1 / sqrt(dim)` wide: products of all
/// pairs stay near zero.
pub fn small(dim: i64) -> ParamAttr {
    let std = 0.1 / (dim as f64).sqrt();
    ParamAttr::with_init(Initializer::TruncatedNormal { mean: 0.0, std })
}

/// Id 0 stands for a missing value.
pub fn padded(table: Embedding) -> Embedding {
    Embedding { padding_idx: Some(0), ..table }
}

/// What PaddleRec adds to probabilities before it takes their logarithm.
const LOG_EPSILON: f64 = 1e-4;

/// The loss of each example for probabilities of a positive label, `[batch, 1]`.
pub fn log_losses(b: &mut Builder, predict: &Var, label: &Var) -> Result<Var, Error> {
    let target = b.cast(label, DType::F32)?;
    Ok(b.log_loss(predict, &target, LOG_EPSILON)?)
}

/// The mean of [`log_losses`].
pub fn mean_log_loss(b: &mut Builder, predict: &Var, label: &Var) -> Result<Var, Error> {
    let cost = log_losses(b, predict, label)?;
    Ok(b.mean(&cost)?)
}

/// Two classes of which the second is the positive one: the probabilities of both, and of that one.
pub fn two_classes(b: &mut Builder, x: &Var) -> Result<(Var, Var), Error> {
    let predict = b.softmax(x)?;
    let positive = b.slice(&predict, 1, 1, 2)?;
    Ok((predict, positive))
}

/// Mean cross entropy of one logit per class, and the probabilities. These are made by an op of
/// their own, so that a program for inference needs no labels.
pub fn class_loss(b: &mut Builder, logits: &Var, label: &Var) -> Result<(Var, Var), Error> {
    let (cost, _) = b.softmax_with_cross_entropy(logits, label)?;
    let loss = b.mean(&cost)?;
    Ok((loss, b.softmax(logits)?))
}

/// The network of a click model that ends in one logit per example.
pub fn click_net(b: &mut Builder, logit: &Var, label: Var) -> Result<Net, Error> {
    let predict = b.sigmoid(logit)?;
    let loss = mean_log_loss(b, &predict, &label)?;
    Ok(Net::new(loss, vec![auc_head("auc", predict, label)]))
}

/// A head that is judged by its AUC.
pub fn auc_head(metric: &'static str, predict: Var, label: Var) -> Head {
    Head { metric, kind: Metric::Auc, predict, label }
}
