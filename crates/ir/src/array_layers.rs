//! Layers that compare, pick and rearrange elements, and further functions of one element.

use crate::layers::{binary_layers, unary_layers};
use crate::{Builder, Error, Op, Var};

impl Builder {
    unary_layers! {
        /// `x` where it is positive, else `exp(x) - 1`.
        elu,
        /// Scaled exponential linear unit.
        selu,
        /// `log(1 + exp(x))`.
        softplus,
        /// `x * tanh(softplus(x))`.
        mish,
        /// `x * sigmoid(x)`.
        silu,
        /// `x * clip(x + 3, 0, 6) / 6`.
        hardswish,
        /// `clip(x / 6 + 0.5, 0, 1)`.
        hardsigmoid,
        /// Sine.
        sin,
        /// Cosine.
        cos,
        /// The error function.
        erf,
        /// `1 / x`.
        reciprocal,
        /// 1 where it is 0, else 0, as i64.
        logical_not,
        /// 1 where it is no number, else 0, as i64.
        isnan,
        /// Logarithm of the softmax over the last dimension.
        log_softmax,
        /// The dimensions, as i64.
        shape,
    }

    binary_layers! {
        /// 1 where both are equal, else 0, as i64; so for all the comparisons below.
        equal("X", "Y"),
        /// Where both differ.
        not_equal("X", "Y"),
        /// Where the first is smaller.
        less_than("X", "Y"),
        /// Where the first is not larger.
        less_equal("X", "Y"),
        /// Where the first is larger.
        greater_than("X", "Y"),
        /// Where the first is not smaller.
        greater_equal("X", "Y"),
        /// Where both are not 0.
        logical_and("X", "Y"),
        /// Where one of both is not 0, or both.
        logical_or("X", "Y"),
        /// The first to the power of the second, with broadcasting.
        elementwise_pow("X", "Y"),
        /// The remainder, with the sign of the second.
        elementwise_mod("X", "Y"),
        /// The quotient, rounded down.
        elementwise_floordiv("X", "Y"),
        /// The elements of the first at the positions that the last dimension of the second names.
        gather_nd("X", "Index"),
        /// The first broadcast to the shape of the second.
        expand_as("X", "Y"),
    }

    /// `x` where the condition (i64) is not 0, else `y`, with broadcasting.
    ///
    /// # Errors
    /// If the inputs do not fit; so for all the layers below.
    pub fn select(&mut self, condition: &Var, x: &Var, y: &Var) -> Result<Var, Error> {
        let op = Op::new("where").input("Condition", condition.name());
        self.emit_one(op.input("X", x.name()).input("Y", y.name()))
    }

    /// The slices along a dimension that an index (i64) names.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn gather(&mut self, x: &Var, index: &Var, axis: i64) -> Result<Var, Error> {
        let op = Op::new("gather").input("X", x.name()).input("Index", index.name());
        self.emit_one(op.attr("axis", axis))
    }

    /// The whole repeated along each dimension.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn tile(&mut self, x: &Var, repeats: &[i64]) -> Result<Var, Error> {
        self.emit_one(Op::new("tile").input("X", x.name()).attr("repeats", repeats.to_vec()))
    }

    /// Broadcast to a shape; -1 keeps a dimension.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn expand(&mut self, x: &Var, shape: &[i64]) -> Result<Var, Error> {
        self.emit_one(Op::new("expand").input("X", x.name()).attr("shape", shape.to_vec()))
    }

    /// A value around `x`: two sizes, before and after, for each dimension.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn pad(&mut self, x: &Var, paddings: &[i64], value: f64) -> Result<Var, Error> {
        let op = Op::new("pad").input("X", x.name()).attr("paddings", paddings.to_vec());
        self.emit_one(op.attr("value", value))
    }

    /// Matrices with zeros above a diagonal (`lower`) or below it.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn triangle(&mut self, x: &Var, diagonal: i64, lower: bool) -> Result<Var, Error> {
        let op = Op::new("tril_triu").input("X", x.name()).attr("diagonal", diagonal);
        self.emit_one(op.attr("lower", lower))
    }

    /// The sum of all elements up to each one along a dimension.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn cumsum(&mut self, x: &Var, axis: i64) -> Result<Var, Error> {
        self.emit_one(Op::new("cumsum").input("X", x.name()).attr("axis", axis))
    }

    /// The `k` largest along a dimension, and their positions as i64.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn topk(&mut self, x: &Var, k: i64, axis: i64) -> Result<(Var, Var), Error> {
        let op = Op::new("topk").input("X", x.name()).attr("k", k).attr("axis", axis);
        let mut vars = self.emit(op, &["Out", "Indices"])?;
        let indices = vars.remove(1);
        Ok((vars.remove(0), indices))
    }

    /// The position of the largest along a dimension, as i64.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn argmax(&mut self, x: &Var, axis: i64) -> Result<Var, Error> {
        self.emit_one(Op::new("argmax").input("X", x.name()).attr("axis", axis))
    }

    /// The smallest over some dimensions, all of them if none is given.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn reduce_min(&mut self, x: &Var, dims: &[i64], keep_dim: bool) -> Result<Var, Error> {
        self.reduce("reduce_min", x, dims, keep_dim)
    }

    /// The product over some dimensions, all of them if none is given.
    ///
    /// # Errors
    /// As [`Builder::select`].
    pub fn reduce_prod(&mut self, x: &Var, dims: &[i64], keep_dim: bool) -> Result<Var, Error> {
        self.reduce("reduce_prod", x, dims, keep_dim)
    }
}
