//! Layers: the builder's vocabulary. Each adds one op (a few add two) and returns what it makes.

use regatta_tensor::DType;

use crate::{Builder, Error, Initializer, Layout, Op, ParamInfo, Var, VarType};

/// Activation that a layer applies to its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Act {
    /// None.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// Logistic function.
    Sigmoid,
    /// `x * Phi(x)`.
    Gelu,
    /// Softmax over the last dimension.
    Softmax,
}

impl Act {
    /// Name of the op, or nothing.
    pub fn name(self) -> &'static str {
        match self {
            Act::None => "",
            Act::Relu => "relu",
            Act::Tanh => "tanh",
            Act::Sigmoid => "sigmoid",
            Act::Gelu => "gelu",
            Act::Softmax => "softmax",
        }
    }

    /// Whether its derivative follows from its result alone, so that `fc` can apply it in place.
    fn fuses(self) -> bool {
        matches!(self, Act::None | Act::Relu | Act::Tanh | Act::Sigmoid)
    }
}

/// How a parameter is named, initialised and treated.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamAttr {
    /// Its name; by default derived from the layer. Layers that give the same name share it.
    pub name: Option<String>,
    /// Initial values.
    pub init: Initializer,
    /// Learning-rate factor, regularization, clipping.
    pub info: ParamInfo,
}

impl ParamAttr {
    /// Xavier-uniform initial values, the default of weights.
    pub fn weight() -> ParamAttr {
        ParamAttr::with_init(Initializer::Xavier { uniform: true })
    }

    /// Zeros, the default of biases.
    pub fn bias() -> ParamAttr {
        ParamAttr::with_init(Initializer::Constant(0.0))
    }

    /// The given initial values.
    pub fn with_init(init: Initializer) -> ParamAttr {
        ParamAttr { name: None, init, info: ParamInfo::default() }
    }

    /// Sets the name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> ParamAttr {
        self.name = Some(name.into());
        self
    }
}

/// Everything about a fully connected layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Fc {
    /// Width of the result.
    pub size: i64,
    /// Activation.
    pub act: Act,
    /// The weight.
    pub weight: ParamAttr,
    /// The bias, if there is one.
    pub bias: Option<ParamAttr>,
}

impl Fc {
    /// A layer of that width with a bias and no activation.
    pub fn new(size: i64) -> Fc {
        let bias = Some(ParamAttr::bias());
        Fc { size, act: Act::None, weight: ParamAttr::weight(), bias }
    }
}

/// How the embeddings of a multi-valued slot become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pool {
    /// Sum.
    #[default]
    Sum,
    /// Mean.
    Mean,
    /// Largest in each dimension.
    Max,
    /// Sum divided by the square root of the count.
    Sqrtn,
}

impl Pool {
    /// Name of the attribute value.
    pub fn name(self) -> &'static str {
        match self {
            Pool::Sum => "sum",
            Pool::Mean => "mean",
            Pool::Max => "max",
            Pool::Sqrtn => "sqrtn",
        }
    }
}

/// Everything about an embedding table and its lookup.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// Rows; ids are taken modulo this number when `hash` is set.
    pub rows: i64,
    /// Floats per row.
    pub dim: i64,
    /// The table.
    pub table: ParamAttr,
    /// For multi-valued slots.
    pub pool: Pool,
    /// This id gives zeros and is never updated.
    pub padding_idx: Option<i64>,
    /// Row-sparse gradient: only touched rows are updated.
    pub sparse: bool,
    /// Take ids modulo the number of rows instead of refusing those beyond it.
    pub hash: bool,
}

impl Embedding {
    /// A table of that size with a row-sparse gradient.
    pub fn new(rows: i64, dim: i64) -> Embedding {
        Embedding {
            rows,
            dim,
            table: ParamAttr::weight(),
            pool: Pool::Sum,
            padding_idx: None,
            sparse: true,
            hash: false,
        }
    }
}

/// `fn name(x) -> kind(X: x)` for ops with one input, one output and no attributes.
macro_rules! unary_layers {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// If the input does not fit.
        pub fn $name(&mut self, x: &Var) -> Result<Var, Error> {
            self.emit_one(Op::new(stringify!($name)).input("X", x.name()))
        }
    )*};
}

/// `fn name(a, b) -> kind(A: a, B: b)` for ops with two inputs, one output and no attributes.
macro_rules! binary_layers {
    ($($(#[$doc:meta])* $name:ident($a:literal, $b:literal)),* $(,)?) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// If the inputs do not fit.
        pub fn $name(&mut self, a: &Var, b: &Var) -> Result<Var, Error> {
            self.emit_one(Op::new(stringify!($name)).input($a, a.name()).input($b, b.name()))
        }
    )*};
}
pub(crate) use {binary_layers, unary_layers};

impl Builder {
    unary_layers! {
        /// `max(x, 0)`.
        relu,
        /// Hyperbolic tangent.
        tanh,
        /// Logistic function.
        sigmoid,
        /// `x * Phi(x)` with the Gaussian distribution function.
        gelu,
        /// Softmax over the last dimension.
        softmax,
        /// Natural logarithm.
        log,
        /// Exponential function.
        exp,
        /// Square root.
        sqrt,
        /// Square.
        square,
        /// Absolute value.
        abs,
        /// `1 / sqrt(x)`.
        rsqrt,
        /// `log(1 + x)`.
        log1p,
        /// `x / (1 + |x|)`.
        softsign,
        /// -1, 0 or 1.
        sign,
        /// The largest integer that is not above `x`.
        floor,
        /// Mean of all elements, of shape `[1]`.
        mean,
    }

    binary_layers! {
        /// Sum with broadcasting.
        elementwise_add("X", "Y"),
        /// Difference with broadcasting.
        elementwise_sub("X", "Y"),
        /// Product with broadcasting.
        elementwise_mul("X", "Y"),
        /// Quotient with broadcasting.
        elementwise_div("X", "Y"),
        /// The larger one, with broadcasting.
        elementwise_max("X", "Y"),
        /// The smaller one, with broadcasting.
        elementwise_min("X", "Y"),
        /// Squared difference per element.
        square_error_cost("X", "Label"),
        /// Cosine of the angle between rows.
        cos_sim("X", "Y"),
        /// `max(0, 1 - (2 label - 1) * x)` for labels 0 and 1.
        hinge_loss("X", "Label"),
    }

    /// Fully connected layer: `act(x W + b)` over the last dimension.
    ///
    /// # Errors
    /// If the input is not a float array of known width.
    pub fn fc(&mut self, x: &Var, size: i64, act: Act) -> Result<Var, Error> {
        self.fc_with(x, &Fc { act, ..Fc::new(size) })
    }

    /// Fully connected layer with everything said.
    ///
    /// # Errors
    /// As [`Builder::fc`].
    pub fn fc_with(&mut self, x: &Var, spec: &Fc) -> Result<Var, Error> {
        let ty = self.ty(x)?.clone();
        let width = ty.shape.last().copied().unwrap_or(-1);
        if ty.dtype != DType::F32 || ty.layout != Layout::Dense || width < 0 || ty.shape.len() < 2 {
            return Err(Error::Type {
                op: "fc".into(),
                slot: "X".into(),
                var: x.name().into(),
                expected: "f32[.., width] with a known width".into(),
                actual: ty.to_string(),
            });
        }
        let prefix = self.unique("fc");
        let w = self.param(&format!("{prefix}.w_0"), &[width, spec.size], &spec.weight)?;
        let fused = if spec.act.fuses() { spec.act } else { Act::None };
        let mut op = Op::new("fc").input("X", x.name()).input("W", w.name());
        if let Some(bias) = &spec.bias {
            let b = self.param(&format!("{prefix}.b_0"), &[spec.size], bias)?;
            op = op.input("Bias", b.name());
        }
        let op = op.attr("act", fused.name()).output("Out", &format!("{prefix}.tmp_0"));
        let out = self.push(op)?.remove(0);
        if fused == spec.act { Ok(out) } else { self.act(&out, spec.act) }
    }

    /// Applies an activation.
    ///
    /// # Errors
    /// If the input does not fit.
    pub fn act(&mut self, x: &Var, act: Act) -> Result<Var, Error> {
        match act {
            Act::None => Ok(x.clone()),
            _ => self.emit_one(Op::new(act.name()).input("X", x.name())),
        }
    }

    /// Looks up one id (or the pooled ids) of each input in one shared table.
    ///
    /// Inputs are dense ids `[batch, n]`, each giving `n` vectors per example, or ragged slots,
    /// each giving one pooled vector. The result is `[batch, vectors, dim]`. A single dense input
    /// of a higher rank gives its own shape with `dim` behind it; so does a single `i64[batch]`.
    ///
    /// # Errors
    /// If an input holds no ids.
    pub fn embedding(&mut self, ids: &[&Var], spec: &Embedding) -> Result<Var, Error> {
        let prefix = self.unique("embedding");
        let shape = [spec.rows, spec.dim];
        let w = self.param(&format!("{prefix}.w_0"), &shape, &spec.table)?;
        let op = Op::new("embedding")
            .inputs("Ids", ids.iter().map(|v| v.name()))
            .input("W", w.name())
            .attr("pool", spec.pool.name())
            .attr("padding_idx", spec.padding_idx.unwrap_or(-1))
            .attr("is_sparse", spec.sparse)
            .attr("hash", spec.hash)
            .output("Out", &format!("{prefix}.tmp_0"));
        Ok(self.push(op)?.remove(0))
    }

    /// `x * scale + bias`.
    ///
    /// # Errors
    /// If the input does not fit.
    pub fn scale(&mut self, x: &Var, scale: f64, bias: f64) -> Result<Var, Error> {
        self.emit_one(Op::new("scale").input("X", x.name()).attr("scale", scale).attr("bias", bias))
    }

    /// Adds any number of variables of one shape.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn sum(&mut self, xs: &[&Var]) -> Result<Var, Error> {
        self.emit_one(Op::new("sum").inputs("X", xs.iter().map(|v| v.name())))
    }

    /// `x` where positive, `alpha * x` elsewhere.
    ///
    /// # Errors
    /// If the input does not fit.
    pub fn leaky_relu(&mut self, x: &Var, alpha: f64) -> Result<Var, Error> {
        self.emit_one(Op::new("leaky_relu").input("X", x.name()).attr("alpha", alpha))
    }

    /// Limits every element to `[min, max]`.
    ///
    /// # Errors
    /// If the input does not fit.
    pub fn clip(&mut self, x: &Var, min: f64, max: f64) -> Result<Var, Error> {
        self.emit_one(Op::new("clip").input("X", x.name()).attr("min", min).attr("max", max))
    }

    /// `x` to a constant power.
    ///
    /// # Errors
    /// If the input does not fit.
    pub fn pow(&mut self, x: &Var, factor: f64) -> Result<Var, Error> {
        self.emit_one(Op::new("pow").input("X", x.name()).attr("factor", factor))
    }

    /// Matrix product over the last two dimensions; leading dimensions broadcast.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn matmul(&mut self, x: &Var, y: &Var, trans_x: bool, trans_y: bool) -> Result<Var, Error> {
        self.emit_one(
            Op::new("matmul")
                .input("X", x.name())
                .input("Y", y.name())
                .attr("trans_x", trans_x)
                .attr("trans_y", trans_y),
        )
    }

    /// Joins along a dimension; negative counts from the end.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn concat(&mut self, xs: &[&Var], axis: i64) -> Result<Var, Error> {
        self.emit_one(Op::new("concat").inputs("X", xs.iter().map(|v| v.name())).attr("axis", axis))
    }

    /// Splits along a dimension into parts of the given sizes.
    ///
    /// # Errors
    /// If the sizes do not add up.
    pub fn split(&mut self, x: &Var, sections: &[i64], axis: i64) -> Result<Vec<Var>, Error> {
        let prefix = self.unique("split");
        let names: Vec<String> = (0..sections.len()).map(|i| format!("{prefix}.tmp_{i}")).collect();
        self.push(
            Op::new("split")
                .input("X", x.name())
                .attr("sections", sections.to_vec())
                .attr("axis", axis)
                .outputs("Out", names.iter().map(String::as_str)),
        )
    }

    /// `x[.., start..end, ..]` along one dimension.
    ///
    /// # Errors
    /// If the range is not inside the dimension.
    pub fn slice(&mut self, x: &Var, axis: i64, start: i64, end: i64) -> Result<Var, Error> {
        self.emit_one(
            Op::new("slice")
                .input("X", x.name())
                .attr("axis", axis)
                .attr("start", start)
                .attr("end", end),
        )
    }

    /// The same elements under another shape; one dimension may be -1.
    ///
    /// # Errors
    /// If the sizes cannot agree.
    pub fn reshape(&mut self, x: &Var, shape: &[i64]) -> Result<Var, Error> {
        self.emit_one(Op::new("reshape").input("X", x.name()).attr("shape", shape.to_vec()))
    }

    /// Reorders the dimensions.
    ///
    /// # Errors
    /// If `perm` is not a permutation.
    pub fn transpose(&mut self, x: &Var, perm: &[i64]) -> Result<Var, Error> {
        self.emit_one(Op::new("transpose").input("X", x.name()).attr("perm", perm.to_vec()))
    }

    /// Sum over some dimensions (none given: all, giving shape `[1]`).
    ///
    /// # Errors
    /// If a dimension does not exist.
    pub fn reduce_sum(&mut self, x: &Var, dims: &[i64], keep_dim: bool) -> Result<Var, Error> {
        self.reduce("reduce_sum", x, dims, keep_dim)
    }

    /// Mean over some dimensions.
    ///
    /// # Errors
    /// If a dimension does not exist.
    pub fn reduce_mean(&mut self, x: &Var, dims: &[i64], keep_dim: bool) -> Result<Var, Error> {
        self.reduce("reduce_mean", x, dims, keep_dim)
    }

    /// Largest element over some dimensions.
    ///
    /// # Errors
    /// If a dimension does not exist.
    pub fn reduce_max(&mut self, x: &Var, dims: &[i64], keep_dim: bool) -> Result<Var, Error> {
        self.reduce("reduce_max", x, dims, keep_dim)
    }

    pub(crate) fn reduce(
        &mut self,
        kind: &str,
        x: &Var,
        dims: &[i64],
        keep: bool,
    ) -> Result<Var, Error> {
        self.emit_one(
            Op::new(kind).input("X", x.name()).attr("dims", dims.to_vec()).attr("keep_dim", keep),
        )
    }

    /// Zeroes a share of the elements while training and scales the rest up by `1 / (1 - prob)`.
    ///
    /// # Errors
    /// If the probability is not in `[0, 1)`.
    pub fn dropout(&mut self, x: &Var, prob: f64, seed: i64) -> Result<Var, Error> {
        let op = Op::new("dropout").input("X", x.name()).attr("prob", prob).attr("seed", seed);
        Ok(self.emit(op, &["Out", "Mask"])?.remove(0))
    }

    /// Normalises each feature over the batch; keeps running statistics for inference.
    ///
    /// # Errors
    /// If the input is not `[batch, features]`.
    pub fn batch_norm(&mut self, x: &Var, momentum: f64, epsilon: f64) -> Result<Var, Error> {
        let prefix = self.unique("batch_norm");
        let width = self.last_dim("batch_norm", x)?;
        let ones = ParamAttr::with_init(Initializer::Constant(1.0));
        let scale = self.param(&format!("{prefix}.w_0"), &[width], &ones)?;
        let bias = self.param(&format!("{prefix}.b_0"), &[width], &ParamAttr::bias())?;
        let stat = VarType::f32([width]);
        let mean = self.state(&format!("{prefix}.mean"), stat.clone(), 0.0)?;
        let variance = self.state(&format!("{prefix}.variance"), stat, 1.0)?;
        let op = Op::new("batch_norm")
            .input("X", x.name())
            .input("Scale", scale.name())
            .input("Bias", bias.name())
            .input("Mean", mean.name())
            .input("Variance", variance.name())
            .attr("momentum", momentum)
            .attr("epsilon", epsilon)
            .output("Y", &format!("{prefix}.tmp_0"))
            .output("MeanOut", mean.name())
            .output("VarianceOut", variance.name())
            .output("SavedMean", &format!("{prefix}.tmp_1"))
            .output("SavedInvStd", &format!("{prefix}.tmp_2"));
        Ok(self.push(op)?.remove(0))
    }

    /// Normalises each example over its last dimension.
    ///
    /// # Errors
    /// If the input has no known width.
    pub fn layer_norm(&mut self, x: &Var, epsilon: f64) -> Result<Var, Error> {
        let prefix = self.unique("layer_norm");
        let width = self.last_dim("layer_norm", x)?;
        let ones = ParamAttr::with_init(Initializer::Constant(1.0));
        let scale = self.param(&format!("{prefix}.w_0"), &[width], &ones)?;
        let bias = self.param(&format!("{prefix}.b_0"), &[width], &ParamAttr::bias())?;
        let op = Op::new("layer_norm")
            .input("X", x.name())
            .input("Scale", scale.name())
            .input("Bias", bias.name())
            .attr("epsilon", epsilon)
            .output("Y", &format!("{prefix}.tmp_0"))
            .output("Mean", &format!("{prefix}.tmp_1"))
            .output("InvStd", &format!("{prefix}.tmp_2"));
        Ok(self.push(op)?.remove(0))
    }

    fn last_dim(&self, op: &str, x: &Var) -> Result<i64, Error> {
        let ty = self.ty(x)?;
        match ty.shape.last() {
            Some(&d) if d > 0 && ty.shape.len() >= 2 => Ok(d),
            _ => Err(Error::Type {
                op: op.into(),
                slot: "X".into(),
                var: x.name().into(),
                expected: "f32[.., width] with a known width".into(),
                actual: ty.to_string(),
            }),
        }
    }

    /// `-log p[label]` of given probabilities; labels are `i64[batch, 1]`, or probabilities of the
    /// same shape with `soft_label`.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn cross_entropy(&mut self, x: &Var, label: &Var, soft: bool) -> Result<Var, Error> {
        self.emit_one(
            Op::new("cross_entropy")
                .input("X", x.name())
                .input("Label", label.name())
                .attr("soft_label", soft),
        )
    }

    /// Cross entropy of a softmax of logits, in one stable op. Returns loss and softmax.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn softmax_with_cross_entropy(
        &mut self,
        logits: &Var,
        label: &Var,
    ) -> Result<(Var, Var), Error> {
        let op = Op::new("softmax_with_cross_entropy")
            .input("Logits", logits.name())
            .input("Label", label.name());
        let mut outs = self.emit(op, &["Loss", "Softmax"])?;
        let softmax = outs.remove(1);
        Ok((outs.remove(0), softmax))
    }

    /// Cross entropy of a sigmoid of logits against labels in `[0, 1]`, per element.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn sigmoid_cross_entropy(&mut self, x: &Var, label: &Var) -> Result<Var, Error> {
        self.emit_one(
            Op::new("sigmoid_cross_entropy").input("X", x.name()).input("Label", label.name()),
        )
    }

    /// Negative log likelihood of predicted probabilities against labels 0 and 1.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn log_loss(&mut self, x: &Var, label: &Var, epsilon: f64) -> Result<Var, Error> {
        self.emit_one(
            Op::new("log_loss")
                .input("X", x.name())
                .input("Label", label.name())
                .attr("epsilon", epsilon),
        )
    }

    /// Quadratic near zero, linear beyond `delta`.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn huber_loss(&mut self, x: &Var, label: &Var, delta: f64) -> Result<Var, Error> {
        self.emit_one(
            Op::new("huber_loss")
                .input("X", x.name())
                .input("Label", label.name())
                .attr("delta", delta),
        )
    }

    /// Share of examples whose largest score is at the label.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn accuracy(&mut self, scores: &Var, label: &Var) -> Result<Var, Error> {
        self.emit_one(Op::new("accuracy").input("X", scores.name()).input("Label", label.name()))
    }

    /// Area under the ROC curve since the counters were last reset. `predict` holds probabilities
    /// `[batch, 1]`, or `[batch, 2]` whose last column is the positive class.
    ///
    /// # Errors
    /// If the inputs do not fit.
    pub fn auc(&mut self, predict: &Var, label: &Var, buckets: i64) -> Result<Var, Error> {
        let prefix = self.unique("auc");
        let counters = VarType::dense(DType::I64, [buckets + 1]);
        let pos = self.state(&format!("{prefix}.stat_pos"), counters.clone(), 0.0)?;
        let neg = self.state(&format!("{prefix}.stat_neg"), counters, 0.0)?;
        let op = Op::new("auc")
            .input("Predict", predict.name())
            .input("Label", label.name())
            .input("StatPos", pos.name())
            .input("StatNeg", neg.name())
            .output("AUC", &format!("{prefix}.tmp_0"))
            .output("StatPosOut", pos.name())
            .output("StatNegOut", neg.name());
        Ok(self.push(op)?.remove(0))
    }

    /// Converts the element type.
    ///
    /// # Errors
    /// If the input does not fit.
    pub fn cast(&mut self, x: &Var, dtype: DType) -> Result<Var, Error> {
        self.emit_one(Op::new("cast").input("X", x.name()).attr("dtype", dtype.to_string()))
    }
}
