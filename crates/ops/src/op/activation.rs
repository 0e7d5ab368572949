//! Activations beyond those of `unary.rs`: `elu`, `celu`, `selu`, `softplus`, `mish`, `silu`,
//! `hardswish`, `hardsigmoid`, `softshrink`, `hardshrink`, `thresholded_relu`, `logsigmoid` and
//! `tanhshrink`. Slopes at corners are those of Paddle.

use regatta_kernels::{simd, unary as k};

use super::function::{Params, map, map_back, unary};
use super::unary::both_signs;
use crate::def::spread;
use crate::{OpDef, Sample};

/// Their definitions.
pub(super) static DEFS: [&[OpDef; 2]; 13] = [
    &ELU,
    &CELU,
    &SELU,
    &SOFTPLUS,
    &MISH,
    &SILU,
    &HARDSWISH,
    &HARDSIGMOID,
    &SOFTSHRINK,
    &HARDSHRINK,
    &THRESHOLDED_RELU,
    &LOGSIGMOID,
    &TANHSHRINK,
];

fn corners() -> Vec<Sample> {
    // Away from the corners at -3, -0.5, 0.5, 1 and 3.
    let x = vec![-4.0, -2.5, -1.5, -0.7, -0.3, 0.2, 0.7, 1.3, 2.5, 4.0];
    let x = regatta_tensor::Tensor::from_f32(&[2, 5], x).expect("lengths agree");
    vec![Sample::x("between the corners", x.into())]
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + exp(x))` that neither overflows nor loses what is small.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

static ELU: [OpDef; 2] = unary!(
    "elu",
    "elu_grad",
    ["alpha" = 1.0],
    "X",
    |x, p, y| map(x, y, |x| if x > 0.0 { x } else { p[0] * x.exp_m1() }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| if x > 0.0 { d } else { d * p[0] * x.exp() }),
    || vec![Sample::x("alpha", spread(&[3, 5], -2.0, 2.0)).attr("alpha", 0.7)]
);
static CELU: [OpDef; 2] = unary!(
    "celu",
    "celu_grad",
    ["alpha" = 1.0],
    "X",
    |x, p, y| map(x, y, |x| if x > 0.0 { x } else { p[0] * (x / p[0]).exp_m1() }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| if x > 0.0 { d } else { d * (x / p[0]).exp() }),
    || vec![Sample::x("alpha", spread(&[3, 5], -2.0, 2.0)).attr("alpha", 0.7)]
);
static SELU: [OpDef; 2] = unary!(
    "selu",
    "selu_grad",
    ["scale" = 1.050_700_987_355_480_5, "alpha" = 1.673_263_242_354_377_2],
    "X",
    |x, p, y| map(x, y, |x| p[0] * if x > 0.0 { x } else { p[1] * x.exp_m1() }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| d * p[0] * if x > 0.0 { 1.0 } else { p[1] * x.exp() }),
    both_signs
);
static SOFTPLUS: [OpDef; 2] = unary!(
    "softplus",
    "softplus_grad",
    ["beta" = 1.0, "threshold" = 20.0],
    "X",
    |x, p, y| map(x, y, |x| {
        let z = p[0] * x;
        if z > p[1] { x } else { softplus(z) / p[0] }
    }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| {
        let z = p[0] * x;
        if z > p[1] { d } else { d * sigmoid(z) }
    }),
    || vec![
        Sample::x("beta", spread(&[3, 5], -2.0, 2.0)).attr("beta", 1.5),
        Sample::x("beyond the threshold", spread(&[2, 2], 2.0, 3.0)).attr("threshold", 1.0),
    ]
);
static MISH: [OpDef; 2] = unary!(
    "mish",
    "mish_grad",
    [],
    "X",
    |x, _, y| map(x, y, |x| x * softplus(x).tanh()),
    |x, d, _, dx| map_back(x, d, dx, |x, d| {
        let t = softplus(x).tanh();
        d * (t + x * sigmoid(x) * (1.0 - t * t))
    }),
    both_signs
);

simd! {
    fn times(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y *= x;
        }
    }
}
simd! {
    /// From the sigmoid of `x` in `dx`.
    fn silu_slope(x: &[f32], d: &[f32], dx: &mut [f32]) {
        for ((s, &x), &d) in dx.iter_mut().zip(x).zip(d) {
            *s = d * *s * (1.0 + x * (1.0 - *s));
        }
    }
}

static SILU: [OpDef; 2] = unary!(
    "silu",
    "silu_grad",
    [],
    "X",
    |x, p, y| {
        k::sigmoid(x, y);
        times(x, p, y);
    },
    |x, d, _, dx| {
        k::sigmoid(x, dx);
        silu_slope(x, d, dx);
    },
    both_signs
);
static HARDSWISH: [OpDef; 2] = unary!(
    "hardswish",
    "hardswish_grad",
    [],
    "X",
    |x, _, y| map(x, y, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
    |x, d, _, dx| map_back(x, d, dx, |x, d| {
        if x <= -3.0 {
            0.0
        } else if x >= 3.0 {
            d
        } else {
            d * (2.0 * x + 3.0) / 6.0
        }
    }),
    corners
);
static HARDSIGMOID: [OpDef; 2] = unary!(
    "hardsigmoid",
    "hardsigmoid_grad",
    ["slope" = 1.0 / 6.0, "offset" = 0.5],
    "X",
    |x, p, y| map(x, y, |x| (p[0] * x + p[1]).clamp(0.0, 1.0)),
    |x, d, p, dx| map_back(x, d, dx, |x, d| {
        let y = p[0] * x + p[1];
        if y > 0.0 && y < 1.0 { d * p[0] } else { 0.0 }
    }),
    corners
);
static SOFTSHRINK: [OpDef; 2] = unary!(
    "softshrink",
    "softshrink_grad",
    ["threshold" = 0.5],
    "X",
    |x, p, y| map(x, y, |x| if x.abs() > p[0] { x - p[0] * x.signum() } else { 0.0 }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| if x.abs() > p[0] { d } else { 0.0 }),
    corners
);
static HARDSHRINK: [OpDef; 2] = unary!(
    "hardshrink",
    "hardshrink_grad",
    ["threshold" = 0.5],
    "X",
    |x, p, y| map(x, y, |x| if x.abs() > p[0] { x } else { 0.0 }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| if x.abs() > p[0] { d } else { 0.0 }),
    corners
);
static THRESHOLDED_RELU: [OpDef; 2] = unary!(
    "thresholded_relu",
    "thresholded_relu_grad",
    ["threshold" = 1.0],
    "X",
    |x, p, y| map(x, y, |x| if x > p[0] { x } else { 0.0 }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| if x > p[0] { d } else { 0.0 }),
    corners
);
static LOGSIGMOID: [OpDef; 2] = unary!(
    "logsigmoid",
    "logsigmoid_grad",
    [],
    "X",
    |x, _, y| map(x, y, |x| -softplus(-x)),
    |x, d, _, dx| map_back(x, d, dx, |x, d| d * sigmoid(-x)),
    both_signs
);
static TANHSHRINK: [OpDef; 2] = unary!(
    "tanhshrink",
    "tanhshrink_grad",
    [],
    "X",
    |x, _, y| map(x, y, |x| x - x.tanh()),
    |x, d, _, dx| map_back(x, d, dx, |x, d| d * x.tanh().powi(2)),
    both_signs
);
