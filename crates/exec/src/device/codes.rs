//! The numbers by which kernels know functions; `device/kernels/elementwise.cl` and `losses.cl`
//! have the same.

/// A function of one element.
pub(super) struct Unary {
    pub(super) kind: &'static str,
    pub(super) code: i32,
    /// The slot that its gradient reads besides `dOut`; none if no gradient op has its name.
    pub(super) kept: Option<&'static str>,
    /// Its attributes, at most two.
    pub(super) attrs: &'static [&'static str],
}

const fn unary(
    kind: &'static str,
    code: i32,
    kept: Option<&'static str>,
    attrs: &'static [&'static str],
) -> Unary {
    Unary { kind, code, kept, attrs }
}

/// Copies.
pub(super) const COPY: i32 = 0;
/// `max(x, 0)`.
pub(super) const RELU: i32 = 1;
/// Hyperbolic tangent.
pub(super) const TANH: i32 = 2;
/// `1 / (1 + exp(-x))`.
pub(super) const SIGMOID: i32 = 3;

const X: Option<&str> = Some("X");
const OUT: Option<&str> = Some("Out");

pub(super) const UNARY: &[Unary] = &[
    unary("relu", RELU, OUT, &[]),
    unary("tanh", TANH, OUT, &[]),
    unary("sigmoid", SIGMOID, OUT, &[]),
    unary("scale", 4, None, &["scale", "bias"]),
    unary("square", 5, X, &[]),
    unary("abs", 6, X, &[]),
    unary("exp", 7, OUT, &[]),
    unary("log", 8, X, &[]),
    unary("sqrt", 9, OUT, &[]),
    unary("clip", 10, X, &["min", "max"]),
    unary("clip_by_value", 10, None, &["min", "max"]),
    unary("leaky_relu", 11, X, &["alpha"]),
    unary("pow", 12, X, &["factor"]),
    unary("rsqrt", 13, OUT, &[]),
    unary("log1p", 14, X, &[]),
    unary("softplus", 15, X, &["beta", "threshold"]),
    unary("silu", 16, X, &[]),
];

/// Functions of two elements.
pub(super) const BINARY: &[(&str, i32)] = &[
    ("elementwise_add", 0),
    ("elementwise_sub", 1),
    ("elementwise_mul", 2),
    ("elementwise_div", 3),
    ("elementwise_max", 4),
    ("elementwise_min", 5),
    ("elementwise_pow", 6),
];

/// Losses of a prediction and a label, with the name of their constant.
pub(super) const PAIR_LOSS: &[(&str, i32, Option<&str>)] = &[
    ("sigmoid_cross_entropy", 0, None),
    ("log_loss", 1, Some("epsilon")),
    ("huber_loss", 2, Some("delta")),
    ("hinge_loss", 3, None),
    ("square_error_cost", 4, None),
];

/// How rows of a segment are pooled.
pub(super) const POOLS: &[(&str, i32)] = &[("sum", 0), ("mean", 1), ("sqrtn", 2), ("max", 3)];
