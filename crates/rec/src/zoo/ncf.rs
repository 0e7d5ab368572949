//! `ncf`: users and items by the product of their vectors (GMF) and by a network over other vectors
//! of theirs (MLP); both together are NeuMF.

use regatta_data::{Schema, Slot};
use regatta_ir::{Builder, Embedding, Fc, Initializer, ParamAttr, Var};
use regatta_tensor::DType;

use super::layers::{Weights, click_net, key, table_rows};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::hyper::HyperDefault;
use crate::{Error, Hyper, HyperKey};

const KEYS: [HyperKey; 5] = [
    table_rows("num_users", 6040, "users, numbered from 0"),
    table_rows("num_items", 3706, "items, numbered from 0"),
    key("mf_dim", HyperDefault::Int(8), "floats per user and item in the product"),
    key("mode", HyperDefault::Str("NCF_NeuMF"), "NCF_GMF, NCF_MLP, or NCF_NeuMF for both"),
    key(
        "fc_layers",
        HyperDefault::Ints(&[64, 32, 16, 8]),
        "widths of the network; the first is a user's and an item's floats together",
    ),
];

pub(super) static MODEL: Model = Model {
    name: "ncf",
    group: "recall",
    summary: "neural collaborative filtering of users and items (NeuMF)",
    keys: &KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.001),
    schema,
    build,
    evaluation: Evaluation::Ranking { k: 10 },
    takes_features: false,
};

fn schema(_: &Hyper) -> Result<Schema, Error> {
    let ids = [Slot::fixed_ids("user_input", 1), Slot::fixed_ids("item_input", 1)];
    Ok(Schema::new([&ids[..], &[Slot::label("label")]].concat())?)
}

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let user = b.data("user_input", DType::U64, &[-1, 1])?;
    let item = b.data("item_input", DType::U64, &[-1, 1])?;
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let (users, items) = (h.size("num_users")?, h.size("num_items")?);
    let Some((&width, layers)) = h.ints("fc_layers").split_first().filter(|(w, _)| **w % 2 == 0)
    else {
        let reason = "must begin with an even width, half for the user and half for the item";
        return Err(Error::key("hyper_parameters.fc_layers", reason));
    };

    let (gmf, mlp) = match h.str("mode") {
        "NCF_NeuMF" => (true, true),
        "NCF_GMF" => (true, false),
        "NCF_MLP" => (false, true),
        other => {
            let reason = format!("is '{other}', not NCF_NeuMF, NCF_GMF or NCF_MLP");
            return Err(Error::key("hyper_parameters.mode", reason));
        }
    };
    let truncated = Weights { truncated: true, ..Weights::SCALED };
    let mut parts = Vec::new();
    if gmf {
        let dim = h.size("mf_dim")?;
        let mf_user = vector(b, &user, "MF_Embedding_User", users, dim)?;
        let mf_item = vector(b, &item, "MF_Embedding_Item", items, dim)?;
        parts.push(b.elementwise_mul(&mf_user, &mf_item)?);
    }
    if mlp {
        let mlp_user = vector(b, &user, "MLP_Embedding_User", users, width / 2)?;
        let mlp_item = vector(b, &item, "MLP_Embedding_Item", items, width / 2)?;
        let both = b.concat(&[&mlp_user, &mlp_item], 1)?;
        parts.push(truncated.relu_layers(b, &both, layers)?);
    }
    let joined = match &parts[..] {
        [one] => one.clone(),
        _ => b.concat(&parts.iter().collect::<Vec<_>>(), 1)?,
    };
    // PaddleRec counts the inputs twice where there is a network.
    let inputs = b.ty(&joined)?.shape[1] * if mlp { 2 } else { 1 };
    let limit = (6.0 / inputs as f64).sqrt();
    let weight = ParamAttr::with_init(Initializer::Uniform { low: -limit, high: limit });
    let logit = b.fc_with(&joined, &Fc { weight, ..Fc::new(1) })?;
    click_net(b, &logit, label)
}

fn vector(b: &mut Builder, id: &Var, name: &str, rows: i64, dim: i64) -> Result<Var, Error> {
    let init = Initializer::Normal { mean: 0.0, std: 0.01 };
    let table = ParamAttr::with_init(init).named(name);
    let vector = b.embedding(&[id], &Embedding { table, ..Embedding::new(rows, dim) })?;
    Ok(b.reshape(&vector, &[-1, dim])?)
}
