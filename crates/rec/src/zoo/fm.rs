//! `fm`: a weight for every feature and a vector for every feature, whose products stand for pairs
//! of features. The parts serve `deepfm` and `xdeepfm` too.

use regatta_ir::{Builder, Embedding, Initializer, ParamAttr, Var};

use super::fields::{LINEAR, VECTORS};
use super::layers::{
    CLICK_KEYS, ClickInputs, click_inputs, click_net, click_schema, click_table, padded, small,
};
use super::{Evaluation, Model, Net, OptimizerDefault};
use crate::{Error, Hyper};

pub(super) static MODEL: Model = Model {
    name: "fm",
    group: "rank",
    summary: "factorization machine: weights of features and products of their vectors",
    keys: &CLICK_KEYS,
    ignored_keys: &[],
    optimizer: OptimizerDefault::adam(0.001),
    schema: click_schema,
    build,
    evaluation: Evaluation::Heads,
    takes_features: true,
};

fn build(h: &Hyper, b: &mut Builder) -> Result<Net, Error> {
    let inputs = click_inputs(h, b)?;
    let linear = first_order(h, b, &inputs, Start::of(h))?;
    let vectors = field_vectors(h, b, &inputs, Start::of(h))?;
    let pairs = pairwise(b, &vectors)?;
    let bias = b.param("fm.b_0", &[1], &ParamAttr::bias())?;
    let logit = b.sum(&[&linear, &pairs])?;
    let logit = b.elementwise_add(&logit, &bias)?;
    click_net(b, &logit, inputs.label)
}

/// Where weights and vectors begin, and whether id 0 stands for a missing value: PaddleRec's models
/// differ in that.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// `fm` and `xdeepfm`: dense features with 1.0, every id with a row.
    Ones,
    /// `deepfm`: small values everywhere, id 0 without a row.
    Small,
}

impl Start {
    /// Of `fm` and `xdeepfm`. Declared floats may be large: their products would begin far from 0.
    pub(super) fn of(h: &Hyper) -> Start {
        if h.features().is_some() { Start::Small } else { Start::Ones }
    }

    fn dense(self, dim: i64) -> ParamAttr {
        match self {
            Start::Ones => ParamAttr::with_init(Initializer::Constant(1.0)),
            Start::Small => small(dim),
        }
    }

    fn table(self, table: Embedding) -> Embedding {
        match self {
            Start::Ones => table,
            Start::Small => padded(table),
        }
    }
}

/// Every id and every dense feature with a weight of its own: `[batch, 1]`.
pub(super) fn first_order(
    h: &Hyper,
    b: &mut Builder,
    i: &ClickInputs,
    start: Start,
) -> Result<Var, Error> {
    let dim = h.size("sparse_feature_dim")?;
    let table = start.table(click_table(h, 1, small(dim).named("SparseFeatWeights"))?);
    let weights = i.fields.stacked(b, &table, LINEAR)?;
    let sparse = b.reduce_sum(&weights, &[1], false)?;
    let Some(dense) = &i.fields.dense else { return Ok(sparse) };
    let width = b.ty(dense)?.shape[1];
    let weight = b.param("dense_w_one", &[width, 1], &start.dense(dim))?;
    let dense = b.matmul(dense, &weight, false, false)?;
    Ok(b.elementwise_add(&sparse, &dense)?)
}

/// A vector for every field, `[batch, slots + dense, dim]`; that of a dense feature is scaled by
/// its value.
pub(super) fn field_vectors(
    h: &Hyper,
    b: &mut Builder,
    i: &ClickInputs,
    start: Start,
) -> Result<Var, Error> {
    let dim = h.size("sparse_feature_dim")?;
    let table = start.table(click_table(h, dim, small(dim).named("SparseFeatFactors"))?);
    let sparse = i.fields.stacked(b, &table, VECTORS)?;
    let Some(dense) = &i.fields.dense else { return Ok(sparse) };
    let width = b.ty(dense)?.shape[1];
    let weight = b.param("dense_w", &[width, dim], &start.dense(dim))?;
    let values = b.reshape(dense, &[-1, width, 1])?;
    let dense = b.elementwise_mul(&values, &weight)?;
    Ok(b.concat(&[&sparse, &dense], 1)?)
}

/// The sum of the inner products of all pairs of vectors, `[batch, 1]`, as half the difference of
/// the square of the sum and the sum of the squares.
pub(super) fn pairwise(b: &mut Builder, vectors: &Var) -> Result<Var, Error> {
    let sum = b.reduce_sum(vectors, &[1], false)?;
    let square_of_sum = b.square(&sum)?;
    let squares = b.square(vectors)?;
    let sum_of_squares = b.reduce_sum(&squares, &[1], false)?;
    let twice = b.elementwise_sub(&square_of_sum, &sum_of_squares)?;
    let twice = b.reduce_sum(&twice, &[1], true)?;
    Ok(b.scale(&twice, 0.5, 0.0)?)
}
