//! `din`: what a user did before, weighed by how much each item has to do with the target.
//!
//! Histories are of any length. They are cut to the last `max_len` items and padded with id 0,
//! which gets no attention.

use regatta_data::{Schema, Slot};
use regatta_features::{Feature, Features, Table};
use regatta_ir::{Act, Builder, Embedding, Initializer, Op, ParamAttr, Var};
use regatta_tensor::DType;

use super::fields::{Fields, LINEAR, VECTORS, pairs, table_of};
use super::layers::{act, auc_head, count, key, padded, table_rows};
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

/// What the network looks at.
struct Looked {
    /// The history `u64[batch, len]`, filled up with id 0, and its vectors `[batch, len, width]`.
    ids: Var,
    history: Var,
    /// The target as the attention sees it, and as the prediction does: `[batch, 1, width]`.
    attended: Var,
    target: Var,
    /// A number for each target, `[batch, 1, 1]`.
    popularity: Var,
    /// All other features in a row, `[batch, width]`.
    others: Option<Var>,
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let act = act("act", h.str("act"))?;
    let looked = match h.features() {
        Some(features) => declared(h, b, features)?,
        None => items_and_categories(h, b)?,
    };
    let interest = attend(b, &looked.history, &looked.attended, &looked.ids, act)?;
    let width = b.ty(&looked.history)?.shape[2];
    let interest = b.fc(&interest, width, Act::None)?;
    let target = b.reshape(&looked.target, &[-1, width])?;
    let joined: Vec<&Var> = [&interest, &target].into_iter().chain(&looked.others).collect();
    let mut hidden = b.concat(&joined, 1)?;
    for size in HIDDEN {
        hidden = b.fc(&hidden, size, act)?;
    }
    let deep = b.fc(&hidden, 1, Act::None)?;
    let popularity = b.reshape(&looked.popularity, &[-1, 1])?;
    let logit = b.elementwise_add(&deep, &popularity)?;
    let floats = b.cast(&label, DType::F32)?;
    let cost = b.sigmoid_cross_entropy(&logit, &floats)?;
    let (loss, predict) = (b.mean(&cost)?, b.sigmoid(&logit)?);
    Ok(Net::new(loss, vec![auc_head("auc", predict, label)]))
}

fn xavier() -> ParamAttr {
    ParamAttr::with_init(Initializer::Xavier { uniform: true })
}

/// PaddleRec's inputs: items and categories side by side. The history, the target in the attention
/// and the target in the prediction have tables of their own.
fn items_and_categories(h: &Hyper, b: &mut Builder) -> Result<Looked, Error> {
    let (items, cats) = (b.sparse_data("hist_item_seq")?, b.sparse_data("hist_cat_seq")?);
    let target_item = b.data("target_item", DType::U64, &[-1, 1])?;
    let target_cat = b.data("target_cat", DType::U64, &[-1, 1])?;
    let max_len = h.size("max_len")?;
    let (items, cats) = (pad(b, &items, max_len)?, pad(b, &cats, max_len)?);
    let (rows, cat_rows) = (h.size("item_count")?, h.size("cat_count")?);
    let (dim, cat_dim) = (h.size("item_emb_size")?, h.size("cat_emb_size")?);
    let table = |name: String, rows: i64, dim: i64| {
        padded(Embedding { table: xavier().named(name), ..Embedding::new(rows, dim) })
    };
    let mut vectors = |place: &str, items: &Var, cats: &Var| -> Result<Var, Error> {
        let of_items = b.embedding(&[items], &table(format!("{place}_item_emb"), rows, dim))?;
        let of_cats =
            b.embedding(&[cats], &table(format!("{place}_cat_emb"), cat_rows, cat_dim))?;
        Ok(b.concat(&[&of_items, &of_cats], 2)?)
    };
    let history = vectors("hist", &items, &cats)?;
    let attended = vectors("target_seq", &target_item, &target_cat)?;
    let target = vectors("target", &target_item, &target_cat)?;
    let popularity = ParamAttr::bias().named("item_b");
    let popularity = padded(Embedding { table: popularity, ..Embedding::new(rows, 1) });
    let popularity = b.embedding(&[&target_item], &popularity)?;
    Ok(Looked { ids: items, history, attended, target, popularity, others: None })
}

/// Every sequence with the feature that it is one of, from the same table, position by position;
/// and all other features in a row.
fn declared(h: &Hyper, b: &mut Builder, features: &Features) -> Result<Looked, Error> {
    let found = pairs(features);
    let longest = h.size("max_len")?;
    let length = |(_, f): &(&Feature, &Feature)| f.length.map_or(longest, |n| n as i64);
    let len = found.iter().map(length).max().unwrap_or(longest);
    let (mut vectors, mut names): (Vec<Var>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut first = None;
    for (target, sequence) in found {
        if target.is_multi() || sequence.weight.is_some() || names.contains(&target.name.as_str()) {
            let reason = "model din takes one sequence for a target, without weights, and one \
                          value of the target";
            return Err(Error::key(format!("features.{}", sequence.name), reason));
        }
        let history = b.sparse_data(&sequence.name)?;
        let history = pad(b, &history, len)?;
        let id = b.data(&target.name, DType::U64, &[-1, 1])?;
        let Some(Table { name, rows, dim }) = features.table(target) else { continue };
        let (rows, dim) = (rows as i64, dim.map_or(h.size("item_emb_size")?, |dim| dim as i64));
        let like = Embedding { table: xavier(), ..Embedding::new(rows, dim) };
        // Both at once: `[batch, len + 1, dim]`, the target last.
        let table = table_of(&name, rows, &like, VECTORS);
        vectors.push(b.embedding(&[&history, &id], &table)?);
        names.extend([target.name.as_str(), sequence.name.as_str()]);
        first.get_or_insert((history, id, name, rows));
    }
    let Some((ids, target_id, name, rows)) = first else {
        let reason = "model din needs a sequence: what a user did before, of the feature that is \
                      the target";
        return Err(Error::key("features", reason));
    };
    let vectors = match &vectors[..] {
        [one] => one.clone(),
        _ => b.concat(&vectors.iter().collect::<Vec<_>>(), 2)?,
    };
    let history = b.slice(&vectors, 1, 0, len)?;
    let target = b.slice(&vectors, 1, len, len + 1)?;
    let like = Embedding { table: ParamAttr::bias(), ..Embedding::new(rows, 1) };
    let popularity = b.embedding(&[&target_id], &table_of(&name, rows, &like, LINEAR))?;
    let fields = Fields::declared(features, b, &names)?;
    let like = Embedding { table: xavier(), ..Embedding::new(1, h.size("cat_emb_size")?) };
    let others = match fields.len() == 0 && fields.dense.is_none() {
        true => None,
        false => Some(fields.flat_with_dense(b, &like)?),
    };
    let attended = target.clone();
    Ok(Looked { ids, history, attended, target, popularity, others })
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
