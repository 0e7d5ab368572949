//! `din`: what a user did before, weighed by how much each item has to do with the target.
//!
//! Histories are of any length. They are cut to the last `max_len` items and padded with id 0,
//! which gets no attention.

use regatta_data::{Schema, Slot};
use regatta_features::{Feature, Features, Table};
use regatta_ir::{Act, Builder, Embedding, Initializer, Op, ParamAttr, Var};
use regatta_tensor::DType;

use super::fields::{Fields, VECTORS, pairs, table_of};
use super::layers::{act, click_net, count, key, table_rows};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 6] = [
    key("item_emb_size", HyperDefault::Int(64), "floats per item"),
    key("cat_emb_size", HyperDefault::Int(64), "floats per category"),
    table_rows("item_count", 63_001, "rows of the table of items"),
    table_rows("cat_count", 801, "rows of the table of categories"),
    key("act", HyperDefault::Str("sigmoid"), "activation of the hidden layers"),
    count("max_len", 100, "items of a history that are kept, the last ones"),
];

/// Hidden layers of the attention and of the prediction, as in the paper.
const HIDDEN: [i64; 2] = [80, 40];

/// Added to the score of padding: its weight is zero then, unless there is nothing else.
const NEVER: f64 = -1e9;

pub(super) static MODEL: Model = Model {
    name: "din",
    group: "rank",
    summary: "attention of the target item over the user's history",
    keys: &KEYS,
    ignored_keys: &["use_DataLoader"],
    optimizer: OptimizerDefault::sgd(0.85),
    schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn schema(_: &Hyper) -> Result<Schema, Error> {
    let slots = vec![
        Slot::label("label"),
        Slot::ids("hist_item_seq"),
        Slot::ids("hist_cat_seq"),
        Slot::fixed_ids("target_item", 1),
        Slot::fixed_ids("target_cat", 1),
    ];
    Ok(Schema::new(slots)?)
}

/// A history and its target, with the table of both.
struct Pair {
    /// `u64[batch, len]`, filled up with id 0.
    history: Var,
    target: Var,
    table: Embedding,
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let (pairs, others) = match h.features() {
        Some(features) => declared(h, b, features)?,
        None => (items_and_categories(h, b)?, None),
    };
    let act = act("act", h.str("act"))?;
    let len = b.ty(&pairs[0].history)?.shape[1];
    // Every table for history and target at once: `[batch, len + 1, dim]`, the target last.
    let mut vectors = Vec::new();
    for pair in &pairs {
        vectors.push(b.embedding(&[&pair.history, &pair.target], &pair.table)?);
    }
    let vectors = match &vectors[..] {
        [one] => one.clone(),
        _ => b.concat(&vectors.iter().collect::<Vec<_>>(), 2)?,
    };
    let history = b.slice(&vectors, 1, 0, len)?;
    let target = b.slice(&vectors, 1, len, len + 1)?;

    let interest = attend(b, &history, &target, &pairs[0].history, act)?;
    let width = b.ty(&vectors)?.shape[2];
    let interest = b.fc(&interest, width, Act::None)?;
    let target = b.reshape(&target, &[-1, width])?;
    let joined: Vec<&Var> = [&interest, &target].into_iter().chain(&others).collect();
    let mut hidden = b.concat(&joined, 1)?;
    for size in HIDDEN {
        hidden = b.fc(&hidden, size, act)?;
    }
    let deep = b.fc(&hidden, 1, Act::None)?;
    let Pair { table, target, .. } = &pairs[0];
    let name = table.table.name.clone().unwrap_or_default();
    let name = format!("{}_b", name.trim_end_matches("_emb"));
    let table = ParamAttr::bias().named(name);
    let popularity = Embedding { table, dim: 1, ..pairs[0].table.clone() };
    let popularity = b.embedding(&[target], &popularity)?;
    let popularity = b.reshape(&popularity, &[-1, 1])?;
    let logit = b.elementwise_add(&deep, &popularity)?;
    click_net(b, &logit, label)
}

/// PaddleRec's inputs: items with their categories.
fn items_and_categories(h: &Hyper, b: &mut Builder) -> Result<Vec<Pair>, Error> {
    let (items, cats) = (b.sparse_data("hist_item_seq")?, b.sparse_data("hist_cat_seq")?);
    let target_item = b.data("target_item", DType::U64, &[-1, 1])?;
    let target_cat = b.data("target_cat", DType::U64, &[-1, 1])?;
    let max_len = h.size("max_len")?;
    let (items, cats) = (pad(b, &items, max_len)?, pad(b, &cats, max_len)?);
    let table = |name: &str, rows: &str, dim: &str| -> Result<Embedding, Error> {
        let table = xavier().named(name);
        Ok(Embedding { table, padding_idx: Some(0), ..Embedding::new(h.size(rows)?, h.size(dim)?) })
    };
    Ok(vec![
        Pair {
            history: items,
            target: target_item,
            table: table("item_emb", "item_count", "item_emb_size")?,
        },
        Pair {
            history: cats,
            target: target_cat,
            table: table("cat_emb", "cat_count", "cat_emb_size")?,
        },
    ])
}

fn xavier() -> ParamAttr {
    ParamAttr::with_init(Initializer::Xavier { uniform: true })
}

/// Every sequence with the feature that it is one of, position by position, and all other features
/// in a row.
fn declared(
    h: &Hyper,
    b: &mut Builder,
    features: &Features,
) -> Result<(Vec<Pair>, Option<Var>), Error> {
    let found = pairs(features);
    if found.is_empty() {
        let reason = "model din needs a sequence: what a user did before, of the feature that is \
                      the target";
        return Err(Error::key("features", reason));
    }
    let longest = h.size("max_len")?;
    let length = |f: &Feature| f.length.map_or(longest, |n| n as i64);
    let len = found.iter().map(|(_, sequence)| length(sequence)).max().unwrap_or(longest);
    let (mut all, mut names): (Vec<Pair>, Vec<&str>) = (Vec::new(), Vec::new());
    for (target, sequence) in found {
        if target.is_multi() || sequence.weight.is_some() || names.contains(&target.name.as_str()) {
            let key = format!("features.{}", sequence.name);
            let reason = "model din takes one sequence for a target, without weights, and one \
                          value of the target";
            return Err(Error::key(key, reason));
        }
        let history = b.sparse_data(&sequence.name)?;
        let history = pad(b, &history, len)?;
        let id = b.data(&target.name, DType::U64, &[-1, 1])?;
        let Some(Table { name, rows, dim }) = features.table(target) else { continue };
        let dim = dim.map_or(h.size("item_emb_size")?, |dim| dim as i64);
        let like = Embedding { table: xavier(), ..Embedding::new(rows as i64, dim) };
        let table = table_of(&name, rows as i64, &like, VECTORS);
        all.push(Pair { history, target: id, table });
        names.extend([target.name.as_str(), sequence.name.as_str()]);
    }
    let others = Fields::declared(features, b, &names)?;
    let like = Embedding { table: xavier(), ..Embedding::new(1, h.size("cat_emb_size")?) };
    let others = match others.len() == 0 && others.dense.is_none() {
        true => None,
        false => Some(others.flat_with_dense(b, &like)?),
    };
    Ok((all, others))
}

/// Slots of any number of ids to `u64[batch, len]`.
fn pad(b: &mut Builder, ids: &Var, len: i64) -> Result<Var, Error> {
    Ok(b.emit_one(Op::new("sequence_pad").input("X", ids.name()).attr("len", len))?)
}

/// The sum of the history's vectors `[batch, len, width]`, weighed by a network that sees each of
/// them together with the target `[batch, 1, width]`.
fn attend(b: &mut Builder, history: &Var, target: &Var, ids: &Var, act: Act) -> Result<Var, Error> {
    let (len, width) = (b.ty(history)?.shape[1], b.ty(history)?.shape[2]);
    let difference = b.elementwise_sub(history, target)?;
    let product = b.elementwise_mul(history, target)?;
    // The target once per position: what the difference is short of the history.
    let repeated = b.elementwise_sub(history, &difference)?;
    let mut hidden = b.concat(&[history, &repeated, &difference, &product], 2)?;
    for size in HIDDEN {
        hidden = b.fc(&hidden, size, act)?;
    }
    let scores = b.fc(&hidden, 1, Act::None)?;
    let scores = b.reshape(&scores, &[-1, len])?;
    let scores = b.scale(&scores, 1.0 / (width as f64).sqrt(), 0.0)?;
    let ids = b.cast(ids, DType::F32)?;
    let present = b.clip(&ids, 0.0, 1.0)?;
    let mask = b.scale(&present, -NEVER, NEVER)?;
    let scores = b.elementwise_add(&scores, &mask)?;
    let weights = b.softmax(&scores)?;
    let weights = b.reshape(&weights, &[-1, 1, len])?;
    let weighed = b.matmul(&weights, history, false, false)?;
    Ok(b.reshape(&weighed, &[-1, width])?)
}
