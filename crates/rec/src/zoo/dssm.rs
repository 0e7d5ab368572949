//! `dssm`: queries and documents as vectors whose cosine says how well they fit.
//!
//! PaddleRec's model takes counts of letter trigrams, `trigram_d` floats. The sum of the embeddings
//! of a bag of ids is the product of such counts with a matrix, so here the first layer is a table
//! and the inputs are the ids themselves; with `counts` they are the floats, as in PaddleRec.

use regatta_data::{Schema, Slot};
use regatta_ir::{Act, Builder, Embedding, Initializer, ParamAttr, Var};
use regatta_tensor::DType;

use super::layers::{act, class_loss, count, key, table_rows};
use super::{Evaluation, Head, Metric, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 5] = [
    table_rows("trigram_d", 2900, "different trigrams or words, and id 0 for none"),
    count("neg_num", 1, "documents of an example that do not fit"),
    key("fc_sizes", HyperDefault::Ints(&[300, 300, 128]), "widths of each tower"),
    key("fc_acts", HyperDefault::Strs(&["relu"]), "activation of the layers, or one for each"),
    key("counts", HyperDefault::Bool(false), "inputs are trigram_d floats each, not ids"),
];

pub(super) static MODEL: Model = Model {
    name: "dssm",
    group: "match",
    summary: "two towers whose cosine ranks one right document above wrong ones",
    keys: &KEYS,
    ignored_keys: &["slice_end"],
    optimizer: OptimizerDefault::adam(0.001),
    schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: false,
};

fn documents(h: &Hyper) -> Vec<String> {
    let wrong = (0..h.int("neg_num")).map(|i| format!("doc_neg_{i}"));
    ["doc_pos".to_string()].into_iter().chain(wrong).collect()
}

fn schema(h: &Hyper) -> Result<Schema, Error> {
    let width = h.size("trigram_d")? as usize;
    let slot = |name: String| match h.bool("counts") {
        true => Slot::dense(name, width),
        false => Slot::ids(name),
    };
    let mut slots = vec![slot("query".to_string())];
    slots.extend(documents(h).into_iter().map(slot));
    Ok(Schema::new(slots)?)
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let query = input(h, b, "query")?;
    let query = tower(h, b, "query", &query)?;
    let mut cosines = Vec::new();
    for name in documents(h) {
        let document = input(h, b, &name)?;
        let document = tower(h, b, "doc", &document)?;
        cosines.push(b.cos_sim(&query, &document)?);
    }
    if let [cosine] = &cosines[..] {
        return similarity(b, cosine);
    }
    let scores = b.concat(&cosines.iter().collect::<Vec<_>>(), 1)?;
    // The right document is always the first.
    let first = b.scale(&cosines[0], 0.0, 0.0)?;
    let first = b.cast(&first, DType::I64)?;
    let (loss, predict) = class_loss(b, &scores, &first)?;
    let head = Head { metric: "acc", kind: Metric::Accuracy, predict, label: first };
    Ok(Net::new(loss, vec![head]))
}

fn input(h: &Hyper, b: &mut Builder, name: &str) -> Result<Var, Error> {
    Ok(match h.bool("counts") {
        true => b.data(name, DType::F32, &[-1, h.size("trigram_d")?])?,
        false => b.sparse_data(name)?,
    })
}

/// Without a wrong document there is nothing to learn: how like query and document are.
fn similarity(b: &mut Builder, cosine: &Var) -> Result<Net, Error> {
    let loss = b.mean(cosine)?;
    let (predict, label) = (cosine.clone(), cosine.clone());
    let head = Head { metric: "query_doc_sim", kind: Metric::Mean, predict, label };
    Ok(Net::new(loss, vec![head]))
}

/// Ids or counts to a vector. Parameters carry the name of the tower, which documents share.
fn tower(h: &Hyper, b: &mut Builder, name: &str, ids: &Var) -> Result<Var, Error> {
    let sizes = h.ints("fc_sizes");
    let acts = acts(h, sizes.len())?;
    let (Some(&first), Some(&first_act)) = (sizes.first(), acts.first()) else {
        return Err(Error::key("hyper_parameters.fc_sizes", "is empty"));
    };
    let width = h.size("trigram_d")?;
    let table = xavier(width, first).named(format!("{name}_0.w_0"));
    let table = Embedding { table, padding_idx: Some(0), ..Embedding::new(width, first) };
    let sum = match h.bool("counts") {
        true => {
            let weight = b.param(&format!("{name}_0.w_0"), &[table.rows, first], &table.table)?;
            b.matmul(ids, &weight, false, false)?
        }
        false => {
            let sum = b.embedding(&[ids], &table)?;
            b.reshape(&sum, &[-1, first])?
        }
    };
    let bias = b.param(&format!("{name}_0.b_0"), &[first], &xavier(width, first))?;
    let sum = b.elementwise_add(&sum, &bias)?;
    let mut hidden = b.act(&sum, first_act)?;
    for (i, (&size, &act)) in sizes.iter().zip(&acts).enumerate().skip(1) {
        let weight = xavier(sizes[i - 1], size).named(format!("{name}_{i}.w_0"));
        let bias = Some(xavier(sizes[i - 1], size).named(format!("{name}_{i}.b_0")));
        hidden = b.fc_with(&hidden, &regatta_ir::Fc { size, act, weight, bias })?;
    }
    Ok(hidden)
}

/// Glorot's normal distribution, for the bias of a layer too.
fn xavier(fan_in: i64, fan_out: i64) -> ParamAttr {
    let std = (2.0 / (fan_in + fan_out).max(1) as f64).sqrt();
    ParamAttr::with_init(Initializer::Normal { mean: 0.0, std })
}

/// The activation of each layer.
fn acts(h: &Hyper, layers: usize) -> Result<Vec<Act>, Error> {
    let names: Vec<&str> = h.strs("fc_acts").iter().flat_map(|text| text.split(',')).collect();
    if names.len() != 1 && names.len() != layers {
        let reason = format!("names {} activations for {layers} layers", names.len());
        return Err(Error::key("hyper_parameters.fc_acts", reason));
    }
    (0..layers).map(|i| act("fc_acts", names[i.min(names.len() - 1)])).collect()
}
