//! `din`: what a user did before, weighed by how much each item has to do with the target.
//!
//! Histories are of any length. They are cut to the last `max_len` items and padded with id 0,
//! which gets no attention.

use regatta_data::{Schema, Slot};
use regatta_ir::{Act, Builder, Embedding, Initializer, Op, ParamAttr, Var};
use regatta_tensor::DType;

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

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let (items, cats) = (b.sparse_data("hist_item_seq")?, b.sparse_data("hist_cat_seq")?);
    let target_item = b.data("target_item", DType::U64, &[-1, 1])?;
    let target_cat = b.data("target_cat", DType::U64, &[-1, 1])?;
    let max_len = h.size("max_len")?;
    let (items, cats) = (pad(b, &items, max_len)?, pad(b, &cats, max_len)?);
    let act = act("act", h.str("act"))?;

    let table = |name: &str, rows: &str, dim: i64| -> Result<Embedding, Error> {
        let table = ParamAttr::with_init(Initializer::Xavier { uniform: true }).named(name);
        Ok(Embedding { table, padding_idx: Some(0), ..Embedding::new(h.size(rows)?, dim) })
    };
    // Both tables for history and target at once: `[batch, max_len + 1, dim]`, the target last.
    let item_table = table("item_emb", "item_count", h.size("item_emb_size")?)?;
    let cat_table = table("cat_emb", "cat_count", h.size("cat_emb_size")?)?;
    let item_vectors = b.embedding(&[&items, &target_item], &item_table)?;
    let cat_vectors = b.embedding(&[&cats, &target_cat], &cat_table)?;
    let vectors = b.concat(&[&item_vectors, &cat_vectors], 2)?;
    let history = b.slice(&vectors, 1, 0, max_len)?;
    let target = b.slice(&vectors, 1, max_len, max_len + 1)?;

    let interest = attend(b, &history, &target, &items, act)?;
    let width = item_table.dim + cat_table.dim;
    let interest = b.fc(&interest, width, Act::None)?;
    let target = b.reshape(&target, &[-1, width])?;
    let mut hidden = b.concat(&[&interest, &target], 1)?;
    for size in HIDDEN {
        hidden = b.fc(&hidden, size, act)?;
    }
    let deep = b.fc(&hidden, 1, Act::None)?;
    let popularity = Embedding { table: ParamAttr::bias().named("item_b"), dim: 1, ..item_table };
    let popularity = b.embedding(&[&target_item], &popularity)?;
    let popularity = b.reshape(&popularity, &[-1, 1])?;
    let logit = b.elementwise_add(&deep, &popularity)?;
    click_net(b, &logit, label)
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
