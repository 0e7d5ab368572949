//! Elementary functions beyond those of `unary.rs`: the trigonometric and hyperbolic ones and their
//! inverses, `erf`, `expm1`, `log2`, `log10`, `reciprocal`, `logit`, and the functions of steps
//! `ceil`, `round` (halves away from 0) and `trunc`.

use super::function::{map, map_back, unary};
use super::unary::{both_signs, no_slope, positive};
use crate::def::spread;
use crate::{OpDef, Sample};

/// Their definitions.
pub(super) static DEFS: [&[OpDef; 2]; 20] = [
    &SIN,
    &COS,
    &TAN,
    &ASIN,
    &ACOS,
    &ATAN,
    &SINH,
    &COSH,
    &ASINH,
    &ACOSH,
    &ATANH,
    &ERF,
    &EXPM1,
    &LOG2,
    &LOG10,
    &RECIPROCAL,
    &LOGIT,
    &CEIL,
    &ROUND,
    &TRUNC,
];

fn within_one() -> Vec<Sample> {
    vec![Sample::x("within one", spread(&[3, 5], -0.8, 0.8))]
}

fn above_one() -> Vec<Sample> {
    vec![Sample::x("above one", spread(&[3, 5], 1.3, 3.0))]
}

fn between_steps() -> Vec<Sample> {
    vec![Sample::x("between steps", spread(&[3, 5], 1.1, 1.4))]
}

/// Kind, function, and its slope at `$x`.
macro_rules! of_x {
    ($kind:literal, $grad:literal, $f:expr, |$x:ident| $slope:expr, $samples:expr) => {
        unary!(
            $kind,
            $grad,
            [],
            "X",
            |x, _, y| map(x, y, $f),
            |x, d, _, dx| map_back(x, d, dx, |$x, d| d * $slope),
            $samples
        )
    };
}

/// Kind and function, which has steps only.
macro_rules! of_steps {
    ($kind:literal, $grad:literal, $f:expr) => {
        unary!(
            $kind,
            $grad,
            [],
            "X",
            |x, _, y| map(x, y, $f),
            no_slope,
            between_steps,
            ints | x,
            _ | x
        )
    };
}

static SIN: [OpDef; 2] = of_x!("sin", "sin_grad", f32::sin, |x| x.cos(), both_signs);
static COS: [OpDef; 2] = of_x!("cos", "cos_grad", f32::cos, |x| -x.sin(), both_signs);
static TAN: [OpDef; 2] = of_x!("tan", "tan_grad", f32::tan, |x| 1.0 / x.cos().powi(2), within_one);
static ASIN: [OpDef; 2] =
    of_x!("asin", "asin_grad", f32::asin, |x| 1.0 / (1.0 - x * x).sqrt(), within_one);
static ACOS: [OpDef; 2] =
    of_x!("acos", "acos_grad", f32::acos, |x| -1.0 / (1.0 - x * x).sqrt(), within_one);
static ATAN: [OpDef; 2] =
    of_x!("atan", "atan_grad", f32::atan, |x| 1.0 / (1.0 + x * x), both_signs);
static SINH: [OpDef; 2] = of_x!("sinh", "sinh_grad", f32::sinh, |x| x.cosh(), both_signs);
static COSH: [OpDef; 2] = of_x!("cosh", "cosh_grad", f32::cosh, |x| x.sinh(), both_signs);
static ASINH: [OpDef; 2] =
    of_x!("asinh", "asinh_grad", f32::asinh, |x| 1.0 / (1.0 + x * x).sqrt(), both_signs);
static ACOSH: [OpDef; 2] =
    of_x!("acosh", "acosh_grad", f32::acosh, |x| 1.0 / (x * x - 1.0).sqrt(), above_one);
static ATANH: [OpDef; 2] =
    of_x!("atanh", "atanh_grad", f32::atanh, |x| 1.0 / (1.0 - x * x), within_one);
static ERF: [OpDef; 2] = of_x!(
    "erf",
    "erf_grad",
    erf,
    |x| std::f32::consts::FRAC_2_SQRT_PI * (-x * x).exp(),
    both_signs
);
static EXPM1: [OpDef; 2] = of_x!("expm1", "expm1_grad", f32::exp_m1, |x| x.exp(), both_signs);
static LOG2: [OpDef; 2] =
    of_x!("log2", "log2_grad", f32::log2, |x| std::f32::consts::LOG2_E / x, positive);
static LOG10: [OpDef; 2] =
    of_x!("log10", "log10_grad", f32::log10, |x| std::f32::consts::LOG10_E / x, positive);
static RECIPROCAL: [OpDef; 2] = unary!(
    "reciprocal",
    "reciprocal_grad",
    [],
    "Out",
    |x, _, y| map(x, y, |x| 1.0 / x),
    |y, d, _, dx| map_back(y, d, dx, |y, d| -d * y * y),
    positive
);
static CEIL: [OpDef; 2] = of_steps!("ceil", "ceil_grad", f32::ceil);
static ROUND: [OpDef; 2] = of_steps!("round", "round_grad", f32::round);
static TRUNC: [OpDef; 2] = of_steps!("trunc", "trunc_grad", f32::trunc);

/// With `eps` above 0, probabilities are first brought into `[eps, 1 - eps]`.
static LOGIT: [OpDef; 2] = unary!(
    "logit",
    "logit_grad",
    ["eps" = 0.0],
    "X",
    |x, p, y| map(x, y, |x| {
        let x = if p[0] > 0.0 { x.clamp(p[0], 1.0 - p[0]) } else { x };
        (x / (1.0 - x)).ln()
    }),
    |x, d, p, dx| map_back(x, d, dx, |x, d| {
        let outside = p[0] > 0.0 && (x < p[0] || x > 1.0 - p[0]);
        if outside { 0.0 } else { d / (x * (1.0 - x)) }
    }),
    || vec![
        Sample::x("probabilities", spread(&[3, 5], 0.2, 0.8)),
        Sample::x("some clipped", spread(&[3, 5], 0.1, 0.9)).attr("eps", 0.25),
    ]
);

/// The error function, to the last digit of a float: all terms of the sum have one sign.
fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    if x.is_nan() {
        return f32::NAN;
    }
    if x.abs() > 4.0 {
        return x.signum() as f32;
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-9 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    (std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_function() {
        let known = [(0.0, 0.0), (0.5, 0.520_499_9), (1.0, 0.842_700_8), (-2.0, -0.995_322_3)];
        for (x, want) in known {
            assert!((erf(x) - want).abs() < 1e-7, "{x}: {}", erf(x));
        }
        assert_eq!((erf(4.5), erf(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!((erf(1e-6) - 1.128_379_2e-6).abs() < 1e-12);
    }
}
