//! One file per op or family of ops.

mod activation;
mod along_axis;
mod assign;
mod assign_value;
mod batch_norm;
mod binary;
mod broadcast;
mod cast;
mod collective;
mod compare;
mod concat;
mod conv;
mod cos_sim;
mod cross_entropy;
mod cumulate;
mod dgc;
mod dropout;
mod element;
mod element_loss;
mod elementary;
mod elementwise;
mod embedding;
mod extreme;
mod fc;
mod fill;
mod fold;
mod function;
mod gather;
mod gradient;
mod group_norm;
mod index;
mod layer_norm;
mod local_sgd;
mod loss_scaling;
mod lower_triangle;
mod masked_select;
mod matmul;
mod mean;
mod merge;
mod metric;
mod offload;
mod one_hot;
mod optimizer;
mod pad;
mod pool;
mod random;
mod range;
mod reduce;
mod reshape;
mod rnn;
mod scale;
mod scatter;
mod send_recv;
mod sequence_mask;
mod sequence_pad;
mod set_value;
mod shard;
mod sigmoid_cross_entropy;
mod slice;
mod softmax;
mod softmax_with_cross_entropy;
mod sort;
mod span;
mod split;
mod square_error_cost;
mod sum;
mod transpose;
mod tri;
mod unary;
mod view;
mod walk;
mod where_;
mod window;

pub use collective::{encode_rows, merge_rows};
pub use fill::Draw;
pub use optimizer::{schedule_of, schedule_op, update_op, update_rule};

use crate::OpDef;

/// Every op of the crate.
pub(crate) fn all() -> impl Iterator<Item = &'static OpDef> {
    [
        along_axis::DEFS,
        assign::DEFS,
        assign_value::DEFS,
        batch_norm::DEFS,
        cast::DEFS,
        collective::DEFS,
        compare::DEFS,
        concat::DEFS,
        conv::DEFS,
        cos_sim::DEFS,
        cross_entropy::DEFS,
        cumulate::DEFS,
        dgc::DEFS,
        dropout::DEFS,
        element_loss::DEFS,
        elementwise::DEFS,
        embedding::DEFS,
        extreme::DEFS,
        fc::DEFS,
        fill::DEFS,
        fold::DEFS,
        gather::DEFS,
        gradient::DEFS,
        group_norm::DEFS,
        layer_norm::DEFS,
        local_sgd::DEFS,
        loss_scaling::DEFS,
        lower_triangle::DEFS,
        masked_select::DEFS,
        matmul::DEFS,
        mean::DEFS,
        merge::DEFS,
        metric::DEFS,
        offload::DEFS,
        one_hot::DEFS,
        optimizer::DEFS,
        pad::DEFS,
        pool::DEFS,
        random::DEFS,
        range::DEFS,
        reduce::DEFS,
        reshape::DEFS,
        rnn::DEFS,
        scale::DEFS,
        scatter::DEFS,
        send_recv::DEFS,
        sequence_mask::DEFS,
        sequence_pad::DEFS,
        set_value::DEFS,
        shard::DEFS,
        sigmoid_cross_entropy::DEFS,
        slice::DEFS,
        softmax::DEFS,
        softmax_with_cross_entropy::DEFS,
        sort::DEFS,
        split::DEFS,
        square_error_cost::DEFS,
        sum::DEFS,
        transpose::DEFS,
        tri::DEFS,
        view::DEFS,
        where_::DEFS,
    ]
    .into_iter()
    .flatten()
    .chain(unary::defs())
}
