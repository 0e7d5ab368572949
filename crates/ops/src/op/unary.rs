//! Functions of one element: `relu`, `tanh`, `sigmoid`, ... and their gradients.
//!
//! Each entry of the table gives the function, its derivative as a factor of `dOut`, and whether
//! that derivative is a function of the input or of the output. Some take signed integers too.
//! `activation.rs` and `elementary.rs` hold further ones.

use regatta_kernels::{backward, simd, unary as k};

use super::function::{Params, unary};
use super::{activation, elementary};
use crate::def::spread;
use crate::{OpDef, Sample};

simd! {
    fn leaky_relu(x: &[f32], p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = if x > 0.0 { x } else { p[0] * x };
        }
    }
}
simd! {
    fn leaky_relu_grad(x: &[f32], d: &[f32], p: Params, dx: &mut [f32]) {
        for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
            *dx = if x > 0.0 { d } else { p[0] * d };
        }
    }
}
simd! {
    fn log_grad(x: &[f32], d: &[f32], _p: Params, dx: &mut [f32]) {
        for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
            *dx = d / x;
        }
    }
}
simd! {
    fn multiply(y: &[f32], d: &[f32], _p: Params, dx: &mut [f32]) {
        for ((dx, &y), &d) in dx.iter_mut().zip(y).zip(d) {
            *dx = d * y;
        }
    }
}
simd! {
    fn sqrt(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x.sqrt();
        }
    }
}
simd! {
    fn sqrt_grad(y: &[f32], d: &[f32], _p: Params, dx: &mut [f32]) {
        for ((dx, &y), &d) in dx.iter_mut().zip(y).zip(d) {
            *dx = d * 0.5 / y;
        }
    }
}
simd! {
    fn square(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * x;
        }
    }
}
simd! {
    fn square_grad(x: &[f32], d: &[f32], _p: Params, dx: &mut [f32]) {
        for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
            *dx = d * 2.0 * x;
        }
    }
}
simd! {
    fn abs(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x.abs();
        }
    }
}
simd! {
    fn abs_grad(x: &[f32], d: &[f32], _p: Params, dx: &mut [f32]) {
        for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
            *dx = if x > 0.0 { d } else if x < 0.0 { -d } else { 0.0 };
        }
    }
}
simd! {
    fn clip(x: &[f32], p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            // Written so that NaN passes through and is not hidden by the bounds.
            *y = if x < p[0] { p[0] } else if x > p[1] { p[1] } else { x };
        }
    }
}
simd! {
    fn clip_grad(x: &[f32], d: &[f32], p: Params, dx: &mut [f32]) {
        for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
            // At a bound nothing passes, as in Paddle; NaN is not hidden.
            *dx = if x <= p[0] || x >= p[1] { 0.0 } else { d };
        }
    }
}

simd! {
    fn rsqrt(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = 1.0 / x.sqrt();
        }
    }
}
simd! {
    fn rsqrt_grad(y: &[f32], d: &[f32], _p: Params, dx: &mut [f32]) {
        for ((dx, &y), &d) in dx.iter_mut().zip(y).zip(d) {
            *dx = d * -0.5 * y * y * y;
        }
    }
}
simd! {
    fn softsign(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x / (1.0 + x.abs());
        }
    }
}
simd! {
    fn softsign_grad(x: &[f32], d: &[f32], _p: Params, dx: &mut [f32]) {
        for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
            let under = 1.0 + x.abs();
            *dx = d / (under * under);
        }
    }
}
simd! {
    fn sign(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            // 0 and NaN stay what they are.
            *y = if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x };
        }
    }
}
simd! {
    fn floor(x: &[f32], _p: Params, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x.floor();
        }
    }
}

fn log1p(x: &[f32], _: Params, y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x.ln_1p();
    }
}

fn log1p_grad(x: &[f32], d: &[f32], _: Params, dx: &mut [f32]) {
    for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
        *dx = d / (1.0 + x);
    }
}

/// The gradient of a function of steps.
pub(super) fn no_slope(_: &[f32], _: &[f32], _: Params, dx: &mut [f32]) {
    dx.fill(0.0);
}

fn pow(x: &[f32], p: Params, y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x.powf(p[0]);
    }
}

fn pow_grad(x: &[f32], d: &[f32], p: Params, dx: &mut [f32]) {
    for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
        *dx = d * p[0] * x.powf(p[0] - 1.0);
    }
}

pub(super) fn both_signs() -> Vec<Sample> {
    vec![Sample::x("both signs", spread(&[3, 5], -2.0, 2.0))]
}

pub(super) fn positive() -> Vec<Sample> {
    vec![Sample::x("positive", spread(&[3, 5], 0.5, 2.0))]
}

static RELU: [OpDef; 2] = unary!(
    "relu",
    "relu_grad",
    [],
    "Out",
    |x, _, y| k::relu(x, y),
    |y, d, _, dx| backward::relu_backward(y, d, dx),
    both_signs,
    ints | x,
    _ | x.max(0)
);
static TANH: [OpDef; 2] = unary!(
    "tanh",
    "tanh_grad",
    [],
    "Out",
    |x, _, y| k::tanh(x, y),
    |y, d, _, dx| backward::tanh_backward(y, d, dx),
    both_signs
);
static SIGMOID: [OpDef; 2] = unary!(
    "sigmoid",
    "sigmoid_grad",
    [],
    "Out",
    |x, _, y| k::sigmoid(x, y),
    |y, d, _, dx| backward::sigmoid_backward(y, d, dx),
    both_signs
);
static GELU: [OpDef; 2] = unary!(
    "gelu",
    "gelu_grad",
    [],
    "X",
    |x, _, y| k::gelu(x, y),
    |x, d, _, dx| backward::gelu_backward(x, d, dx),
    both_signs
);
static LEAKY_RELU: [OpDef; 2] = unary!(
    "leaky_relu",
    "leaky_relu_grad",
    ["alpha" = 0.02],
    "X",
    leaky_relu,
    leaky_relu_grad,
    both_signs
);
static LOG: [OpDef; 2] =
    unary!("log", "log_grad", [], "X", |x, _, y| k::log(x, y), log_grad, positive);
static EXP: [OpDef; 2] =
    unary!("exp", "exp_grad", [], "Out", |x, _, y| k::exp(x, y), multiply, both_signs);
static SQRT: [OpDef; 2] = unary!("sqrt", "sqrt_grad", [], "Out", sqrt, sqrt_grad, positive);
static SQUARE: [OpDef; 2] = unary!(
    "square",
    "square_grad",
    [],
    "X",
    square,
    square_grad,
    both_signs,
    ints | x,
    _ | x.wrapping_mul(x)
);
static ABS: [OpDef; 2] =
    unary!("abs", "abs_grad", [], "X", abs, abs_grad, both_signs, ints | x, _ | x.wrapping_abs());
static CLIP: [OpDef; 2] = unary!(
    "clip",
    "clip_grad",
    ["min" = f64::NEG_INFINITY, "max" = f64::INFINITY],
    "X",
    clip,
    clip_grad,
    || vec![
        Sample::x("some clipped", spread(&[3, 5], -2.0, 2.0)).attr("min", -1.0).attr("max", 0.7)
    ],
    // Bounds beyond the integers become their ends.
    ints | x,
    p | x.max(p[0].ceil() as i64).min(p[1].floor() as i64)
);
static POW: [OpDef; 2] = unary!("pow", "pow_grad", ["factor" = 1.0], "X", pow, pow_grad, || vec![
    Sample::x("cubic root of cubes", spread(&[3, 5], 0.5, 2.0)).attr("factor", 1.7)
]);

static RSQRT: [OpDef; 2] = unary!("rsqrt", "rsqrt_grad", [], "Out", rsqrt, rsqrt_grad, positive);
static LOG1P: [OpDef; 2] = unary!("log1p", "log1p_grad", [], "X", log1p, log1p_grad, positive);
static SOFTSIGN: [OpDef; 2] =
    unary!("softsign", "softsign_grad", [], "X", softsign, softsign_grad, both_signs);
static SIGN: [OpDef; 2] =
    unary!("sign", "sign_grad", [], "X", sign, no_slope, positive, ints | x, _ | x.signum());
static FLOOR: [OpDef; 2] =
    unary!("floor", "floor_grad", [], "X", floor, no_slope, || vec![Sample::x(
        "between steps",
        spread(&[3, 5], 1.2, 1.8)
    )]);

/// All functions of one element.
pub(crate) fn defs() -> impl Iterator<Item = &'static OpDef> {
    [
        &RELU,
        &TANH,
        &SIGMOID,
        &GELU,
        &LEAKY_RELU,
        &LOG,
        &EXP,
        &SQRT,
        &SQUARE,
        &ABS,
        &CLIP,
        &POW,
        &RSQRT,
        &LOG1P,
        &SOFTSIGN,
        &SIGN,
        &FLOOR,
    ]
    .into_iter()
    .chain(activation::DEFS)
    .chain(elementary::DEFS)
    .flatten()
}
