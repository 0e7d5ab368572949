//! One file per op or family of ops.

mod assign;
mod broadcast;
mod cross_entropy;
mod elementwise;
mod embedding;
mod fc;
mod fill;
mod gradient;
mod mean;
mod optimizer;
mod scale;
mod softmax;
mod softmax_with_cross_entropy;
mod square_error_cost;
mod sum;
mod unary;

pub use optimizer::{schedule_op, update_op};

use crate::OpDef;

/// Every op of the crate.
pub(crate) fn all() -> impl Iterator<Item = &'static OpDef> {
    [
        assign::DEFS,
        cross_entropy::DEFS,
        elementwise::DEFS,
        embedding::DEFS,
        fc::DEFS,
        fill::DEFS,
        gradient::DEFS,
        mean::DEFS,
        optimizer::DEFS,
        scale::DEFS,
        softmax::DEFS,
        softmax_with_cross_entropy::DEFS,
        square_error_cost::DEFS,
        sum::DEFS,
    ]
    .into_iter()
    .flatten()
    .chain(unary::defs())
}
