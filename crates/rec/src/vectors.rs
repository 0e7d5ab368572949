//! Vectors of items and users, whose inner products say how well they fit: rows of tables where a
//! model has such rows, outputs of towers where it computes them.

use regatta_ir::{Op, Program};

use crate::export::ModelSource;
use crate::network::Network;
use crate::{Config, Error};

/// Vectors with their ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Vectors {
    /// What they are vectors of.
    pub name: String,
    /// The ids, in order.
    pub ids: Vec<u64>,
    /// As many floats for each.
    pub values: Vec<f32>,
    /// How many.
    pub dim: usize,
}

/// The variables of the two towers of a model that compares vectors by their cosine: what is asked
/// for, and what is found. None for other models.
pub fn towers(network: &Network) -> Option<[String; 2]> {
    let ops = &network.forward.main.block().ops;
    let cosine = ops.iter().find(|op| op.kind == "cos_sim")?;
    let input = |slot: &str| cosine.ins(slot).first().cloned();
    Some([input("X")?, input("Y")?])
}

/// The vectors that the tables of a model hold; none for models that hold none.
///
/// # Errors
/// If the model compares its rows by more than a product, or something of it is missing.
pub fn table_vectors(
    trained: &ModelSource,
    config: &Config,
    network: &Network,
) -> Result<Option<Vec<Vectors>>, Error> {
    match config.model.name {
        "word2vec" => Ok(Some(vec![rows(trained, network, "words", "emb")?])),
        "ncf" => factors(trained, config, network).map(Some),
        _ => Ok(None),
    }
}

/// Users and items of the product of `ncf`. Users carry the weights of the product, so that the
/// inner product is its part of the logit.
fn factors(
    trained: &ModelSource,
    config: &Config,
    network: &Network,
) -> Result<Vec<Vectors>, Error> {
    if config.hyper.str("mode") == "NCF_MLP" {
        let reason = "NCF_MLP compares users and items by a network, which no vectors stand for";
        return Err(Error::key("hyper_parameters.mode", reason));
    }
    let mut users = rows(trained, network, "users", "MF_Embedding_User")?;
    let items = rows(trained, network, "items", "MF_Embedding_Item")?;
    let program = &network.forward.main;
    let weight = output_weight(program)
        .ok_or_else(|| Error::Evaluation("the last layer of the model has no weight".into()))?;
    let dense = trained.dense(program)?;
    let weights = dense.get(&weight).map(|tensor| tensor.f32());
    let weights = weights.and_then(|weights| weights.get(..users.dim));
    let weights = weights.ok_or_else(|| Error::resume(format!("'{weight}' is missing")))?;
    for row in users.values.chunks_exact_mut(users.dim) {
        row.iter_mut().zip(weights).for_each(|(value, weight)| *value *= weight);
    }
    Ok(vec![users, items])
}

/// The weight of the last layer: a matrix of one column, which the last op that reads such a
/// parameter has.
fn output_weight(program: &Program) -> Option<String> {
    let block = program.block();
    let is_column = |name: &&str| {
        let var = block.vars.get(*name);
        var.is_some_and(|v| {
            v.origin == regatta_ir::Origin::Param && matches!(v.ty.shape.as_slice(), [_, 1])
        })
    };
    let of_op = |op: &Op| op.input_vars().find(is_column).map(str::to_string);
    block.ops.iter().rev().find_map(of_op)
}

fn rows(
    trained: &ModelSource,
    network: &Network,
    name: &str,
    table: &str,
) -> Result<Vectors, Error> {
    let program = &network.forward.main;
    let var = program.block().vars.get(table);
    let dim = var.and_then(|var| var.ty.shape.last()).map_or(1, |dim| *dim as usize);
    let (ids, values) = trained.table(&trained.dense(program)?, table, dim)?;
    Ok(Vectors { name: name.to_string(), ids, values, dim })
}
